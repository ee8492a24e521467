// Package adapt makes a backend of dlock of a lock that exists already: a table of the user's, a
// lock of a database, a key that other software sets. [Calls] take, extend and release that lock;
// [New] does the rest.
//
//	b, err := adapt.New(calls, adapt.Options{
//		Backend: "orders", Format: "our table", Outlives: true, MinTTL: time.Second,
//	})
//	if err != nil {
//		return err
//	}
//	client, err := dlock.New(b)
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	lease, err := client.Mutex("orders/42").Lock(ctx)
//
// Two examples are complete: examples/tablelock, a table that is taken by SELECT … FOR UPDATE, and
// examples/shedlock, the table of ShedLock.
//
// # Guarantees
//
// The backend has exclusive locks. With [Sharer] it has read-write locks too, and other clients can
// join a hold. It is as strong as the lock behind it, and as the weakest of the programs that share
// it. A lease is trusted for its TTL from the instant before the Try or Extend that proved it. With
// [Options.Outlives], fixed leases, UnlockAfter and OncePer of package dlock work. With [Inspector]
// or Sharer, the holders can be inspected. With [Waker], a waiter is woken by a release.
//
// # Limits
//
//   - Order: the waiters of one client for one name stand in a line. Those of different clients,
//     and other software, are in no order.
//   - Tokens: there are none, unless the calls are a [Fencer].
//   - Costs: one call to lock, one to unlock, and one for each renewal of each hold, at most 16 at
//     a time. A line of waiters costs a call in each RetryDelay.
//   - Kinds: without a Sharer, exclusive locks only, and no other client can join a hold. There are
//     no semaphores.
//   - Starvation: with a Sharer, readers that come and go without a gap keep a writer of another
//     client, and other software, waiting for as long as they do.
//   - Break: an operator ends a hold with the tools of the service.
//
// # Protocol
//
// To the service, a request of dlock is in one of two states:
//
//	absent ── Try ──► has the lock ── Release, end of its time ──► absent
//	                    │      ▲
//	                    └Extend┘
//
// What the backend adds in the memory of its client:
//
//   - The line. The requests of one client that wait for one name stand in a line, and only the
//     first of them calls Try. So 5,000 waiters cost the service as much as one. The first tries
//     when it becomes the first, when a release by this client or a Waker wakes it, when the
//     holder's time is over, and otherwise after RetryDelay. A request that does not wait is held
//     if the service's last answer to the line was that the lock is held; otherwise it tries once.
//     With a Sharer, a Shared request waits behind an Exclusive one of its client, and when one at
//     the front is granted the next one tries at once. A join passes the line.
//   - The watch. Each line has one Watch, from the first answer that the lock is held until the
//     last waiter has left. The first waiter tries again when the watch is ready, so no release
//     between its Try and the watch is missed.
//   - Kept holds, without a Sharer. A fixed request may join a hold of its own client (UnlockAfter
//     and OncePer). It extends that hold to its own time. The release of the request that began the
//     hold then ends the hold at that time, and so does Close. The release of the last request that
//     joined ends it at once. With a Sharer such a request is a member like any other.
//
// What happens when something is lost, repeated or late:
//
//   - The reply to a Try is lost: the waiter sends the Try again, which has the same effect. If the
//     caller leaves instead, it releases the request. The release waits for up to a second until
//     the Try has returned. Then it needs no call if the Try was refused, and has Uncertain set if
//     its outcome is not known.
//   - A Try returns nil after its request was released: the lock is released again, in the
//     background.
//   - A copy of a Try is executed after the Release: Calls prevent that where the service can, for
//     a TTL. This client itself sends no Try of a request that was released with Uncertain set.
//   - The reply to an Extend is lost: it is sent again. If the hold had ended, it is lost: an
//     Extend never takes the lock. ErrLost is final, whatever a later call would return.
//   - The reply to a Release is lost: it is sent again. ErrLost is then success, if the hold cannot
//     have expired yet.
//   - The service does not answer: a call that waits goes on trying for a TTL after the last
//     answer, at least three seconds. All other calls report the error, and so does a wait whose
//     first Try fails.
//   - A call ignores the end of its context: its caller returns all the same. No other Try of the
//     request is sent until it has returned.
package adapt
