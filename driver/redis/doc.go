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
// For a majority of independent masters there is package redlock, in the folder of this one.
//
// # URL
//
//	redis://USER:PASSWORD@HOST:PORT/DB?PARAMETERS                 one server
//	redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB  the master that Sentinel names
//	redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT             a Cluster
//
// The schemes rediss, rediss+sentinel and rediss+cluster are the same over TLS, which always
// verifies the server. The port is 6379 if none is given, of Sentinel 26379; the database is 0. The
// parameters:
//
//   - grant_window (3s): how long a waiter whose client was silent for that time has to confirm its
//     grant, before it and the client's other waiters are passed over. At least 10ms.
//   - keep_tokens (10m): how long the last token of a name is remembered after its last use.
//   - wait_replicas (0): how many replicas have to have a grant before it counts.
//   - dial_timeout (5s), read_timeout (3s), write_timeout (3s): those of a connection.
//   - pool_size (the client library's): how many connections there are at most.
//   - sentinel_username, sentinel_password (none; redis+sentinel only): those of the sentinels.
//   - tls_ca, tls_cert, tls_key, tls_server_name (over TLS only): files in PEM form with the
//     certificates that are trusted in place of the system's, the client's own certificate and its
//     key; and the name to verify in place of the host's.
//   - ttl, prefix, label, identity: those of every driver; see package dlock.
//
// [New] works over a client that the caller owns.
//
// # Guarantees
//
// On one server, all that package dlock promises: order of arrival, fencing tokens, read-write
// locks, semaphores, joins, Break, Inspect, List. The server's clock expires requests. A fixed
// lease that was granted stands until its time, also over Close and the death of its process.
//
// A token is max(last + 1, the server's clock in µs). It grows also after all data of the name is
// gone, as long as the clock is not set back further than the time for which the last token is
// remembered.
//
// # Limits
//
//   - Failover: a promoted replica may not know the last grants. Then a second holder is let in.
//     wait_replicas narrows the window and does not close it.
//   - Loss of data: a server that restarts empty has forgotten its holds. Their clients learn at
//     the next renewal.
//   - Clock: if the server's clock jumps ahead, holds end early. If it is set back by more than
//     keep_tokens while nobody uses a name, tokens of that name may repeat.
//   - Versions: clients whose formats differ cannot share a prefix. See Protocol.
//
// # Protocol
//
// The lock of a name is a hash, dlock:PREFIX{NAME}: which request holds it alone, the last token,
// and since when there is a second key. That one is a sorted set, dlock:PREFIX{NAME}:queue, and is
// there only while anything else stands: what waits, holders that share, joins, tombstones. Its
// scores are all 0, which makes it a map in the order of its members; among them are some that find
// the next in order and the next to expire. lua/begin.lua has the fields and lua/queue.lua the
// members. NAME and PREFIX have %, { and } percent-encoded and nothing else, so a person can read
// them. Nothing is kept for ever: both keys outlive the time of all that stands there by that for
// which the last token is remembered, and by up to a quarter more, since not every call tells the
// server; the field kept says until when. If the only holder goes long before its time, that counts
// from then.
//
// The hash is the gate: a set means nothing unless the hash has the time at which it was begun, and
// is removed by the next request that has to stand there. A holder that is alone, whatever its
// mode, is in the hash; when a second one shares the lock with it, both are in the set.
//
// The field format is that of all that is kept under the name, FORMAT in lua/clock.lua. Every
// script that has the hash reads it first. If it is another one, the call fails with an error that
// says so and matches [driver.ErrUnsupported], and touches nothing.
//
// Calls that wait to be sent to one server when a connection is free travel together: those of one
// script are one command, lua/many.lua, which runs it for one name after the other. A call
// that is alone does not wait for others. In a Cluster, where names are in different slots, calls
// travel in pipelines.
//
// A script is atomic, and the server's clock, which it reads where that matters, stands still
// meanwhile. Unless the request is alone, or comes to a free lock, the script removes the holders
// that have expired, and up to a hundred waiters that have, and grants the next requests by the
// rule of [driver.Queue]. A request is in one of these states:
//
//	unknown ─ acquire ─► holding ◄─ confirm ─ granted ◄─ its turn ─ waiting ◄─ acquire ─ unknown
//	                        │                    │                    │
//	                        └───────────── release, expiry ───────────┘
//
// What leads from one to the next:
//
//   - acquire: the request holds at once if the rule says so; else it waits, if asked to. The same
//     script resumes. A request that waits is kept alive, in its place. One that was granted is
//     confirmed. One that is gone (it missed the window, or the server restarted empty) arrives at
//     the end, and is never resumed.
//   - its turn, in whichever script it comes: the server grants the waiter, and publishes its ID,
//     its place, its token and for how long it holds to the channel of its client. If the client
//     asked for it within the grant window (its arrival counts), it holds for its TTL, like one
//     that arrives at a free name. If not, it may have died as it waited, and holds for the window.
//     If it confirms (by acquire, or by renew), it holds for its TTL. If it does not, it goes, and
//     with it all others of that client that wait there, so that a client that is silent costs the
//     queue one window. A mark says up to which place they do not wait any more. They themselves
//     are removed where they are met.
//   - the message of a grant proves the hold, if it names the place in which the server last said
//     that the request waits: the grant came after that call was sent, so the time for which it is
//     granted ends no earlier than if it had begun then. If half of that is left, Acquire returns
//     the grant, also when a later call of its own was not answered. Otherwise, for a fixed lease,
//     which is not renewed, and where replicas have to have a grant, Acquire confirms it before it
//     returns.
//   - renew: the TTL of a holder begins again. One that is broken, or gone, is lost.
//   - release: removes the request wherever it is, and grants the next ones. What is left of a
//     broken hold ends with it.
//   - break by force: removes the hold, and publishes that to the channel of each of its clients.
//     One that has held for a moment listens. Whenever its subscription begins, also after it was
//     lost, the client asks for all that it holds, since it may have missed a message.
//
// What is lost, repeated or late:
//
//   - A reply is lost: acquire, renew and break write absolute state and may be sent again. Release
//     sent again finds nothing. That is success if the client sent a copy before and the hold
//     cannot have expired yet. The client library sends nothing twice by itself (every command
//     forbids it), so the driver knows when there may be a copy.
//   - A copy of an acquire is late: wherever one was uncertain, the release leaves a tombstone for
//     a TTL, under which it creates nothing.
//   - A publication is late, or of an earlier stay in the queue: the time that it proves counts
//     from the call, not from the message, and another place is another stay. It only wakes.
//   - A publication is lost: the first waiter of each client and name asks again every second; each
//     waiter every TTL/3, which also keeps it alive. After a new subscription all ask. After a
//     Shared grant of which no message came, all ask that the client has there.
//   - A client dies, or is cut off, as it waits, less than the grant window after it was last heard
//     of, and is granted: that costs the queue its TTL, as if it had died a moment later. Once it
//     has been silent for a window, its other requests cost one window together.
//   - A client stands still right after Acquire returned: its hold lasts for its TTL. A grant for
//     the window alone is confirmed before that.
//   - A command of many calls is lost, or late: it is so for each of them, and each is sent again
//     or settled by itself. What goes wrong for one name (another type, another format) is the
//     answer to that call alone. If the command is refused because of its keys (a right that is
//     missing, a server that takes one slot at a time), it was not executed, and the calls are sent
//     one by one.
//   - A call is given up before it was sent: it is not sent, and needs no clean-up.
//   - The server forgets its scripts: they are sent in full.
//   - The server restarts empty: holders are lost at their next renewal, waiters arrive again. With
//     data that a promoted replica did not have, see Limits. No lock on Redis survives that, which
//     is why its tokens follow the server's clock.
//   - A script is refused half way, for want of a right: it undoes what it wrote. Messages come
//     last, when all else is done. A user who may not undo it (zadd, zrem, hset, del, pexpire)
//     leaves what it wrote until that expires, and without pexpire perhaps a key that has no time.
//     The client takes the outcome for unknown.
//   - The server refuses calls for a time (package fault has all errors, sorted): a wait goes on,
//     as after a connection that was lost.
//   - A key has lost its time: a renewal, Inspect and List give it one, not too short for all that
//     stands there; any other call does when the field kept is to be set again. A time that
//     was shortened by hand is a deletion at that time, unless a renewal or Inspect comes before.
//   - The server's memory is full: only the arrival of a request needs any to speak of, and is
//     refused. All other scripts may run then (allow-oom), also the one that asks again for a
//     request that stands: it is acquire with that flag.
//   - Too many of the dead stand before a request that arrives: it is told to ask again at once,
//     and nothing of it is kept.
//   - More waiters are to be granted than one call may grant, or more holders have expired than one
//     may remove: a message has the client of the next waiter ask, which goes on with it. If that
//     message is lost, or the client is dead, whichever asks next does. What has expired and was
//     not removed yet is treated as gone, and nothing is granted before it is.
//   - A slot moves: the node that has both keys serves them, and the client library follows what
//     the nodes say. A call with two keys of which one is elsewhere, or does not exist, is refused
//     (TRYAGAIN) until the slot has moved. It is sent once more with the hash alone, for a lock
//     that is free or that one holds alone. To renew one of several that share, it is sent with the
//     set alone, which returns the time at which it was begun, and then with the hash alone: that
//     has to have the same time, and lasts as long from then on as the set does. If it has another,
//     or is gone, so is the lease. What needs both keys at once waits: the first waiter, the second
//     that shares, a join, and a release that leaves a tombstone or beside which others stand.
//     Where replicas have to have a grant, the driver follows the nodes itself, as the call and its
//     WAIT share a connection. Where nodes contradict each other the call is sent again for 3 s, as
//     it was executed nowhere.
//   - A key has another type, or fields or members that dlock did not write: every call that looks
//     at them fails with its name, and touches nothing.
//   - The hash is deleted, or evicted: the holders are lost as if the server had restarted empty,
//     and those who wait arrive again, whatever the set has. If the set goes alone, what stood in
//     it is lost, and the holder that the hash has stays.
package redis
