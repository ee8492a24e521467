// Package postgres is the driver for PostgreSQL (14 or later). Locks are rows of two tables.
//
//	import _ "github.com/dlock-go/dlock/driver/postgres"
//
//	client, err := dlock.Open(ctx, "postgres://app:secret@localhost:5432/app?migrate=true")
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
//	postgres://user:password@host:5432/database?parameters
//
// The scheme postgresql is the same. Several hosts are separated by commas: the driver uses the one
// that takes writes. Most parameters of libpq for the connection, and:
//
//   - migrate (false): make the tables that are missing, as [Migrate] does.
//   - pool_size (8): the maximum number of connections; at least 2.
//   - connect_timeout (3): in seconds, for opening a connection.
//   - ttl, prefix, label, identity: those of every driver.
//
// [New] uses a pool of pgx that the caller owns, and [NewDB] one of package sql. docs/postgres.md
// has rights, costs and limits.
//
// # The tables
//
// dlock_locks has a row for each prefix and name that was used. The row stays until [Cleanup].
//
//	holder, client, label, ttl_us, fixed   the exclusive holder; holder empty: none
//	held_since, held_until                 when its request arrived; when the lock may be taken
//	broken                                 an operator ended the hold: it is not renewed any more
//	token                                  the last fencing token
//	last                                   the last place that was given
//	head                                   the place of the last request granted from the queue
//	floor                                  requests of the name have greater places
//	beside                                 dlock_requests may have rows of the name
//
// dlock_requests has a row for every other request. A row counts until expires_at, and is deleted
// later. Places are given under the lock of the lock's row, so they are the order of arrival.
//
//	request, place > head     waits
//	request, place <= head    holds, together with other shared ones
//	join                      holds, with the request that began the hold (owner)
//	tombstone                 has ended: late copies of the request change nothing
//
// # The protocol
//
// A lock that has nothing beside it changes hands by single statements, each a transaction of its
// own: take inserts or updates the lock's row, and give frees it. Every other change of a queue is
// a visit: one transaction, sent in one message with BEGIN and COMMIT, so that the server is never
// waiting for the client while it has the row locked. statements.go has the SQL.
//
//	gate     lock the lock's row; every later statement sees what was committed under it before
//	bury     delete some expired rows: those that could block a waiter, and the first waiters
//	drop     end the exclusive hold of a request that leaves
//	leave    delete the rows of requests that leave
//	entomb   leave tombstones of some of them
//	arrive   add requests at the end of the queue
//	join     add requests to holds that are alive
//	decide   grant what the rule of [driver.Queue] grants, notify clients, set floor and beside
//	refuse   delete the new requests that do not wait and were not granted; decide again
//	look     read what became of the requests
//
// A visit is two statements at least, gate and decide, because a statement of a READ COMMITTED
// transaction that has waited for a row judges that row anew, but reads all others as they were
// before it waited: a single statement could free a lock and miss a waiter that has just arrived.
// The transaction says READ COMMITTED itself, since the session's default may be another. take and
// give read and write one row, and are right in every isolation level; where the server reports a
// conflict (40001, 40P01), they are sent again.
//
// A visit that only adds waiters does not wait for the disk (synchronous_commit is off for that
// transaction): a crash of the server may take away the places of the last moment, and those
// requests arrive again. Whatever depends on such a place is written to the disk after it. All
// other commits wait, and the driver refuses sessions whose synchronous_commit is off.
//
// decide looks at the first waiter, which is granted if nothing blocks it: an exclusive one becomes
// the holder, and its row is deleted. If it is shared, all that follow up to the next exclusive one
// (or as many as there are permits) are granted with it, by one write of head.
//
//	unknown ── take ─────────────────► holds ── give, or a visit ──► gone
//	unknown ── a visit ──► waits ── another visit ──► holds ── a visit ──► gone
//
// For example, A holds, B waits, and C comes to share:
//
//	A  take  ► its token                    B  take ► held
//	B  arrive, decide, look ► place 1       C  arrive, decide, look ► place 2
//	A  give  ► no row, there is one beside  A  drop, decide ► holder is B, head is 1; notify B
//	B  look  ► holds                        B  give ► no row
//	B  drop, decide ► holder is none, head is 2; notify C
//	C  look  ► holds
//
// # Time
//
// The server's clock decides, read by clock_timestamp() when a row is judged (now() is the time at
// which a transaction began). A waiting request expires 10 s after its last sign of life, a shared
// one after its TTL if that is less. Signs of life are sent every 3 s, or three times in such a
// TTL. An exclusive request that is granted by another client holds for its TTL, and for at least
// 5 s, if its last sign of life is less than 5 s old. Otherwise, and if it is fixed, it holds for
// the time that its row has left, at least 1 s and at most 5 s. So a client that died while it
// waited delays the others by some seconds, or by its TTL if it had just died.
//
// The look that finds a grant proves it, and the time left counts from before it was sent. If that
// is less than 5 s (0.5 s for a shared request), and less than half of the TTL, or if the lease is
// fixed, the hold is renewed first. A waiter whose row has expired, or whose grant has expired
// before its client found it, arrives again.
//
// An expired row is deleted before a decision counts without it. A renewal that is under way has
// the row locked; bury passes over such a row, and it counts as alive. So no renewal succeeds after
// a decision has taken its row for dead.
//
// # Tokens
//
// An exclusive hold gets the last token plus one, or the microseconds since 1970 if that is more.
// When shared requests are granted, token and head move by the same number. The token of each of
// them is token - (head - place) for as long as it holds, and lies between those of the exclusive
// holds before and after it. A join has its hold's token.
//
// # Lost, repeated, late and killed statements
//
// An exchange is sent again until it is answered, for 10 s, each time over another connection if
// the last one broke. For a request that stands in the queue this goes on for its TTL, if that is
// longer; while the server answers, and only refuses, it goes on until the context ends. errors.go
// sorts the errors.
//
//   - Repeated: take finds its own ID, and returns the token again. arrive and join find their ID
//     in use, or as the holder. give, drop and leave name the request that they end, and find
//     nothing the second time: the release has succeeded then, if an earlier copy was sent and the
//     hold cannot have expired. The others may be repeated at any time.
//   - Late: a release after an uncertain take, arrive or join leaves a tombstone for a TTL. So a
//     late copy of take finds something beside the lock, and a late copy of the others finds the ID
//     in use.
//   - Canceled, killed or cut off, at any statement: the transaction is executed completely or not
//     at all.
//   - Kept from a row by another transaction: take and give leave out rows that are locked, and so
//     do renewals of several requests at first. Only a visit waits for a row, and is sent again
//     when it has waited for too long. So a row that is locked for long stops the calls for its
//     name, and no others.
//   - Broken by force: the request has a tombstone with broken set. A client that holds anything
//     reads those twice a second.
//
// # Waiting
//
// NOTIFY makes all commits of the server that notify anything wait for each other. So a visit
// notifies only the clients of requests that it grants, each once, and nothing else does. The
// channel is dlock_ and the client's ID; the payload is the ID of a request, and proves nothing: it
// makes the client poll. A client listens on one connection while anything of it waits, and for 5 s
// after that. A poll follows every 500 ms in any case, and at once when listening begins.
//
// A pooler that gives each transaction another session (PgBouncer in transaction mode) has neither
// LISTEN nor prepared statements. The driver detects it: the process that serves a session is not
// the one that the connection was opened with. Then, and with a pool of fewer than three
// connections, a client polls, after an eighth of the time since the queue last moved, from 2 ms to
// 100 ms. A waiter for whom no exclusive holder and no other waiter is ahead visits once a second,
// and right after a holder has expired.
//
// # Batches and bloat
//
// While takes, gives or looks are under way, others of their kind are collected and sent together,
// up to 256 at a time; a batch that fails is sent again call by call. For each name a client has
// one visit under way, and calls that come meanwhile share the next one. Renewals are sent up to
// 5000 at a time.
//
// Every update leaves a dead row. No index has a column that renewals and grants change, and the
// pages have room, so these updates are HOT: the next statement that reads a page cleans it. floor
// keeps the searches of a queue from the index entries of the requests that have gone, which stay
// while a transaction elsewhere is open.
package postgres
