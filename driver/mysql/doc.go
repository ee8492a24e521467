// Package mysql is the driver for MySQL (8.0.29 or later) and MariaDB (10.6 or later). Locks are
// rows of two tables, which single statements change.
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
//   - pool_size (32): the maximum number of connections; at least 2.
//   - dial_timeout (3s): for opening a connection.
//   - tls_ca, tls_cert, tls_key, tls_server_name: mysqls and mariadbs only.
//   - ttl, prefix, label, identity: those of every driver.
//
// [New] uses a pool of the caller's. docs/mysql.md has rights, costs and limits.
//
// # The tables
//
// dlock_locks has a row for each prefix and name that was used. The row stays until [Cleanup].
//
//	holder, client, label, ttl_us, fixed   the exclusive holder; holder zero: none
//	held_since, held_until                 when its request arrived; when the lock may be taken
//	broken                                 an operator ended the hold: it is not renewed any more
//	token                                  the last fencing token
//	head                                   the place of the last request granted from the queue
//	others                                 what dlock_requests has: 0, 1 or 2, see below
//
// dlock_requests has a row for every other request. Its place, an AUTO_INCREMENT, is the order of
// arrival. A row counts until expires_at, and is deleted later.
//
//	request, place > head              waits
//	request, shared, place <= head     holds
//	request, exclusive, place <= head  was granted and is the holder, or has missed its turn
//	join                               holds, with the request that began the hold (owner)
//	tombstone                          has ended: late copies of the request change nothing
//
// # The protocol
//
// Each statement is a transaction of its own. A grant is one write to the lock's row: to holder,
// for an exclusive request, or to head, for a run of shared ones. The grants of a name are
// therefore serialized in every isolation level but READ UNCOMMITTED. The column others says which
// statements may write the row:
//
//	0  dlock_requests has no row that counts    take, give
//	1  it has exclusive requests, which wait    pass
//	2  it may have any rows                     read, the rule of [driver.Queue], swap
//
// Any client may raise others at any time: that only costs more statements. pass and swap lower it;
// each checks in the same statement whether a lower value is enough. In the following, the rows
// beside a lock are those of its name in dlock_requests. statements.go has the SQL:
//
//	take    insert or update the lock: the request holds it, if it is free and others is 0
//	give    end the hold, if others is 0
//	pass    end a hold that is released or has expired, and grant the first request, if others < 2
//	arrive  insert an exclusive request, which waits
//	admit   insert a shared request, if others is 2; it locks the lock's row for sharing
//	join    insert a join, if others is 2 and the hold is alive; it locks that row too
//	raise   set others to at least 1, or 2
//	read    read the lock and the rows beside it
//	swap    write what a client decided, if token, head and holder are those that it read, and
//	        there are no joins, and no shared requests up to the new head, that it did not read
//	let     grant the first request, if it asks for a permit and there is one
//	bury    delete the expired rows beside a lock, before swap
//	lift    make the token of an exclusive hold and of its joins greater
//	leave   delete a request that ends
//	entomb  turn a request into a tombstone
//	skip    make places go on after the head, when the table was emptied
//	look    read what became of a request, and which request is ahead of it
//	poll    the same for the first request that a client has waiting, under many names at once
//	renew   restart the TTLs of holders that have not expired and are not broken
//	keep    keep the waiting requests of a client alive
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
// let is sent together with leave, and passes the permit on: the next waiter waits for one commit,
// and no client has to decide. The first look after arrive locks the lock's row for sharing, so it
// waits for a grant that is not committed yet. A row does not count while others is 0: if the lock
// is released then, another request may take it first. A row that was committed after a later place
// was granted has missed its turn: its client deletes it and arrives again. It does the same when a
// grant has expired before the client found it. The look or the poll that finds a grant proves it,
// and the time left counts from before that statement was sent. If that is less than 5 s (0.5 s for
// a shared request), and less than half of the TTL, or if the lease is fixed, the hold is renewed
// first.
//
// # Time
//
// The server's clock decides, in UTC and with microseconds. The time of a statement is the time at
// which it began: one that waited for a row gives less than it could, never more. A waiting request
// expires 10 s after its last sign of life (arrive or keep), a shared one after its TTL if that is
// less. keep is sent every 3 s, or three times in such a TTL. An exclusive request that is granted
// from the queue holds for its TTL, and for at least 5 s, if its last sign of life is less than 5 s
// old. Otherwise, and if it is fixed, it holds for the time that its row has left, at least 1 s and
// at most 5 s. This counts from the moment at which the server has locked the lock's row. So a
// client that died while it waited delays the others by some seconds, or by its TTL if it had just
// died.
//
// # Tokens
//
// An exclusive hold gets the last token plus one, or the microseconds since 1970 if that is more.
// When swap grants shared requests, it moves token and head by the same number. The token of each
// of them is token - (head - place) for as long as it holds, and lies between those of the
// exclusive holds before and after it. A join has its hold's token. lift makes the token of an
// exclusive hold at least a given one ([driver.Raiser]), right after its grant, so that tokens grow
// beside another backend. It waits for joins that are not committed yet; a join that has read the
// earlier token inserts nothing, and reads again.
//
// # Lost, repeated, late and killed statements
//
// A statement is sent again until it is answered, for 10 s, each time over another connection. For
// a request that stands in the queue this goes on for its TTL, if that is longer; while the server
// answers, and only refuses, it goes on until the context ends. errors.go sorts the errors.
//
//   - Repeated: take finds its own ID, and returns the token again; arrive, admit and join find
//     their ID in use. give, pass, swap and leave name the hold that they end, and find nothing the
//     second time: the release has succeeded then, if an earlier copy was sent and the hold cannot
//     have expired. raise, lift, bury, renew and keep may be repeated at any time.
//   - Late: a release after an uncertain take, arrive, admit or join leaves a tombstone for a TTL,
//     and sets others to 2. So a late copy of take finds that others is not 0, and a late copy of
//     the other three finds the ID in use. A call that ends early with its context is not uncertain
//     if the statement under way is answered later.
//   - Killed, or without a connection: the statement is executed completely or not at all. The
//     exception is an UPDATE or a DELETE that MariaDB 11 cuts short without an error. It has
//     changed fewer rows than it should: pass follows such a give, and a read follows such a renew.
//     A lift that has not found the hold is sent again. One that is cut short after it has leaves
//     joins with the earlier token.
//   - Deadlocked with another transaction, or kept from a row by one for 2 s: sent again within
//     milliseconds.
//   - Broken by force: the request has a tombstone with broken set. A client that holds anything
//     reads those twice a second.
//
// # Waiting
//
// A client that finds a request of another client ahead of one of its own takes a wake-up lock for
// each of its requests there: a named lock (GET_LOCK), dlock.<id>, which one of its sessions holds
// until the request goes. In another session the client listens: it tries to take the wake-up lock
// of the request ahead, for a second at a time, and polls once it gets it. Getting a wake-up lock
// is a reason to poll, and proves nothing. If a wake-up lock was free although its request still
// stands, the client does not try it again until the queue has moved. After such a wake-up lock,
// and after one that was not free although its request had gone, the client listens to none for a
// while: 10 ms at first, doubled each time, 10 s at most. A client has at most 500 wake-up locks,
// and listens to one.
//
// A poll is due after an eighth of the time since the queue last moved. The least is a sixth of a
// turn (20 ms at most), where a turn is the time that the queue takes to move, or a whole turn if
// another waiter is ahead. The result is bounded to 1 ms to 100 ms. It is 100 ms while the client
// listens to a wake-up lock, while a request of its own is ahead, and after forty polls that found
// nothing new. A release by the client itself makes a poll due at once. When a holder is about to
// expire, and every second if others is 2, the first request of the client looks.
//
// # Sessions and pools
//
// A connection is used for one statement, and closed after any error. Values are integers and
// hexadecimal digits in the text, which mean the same in any mode and character set. Sessions of
// the client's own pool are READ COMMITTED and wait 2 s for a row. The settings of a session of a
// caller's pool are read once. Those that would do harm (session.go) are set before each statement
// and set back after it, and so is a longer wait for rows if the statement locks rows of several
// names. A client has at most 30 statements under way beside polls and wake-up locks, and leaves
// two connections of its pool free, or four if it has wake-up locks. Releases, renewals and
// requests that stand in the queue come first.
//
// # Batches
//
// While a take, give, arrive or look is under way, others of its kind are collected and sent
// together, up to 64 at a time; those that fail in this way are sent alone. Renewals are sent up to
// 5000 at a time; if another transaction has locked one of the rows, the others are sent without
// it. A poll is for up to 200 names, a read returns up to 500 rows or 5000 names, and bury deletes
// up to 500 rows. Each statement fits max_allowed_packet, which has to be at least 16 kB.
package mysql
