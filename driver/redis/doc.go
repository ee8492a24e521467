// Package redis is the driver for Redis and Valkey: one server, Sentinel, Cluster. Package redlock, in
// its folder, is the one for a majority of independent masters.
//
//	client, err := dlock.Open(ctx, "redis://localhost:6379/0?ttl=30s")
//
// A blank import registers the schemes redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster
// and rediss+cluster. [New] works over a client that the caller owns.
//
// # State
//
// One key stands under a name: dlock:PREFIX{NAME} is a sorted set whose scores are all 0, and so a
// map in the order of its members. It has the requests, the last token, tombstones, and what finds
// the next in order and the next to expire. NAME and PREFIX have %, { and } percent-encoded and
// nothing else, so a person can read them. lua/queue.lua has the members. Nothing is kept for ever:
// the set outlives its last request and tombstone by the time for which the last token is
// remembered (10 minutes).
//
// It is one key since a script on several cannot run while their slot moves from one node of a
// Cluster to another and one of them is missing, and most names would have one of them only.
//
// # The protocol
//
// A script is atomic. Each begins by reading the server's clock and dropping the holders that have
// expired, and up to a hundred of those who died while they waited, and then grants whoever is next
// by the rule. A request is in one of these states:
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
//	    there: a client that does not answer costs the queue one window. A mark says up to which place they do not wait any more; they
//	    themselves are removed where they are met.
//	  - renew: arms the TTL of a holder anew; a broken one, or one that is gone, is lost.
//	  - release: removes the request wherever it is, and settles.
//
// # What is lost, repeated or late
//
//   - A reply is lost: acquire, renew and break write absolute state and may be sent again. Release
//     sent again finds nothing: that is success if the client sent a copy before and the hold
//     cannot have expired yet. The client library does not send anything twice by itself (every
//     command forbids it), so the driver knows when there may be a copy.
//   - A copy of an acquire is late: wherever one was uncertain, the release leaves a tombstone for
//     a TTL, under which it creates nothing.
//   - A publication is lost: the first waiter of each client and name asks again every second; each
//     waiter every TTL/3, which also keeps it alive. After a new subscription all ask; after a
//     Shared grant that a client did not hear of, all that it has there.
//   - A call is given up before it was sent: it never is, and needs no clean-up.
//   - The server forgets its scripts: they are sent in full. It restarts empty: holders are lost at
//     their next renewal, waiters arrive anew. With data that a promoted replica did not have: see
//     docs/redis.md; no lock on Redis survives that, which is why its tokens follow the server's
//     clock.
//   - The server's memory is full: only the arrival of a request needs any to speak of, and is
//     refused. All other scripts may run then (allow-oom), with the one that asks again for a
//     request that stands: it is the text of acquire under that flag.
//   - Too many of the dead stand before a request that arrives: it is told to ask again at once,
//     and nothing of it is kept.
//   - A slot moves: the node that has the key serves it, and the client library follows what the
//     nodes say. Where they contradict each other the call is sent again for 3 s, as it was
//     executed nowhere.
//   - The key has another type, or members of another's or of a later version: every call fails
//     with its name, and touches nothing.
//   - The key is deleted, or evicted: the holders are lost as if the server had restarted empty;
//     those who wait arrive anew.
//
// # Time
//
// The server's clock expires. A token is max(last + 1, the server's microseconds): it grows also
// after the set is gone, as long as the clock is not set back further than the time for which the
// last token is remembered.
package redis
