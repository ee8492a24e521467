// Package redis is the driver for Redis and Valkey: one server, Sentinel, Cluster.
//
//	import _ "github.com/dlock-go/dlock/driver/redis"
//
//	client, err := dlock.Open(ctx, "redis://localhost:6379/0?ttl=30s")
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
// Package redlock, in a subfolder of this one, is the driver for a majority of independent masters.
//
// # URL
//
//	redis://USER:PASSWORD@HOST:PORT/DB?PARAMETERS                 one server
//	redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB  the master that Sentinel names
//	redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT             a Cluster
//
// The schemes rediss, rediss+sentinel and rediss+cluster are the same over TLS, which always
// verifies the server. The default port is 6379, for Sentinel 26379; the default database is 0. The
// parameters:
//
//   - grant_window (3s): how long the client of a waiter may be silent before its next grant has to
//     be confirmed, and how long it then has to confirm it. See Protocol. At least 10ms.
//   - keep_tokens (10m): how long the last token of a name is remembered after the name's last use.
//     It must be the same for all clients of a prefix.
//   - wait_replicas (0): how many replicas must have a grant before it counts.
//   - dial_timeout (5s), read_timeout (3s), write_timeout (3s): timeouts of a connection.
//   - pool_size (the client library's): the maximum number of connections.
//   - sentinel_username, sentinel_password (none; redis+sentinel only): credentials for the
//     sentinels.
//   - tls_ca, tls_cert, tls_key, tls_server_name (TLS only): files in PEM form with the
//     certificates that are trusted in place of the system's, the client's own certificate and its
//     key; and the name to verify in place of the host's.
//   - format, key: how the locks are kept, if not in dlock's own way; see Other software.
//   - ttl, prefix, label, identity: those of every driver; see package dlock.
//
// [New] takes a client that the caller owns.
//
// # Other software
//
// With the parameter format a URL opens a backend that has its locks in the way of other software,
// so that both exclude each other: setnx is SET key value NX PX (redsync, redis-py, Spring
// Integration and others), redisson the RLock of Redisson. Such a backend has fewer capabilities,
// and neither grant_window nor keep_tokens nor wait_replicas. Package redlock has the protocol of
// setnx, and package redisson its own, and both are for clients that the caller owns too. The rest
// of this comment is about dlock's own format.
//
// # Guarantees
//
// On one server, all that package dlock promises: order of arrival, fencing tokens, read-write
// locks, semaphores, joins, Break, Inspect, List. Requests expire by the server's clock. A fixed
// lease, once granted, lasts for its full time, even after Close and the death of its process.
//
// A token is max(last + 1, the server's clock in µs). It grows even after all data of the name is
// gone, unless the clock is set back by more than the time for which the last token is remembered.
// A token can be raised ([driver.Raiser]), up to 8e15. If that is above the clock, tokens go on
// from there for as long as the last one is remembered.
//
// # Limits
//
//   - Failover: a promoted replica may lack the last grants. Then a second holder is let in.
//     wait_replicas narrows the window and does not close it.
//   - Loss of data: a server that restarts empty has forgotten its holds. Their clients learn of it
//     at the next renewal.
//   - Clock: if the server's clock jumps ahead, holds end early. If it is set back by more than
//     keep_tokens while a name is not in use, tokens of that name may repeat.
//   - Versions: clients whose formats differ cannot share a prefix. See Protocol.
//
// # Protocol
//
// The lock of a name is a hash, dlock:PREFIX{NAME}. It has the request that holds alone, the last
// token, and the time since when there is a second key. That key is a sorted set,
// dlock:PREFIX{NAME}:queue. It exists only while there is more to record: waiters, holders that
// share, joins, tombstones. Its scores are all 0, so its members are in the order of their bytes
// and can be looked up by how they begin. Some members are indexes, by order of arrival and by
// expiry. lua/begin.lua has the fields and lua/queue.lua the members. In NAME and PREFIX only %, {
// and } are percent-encoded, so that they stay readable.
//
// Both keys expire. They outlive the last TTL under the name by the time for which the last token
// is remembered, and by up to a quarter more, since not every call sets the expiry anew. The field
// kept has the time until which they are kept. If a request that was alone is released, and its TTL
// is longer than the time for which tokens are remembered, its release counts instead.
//
// The hash decides: a set counts only if the hash has the time at which the set was begun. Any
// other set is removed by the next request that needs one. A holder that is alone, whatever its
// mode, is in the hash; when a second one shares the lock with it, both are in the set.
//
// The field format is the version of everything kept under the name, FORMAT in lua/clock.lua. Every
// script that has the hash reads it first. If it is not the client's own, the call fails with an
// error that says so and matches [driver.ErrUnsupported], and changes nothing.
//
// Calls that are waiting for a connection to a server are sent together. Those of one script become
// one command, lua/many.lua, which runs the script for one name after the other. A single call does
// not wait for others. In a Cluster, where names are in different slots, calls share pipelines.
//
// A script is atomic, and reads the server's clock once. Unless the request is alone, or arrives at
// a free lock, the script removes the holders that have expired, and up to a hundred expired
// waiters. Then it grants the next requests by the rule of [driver.Queue]. A request is in one of
// these states:
//
//	unknown ─ acquire ─► holding ◄─ confirm ─ granted ◄─ its turn ─ waiting ◄─ acquire ─ unknown
//	                        │                    │                    │
//	                        └───────────── release, expiry ───────────┘
//
// The transitions:
//
//   - acquire: the request holds at once if the rule says so; otherwise it waits, if asked to. The
//     same script resumes: a waiting request is kept alive in its place, and a granted one is
//     confirmed. A request that is gone (it missed the window, or the server restarted empty)
//     arrives anew, at the end of the queue. If its client had seen a grant, it is lost instead.
//   - its turn, in whichever script it comes: the server grants the waiter. It publishes the
//     waiter's ID, its place, its token and the time for which it holds on the channel of its
//     client. If the client's last acquire for the waiter came within the grant window, the waiter
//     holds for its TTL, like a request that arrives at a free name. If it is older, the client may
//     have died, and the waiter holds for the window only. Once confirmed (by acquire or renew) it
//     holds for its TTL. Unconfirmed, it is removed, and all other waiters of its client under that
//     name are passed over, so that a silent client costs the queue one window. The set records up
//     to which place they are passed over. They are removed later, as scripts come across them.
//   - the message of a grant proves the hold, if it has the place that the server last reported for
//     the request. The grant then came after that call was sent, so the hold ends no earlier than
//     if it had begun with the call. If at least half of the TTL is left, Acquire returns the
//     grant, even if a later call of its own was not answered. Otherwise Acquire confirms the grant
//     first. It always does so for a fixed lease, which is not renewed, and where replicas must
//     have a grant.
//   - renew: the TTL of a holder begins again. A hold that is broken or gone is lost.
//   - release: removes the request wherever it is, and grants the next ones. What is left of a
//     broken hold ends with its release.
//   - raise: makes the token of the Exclusive holder and of its joins, and with it the last token,
//     at least the given one. If replicas must have a grant, they must have this too. A hold is
//     raised right after its grant, so that tokens grow beside another backend.
//   - break by force: removes the hold, and publishes that on the channel of each of its clients. A
//     client subscribes to its channel once it has held a lock for 0.3 s. Whenever its subscription
//     begins, also after it was lost, the client checks all its holds, since it may have missed a
//     message.
//
// What happens when something is lost, repeated or late:
//
//   - A reply is lost: acquire, renew, raise and break write absolute state and may be sent again.
//     A late copy of a raise finds the same token or a greater one, or no hold. Release sent again
//     finds nothing. That is success if the client sent a copy before and the hold cannot have
//     expired yet. The client library sends nothing twice by itself (every command forbids it), so
//     the driver knows when there may be a copy.
//   - A copy of an acquire is late: wherever the outcome of one was unknown, the release leaves a
//     tombstone for a TTL, under which the copy creates nothing.
//   - A publication is late, or is of an earlier stay in the queue: the time that it proves counts
//     from the call, not from the message, and another place means another stay. Such a message
//     only wakes the waiter.
//   - A publication is lost: the first waiter of each client and name asks again every second. If a
//     client waits under more than 1,000 names they ask less often, some 1,000 times a second in
//     all. Each waiter asks every TTL/3 (every second, if that is longer), which also keeps it
//     alive. After a new subscription all waiters ask. If a call finds a Shared grant for which no
//     message came, all waiters of that client and name ask.
//   - A client dies or is cut off while it waits, was last seen within the grant window, and is
//     granted: that costs the queue its TTL, as if it had died a moment later. Once it has been
//     silent for a window, its other requests cost one window together.
//   - A client stops right after Acquire returned: its hold lasts for its TTL. A grant for the
//     window alone is confirmed before Acquire returns.
//   - A command of many calls is lost or late: so is each of its calls, and each is sent again or
//     settled by itself. An error for one name (another type, another format) is the answer to that
//     call alone. If the command is refused because of its keys (a right is missing, or a server
//     takes one slot at a time), it was not executed, and the calls are sent one by one.
//   - A call is abandoned before it was sent: it is not sent, and needs no clean-up.
//   - The server forgets its scripts: they are sent in full.
//   - The server restarts empty: holders are lost at their next renewal, and waiters arrive again.
//     A promoted replica may lack data in the same way; see Limits. No lock on Redis survives that,
//     which is why tokens follow the server's clock.
//   - A script is refused half way, because a right is missing: it undoes what it wrote. Messages
//     come last, when all else is done. If the missing right is one that undoing needs (zadd, zrem,
//     hset, del, pexpire), what was written may stay until it expires; without pexpire, a key
//     without an expiry may stay. The client treats the outcome as unknown.
//   - The server refuses calls for a time (package fault sorts all errors): a wait goes on, as
//     after a lost connection.
//   - A key has lost its expiry: a renewal, Inspect and List give it one that is long enough for
//     all requests there. Any other call does so when it has to set the field kept again. An expiry
//     that was shortened by hand deletes the key at that time, unless a renewal or Inspect comes
//     before.
//   - The server's memory is full: the arrival of a request is refused, since only that needs a
//     notable amount of memory. All other scripts may run (allow-oom). So may an acquire for a
//     request that is already there: a copy of the script has that flag.
//   - Too many dead waiters (expired or passed over) are ahead of a request that arrives: the
//     script stores nothing of the request, and the client sends it again at once.
//   - More waiters are due than one call may grant, or more holders have expired than one may
//     remove: a message makes the client of the next waiter ask, and that call continues. If the
//     message is lost or the client is dead, the next call of any client does. A request that has
//     expired and is not removed yet is treated as gone, and nothing is granted before it is.
//   - A slot moves: the node that has both keys serves them, and the client library follows the
//     redirects. A call with two keys of which one is elsewhere, or does not exist, is refused
//     (TRYAGAIN) until the slot has moved. It is sent once more with the hash alone, which suffices
//     for a free lock and for one with a single holder. To renew one of several that share, the
//     call is sent with the set alone, which returns the time at which the set was begun, and then
//     with the hash alone. The hash must have the same time, and is then kept for as long as the
//     set. If it has another, or is gone, the lease is lost. Calls that need both keys at once
//     wait: those of the first waiter, of the second holder that shares, of a join, and of a
//     release that leaves a tombstone or whose name has other requests. Where replicas must have a
//     grant, the driver follows redirects itself, as the call and its WAIT share a connection. If
//     nodes contradict each other, the call is sent again for 3 s, since it was not executed
//     anywhere.
//   - A key has a wrong type, or fields or members that dlock did not write: every call that reads
//     them fails with an error that names the key, and changes nothing.
//   - The hash is deleted or evicted: the holders are lost as if the server had restarted empty,
//     and the waiters arrive again, whatever the set has. If only the set is lost, the requests in
//     it are lost; a holder in the hash stays.
package redis
