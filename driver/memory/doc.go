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
// [New] opens a backend without a URL.
//
// It is also the driver to read first: each file is one part of what every driver does, with no
// service in between.
//
// # URL
//
//   - memory:name opens a client of the space with that name. All clients of the process that open
//     the name share the space. It is removed when the last of them is closed and every fixed hold
//     in it has ended. Names of spaces are compared as written in the URL.
//   - memory: opens a client of a space of its own.
//
// There are only the parameters that every URL has.
//
// # Guarantees
//
// Everything in the contract of package driver: order of arrival, tokens that grow, read-write
// locks, semaphores, joins, break, inspection. A fixed hold lasts until its time even if its client
// is closed. The least TTL is 1 ms.
//
// # Limits
//
// Nothing is shared with other processes, and nothing outlives the process. Tokens come from a
// counter that begins again with each process, and that a raise ([driver.Raiser]) moves ahead.
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
// The transitions:
//
//   - Each space has one mutex. Each name in use has a queue, to which the rule of [driver.Queue]
//     is applied after every arrival and departure.
//   - A waiter sleeps on a channel that is closed when its request is granted or removed. So a
//     hand-off wakes one waiter, however many wait.
//   - An expired hold is removed when its name is next used, or by a timer of the name while a
//     request waits there. A waiting request does not expire: its Acquire keeps it alive.
//   - A request that is sent twice is one request, by its ID. A lost request, and one released with
//     Uncertain set, leaves a tombstone for a TTL, so that a late copy creates nothing.
//   - A name that is not in use leaves nothing behind.
package memory
