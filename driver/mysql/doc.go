// Package mysql is the driver for MySQL (8.0.29 or later) and MariaDB (10.6 or later).
//
//	client, err := dlock.Open(ctx, "mysql://user:password@localhost:3306/app?ttl=30s")
//
// A blank import registers the schemes mysql and mariadb, and mysqls and mariadbs, which are the same over verified TLS. [New] works over a
// pool that the caller owns, whatever its DSN says. The tables and procedures come from package migrations: by [Migrate], by
// ?migrate=true, or by the caller's own tool.
//
// # State
//
// dlock_locks has one row for each prefix and name that was ever used. It is the mutex of the queue: whatever changes a queue holds this row by
// SELECT … FOR UPDATE, in a READ COMMITTED transaction which begins and ends within one CALL. So the server runs from the row lock to the
// COMMIT without the client, and nobody holds a row, a transaction or a connection while a lock is held or waited for. The row also
// has the last token and what is known of the places in the queue. It is kept; [Cleanup] removes those long unused.
//
// dlock_requests has one row for each request, under its place in the queue of its name:
//
//	place < 0               joins, and tombstones, in no order
//	base ≤ place < head     the strangers that hold
//	head ≤ place            those who wait, in order of arrival
//
// base and head are in the lock row. So who holds is read without who waits, the first who waits is found at once, and neither read meets what InnoDB still
// keeps of deleted rows because an old snapshot somewhere may want them: such a snapshot makes nothing slower here.
//
// # The protocol
//
// Times are UTC with microseconds, by the server's clock, read after the lock row was obtained. A request is in one of these states:
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
//	    confirms. Not confirmed, it goes, and with it all others of that client that wait there.
//	  - release: removes the request wherever it is, and settles.
//	  - renew: arms the TTL of holders anew, any number in one statement, without their lock rows. It never brings back what has expired or is broken.
//	    Stealing judges anew when it deletes the row: so whichever of the two comes first is right, and the other sees it.
//	  - look: a read without locks, one for each client however many of its requests wait: which of them were granted, and, once a second, which
//	    of the names that it waits for have a holder that has expired. It looks after a
//	    twentieth of the time since the queue moved, three times in each of its moves once it is next, not before those ahead can have had their
//	    turns, at least 1 ms and at most 100 ms after the last look; and hardly while the client itself holds, as its own release will tell.
//	  - keep: one statement each few seconds keeps alive all that a client has waiting. What nobody keeps goes when its turn comes.
//
// # What is lost, repeated or late
//
//   - A reply is lost, a COMMIT's too, or the connection is killed: the same CALL is sent again on another connection. Acquire, renew
//     and break write absolute state. Release sent again finds nothing: that is success if an earlier copy was sent and the hold cannot have expired.
//   - A copy of an acquire is late: wherever one was uncertain the release leaves a tombstone for a TTL, under which it creates nothing.
//   - A deadlock (1213), a lock wait that took too long (1205), a duplicate key (1062) or a changed record (1020): the procedure rolled back all
//     of it, and is called again.
//   - The client goes away during a CALL: the server finishes it, or gives up waiting for the row after 2 s.
//   - A reply that told of grants is lost: whoever sent it makes the waiters of that name ask. A client that dies then costs the queue the TTL of
//     one request, as one that dies right after it was granted.
//   - A look finds nothing because it came before the COMMIT: the next one finds it.
//   - The server restarts: what was committed is there, with its time running.
//   - A lock row is removed by hand: the next acquire makes it anew from the requests that stand. Without any, tokens follow the server's clock.
//
// # Time
//
// A token is max(last + 1, the server's microseconds since 1970), so that it grows also after [Cleanup] removed the row, as long as the clock is not set back
// further than the time for which the name was unused.
package mysql
