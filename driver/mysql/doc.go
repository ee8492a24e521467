// Package mysql is the driver for MySQL (8.0.29 or later) and MariaDB (10.6 or later).
//
//	import _ "github.com/dlock-go/dlock/driver/mysql"
//
//	client, err := dlock.Open(ctx, "mysql://app:secret@localhost:3306/app?migrate=true")
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	return dlock.Do(ctx, client.Mutex("orders/42"), func(ctx context.Context) error {
//		return charge(ctx)
//	})
//
// # URL
//
//	mysql://user:password@host:3306/database?parameters
//
// The scheme mariadb means the same. mysqls and mariadbs mean the same over TLS, which is always
// verified. The parameters:
//
//   - migrate (false): make the tables if they are missing, as [Migrate] does.
//   - pool_size (32): how many connections the client may have; at least 2.
//   - dial_timeout (3s): for opening a connection.
//   - tls_ca, tls_cert, tls_key: files in PEM form; mysqls and mariadbs only.
//   - tls_server_name: the name in the server's certificate; the host if it is missing.
//
// ttl, prefix, label and identity mean what they mean for every driver.
//
// [New] works over a pool that the caller owns, whatever its DSN says. The tables come from package
// migrations: by [Migrate], by migrate=true, or by the caller's own tool.
// [Cleanup] removes what the tables keep of names that nobody uses any more.
//
// # Guarantees
//
//   - Order of arrival, fencing tokens, read-write locks, semaphores, joins, break, inspection: the
//     rule of driver.Queue, held by the server.
//   - The server's clock expires, in UTC and microseconds. A grant loses none of its time to a wait
//     for a row.
//   - Nobody holds a row, a transaction or a connection while a lock is held or waited for. A
//     client that is stopped in the middle of a call blocks nobody.
//   - Names are bytes, whatever the collation.
//   - A connection goes back to its pool without a transaction and with the settings that it had,
//     or it is closed.
//   - What was committed outlives a restart of the server, with its time running.
//
// # Limits
//
//   - After a failover to a replica that lacks the last transactions a second holder may be let in.
//     Clusters with several writers need one writer for dlock.
//   - A server that may forget its last second (innodb_flush_log_at_trx_commit other than 1) may
//     forget the grants of that second.
//   - A server's clock that is set back makes holds last longer. One that jumps ahead ends them
//     early.
//   - binlog_format=STATEMENT is refused: the server does not allow READ COMMITTED writes with it.
//   - TTLs are from 50 ms to a hundred years.
//
// # Protocol
//
// dlock_locks has one row for each prefix and name that was ever used. The row is the mutex of the
// queue. Whatever changes a queue takes it by SELECT … FOR UPDATE, in a READ COMMITTED transaction
// that begins and ends within one CALL. So from the row lock to the COMMIT the server needs no
// client. The row also has the last token and the bounds of the places in the queue. It stays until
// [Cleanup] removes it.
//
// dlock_requests has one row for each request. Its place says what it does:
//
//	place < 0               a join, or a tombstone, in no order
//	base ≤ place < head     a request in order of arrival that holds
//	head ≤ place            a request that waits, in order of arrival
//
// base and head are in the lock row. So those who hold are read without those who wait, and the
// first who waits is found at once. Neither read meets deleted rows that InnoDB still keeps for old
// snapshots.
//
// Times are by the server's clock, read after the lock row was taken. A request is in one of these
// states:
//
//	unknown ── acquire ──► holding
//	unknown ── acquire ──► waiting ── turn ──► granted ── acquire, renew ──► holding
//
//	waiting, granted, holding ── release, expiry, break ──► gone, or a tombstone
//
// The messages, each one CALL:
//
//   - acquire: the request holds at once if the rule says so, else it waits, if it may. Sent again
//     it resumes: a request that waits is told so, and for one that was granted it is the
//     confirmation and starts the TTL again. One that is not there any more, since it missed the
//     window, arrives at the end of the queue. The driver never sends it so for a request that it
//     knows to have held.
//   - release: removes the request wherever it is.
//   - together: acquires and releases of different names, in one transaction. It does those
//     acquires whose name is free and those releases of a hold that is alone under its name, and
//     leaves the others, which are then sent alone. It waits for no row: what somebody else has
//     locked is left too. So no name waits for another, and none fails with another.
//   - renew: starts the TTL of holders again, any number in one statement, without their lock rows.
//     It never brings back what has expired or is broken. Who removes an expired request judges it
//     again when it deletes the row. So whichever of the two comes first is right, and the other
//     sees it.
//   - break: ends the hold with a token, at once (by force) or for renewals.
//   - inspect: returns the queue, in pieces of 1000 requests, each in a CALL of its own. The first
//     grants. list returns the names that have requests, 5000 with each CALL.
//   - ended: reads which requests of a client were ended by force in the last 10 s. A client that
//     holds something asks twice a second. An answer that is lost is followed by the next; who
//     cannot ask for 10 s learns of it from its renewal.
//   - look: reads without locks, once for each client, however many of its requests wait. It
//     returns which of them were granted, and what they have left, and who is ahead of the first
//     who waits in one queue. expired, once a second, returns
//     for which names a holder has expired.
//   - keep: keeps alive all that a client has waiting, every 3 s, in one statement. It also removes
//     up to a hundred of those that nobody keeps alive, under any name. Others go when their turn
//     comes.
//
// acquire, release, break and inspect also remove the holders that have expired and grant whoever
// is next, in their transaction (dlock_settle). A waiter of the calling client learns of that from
// the reply: it holds for its TTL and asks no more. A waiter of another client learns of it from a
// look. If it was heard of within a window (1 s), by its arrival or by keep, it is granted for its
// TTL, and the look is the proof: the server read its clock after the look was sent, so the client
// counts what is left from before that. No call confirms it. A waiter that was not heard of, or
// whose lease is fixed, is granted for the window, until it confirms. Where the server is slow to
// answer whoever grants the window is longer, 5 s at most: else a waiter that was not heard of
// could not confirm in time, and would lose its place. Whoever was granted and gives no sign of
// life until that is over is removed, with all others of its client that wait there. One
// transaction removes 500 of the dead at most. Then it commits, and the same CALL goes on in
// another one, after others of the name.
//
// # Bells
//
// Who waits listens to whoever is next to it in the queue, if that is of another client and
// exclusive: until that one has gone it has no turn, and when a holder goes it has. The acquire
// that arrives, and the look, say whose that is. A client that so hears of others hangs a bell for
// each of its requests in that queue: a named lock (GET_LOCK), called dlock.<id of the request>,
// which a session of the client has, whatever becomes of the request, until it goes. Then the
// client releases the lock: it rings. Who listens waits for that lock in another session, for a
// second at a time, has it for a moment, and looks at once.
//
//	request   waits ── others are heard of ──► has a bell ── released, given up ──► rung
//	listener  GET_LOCK(who is ahead, 1 s) ── 1 ──► look
//	                                      └─ 0 ──► again, if that one is still ahead
//
// A bell only says: look now. The rows decide, and nothing is proved by a bell. While a client
// listens it polls each 100 ms; what no bell tells (expiry, a forced break, the last of several
// readers) it finds by that, or by the polls that follow the queue.
//
//   - A bell rings for nothing, or is not there (its holder never waited, its session has gone,
//     the server is another node of a Galera cluster, where named locks are local): the look finds
//     the same one ahead. That one is not listened to again until the queue has moved, and for 10
//     ms, twice as long with each further one of that kind, 10 s at most, the client listens to
//     nothing. It polls as if there were no bells.
//   - A bell never rings (a pooler gave the session to somebody else): whoever listens has its turn
//     with the next poll, 100 ms later at most. As long as the statement waits, a second at most,
//     it polls as if there were no bells, and then rests as above.
//   - A session breaks: the server rings all of its bells. They are not hung again.
//   - The server refuses: the same rest. Named locks need no right.
//
// Bells take one session of a client for those of its own, as long as it has any, and at times one
// to listen. A pool that may have fewer than 8 connections, or that has none left, has no bells. A
// client has 500 at most. No transaction is open in either session.
//
// # Polls
//
// How often a client polls (look) follows the queue. It is after a twentieth of the time since the
// queue last moved; for whoever is next, six times in each of its moves; for others, not before
// those ahead can have had half of their turns; at least 1 ms and at most 100 ms after the last
// poll. While the client itself holds the lock it is every 100 ms, since its own release will tell.
//
// # Connections
//
// A connection is used for one CALL, which leaves nothing in it. The CALL ends the transaction that
// it finds and its own. It puts back the settings of the session that it changes (dlock_enter,
// dlock_leave), so that no wait for a row or a table is longer than 2 s, and the session's clock
// runs. Whoever kills the query, or ends its time, keeps the CALL from doing so: no handler of a
// procedure that was told of it runs. So a connection goes back to its pool after a whole answer
// only:
//
//	idle ── CALL ──► busy ── answer ──► idle
//	                   └── an error of any kind, the end of its time ──► closed
//
// A client has at most 30 CALLs for names at the server at once, or two less than its pool may have
// connections. Renewals and polls are not counted. Releases and confirmations come before new
// requests. A statement that was given up, after 3 s, has left the server by then, or leaves it
// when the wait that it is in has lasted for 2 s.
//
// Two of these calls that may travel together are sent at once, each alone. Those that come while
// they are under way go in one together, 64 at most, or in another after 10 ms, 8 at a time: so one
// that comes alone waits for nobody, and many share the transaction, its COMMIT and its answer.
//
// # The schema
//
// The schema has a number, and a client works with the number that it was written for. It asks for
// the number when it is opened, or with its first call. A newer one, and an older one that cannot
// be migrated, it refuses with driver.ErrUnsupported; of one that can be it says how. So clients of
// two protocols never stand in one queue. For clients that run while the schema is changed, a later
// migration gives a procedure whose meaning changes other parameters. Then the server refuses their
// calls, and they ask for the number again and say what it is. MariaDB 11 may let a session that
// called a procedure while it was dropped call it on: who waits there may be granted once more, as
// before the change.
//
// # What is sent in one piece
//
// No statement is longer than the server's max_allowed_packet, which the client asks for with the
// schema: renewals of 10,000 at most, what travels together, and bells are cut to fit. It has to
// be 8 kB, for one request with the longest names. A transaction renews 10,000 requests, keeps
// 5000 alive, does 64 calls, removes 500 of the dead or grants 500 who wait, at most. What a call
// granted is named in its reply as far as half a packet, or 32 kB, has room; others find their
// grant by a look. No row of an answer is longer than 3 kB.
//
// # What is lost, repeated or late
//
//   - A reply is lost, a COMMIT's too; the connection is killed, or the query alone (1317); or its
//     time is over (1969, 3024). Nobody knows whether it committed. The same CALL is sent again on
//     another connection. Acquire, renew and break write absolute state. A release that is sent
//     again finds nothing: that is success if an earlier copy was sent and the hold cannot have
//     expired.
//   - A KILL QUERY cuts a statement short without an error, and the procedure goes on. MariaDB 11
//     does so: an UPDATE or a DELETE writes no row, or some; a read with LIMIT finds nothing, and
//     EXISTS may be false; aggregates and reads by a unique key are not cut. So whatever says who
//     holds is checked once it was written, and what a read with LIMIT did not find is looked for
//     by an aggregate. If something is missing the procedure rolls back and says 1317, as if it had
//     been told of the kill. What is not checked only removes those whose time is over, whom the
//     next call finds again, or says whose bell to listen to. Lists say how many they should have.
//   - A copy of an acquire is late: wherever one was uncertain the release leaves a tombstone for a
//     TTL, under which it creates nothing.
//   - A deadlock (1213), a lock wait that took too long (1205), a duplicate key (1062) or a changed
//     record (1020): the procedure rolled back all of it, and is called again.
//   - The client goes away during a CALL: the server finishes it, or gives up waiting for the row
//     or the table after 2 s.
//   - An outage: a call is sent for 10 s. For a request that stands in the queue, as the server
//     said, it is sent for that request's TTL, if that is longer.
//   - The server answers, and refuses for a time (too many connections, read-only, a full disk, a
//     Galera node that is not ready): as in an outage. But who stands in the queue waits until its
//     context ends. errors.go sorts all errors: whether another transaction was in the way, nothing
//     was done, that is unknown, or it is final. Each copy goes on another connection, which may
//     lead to another member.
//   - The session's clock was stopped (SET timestamp): it runs during the CALL, and stands
//     afterwards where it stood.
//   - A reply that names who was granted is lost: its client makes its waiters of that name ask. A
//     client that dies then costs the queue the TTL of one request, as one does that dies right
//     after it was granted.
//   - Each answer is late, by up to half a second: the windows of whoever grants grow with the
//     first few of them, and nobody loses a place from then on. Until then a waiter that was not
//     heard of may.
//   - A poll comes before the COMMIT: the next one finds the grant.
//   - A client dies while it waits, less than a window after it was last heard of, and is granted:
//     that costs the queue the TTL of one request. All others that it has there go with that.
//   - The server restarts: what was committed is there, with its time running.
//   - What travels together fails: a transaction that was rolled back has done nothing of it, and
//     one whose answer is lost leaves each call in it as unknown as if it had been alone there.
//     Each is sent again, alone.
//   - A lock row is removed by hand: the next acquire makes it from the requests that stand.
//     Without any, tokens follow the server's clock.
//
// # Tokens
//
// A token is max(last + 1, the server's microseconds since 1970). So tokens grow also after
// [Cleanup] removed the row, as long as the clock is not set back further than the age that the
// last token had.
package mysql
