// Package getlock is the format get_lock of the driver: the named locks of MySQL and MariaDB, which
// every client of the server can take with GET_LOCK(name, seconds).
//
// # Protocol
//
// A named lock belongs to a connection: it is free once that connection has ended. So each hold has
// a connection of its own, and so has each name that requests of this client wait for. A session is
// such a connection. Its state:
//
//	idle ── GET_LOCK(name, 0) = 1 ──► holds ── RELEASE_LOCK ──► idle
//	  │                                │ │
//	  └─ GET_LOCK(name, n) ─► waits ───┘ └── an error, the end of its time ──► closed
//
// The steps:
//
//   - Try takes an idle session, or opens one, and sends GET_LOCK(name, 0).
//   - Watch keeps a session that waits in the server's queue, with GET_LOCK(name, n). Both servers
//     grant in order of arrival. Once it has the lock it wakes the first waiter, whose Try takes
//     over the session. If no waiter is left, the session releases the lock.
//   - Extend proves the hold by IS_USED_LOCK(name) = CONNECTION_ID() on the session itself.
//   - Release sends RELEASE_LOCK(name). If the session is closed, it returns once the server has
//     noticed that.
//
// # Time
//
// The server does not expire a named lock. Two rules make a hold end:
//
//   - The client ends it when its time is over, whether or not the caller releases it.
//   - The server ends a session that sent nothing for wait_timeout, which is set above the TTL
//     before the lock is taken. The time of a proof is that before its statement was sent, so the
//     trust of a client that was cut off or stopped ends first.
//
// What is left is the weakness of GET_LOCK: if a connection breaks while its client lives, the
// server gives the lock to the next at once, and the client does not know. (KILL, a restart of the
// server or a failover, a proxy or firewall that ends connections.) So each session proves its hold
// each second, and a hold whose connection has failed is lost at once, with a notice. For that
// second there may be two holders.
//
// What happens when something is lost, repeated or late:
//
//   - The reply to GET_LOCK is lost: the session is closed. A copy that is executed later takes the
//     lock for a connection that has ended: the server frees it when it notices, or after
//     wait_timeout.
//   - The reply to a proof is late: the statement goes on, also when its caller has left. If the
//     reply comes before the time of the hold is over, the hold was never lost.
//   - The connection breaks: the hold is lost. It is never taken again by another connection.
//   - A statement is interrupted by KILL QUERY: the session goes on.
package getlock
