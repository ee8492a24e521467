// Package redlock is the driver for Redlock: a lock on several independent Redis or Valkey masters.
// A request that has the lock on a majority of them holds it.
//
//	import _ "github.com/dlock-go/dlock/driver/redis/redlock"
//
//	client, err := dlock.Open(ctx, "redlock://a:6379,b:6379,c:6379/0?ttl=30s")
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	lease, err := client.Mutex("orders/42").Lock(ctx)
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// It promises less than package redis does on one server. See Limits.
//
// # URL
//
//	redlock://USER:PASSWORD@HOST:PORT,HOST:PORT,HOST:PORT/DB?PARAMETERS
//
// The scheme redlocks is the same over TLS, which always verifies the server. There are at least
// three masters, all different. The user, the password and the database are the same on all. The
// default port is 6379, the default database 0. The parameters:
//
//   - node_timeout (250ms): how long one master has to answer. It is never more than a tenth of the
//     TTL.
//   - retry_delay (50ms): the pause before a waiter retries, give or take half of it. It is shorter
//     if the holder expires before.
//   - min_uptime (0): masters that have been up for less refuse new holds. 0: no limit. See
//     Restarts in Limits.
//   - format (dlock's own): setnx shares the locks with other software; see below.
//   - key (required with format): the key of each lock, with {name} once in place of the name.
//   - pool_size (the client library's): the maximum number of connections to each master.
//   - tls_ca, tls_cert, tls_key, tls_server_name (redlocks only): files in PEM form with the
//     certificates that are trusted in place of the system's, the client's own certificate and its
//     key; and the name to verify in place of the host's.
//   - ttl, prefix, label, identity: those of every driver; see package dlock.
//
// [New] takes clients that the caller owns.
//
// # Guarantees
//
// A majority is more than half: 2 of 3, 3 of 5; also 3 of 4, so that an even number survives no
// more losses than the odd one below it. As long as a majority answers, the others may be down,
// hang or be slow. Without a majority, calls fail in time, with an error that names the masters
// that did not answer, and that is not ErrHeld.
//
// A hold is good for its TTL from the instant before the first master was asked. So the time that
// the majority took to answer counts against it. The description of the algorithm (redis.io,
// "Distributed Locks with Redis") has MIN_VALIDITY = TTL − (T2 − T1) − CLOCK_DRIFT, and its
// implementations use a drift of a hundredth, for clocks that run at different rates, and 2 ms, for
// expiry in whole milliseconds. Here the client does not subtract the drift. Instead the masters
// keep the hold for a hundredth and 3 ms longer. Package dlock subtracts its own margin from the
// TTL, as for every driver.
//
// A fixed lease, once granted, lasts for its full time, even after Close and the death of its
// process. So does a fixed request that joined a hold on a majority (UnlockAfter and OncePer of
// package dlock).
//
// There are read-write locks, and a hold can be joined by other clients. A writer's majority meets
// the majority of each reader in a master, which has one or the other. So that a reader and a
// writer never hold together is as certain as that two writers do not.
//
// A holder learns at once that its hold was broken, if its user may subscribe and the operator's
// may publish; otherwise at its next renewal.
//
// # Other software
//
// Much software locks by SET key value NX PX, and releases with a script that deletes the key if it
// has that value: redsync, redislock, redis-py, Spring Integration, ShedLock. With format=setnx,
// and with the option Key of [New], dlock's clients take the same keys, so both exclude each other.
// In the following, such software is a peer. One master is enough then: package redis opens it by
// its URLs, and New takes a client of one server, of Sentinel or of a Cluster. A single master has
// three seconds to answer, or a third of the TTL. The key of the user has only the ID of the
// request. What dlock keeps besides is in a key of its own, in the same slot of a Cluster. Readers
// of dlock, and requests that join a hold, share the key: to peers it is held all along, and its
// value changes.
//
// Any value of the key that is not dlock's is a peer's hold. It is reported as it is, with the time
// that is left to it, and is never changed, extended or deleted; Break of it is refused. A hold of
// dlock whose key has expired and has a peer's value is lost. A name is refused if its key begins
// with dlock: or, in a Cluster, if no key of dlock can be in its slot. A key that is no string is
// refused too.
//
// The lock is as strong as its weakest partner. A peer that deletes without comparing, or that
// works on after its expiry, lets a second holder in.
//
// # Limits
//
//   - Order: waiters do not queue, they retry, in no order. Rivals may split the votes, so that for
//     a moment each sees the lock as held while none has it.
//   - Tokens: there are none, since masters that do not know of each other cannot count together.
//   - Writers may starve: readers are admitted as long as others are in, since nothing waits in a
//     queue ahead of them.
//   - Semaphores: there are none. Three majorities can overlap in pairs without a master that knows
//     of all three, so no master could keep a limit.
//   - Breaks: without tokens nothing tells several readers apart. A break ends the holds of all.
//   - Members: a master reads and writes all requests that hold a lock together in each step, some
//     150 bytes each. That is meant for tens of readers, not for thousands.
//   - Clocks: a master whose wall clock jumps expires holds too early or too late. A hold may then
//     be left on fewer masters than a majority, and a second holder is let in.
//   - Restarts: a master that comes back without its data has forgotten its votes, and votes again.
//     With a hold on A, B and C of five, C forgets, and C, D and E are a majority for another
//     client. Keep a master that lost its data (or may have: anything but appendfsync always) down
//     for longer than the longest TTL, or set min_uptime to that. The master itself then refuses
//     new holds until it has been up for that long; this needs the right to run INFO.
//   - Versions: clients whose formats differ cannot share a prefix. See Protocol.
//   - Repair: a hold stays on the masters that granted it. One that was down then does not get it
//     later, since a renewal never creates anything. Only those masters can grant a join, of which
//     a majority has to answer.
//
// # Protocol
//
// The requests that hold a lock together are its members: one that began a hold, those that joined
// it, and, if all of them are shared, those of other holds. Each master has two kinds of keys for a
// name: the members, and a tombstone for each request that was abandoned while a copy of it may
// have been under way. lua/begin.lua has them. The members begin with the format of what is kept. A
// script that finds another format fails, and changes nothing.
//
// With format=setnx the key of the lock is the peers', and has the ID of one member alone, the
// first. A key beside it has the members. It counts only while the ID of the first is the value of
// the first key. lua/setnx.lua has both. All steps are the same: the scripts read and write the
// members by the functions of lua/own.lua or lua/setnx.lua.
//
// A script is atomic. On one master a request is in one of these states:
//
//	absent ── acquire ──► member ── release, expiry, break by force ──► absent
//
// Each member has a TTL of its own, which only its own steps begin anew. The keys expire with the
// last of the members. When the first one leaves, the member that ends last becomes the first, in
// the same step. So if a client died and its member has expired, the lock stays held for as long as
// others hold it, without any further step.
//
// What the scripts do:
//
//   - acquire: adds a member, by the rule of [driver.Queue] for holders. A request that began a
//     hold is admitted if there is no member, or if it is shared and so are all members. A join is
//     admitted if members of its owner are there, of which one is exclusive or the join is shared;
//     the one that began the hold may be gone. If the same request is a member already, its TTL
//     begins again. No member ever excludes another one on the same master.
//   - renew: the TTL of the member begins again, if it is there. Renew never creates anything, and
//     changes no other member.
//   - release: removes the member, and leaves a tombstone if a copy of its acquire may be under
//     way. The lock is free when the last one has left.
//   - break: marks the members of a hold, so that they can be neither renewed nor joined; by force,
//     removes them and leaves a tombstone for the request that began the hold. Before that, the
//     master publishes the ID of each on the channel of its client, which is subscribed on each
//     master from its first request on. Once no majority can be left that has the request, the
//     client knows that it is lost.
//
// A TTL is kept for a hundredth and 3 ms longer, but that of a fixed join for a millisecond longer:
// it may be what UnlockAfter or OncePer leaves of a hold, which is not to last longer. A fixed
// lease that joined a hold has package dlock's own margin for the drift of clocks, as on other
// backends.
//
// The client asks all masters at once and returns when the outcome is certain: a majority granted,
// none can grant any more, or the time is over. Each request is counted by itself:
//
//   - A request on a minority does not hold, and Inspect does not show it. It may keep a rival from
//     a majority until it is released or expires, as any split vote. A reader on a minority does
//     not excuse a writer: that one needs a majority of masters that have no reader at all.
//   - A join is granted by masters that have its hold. If fewer than a majority have it, the join
//     is lost. If two requests of a hold stand on different masters, both count for a join: no
//     rival can have had a majority in between.
//   - Masters may disagree on the order of the members, and so on the first one, which peers see.
//     Only which members are there matters.
//   - A break that reached a majority leaves no member of the hold on a majority, whichever masters
//     have it: all are lost, and a join of the hold finds no majority either.
//
// What happens when something is lost, repeated or late:
//
//   - A reply is lost: acquire, renew and break may be sent again. Release sent again finds
//     nothing. That is success if the client sent a copy before and the hold cannot have expired
//     yet.
//   - A grant arrives after the call returned: it is released on that master.
//   - A copy of an acquire is late: wherever the outcome was unknown, the release leaves a
//     tombstone for a TTL, under which the copy creates nothing. A copy of a request that has
//     expired while joins of its hold still stand is refused.
//   - A copy of a renewal or a release is late: it finds that its member is gone, whatever other
//     members there are.
//   - A join without a majority has an unknown outcome: it is released wherever it may stand, with
//     a tombstone, and the hold is as it was. A join that arrives after the end of its hold finds
//     that the hold is gone. Some masters may execute only one of a join and its owner's release:
//     there the owner stands until it is released again or expires, or nothing does.
//   - A publication does not arrive: the holder learns of the break at its next renewal. When a
//     subscription stands again, the client asks that master about its requests.
//   - A release does not reach a master: it is sent again, in the background, until the master
//     answers or the request must have expired.
//   - With format=setnx, a peer takes the key after the members have expired on a master: the
//     releases and renewals that arrive then find another value, and change nothing there.
//   - The key beside is lost, as by eviction: only the first member is known then, by the value of
//     the key. It still renews and releases, and nothing joins it; the others are lost, which they
//     learn at their next renewal. Since they may trust their holds until then, the first member's
//     release does not delete the key: it gives it a value that is no request's, and leaves it to
//     its expiry. Everything but its own calls takes the key for a peer's. A break without
//     force is forgotten.
//   - The key of the lock is lost: nothing holds any more on that master, whatever stands beside.
//   - The slot of the keys moves in a Cluster, and some are not on the node (TRYAGAIN): the call
//     was not executed, and is sent again until nearly all of its time is over, so that its error
//     says that the slot moves. Renewals, releases and Inspect name no tombstone that they do not
//     need. So they find all of their keys on one node, except for the moment between the moves of
//     two keys. Nothing is granted until the slot has moved.
//   - A key holds something else, or has another format: the master counts as one that did not
//     answer, the error names the key, and nothing is changed.
package redlock
