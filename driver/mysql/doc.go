// Package mysql is the driver for MySQL (8.0.29 or later) and MariaDB (10.6 or later).
//
//	client, err := dlock.Open(ctx, "mysql://user:password@localhost:3306/app?ttl=30s")
//
// A blank import registers the schemes mysql and mariadb, and mysqls and mariadbs, which are the
// same over verified TLS. [New] works over a pool that the caller owns, whatever its DSN says. The
// tables and procedures come from package migrations: by [Migrate], by ?migrate=true, or by the
// caller's own tool.
//
// # State
//
// dlock_locks has one row for each prefix and name that was ever used. It is the mutex of the
// queue: whatever changes a queue holds this row by SELECT … FOR UPDATE, in a READ COMMITTED
// transaction which begins and ends within one CALL. So the server runs from the row lock to the
// COMMIT without the client, and nobody holds a row, a transaction or a connection while a lock is
// held or waited for. The row also has the last token and what is known of the places in the queue.
// It is kept; [Cleanup] removes those whose last token is old.
//
// dlock_requests has one row for each request, under its place in the queue of its name:
//
//	place < 0               joins, and tombstones, in no order
//	base ≤ place < head     the strangers that hold
//	head ≤ place            those who wait, in order of arrival
//
// base and head are in the lock row. So who holds is read without who waits, the first who waits is
// found at once, and neither read meets what InnoDB still keeps of deleted rows because an old
// snapshot somewhere may want them: such a snapshot makes nothing slower here.
//
// # The protocol
//
// Times are UTC with microseconds, by the server's clock, read after the lock row was obtained. A
// request is in one of these states:
//
//		unknown ── acquire ──► holding ◄── acquire, renew ── granted ◄── settle ── waiting ◄── acquire ── unknown
//		                          │                             │                     │
//		                          └─────────── release, expiry, force ────────────────┘ ──► (released or ended: tombstones)
//
//	  - acquire: holds at once if the rule of driver.Queue says so, else waits, if asked to. Sent again it resumes: of a request that waits, it
//	    tells so; of one that was granted, it is the confirmation and arms the TTL anew. One that is not there any more (it missed the window)
//	    is a new arrival at the end; the driver never sends it again for one that it knows to have held.
//	  - settle, within every transaction: drops the holders that have expired, and grants whoever is next. A waiter of the client that made the
//	    call is told by its reply: it holds for its TTL and has nothing more to ask. A waiter of another client is granted for a window (1 s) until it
//	    confirms. Not confirmed, it goes, and with it all others of that client that wait there. One transaction removes 500 of the dead at
//	    most: what it did stands by itself, so it is committed, and the same CALL goes on in another, after others of the name.
//	  - release: removes the request wherever it is, and settles.
//	  - renew: arms the TTL of holders anew, any number in one statement, without their lock rows. It never brings back what has expired or is broken.
//	    Stealing judges anew when it deletes the row: so whichever of the two comes first is right, and the other sees it.
//	  - look: a read without locks, one for each client however many of its requests wait: which of them were granted, and, once a second, which
//	    of the names that it waits for have a holder that has expired. It looks after a
//	    twentieth of the time since the queue moved, three times in each of its moves once it is next, not before those ahead can have had their
//	    turns, at least 1 ms and at most 100 ms after the last look; and hardly while the client itself holds, as its own release will tell.
//	  - keep: one statement each few seconds keeps alive all that a client has waiting, and removes
//	    up to a hundred of those that nobody keeps, under any name. What it leaves goes when its turn
//	    comes.
//
// # Connections
//
// A connection is used for one CALL, which leaves nothing in it: it ends the transaction that it
// finds and its own, and puts back the settings of the session that it changes (dlock_enter,
// dlock_leave): no wait for a row or a table is longer than 2 s, and the session's clock runs.
// Whoever kills the query, or ends its time, keeps the CALL from doing so, since no handler of a
// procedure runs then. So a connection goes back to its pool after a whole answer, and not
// otherwise:
//
//	idle ── CALL ──► busy ── answer ──► idle
//	                   └── an error of any kind, the end of its time ──► closed
//
// A client has at most 30 CALLs for names at the server at once, or two less than its pool may have
// connections, beside those that renew and one of those who wait; releases and confirmations come
// before new requests. A statement that it gave up, after 3 s, has left the server by then, or
// leaves it when the wait that it is in has lasted for 2 s.
//
// # The schema
//
// A client works with the schema that it was written for, and with no other: it asks for its number
// when it is opened, or with its first call, and refuses an older and a newer one. So clients of
// two protocols never stand in one queue. For those that run while the schema is changed, a later
// migration gives a procedure whose meaning changes other parameters: the server refuses their
// calls.
//
// # What is lost, repeated or late
//
//   - A reply is lost, a COMMIT's too, the connection is killed, or the query alone (1317), or its
//     time is over (1969, 3024): nobody knows whether it committed. The same CALL is sent again on
//     another connection. Acquire, renew and break write absolute state. Release sent again finds
//     nothing: that is success if an earlier copy was sent and the hold cannot have expired.
//   - A copy of an acquire is late: wherever one was uncertain the release leaves a tombstone for a
//     TTL, under which it creates nothing.
//   - A deadlock (1213), a lock wait that took too long (1205), a duplicate key (1062) or a changed
//     record (1020): the procedure rolled back all of it, and is called again.
//   - The client goes away during a CALL: the server finishes it, or gives up waiting for the row
//     or the table after 2 s.
//   - An outage: a call is sent for 10 s; one for a request that stands in the queue for that
//     request's TTL, if it is longer.
//   - The session's clock was stopped (SET timestamp): it runs during the CALL, and stands
//     afterwards where it stood.
//   - A reply that told of grants is lost: whoever sent it makes the waiters of that name ask. A
//     client that dies then costs the queue the TTL of one request, as one that dies right after it
//     was granted.
//   - A look finds nothing because it came before the COMMIT: the next one finds it.
//   - The server restarts: what was committed is there, with its time running.
//   - A lock row is removed by hand: the next acquire makes it anew from the requests that stand.
//     Without any, tokens follow the server's clock.
//
// # Time
//
// A token is max(last + 1, the server's microseconds since 1970), so that it grows also after
// [Cleanup] removed the row, as long as the clock is not set back further than the age that the
// last token had.
package mysql
