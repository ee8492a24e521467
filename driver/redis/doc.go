// Package redis is the driver for Redis and Valkey: one server, Sentinel, Cluster; and Redlock over several independent masters.
//
//	client, err := dlock.Open(ctx, "redis://localhost:6379/0?ttl=30s")
//
// A blank import registers the schemes redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster, redlock and
// redlocks. [New] and [NewRedlock] work over clients that the caller owns.
//
// # State
//
// Three keys stand under a name, in one hash slot: dlock:PREFIX{NAME} is a hash with the requests that hold, the last token, and
// tombstones; …:q is a sorted set with the IDs of those who wait, by place; …:w is a hash with their requests. NAME and PREFIX
// have %, { and } percent-encoded and nothing else, so a person can read them. lua/queue.lua has the fields. Nothing is
// kept for ever: the hash outlives its last request and tombstone by the time for which the last token is remembered (10 minutes).
//
// # The protocol
//
// A script is atomic. Each begins by reading the server's clock and dropping the holders that have expired, and then grants whoever
// is next by the rule. A request is in one of these states:
//
//		unknown ── acquire ──► holding ◄── confirm ── granted ◄── settle ── waiting ◄── acquire ── unknown
//		                          │                      │                     │
//		                          └──────────── release, expiry ───────────────┘
//
//	  - acquire: holds at once if the rule says so; else waits, if asked to. The same script resumes: of a request that waits, it
//	    keeps it alive, in its place; of one that was granted, it is the confirmation. One that is not there any more (the window was
//	    missed, the server was restarted empty) is a new arrival, at the end: it is never resumed.
//	  - settle, in whichever script lets somebody in: the waiter holds for the grant window (1 s) and the server publishes its ID to the
//	    channel of its client. Confirmed, it holds for its TTL. Not confirmed, it goes, and with it all others of that client that wait
//	    there: a client that does not answer costs the queue one window.
//	  - renew: arms the TTL of a holder anew; a broken one, or one that is gone, is lost.
//	  - release: removes the request wherever it is, and settles.
//
// # What is lost, repeated or late
//
//   - A reply is lost: acquire, renew and break write absolute state and may be sent again. Release sent again finds nothing: that is
//     success if the client sent a copy before and the hold cannot have expired yet. The client library does not send anything twice
//     by itself (every command forbids it), so the driver knows when there may be a copy.
//   - A copy of an acquire is late: wherever one was uncertain, the release leaves a tombstone for a TTL, under which it creates nothing.
//   - A publication is lost: the first waiter of each client and name asks again every second; each waiter every TTL/3, which also
//     keeps it alive. After a new subscription all ask; after a Shared grant that a client did not hear of, all that it has there.
//   - A call is given up before it was sent: it never is, and needs no clean-up.
//   - The server forgets its scripts: they are sent in full. It restarts empty: holders are lost at their next renewal, waiters arrive
//     anew. With data that a promoted replica did not have: see docs/redis.md; no lock on Redis survives that, which is why its
//     tokens follow the server's clock.
//   - A key of ours has another type, or fields of another's: every call that needs it fails with the key's name, and touches nothing.
//   - A key of ours is deleted, or evicted: without the hash the holders are lost as if the server had restarted empty; without one of the
//     other two those who wait arrive anew, within the second in which the first of them looks.
//
// # Time
//
// The server's clock expires. A token is max(last + 1, the server's microseconds): it grows also after the hash is gone, as long as the
// clock is not set back further than the time for which the last token is remembered.
package redis
