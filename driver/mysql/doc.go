// Package mysql is the driver for MySQL (8.0.29 or later) and MariaDB (10.6 or later): locks are
// rows of two tables, changed by single statements.
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
// The scheme mariadb is the same. mysqls and mariadbs are the same over TLS, which always verifies
// the server. The parameters:
//
//   - migrate (false): make the tables that are missing, as [Migrate] does.
//   - pool_size (32): how many connections the client may have; at least 2.
//   - dial_timeout (3s): for opening a connection.
//   - tls_ca, tls_cert, tls_key, tls_server_name: mysqls and mariadbs only.
//   - ttl, prefix, label, identity: those of every driver.
//
// [New] works over a pool of the caller's. docs/mysql.md has rights, costs, and what is not
// promised.
//
// # The tables
//
// dlock_locks has a row for each prefix and name that was used. It stays until [Cleanup].
//
//	holder, client, label, ttl_us, fixed   the exclusive request that holds; holder zero: none
//	held_since, held_until                 since when; from held_until on the lock may be taken
//	broken                                 an operator ended the hold: it is not renewed any more
//	token                                  the last fencing token
//	head                                   the place of the last request that was let in
//	others                                 what stands in dlock_requests: 0, 1 or 2, see below
//
// dlock_requests has a row for all else. Its place, an AUTO_INCREMENT, is the order of arrival. A
// row counts until expires_at, and goes later.
//
//	request, place > head              waits
//	request, shared, place <= head     holds
//	request, exclusive, place <= head  was let in: it is the holder, or it has missed its turn
//	join                               holds, beside the request that began the hold (owner)
//	tombstone                          has ended: late copies of the request change nothing
//
// # The protocol
//
// Each statement is a transaction of its own. A grant is one write of the lock's row: of holder,
// for an exclusive request, or of head, for a run of shared ones. So the grants of a name follow
// one another, in any isolation but READ UNCOMMITTED. others says which statement may write it:
//
//	0  nothing stands beside the lock    take, give
//	1  exclusive requests wait           pass
//	2  anything may stand there          read, the rule of [driver.Queue], swap
//
// Any client may raise others at any time: that only costs more statements. pass and swap lower it;
// each looks in the same statement whether less is enough. statements.go has the SQL:
//
//	take    insert or update the lock: the request holds it, if it is free and others is 0
//	give    end the hold, if others is 0
//	pass    end a hold that is released or has expired, and grant the first request, if others < 2
//	arrive  insert an exclusive request, which waits
//	admit   insert a shared request, if others is 2; it locks the lock's row for sharing
//	join    insert a join, if others is 2 and the hold lives; it locks that row, too
//	raise   others is 1, or 2, at least
//	read    the lock, and what stands beside it
//	swap    write what a client decided, if token, head and holder are those that it read, and
//	        there are no joins, and no shared requests up to the new head, that it did not read
//	let     grant the first request, if it asks for a permit and there is one
//	bury    delete what has expired beside a lock, before swap
//	leave   delete a request that ends
//	entomb  make a request a tombstone
//	skip    make places go on after the head, when the table was emptied
//	look    what became of a request, and which request is ahead of it
//	poll    the same for the first request that a client has waiting, under many names at once
//	renew   begin the TTLs of holders again that have not expired and are not broken
//	keep    do that for what a client has waiting
//
// An exclusive request, and a shared one:
//
//	unknown ── take ─────────────────────────────────► holds ── give, pass, swap ──► gone
//	unknown ── arrive, raise 1 ──► waits ── pass, swap ──► holds
//	unknown ── raise 2, admit ──► waits ── swap ──► holds ── leave, swap ──► gone
//
// For example, A holds, B waits, and C comes to share:
//
//	A  take  ► its token                  B  take        ► 1: held
//	B  arrive ► place 7                   B  look        ► others is 0
//	B  raise ► others is 1                B  look        ► waits, A is ahead
//	A  give  ► no row: others is not 0    A  pass        ► holder is B, head is 7
//	B  poll  ► holds                      C  read        ► B holds
//	C  raise ► others is 2                C  admit, look ► place 8, waits
//	B  give, pass ► no row: others is 2   B  read, swap  ► holder is none, head is 8
//	C  poll  ► holds                      C  leave, read, swap ► others is 0
//
// Beside leave, let passes a permit on, in one commit and without a decision of its client. The
// first look after arrive locks the lock's row for sharing, so it waits for a grant that is not
// committed yet. Until others says so a row does not count: a lock that is given back may be taken
// before it. A row that was committed after a later place was let in has missed its turn: its
// client deletes it and arrives again, and so it does when a grant has expired before it was found.
// The look or the poll that finds a grant is the proof of it: what is left counts from before it
// was sent. If that is less than half of 10 s, or of its TTL (of a second for a shared one), or the
// lease is fixed, the hold is renewed first.
//
// # Time
//
// The server's clock expires, in UTC and microseconds. A statement's time is that at which it
// began: one that waited for a row gives less than it could, never more. A request that waits lives
// for 10 s, a shared one for its TTL if that is less; keep comes each 3 s, or three times in that
// TTL. An exclusive request that is let in holds for its TTL, and 5 s at least, if there was a sign
// of life of it less than 5 s ago; else, and if it is fixed, for what its row has left, 1 s at
// least and 5 s at most. That counts from when the server had the lock's row. So a client that died
// while it waited delays the others by some seconds, or by its TTL if it had just died.
//
// # Tokens
//
// An exclusive hold gets the greater of the last token and one, and the microseconds since 1970.
// When swap lets shared requests in it moves token and head by the same number: the token of each
// is token - (head - place) for as long as it holds, and lies between those of the exclusive holds
// before it and after it. A join has its hold's.
//
// # What is lost, repeated, late, killed, or waits
//
// A statement is sent again until it is answered, for 10 s, each time over another connection. For
// a request that stands in the queue that goes on for its TTL, if that is longer, and until its
// context ends while the server answers and only refuses. errors.go sorts the errors.
//
//   - Repeated: take finds its own ID, and says the token again; arrive, admit and join find their
//     ID in use. give, pass, swap and leave name what they end, and find nothing the second time: a
//     release has succeeded then, if an earlier copy was sent and the hold cannot have expired.
//     raise, bury, renew and keep may be done at any time.
//   - Late: a release after an uncertain take, arrive, admit or join leaves a tombstone for a TTL,
//     and others is 2. So a copy of take finds others, and one of the other three the ID. A call
//     that its context ends early is not uncertain if the statement under way is answered later.
//   - Killed, or without a connection: the statement is done or not. An UPDATE or a DELETE that
//     MariaDB 11 cuts short without an error changed fewer rows than it should: after give comes
//     pass, after renew a read.
//   - In the way of another transaction, or 2 s behind it: sent again within milliseconds.
//   - Broken by force: a tombstone with broken set. A client that holds reads those twice a second.
//
// # Waiting
//
// A client that finds a request of another client ahead of one of its own hangs a bell for each of
// its requests there: a named lock (GET_LOCK), dlock.<id>, which one of its sessions has until the
// request goes. In another session it listens to the bell of the request ahead, for a second at a
// time: once it gets that named lock it polls. A bell is a reason to look, and proves nothing. One
// that rang without need is left alone until the queue has moved. After it, and after one that did
// not ring when it should have, the client listens to none for 10 ms, doubled each time, 10 s at
// most. It has 500 bells at most, and listens to one.
//
// A poll comes after an eighth of the time since the queue last moved, at least a sixth of a turn
// (up to 20 ms), or a turn if another waiter is ahead, 1 ms to 100 ms; each 100 ms while a bell is
// listened to, while a request of the client itself is ahead, and after forty polls that found
// nothing new. A release by the client itself makes one due at once. When a holder is to
// expire, and each second if others is 2, the first request looks.
//
// # Sessions and pools
//
// A connection is used for one statement, and closed after any error. Values are integers and
// hexadecimal digits in the text: they mean the same in any mode and character set. Sessions of the
// client's own pool are READ COMMITTED and wait 2 s for a row. Each of a caller's pool is asked
// once how it is set; what would do harm (session.go) is set before each statement and set back
// after it, and so is a longer wait before a statement that locks rows of several names. A client
// has at most 30 statements under way beside polls and bells, and leaves two connections of its
// pool, or four if it has bells. Releases, renewals and requests that stand come first.
//
// # What is sent in one piece
//
// take, give, arrive and look go 64 at a time while another one of their kind is under way; what
// was not done so is done alone. Renewals go 5000 at a time; if another transaction has locked a
// row of them, the others go without it. Polls are for 200 names, reads of 500 rows or 5000 names,
// deletes of 500 rows. Lists fit max_allowed_packet, which has to be 16 kB.
package mysql
