// Package memory is the driver for locks within one process: for tests, and for programs that do
// not need a service yet.
//
//	import _ "github.com/dlock-go/dlock/driver/memory" // registers the scheme
//
//	client, err := dlock.Open(ctx, "memory:shop")
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
// [New] is the other way in.
//
// It is also the driver to read first: each file is one part of what every driver does, with
// nothing in between.
//
// # URL
//
//   - memory:name opens a client of the space with that name. All clients of the process that open
//     the name share the space. It is forgotten when the last of them is closed and no fixed hold
//     stands in it any more. Names of spaces are compared as they are written.
//   - memory: opens a client of a space of its own.
//
// There are no parameters beyond those that every URL has.
//
// # Guarantees
//
// Everything in the contract of package driver: order of arrival, tokens that grow, read-write
// locks, semaphores, joins, break, inspection. A fixed hold stands until its time although its
// client is closed. The least TTL is 1 ms.
//
// # Limits
//
// Nothing is shared with other processes, and nothing outlives the process. Tokens come from a
// counter of the process, which begins again with the next process.
//
// # Protocol
//
// A request is in one of these states:
//
//	         Acquire              the rule grants it           TTL, Break with force
//	(none) ───────────► waiting ──────────────────► granted ──────────────────────► lost
//	                       │                           │
//	                       └──── Release, end of ctx ──┴──► (none)
//
// How it gets from one to the next:
//
//   - Each space has one mutex. Each name in use has a queue, to which the rule of [driver.Queue]
//     is applied after every arrival and departure.
//   - Who waits sleeps on a channel, which whoever grants or removes the request closes. So a
//     hand-off wakes one waiter, however many wait.
//   - Holds expire when their name is used, or by a timer of the name while somebody waits there.
//     Who waits does not expire: its Acquire keeps it alive.
//   - A request that is sent twice is one request: its ID says so. A lost request, and one whose
//     release says that a copy may be under way, leaves a tombstone for a TTL, so that a late copy
//     creates nothing.
//   - A name that is not in use leaves nothing behind.
package memory
