package mysql

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// The statements that decide which request holds a lock. Each is a transaction of its own, and may
// be sent again. A colon begins a parameter, or a part that several statements share.
//
// The time of a statement is that at which it began: after a wait for a row it is old, which makes
// a hold shorter, never longer.

// parts are shared by several statements.
var parts = strings.NewReplacer(
	":now", "UTC_TIMESTAMP(6)",
	":micros", "TIMESTAMPDIFF(MICROSECOND, DATE'1970-01-01', UTC_TIMESTAMP(6))",
	":none", "X'00000000000000000000000000000000'",
	":past", "TIMESTAMP'1970-01-01 00:00:00'",

	// A dlock_locks row that is new has nothing beside it and is not held.
	":lock_columns", "prefix, name, token, head, others, holder, client, label, ttl_us, fixed, broken, held_since, held_until",
	":request_columns", "prefix, name, kind, id, owner, client, mode, permits, fixed, broken, token, ttl_us, label, arrived_at, expires_at",

	// The conditions of take. The columns that free reads are assigned last: holder, and after it
	// held_until, for which holder and held_since show whether the lock was taken just now.
	":free", "others = 0 AND held_until <= UTC_TIMESTAMP(6) AND holder <> VALUES(holder)",
	":took", "holder = VALUES(holder) AND held_since = UTC_TIMESTAMP(6) AND held_until <= UTC_TIMESTAMP(6)",
	":mine", "holder = VALUES(holder) AND held_until > UTC_TIMESTAMP(6) AND NOT broken",

	// when the hold of a waiter that is granted ends: after its TTL, and 5 s at least, if it showed
	// a sign of life less than 5 s before the statement began. Otherwise, and if it is fixed, after
	// the time that its row has left, 1 s at least and 5 s at most. That time counts from when the
	// server had locked the row.
	":until", "UTC_TIMESTAMP(6) + INTERVAL IF(NOT q.fixed AND q.expires_at > UTC_TIMESTAMP(6) + INTERVAL 5 SECOND, GREATEST(q.ttl_us, 5000000), "+
		"LEAST(GREATEST(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), q.expires_at), 1000000), 5000000)) + GREATEST(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)), 0) MICROSECOND",
	"\n", " ", "\t", "",
)

var (
	// take takes free locks for exclusive requests. The insert ID of its answer is the token, or
	// for a request that does not hold: 1 the lock is held; 2, 3 there are others; 4 the request
	// held, and has expired or is broken; 5 the lock is held, and exclusive requests wait. Sent
	// again, it resumes the hold.
	take = parts.Replace(`INSERT INTO dlock_locks (:lock_columns) VALUES :rows
		ON DUPLICATE KEY UPDATE
		token = IF(:free, LAST_INSERT_ID(GREATEST(token + 1, :micros)),
			token + 0 * LAST_INSERT_ID(IF(:mine, token, IF(holder = VALUES(holder), 4, IF(others = 1 AND held_until > :now, 5, others + 1))))),
		held_since = IF(:free, :now, held_since),
		client = IF(:free, VALUES(client), client),
		label = IF(:free, VALUES(label), label),
		ttl_us = IF(:free, VALUES(ttl_us), ttl_us),
		fixed = IF(:free, VALUES(fixed), fixed),
		broken = IF(:free, 0, broken),
		holder = IF(:free, VALUES(holder), holder),
		held_until = IF(:took, VALUES(held_until), IF(:mine, GREATEST(held_until, VALUES(held_until)), held_until))`)
	takeRow = parts.Replace(`(:prefix, :name, LAST_INSERT_ID(:micros), 0, 0, :id, :client, :label, :ttl, :fixed, 0, :now, :now + INTERVAL :ttl MICROSECOND)`)

	// held reads which requests hold the given locks.
	held = parts.Replace(`SELECT HEX(name), HEX(holder), token, others, broken, TIMESTAMPDIFF(MICROSECOND, :now, held_until)
		FROM dlock_locks FORCE INDEX (PRIMARY) WHERE prefix = :prefix AND name IN (:names) LIMIT 1000000`)

	// give releases locks that have no waiters.
	give = parts.Replace(`UPDATE dlock_locks FORCE INDEX (PRIMARY) SET holder = :none, held_until = :past
		WHERE prefix = :prefix AND name IN (:names) AND holder IN (:ids) AND others = 0 AND NOT broken AND held_until > :now`)

	// pass ends an exclusive hold, and grants the first waiter, if all waiters are exclusive.
	pass = parts.Replace(`UPDATE dlock_locks l LEFT JOIN dlock_requests q ON q.id = (
			SELECT w.id FROM dlock_requests w FORCE INDEX (PRIMARY)
			WHERE w.prefix = l.prefix AND w.name = l.name AND w.kind = 'request' AND w.place > l.head AND w.mode = 'exclusive' AND w.expires_at > :now
			ORDER BY w.place LIMIT 1)
		SET l.token = IF(q.id IS NULL, l.token, GREATEST(l.token + 1, :micros)),
		l.head = IFNULL(q.place, l.head),
		l.others = q.id IS NOT NULL,
		l.holder = IFNULL(q.id, :none),
		l.client = IFNULL(q.client, l.client),
		l.label = IFNULL(q.label, l.label),
		l.ttl_us = IFNULL(q.ttl_us, l.ttl_us),
		l.fixed = IFNULL(q.fixed, 0),
		l.broken = 0,
		l.held_since = IFNULL(q.arrived_at, :now),
		l.held_until = IF(q.id IS NULL, :past, :until)
		WHERE l.prefix = :prefix AND l.name = :name AND l.others < 2 AND :which`)
	// the hold that pass ends
	living    = parts.Replace(`l.holder = :id AND l.held_until > :now AND NOT l.broken`)
	ofRequest = `l.holder = :id`
	expired   = parts.Replace(`l.others = 1 AND l.held_until <= :now`)

	// arrive adds exclusive requests that wait. It does not lock the lock's row, so that arrivals
	// do not wait for each other.
	arrive    = parts.Replace(`INSERT INTO dlock_requests (:request_columns) VALUES :rows ON DUPLICATE KEY UPDATE id = VALUES(id)`)
	arriveRow = parts.Replace(`(:prefix, :name, 'request', :id, :id, :client, 'exclusive', 0, :fixed, 0, 0, :ttl, :label, :now, :now + INTERVAL 10 SECOND)`)

	// raise sets others to at least that level. If the row is new, the insert ID is its token.
	raise = parts.Replace(`INSERT INTO dlock_locks (:lock_columns) VALUES
		(:prefix, :name, LAST_INSERT_ID(:micros), 0, :level, :none, :none, _utf8mb4 X'', 0, 0, 0, :past, :past)
		ON DUPLICATE KEY UPDATE others = GREATEST(others, VALUES(others))`)

	// poll reads what the first waiter of a client under a name has to know.
	poll = parts.Replace(`SELECT HEX(l.name), l.head, l.others, HEX(l.holder), l.broken, TIMESTAMPDIFF(MICROSECOND, :now, l.held_until), l.token,
		IFNULL((SELECT HEX(a.id) FROM dlock_requests a FORCE INDEX (PRIMARY)
			WHERE a.prefix = :prefix AND a.name = :name AND a.kind = 'request' AND a.place > l.head AND a.place < :place AND a.expires_at > :now
			ORDER BY a.place DESC LIMIT 1), ''),
		IFNULL((SELECT TIMESTAMPDIFF(MICROSECOND, :now, e.expires_at) FROM dlock_requests e FORCE INDEX (id) WHERE e.id = :first AND NOT e.broken), 0), :dead
		FROM :from dlock_locks l FORCE INDEX (PRIMARY) WHERE l.prefix = :prefix AND l.name = :name`)
	// Servers plan a statement for longer than they run it: a list of 200 names takes a tenth of
	// the time of 200 statements in one. With a list they read backwards from the end of the queue,
	// 0.3 µs for each request behind the waiter, and so a single name is named in the statement.
	pollFrom = `(:list) p STRAIGHT_JOIN`
	pollRow  = `SELECT :name AS name, :place AS place, :first AS first`

	// anyDead is whether there is anything to sweep.
	anyDead = parts.Replace(`EXISTS (SELECT 1 FROM dlock_requests x FORCE INDEX (expires_at) WHERE x.expires_at <= :now)`)

	// look reads what a waiting request has to know. With :lock it waits for a grant that is not
	// committed yet.
	look = parts.Replace(`(SELECT :number, l.token, l.head, l.others, HEX(l.holder), l.broken, TIMESTAMPDIFF(MICROSECOND, :now, l.held_until),
		IFNULL(q.kind, ''), IFNULL(q.place, 0), IFNULL(TIMESTAMPDIFF(MICROSECOND, :now, q.expires_at), 0), IFNULL(q.broken, 0),
		IFNULL((SELECT HEX(a.id) FROM dlock_requests a FORCE INDEX (PRIMARY)
			WHERE a.prefix = :prefix AND a.name = :name AND a.kind = 'request' AND a.place > l.head AND a.place < q.place AND a.expires_at > :now
			ORDER BY a.place DESC LIMIT 1), '')
		FROM dlock_locks l LEFT JOIN dlock_requests q ON q.id = :id
		WHERE l.prefix = :prefix AND l.name = :name LIMIT 1 :lock)`)

	// read reads a lock and the rows beside it, in pieces. A label has 255 bytes at most; MariaDB
	// would sort on the disk what has a column that may be longer than 512 characters.
	read = parts.Replace(`SELECT l.token, l.head, l.others, HEX(l.holder), HEX(l.client), LEFT(HEX(l.label), 510), l.ttl_us, l.fixed, l.broken,
		TIMESTAMPDIFF(MICROSECOND, l.held_since, :now), TIMESTAMPDIFF(MICROSECOND, :now, l.held_until),
		IFNULL(q.kind, ''), q.place, HEX(q.id), HEX(q.owner), HEX(q.client), q.mode = 'shared', q.permits, q.fixed, q.broken, q.token,
		q.ttl_us, LEFT(HEX(q.label), 510), TIMESTAMPDIFF(MICROSECOND, q.arrived_at, :now), TIMESTAMPDIFF(MICROSECOND, :now, q.expires_at)
		FROM dlock_locks l LEFT JOIN dlock_requests q FORCE INDEX (PRIMARY) ON q.prefix = l.prefix AND q.name = l.name AND :after
		WHERE l.prefix = :prefix AND l.name = :name ORDER BY q.kind, q.place LIMIT :most`)

	// admit adds a shared request if others is 2. It locks the row against statements that grant.
	admit = parts.Replace(`INSERT INTO dlock_requests (:request_columns)
		SELECT l.prefix, l.name, 'request', :id, :id, :client, 'shared', :permits, :fixed, 0, 0, :ttl, :label, :now, :now + INTERVAL :lasts MICROSECOND
		FROM dlock_locks l WHERE l.prefix = :prefix AND l.name = :name AND l.others = 2 LIMIT 1 LOCK IN SHARE MODE`)
	// join adds a request to a hold that is alive, if an exclusive one still has the token that was
	// read. The sponsor is looked up by the name in the row, so that no server looks it up before
	// it has locked the row. The row of an exclusive request proves nothing: it may stand for a
	// while after the hold.
	join = parts.Replace(`INSERT INTO dlock_requests (:request_columns)
		SELECT l.prefix, l.name, 'join', :id, :owner, :client, :mode, :permits, :fixed, 0, :token, :ttl, :label, :now, :now + INTERVAL :ttl MICROSECOND
		FROM dlock_locks l WHERE l.prefix = :prefix AND l.name = :name AND l.others = 2 AND (l.holder <> :owner OR l.token = :token) AND
		(l.holder = :sponsor AND l.held_until > :now AND NOT l.broken OR
		EXISTS (SELECT 1 FROM dlock_requests s WHERE s.prefix = l.prefix AND s.name = l.name AND s.id = :sponsor
			AND (s.kind = 'join' OR s.kind = 'request' AND s.mode = 'shared' AND s.place <= l.head) AND s.expires_at > :now AND NOT s.broken))
		LIMIT 1 LOCK IN SHARE MODE`)

	// swap writes what a client decided, if the lock is as it was read: nothing was granted since,
	// and no shared request or join came that the client has not read. They are looked up by the
	// name in the row: by constants MySQL counts them before it has locked the row, and so misses
	// those that are committed in between.
	swap = parts.Replace(`UPDATE dlock_locks l LEFT JOIN dlock_requests q ON q.id = :next SET
		l.token = :new_token, l.head = :new_head,
		l.others = IF(:lower AND 0 = (SELECT COUNT(*) FROM dlock_requests a FORCE INDEX (PRIMARY) WHERE a.prefix = l.prefix AND a.name = l.name AND (a.kind <> 'request' OR a.mode = 'shared')),
			0 < (SELECT COUNT(*) FROM dlock_requests a FORCE INDEX (PRIMARY) WHERE a.prefix = l.prefix AND a.name = l.name AND a.kind = 'request' AND a.place > :new_head), 2),
		l.holder = IF(:keep, l.holder, IFNULL(q.id, :none)),
		l.client = IFNULL(q.client, l.client),
		l.label = IFNULL(q.label, l.label),
		l.ttl_us = IFNULL(q.ttl_us, l.ttl_us),
		l.fixed = IFNULL(q.fixed, l.fixed),
		l.broken = IF(:keep, l.broken, 0),
		l.held_since = IF(:keep, l.held_since, IFNULL(q.arrived_at, :now)),
		l.held_until = IF(:keep, l.held_until, IF(q.id IS NULL, :past, :until))
		WHERE l.prefix = :prefix AND l.name = :name AND l.others = 2 AND l.token = :token AND l.head = :head AND l.holder = :holder AND :state
		AND (:next = :none OR q.kind = 'request' AND q.expires_at > :now)
		AND (SELECT COUNT(*) FROM dlock_requests a FORCE INDEX (PRIMARY) WHERE a.prefix = l.prefix AND a.name = l.name AND a.kind = 'join') <= :joins
		AND (SELECT COUNT(*) FROM dlock_requests a FORCE INDEX (PRIMARY) WHERE a.prefix = l.prefix AND a.name = l.name AND a.kind = 'request' AND a.place <= :new_head AND a.mode = 'shared' AND :unknown) <= :shared
		AND (SELECT COUNT(*) FROM dlock_requests a FORCE INDEX (PRIMARY) WHERE a.prefix = l.prefix AND a.name = l.name AND a.kind = 'request' AND a.place > :head AND a.place < :new_head
			AND a.mode = 'exclusive' AND a.expires_at > :now) = 0`)

	// let grants the first waiter, if it asks for a permit of the same limit as the request :id,
	// which goes, and none behind it can follow. It counts too many holders rather than too few: an
	// expired one may be renewed meanwhile, and a join may be its owner's second request. token is
	// set before head, since it reads head.
	let = parts.Replace(`UPDATE dlock_locks l JOIN dlock_requests q ON q.id = (
			SELECT w.id FROM dlock_requests w FORCE INDEX (PRIMARY)
			WHERE w.prefix = l.prefix AND w.name = l.name AND w.kind = 'request' AND w.place > l.head AND w.expires_at > :now
			ORDER BY w.place LIMIT 1)
		SET l.token = l.token + q.place - l.head, l.head = q.place
		WHERE l.prefix = :prefix AND l.name = :name AND l.others = 2 AND l.holder = :none AND q.mode = 'shared' AND q.permits = :permits AND
		IFNULL((SELECT n.permits FROM dlock_requests n FORCE INDEX (PRIMARY)
			WHERE n.prefix = l.prefix AND n.name = l.name AND n.kind = 'request' AND n.place > q.place AND n.expires_at > :now
			ORDER BY n.place LIMIT 1), 0) <= q.permits AND
		(SELECT SUM(IF(a.permits = q.permits, 1, q.permits)) FROM dlock_requests a FORCE INDEX (PRIMARY) WHERE a.prefix = l.prefix AND a.name = l.name
			AND (a.kind = 'join' OR a.kind = 'request' AND a.mode = 'shared' AND a.place <= q.place) AND a.id <> :id) <= q.permits`)

	// bury deletes the expired rows beside a lock. If it waited for a renewal of a row, it checks
	// the row again; a renewal that comes later finds no row.
	bury = parts.Replace(`DELETE FROM dlock_requests WHERE prefix = :prefix AND name = :name AND expires_at <= :now LIMIT 500`)

	// leave removes a request that holds or waits. With the first form the answer shows whether it
	// was alive.
	leaveAlive = parts.Replace(`DELETE FROM dlock_requests WHERE id = :id AND kind <> 'tombstone' AND expires_at > :now AND NOT broken`)
	leave      = `DELETE FROM dlock_requests WHERE id IN (:ids) AND kind <> 'tombstone'`
	// leaveWaiting removes an exclusive request that waits, where nothing follows from that. It
	// waits for a grant that is not committed yet.
	leaveWaiting = parts.Replace(`DELETE FROM dlock_requests WHERE id = :id AND kind = 'request' AND expires_at > :now AND
		place > (SELECT l.head FROM dlock_locks l WHERE l.prefix = :prefix AND l.name = :name AND l.others < 2 LOCK IN SHARE MODE)`)

	// skip makes places go on after that one, which is needed if the table was emptied, or made
	// again.
	skip = parts.Replace(`INSERT INTO dlock_requests (place, :request_columns) VALUES
		(:place, :prefix, :name, 'tombstone', :new, :new, :none, 'exclusive', 0, 0, 0, 0, 0, _utf8mb4 X'', :now, :past) ON DUPLICATE KEY UPDATE id = id`)

	// entomb leaves a tombstone of a request, in its row if it has one.
	entomb = parts.Replace(`INSERT INTO dlock_requests (:request_columns) VALUES
		(:prefix, :name, 'tombstone', :id, :id, :client, 'exclusive', 0, 0, :ended, 0, :ttl, _utf8mb4 X'', :now, :now + INTERVAL :lasts MICROSECOND)
		ON DUPLICATE KEY UPDATE kind = 'tombstone', broken = broken OR VALUES(broken), expires_at = GREATEST(expires_at, VALUES(expires_at))`)

	// renew restarts the TTLs of holders. A copy that comes late shortens none; the microsecond
	// makes each row count as changed. A fixed one is renewed when its client finds the grant, and
	// ends its TTL later, although the grant may have left it more.
	renewLocks = parts.Replace(`UPDATE dlock_locks FORCE INDEX (PRIMARY) SET held_until =
		GREATEST(IF(fixed, :past, held_until + INTERVAL 1 MICROSECOND), :now + INTERVAL ttl_us MICROSECOND)
		WHERE prefix = :prefix AND name IN (:names) AND holder IN (:ids) AND held_until > :now AND NOT broken`)
	renewRequests = parts.Replace(`UPDATE dlock_requests FORCE INDEX (id) SET expires_at = GREATEST(expires_at + INTERVAL 1 MICROSECOND, :now + INTERVAL ttl_us MICROSECOND)
		WHERE id IN (:ids) AND kind <> 'tombstone' AND expires_at > :now AND NOT broken`)
	// standing reads what became of requests.
	standing = parts.Replace(`SELECT HEX(q.id), IF(q.kind = 'join' OR q.mode = 'shared' AND q.place <= l.head, 'holds', IF(q.place > l.head, 'waits', 'passed')), q.broken, TIMESTAMPDIFF(MICROSECOND, :now, q.expires_at)
		FROM dlock_requests q JOIN dlock_locks l ON l.prefix = q.prefix AND l.name = q.name WHERE q.id IN (:ids) AND q.kind <> 'tombstone' LIMIT 1000000`)

	// freeLocks and freeRequests read which rows no other transaction has locked.
	freeLocks    = `SELECT HEX(name) FROM dlock_locks FORCE INDEX (PRIMARY) WHERE prefix = :prefix AND name IN (:keys) LIMIT 1000000 FOR UPDATE SKIP LOCKED`
	freeRequests = `SELECT HEX(id) FROM dlock_requests FORCE INDEX (id) WHERE id IN (:keys) LIMIT 1000000 FOR UPDATE SKIP LOCKED`

	// keep renews waiting requests. It takes no time from those that were granted and renewed since
	// it began.
	keep = parts.Replace(`UPDATE dlock_requests FORCE INDEX (id) SET expires_at = GREATEST(expires_at, :now + INTERVAL IF(mode = 'shared', LEAST(ttl_us, 10000000), 10000000) MICROSECOND)
		WHERE id IN (:ids) AND kind = 'request' AND expires_at > :now`)
	// sweep deletes some expired rows, under any name.
	sweep = parts.Replace(`DELETE FROM dlock_requests WHERE expires_at <= :now LIMIT 100`)
	// endings reads which requests of a client were ended by force.
	endings = parts.Replace(`SELECT HEX(id) FROM dlock_requests WHERE client = :client AND kind = 'tombstone' AND broken AND expires_at > :now LIMIT 1000000`)

	// lift makes the token of an exclusive hold, and of its joins, at least :least. The insert ID
	// of its answer is the token; 0: the request does not hold. A join that is not committed yet
	// has locked the lock's row, which is read first.
	lift = parts.Replace(`UPDATE dlock_locks l LEFT JOIN dlock_requests q FORCE INDEX (PRIMARY) ON q.prefix = l.prefix AND q.name = l.name AND q.kind = 'join' AND q.owner = l.holder
		SET l.token = LAST_INSERT_ID(GREATEST(l.token, :least)), q.token = GREATEST(q.token, :least)
		WHERE l.prefix = :prefix AND l.name = :name AND l.holder = :id AND l.held_until > :now AND NOT l.broken`)

	breakLock     = parts.Replace(`UPDATE dlock_locks SET broken = 1 WHERE prefix = :prefix AND name = :name AND holder = :id`)
	breakRequests = `UPDATE dlock_requests SET broken = 1 WHERE id IN (:ids) AND kind <> 'tombstone'`

	list = parts.Replace(`SELECT HEX(l.name), l.others > 0 AND l.held_until <= :now FROM dlock_locks l FORCE INDEX (PRIMARY)
		WHERE l.prefix = :prefix AND l.name > :after AND (l.held_until > :now OR l.others > 0 AND
		EXISTS (SELECT 1 FROM dlock_requests q WHERE q.prefix = l.prefix AND q.name = l.name AND q.kind <> 'tombstone' AND q.expires_at > :now
			AND (q.place > l.head OR q.mode = 'shared' OR q.kind = 'join')))
		ORDER BY l.name LIMIT :most`)
)

// hexOf is a value as a binary literal. Hexadecimal digits mean the same in every sql_mode and
// character set, need no placeholders, and cannot contain SQL. Without placeholders a statement is
// one round trip, whatever the DSN says.
func hexOf[T string | []byte](v T) string { return "X'" + hex.EncodeToString([]byte(v)) + "'" }

func hexID(id driver.ID) string { return "X'" + id.String() + "'" }

func hexIDs(ids []driver.ID) string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = hexID(id)
	}
	return strings.Join(list, ", ")
}

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// fill puts arguments in a statement: pairs of a parameter and its value.
func fill(stmt string, args ...string) string {
	return expand(stmt, func(parameter string) string {
		for i := 0; i < len(args); i += 2 {
			if args[i] == parameter {
				return args[i+1]
			}
		}
		return parameter // for about
	})
}

// expand replaces each parameter: a colon, and the letters and underscores after it.
func expand(stmt string, value func(parameter string) string) string {
	var s strings.Builder
	s.Grow(len(stmt) + 256)
	for {
		at := strings.IndexByte(stmt, ':')
		if at < 0 {
			s.WriteString(stmt)
			return s.String()
		}
		end := at + 1
		for end < len(stmt) && (stmt[end] == '_' || 'a' <= stmt[end] && stmt[end] <= 'z') {
			end++
		}
		s.WriteString(stmt[:at])
		if end == at+1 { // of a time
			s.WriteByte(':')
		} else {
			s.WriteString(value(stmt[at:end]))
		}
		stmt = stmt[end:]
	}
}

// about fills in the parameters that a request has.
func (b *Backend) about(stmt string, r *driver.Request) string {
	return expand(stmt, func(parameter string) string {
		switch parameter {
		case ":prefix":
			return b.prefix
		case ":name":
			return hexOf(r.Name)
		case ":id":
			return hexID(r.ID)
		case ":owner":
			return hexID(r.Owner)
		case ":client":
			return hexID(r.Client)
		case ":mode":
			if r.Mode == driver.Shared {
				return "'shared'"
			}
			return "'exclusive'"
		case ":permits":
			return strconv.Itoa(r.Limit)
		case ":fixed":
			return bit(r.Fixed)
		case ":token":
			return strconv.FormatUint(uint64(r.Token), 10)
		case ":ttl":
			return micros(r.TTL)
		case ":label":
			return "_utf8mb4 " + hexOf(r.Label)
		}
		return parameter
	})
}
