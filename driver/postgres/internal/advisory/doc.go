// Package advisory is the format advisory of the driver: the session-level advisory locks of
// PostgreSQL, which every client of the server can take with pg_advisory_lock and
// pg_try_advisory_lock.
//
// # Keys
//
// PostgreSQL has no names for these locks: it has one bigint, or two integers. The server itself
// makes them of a name, by the functions that its other clients use ([Options.Hash]). Two names may
// have the same key. Then they exclude each other, which is slow and not wrong.
//
// # Protocol
//
// An advisory lock belongs to a session: it is free once that session has ended. So each hold has a
// connection of its own, and so has each name that requests of this client wait for. The state of
// such a session:
//
//	idle ── pg_try_advisory_lock = true ──► holds ── pg_advisory_unlock ──► idle
//	  │                                      │ │
//	  └─ pg_advisory_lock ──► waits ─────────┘ └── an error, the end of its time ──► closed
//
// The steps:
//
//   - Try takes an idle session, or opens one, and sends pg_try_advisory_lock.
//   - Watch keeps a session that waits in the server's queue, for less than a second at a time, and
//     stands there again at once. Once it has the lock it wakes the first waiter, whose Try takes
//     over the session. If no waiter is left, the session releases the lock.
//   - Extend proves the hold by an answer of the session itself: while a session lives, no other
//     one can free its locks.
//   - Release sends pg_advisory_unlock. If the session is closed, it returns once the server has
//     noticed that.
//
// No session has more than one lock, and none twice.
//
// # Waiting
//
// A statement that waits has a snapshot, and CREATE INDEX CONCURRENTLY waits for older snapshots.
// If the holder of a lock runs that while others stand in the queue of the lock, there is a
// deadlock, and the server ends the statement of the holder. So a waiter leaves the queue before
// deadlock_timeout is over, after which the server looks for deadlocks, and stands in it again. The
// end of such a wait is caught in a DO block, so that the server's log does not show it as an
// error.
//
// # Time
//
// The server does not expire an advisory lock. Two rules make a hold end:
//
//   - The client ends it when its time is over, whether or not the caller releases it.
//   - The server ends a session that sent nothing for idle_session_timeout, which the statement
//     that takes the lock sets above the TTL. The time of a proof is that before its statement was
//     sent, so the trust of a client that was cut off or stopped ends first.
//
// What is left is the weakness of these locks: if a session ends while its client lives, the server
// gives the lock to the next at once. (pg_terminate_backend, a restart or a failover, a proxy or
// firewall that ends connections.) So each session reads while it has nothing to send, which shows
// at once that the server has closed it, and proves its hold each second. A hold whose session has
// ended is lost at once, with a notice. Until then there may be two holders.
//
// What happens when something is lost, repeated or late:
//
//   - The reply to pg_try_advisory_lock is lost: the session is closed. A copy that is executed
//     later takes the lock for a session that has ended: the server frees it when it notices, or
//     after idle_session_timeout.
//   - The reply to a proof is late: the statement goes on, also when its caller has left. If the
//     reply comes before the time of the hold is over, the hold was never lost.
//   - The connection breaks: the hold is lost. It is never taken again by another session.
//   - A statement is canceled by pg_cancel_backend: the session goes on. A lock may have been
//     granted to a wait that was canceled at that moment; the session then frees it.
package advisory
