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
// process. So does a fixed request that joined a hold of its own client on a majority (UnlockAfter
// and OncePer of package dlock).
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
// request. What dlock keeps besides is in keys of its own, in the same slot of a Cluster.
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
//   - Kinds: exclusive locks only. No other client can join a hold. Three majorities can overlap in
//     pairs without a master that knows of all three, so no master could keep a limit.
//   - Clocks: a master whose wall clock jumps expires holds too early or too late. A hold may then
//     be left on fewer masters than a majority, and a second holder is let in.
//   - Restarts: a master that comes back without its data has forgotten its votes, and votes again.
//     With a hold on A, B and C of five, C forgets, and C, D and E are a majority for another
//     client. Keep a master that lost its data (or may have: anything but appendfsync always) down
//     for longer than the longest TTL, or set min_uptime to that. The master itself then refuses
//     new holds until it has been up for that long; this needs the right to run INFO.
//   - Versions: clients whose formats differ cannot share a prefix. See Protocol.
//   - Repair: a hold stays on the masters that granted it. One that was down then does not get it
//     later, since a renewal never creates anything.
//
// # Protocol
//
// Each master has three kinds of keys for a name: the holder; a tombstone for each request that was
// abandoned while a copy of it may have been under way; and what joined the holder. lua/own.lua and
// lua/joined.lua have all of them. The holder begins with the format of what is kept. A script that
// finds another format fails, and changes nothing.
//
// With format=setnx the key of the holder is the peers', and has its ID alone. A fourth key, beside
// it, has the rest of what dlock keeps of its holder, and expires with it. It counts only while the
// ID in it is the value of the first key. lua/setnx.lua has both. All steps are the same: the
// scripts read and write a holder by the functions of these two files.
//
// A script is atomic. On one master a request is in one of these states:
//
//	absent ── acquire ──► stands ── release, expiry, break by force ──► absent
//
// and a fixed request that joined it in one of these:
//
//	absent ── join ──► beside ── the holder is released ──► the holder
//	                      └── release, its time, a break ──► absent ◄──┘
//
// The key of the holder expires with the last of these requests. So if the client of the holder
// died and the holder's own time has ended, the key stays for as long as the requests that joined
// it, without any further step.
//
// What the scripts do:
//
//   - acquire: creates the holder if there is none. If the same request is the holder already, its
//     TTL begins again.
//   - join: a fixed request joins the holder of its own client. It is kept for its TTL to the
//     millisecond: no client trusts it, so it needs no allowance for drift.
//   - renew: the TTL of the request begins again, if it is there. Renew never creates anything, and
//     shortens no request that joined the holder.
//   - release: deletes the request, and leaves a tombstone if a copy of its acquire may be under
//     way. If it was the holder and others joined it, the one that ends last takes its place.
//   - break: marks the holder, so that it cannot be renewed; by force, deletes it and leaves a
//     tombstone. The requests that joined it end. A request may have taken the holder's place on
//     some masters only: a break of that request breaks the earlier holder on the others. Before
//     all this, the master publishes the holder's ID on the channel of its client, which is
//     subscribed on each master from its first request on. Once no majority can be left that has
//     the request, the client knows that it is lost.
//
// The client asks all masters at once and returns when the outcome is certain: a majority granted,
// none can grant any more, or the time is over. What happens when something is lost, repeated or
// late:
//
//   - A reply is lost: acquire, renew and break may be sent again. Release sent again finds
//     nothing. That is success if the client sent a copy before and the hold cannot have expired
//     yet.
//   - A grant arrives after the call returned: it is released on that master.
//   - A copy of an acquire is late: wherever the outcome was unknown, the release leaves a
//     tombstone for a TTL, under which the copy creates nothing.
//   - A join without a majority has an unknown outcome: it is released wherever it may stand, with
//     a tombstone, and the hold is as it was. A join that arrives after the release of its holder
//     finds that the holder is gone. Some masters may execute only one of a join and its holder's
//     release: there the holder stands until the join's time, or nothing does.
//   - A publication does not arrive: the holder learns of the break at its next renewal. When a
//     subscription stands again, the client asks that master about its requests.
//   - A release does not reach a master: it is sent again, in the background, until the master
//     answers or the hold must have expired.
//   - With format=setnx, a peer takes the key after the hold has expired on a master: the release
//     and the renewal that arrive then find another value, and change nothing there.
//   - The key beside the holder's is lost: its client still holds, renews and releases, since the
//     holder's key has its ID. Others see a peer. A break without force is forgotten.
//   - The slot of the keys moves in a Cluster, and some are elsewhere (TRYAGAIN): the call was not
//     executed, and is sent again until the time is over.
//   - A key holds something else, or has another format: the master counts as one that did not
//     answer, the error names the key, and nothing is changed.
package redlock
