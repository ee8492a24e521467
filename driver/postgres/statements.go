package postgres

import "strings"

// The statements that decide which request holds a lock. Parameter $1 is the prefix wherever there
// is a name. A colon begins a part that several statements share.

// parts are shared by several statements.
var parts = strings.NewReplacer(
	// the time at which the expression is evaluated: now() is that at which the transaction began
	":now", "clock_timestamp()",
	":micros", "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
	":us", "interval '1 microsecond'",
	":past", "timestamptz '1970-01-01 00:00:00+00'",
	":lock_columns", lockColumns,
	":request_columns", requestColumns,
	// the rows of dlock_requests of the name
	":beside", "r.prefix = $1 AND r.name = $2",
	"\n", " ", "\t", "",
)

const (
	lockColumns    = "prefix, name, token, head, floor, last, beside, holder, client, label, ttl_us, fixed, broken, held_since, held_until"
	requestColumns = "id, prefix, name, kind, place, owner, client, exclusive, permits, fixed, broken, token, ttl_us, label, arrived_at, expires_at"
)

// forMany returns a statement for many requests, and for one, which the server executes in less
// time. They differ in :requests.
func forMany(text, many, one string) (forMany, forOne string) {
	with := func(requests string) string {
		return parts.Replace(strings.Replace(text, ":requests", requests, 1))
	}
	return with(many), with(one)
}

// readRows is what [read] and [readHold] are made of.
const readRows = `SELECT l.token, l.head, l.beside, encode(l.holder, 'hex'), encode(l.client, 'hex'), encode(l.label, 'hex'), l.ttl_us, l.fixed, l.broken,
		(extract(epoch FROM :now - l.held_since) * 1000000)::bigint, (extract(epoch FROM l.held_until - :now) * 1000000)::bigint,
		coalesce(r.kind, ''), coalesce(r.place, 0), coalesce(encode(r.id, 'hex'), ''), coalesce(encode(r.owner, 'hex'), ''), coalesce(encode(r.client, 'hex'), ''), coalesce(r.exclusive, false),
		coalesce(r.permits, 0), coalesce(r.fixed, false), coalesce(r.broken, false), coalesce(r.token, 0), coalesce(r.ttl_us, 0), coalesce(encode(r.label, 'hex'), ''),
		coalesce((extract(epoch FROM :now - r.arrived_at) * 1000000)::bigint, 0), coalesce((extract(epoch FROM r.expires_at - :now) * 1000000)::bigint, 0)
		FROM dlock_locks l LEFT JOIN LATERAL (:rows) r ON true
		WHERE l.prefix = $1 AND l.name = $2 ORDER BY r.kind, r.place LIMIT $3`

// Single statements, for locks that have nothing beside them. Each is a transaction of its own.
var (
	// take takes free locks for exclusive requests. It leaves alone a lock that it sees as held, so
	// that a refusal writes nothing, and one whose row another transaction has locked, so that the
	// others do not wait for it. Sent again, it resumes the hold. It returns, by the number of the
	// request: its token (0: it does not hold), and what was seen of the lock before.
	take, takeOne = forMany(`WITH :requests, free AS MATERIALIZED (
			SELECT l.name FROM i JOIN dlock_locks l ON l.prefix = $1 AND l.name = i.name
			WHERE l.holder = i.id OR NOT l.beside AND l.held_until <= :now FOR UPDATE OF l SKIP LOCKED
		), t AS (
			INSERT INTO dlock_locks AS l (:lock_columns)
			SELECT $1, i.name, :micros, 0, 0, 0, false, i.id, i.client, i.label, i.ttl_us, i.fixed, false, :now, :now + i.ttl_us * :us
			FROM i WHERE i.name IN (SELECT name FROM free) OR NOT EXISTS (SELECT FROM dlock_locks o WHERE o.prefix = $1 AND o.name = i.name)
			ORDER BY i.name
			ON CONFLICT (prefix, name) DO UPDATE SET
			token = CASE WHEN l.holder = excluded.holder THEN l.token ELSE greatest(l.token + 1, :micros) END,
			held_since = CASE WHEN l.holder = excluded.holder THEN l.held_since ELSE :now END,
			held_until = greatest(CASE WHEN l.holder = excluded.holder THEN l.held_until END, :now + excluded.ttl_us * :us),
			holder = excluded.holder, client = excluded.client, label = excluded.label, ttl_us = excluded.ttl_us, fixed = excluded.fixed, broken = false
			WHERE l.holder <> excluded.holder AND l.held_until <= :now AND NOT l.beside
			OR l.holder = excluded.holder AND l.held_until > :now AND NOT l.broken
			RETURNING name, token
		)
		SELECT i.n, coalesce(t.token, 0), o.name IS NOT NULL AND o.holder = i.id, coalesce(o.held_until > :now, false), coalesce(encode(o.label, 'hex'), ''),
		coalesce((extract(epoch FROM :now - o.held_since) * 1000000)::bigint, 0)
		FROM i LEFT JOIN t ON t.name = i.name LEFT JOIN dlock_locks o ON o.prefix = $1 AND o.name = i.name`,
		`i AS (SELECT * FROM unnest($2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[], $6::bigint[], $7::boolean[])
			WITH ORDINALITY AS i(name, id, client, label, ttl_us, fixed, n))`,
		`i AS NOT MATERIALIZED (SELECT $2::bytea AS name, $3::bytea AS id, $4::bytea AS client, $5::bytea AS label,
			$6::bigint AS ttl_us, $7::boolean AS fixed, 1::bigint AS n)`)

	// give releases locks that have nothing beside them, and returns their last holders. It leaves
	// out rows that another transaction has locked.
	give, giveOne = forMany(`WITH g AS (
			SELECT l.name, l.holder FROM :requests
			JOIN dlock_locks l ON l.prefix = $1 AND l.name = i.name AND l.holder = i.id
			WHERE NOT l.beside AND NOT l.broken AND l.held_until > :now FOR UPDATE OF l SKIP LOCKED
		)
		UPDATE dlock_locks l SET holder = '', held_until = :past FROM g WHERE l.prefix = $1 AND l.name = g.name RETURNING encode(g.holder, 'hex')`,
		`unnest($2::bytea[], $3::bytea[]) i(name, id)`, `(SELECT $2::bytea AS name, $3::bytea AS id) i`)

	// renewLocks restarts the TTLs of exclusive holders: k are those that have not expired while
	// the statement waited for their rows. It returns those that it renewed, with their tokens. A
	// copy that comes late shortens none. A fixed one is renewed when its client finds the grant,
	// and ends its TTL later, although the grant may have left it more.
	renewLocks = parts.Replace(`WITH g AS MATERIALIZED (
			SELECT l.name, l.held_until FROM unnest($2::bytea[], $3::bytea[]) i(name, id)
			JOIN dlock_locks l ON l.prefix = $1 AND l.name = i.name AND l.holder = i.id
			WHERE NOT l.broken AND l.held_until > :now ORDER BY l.name FOR UPDATE OF l :skip
		), k AS MATERIALIZED (
			SELECT name FROM g WHERE held_until > :now
		)
		UPDATE dlock_locks l SET held_until = greatest(CASE WHEN NOT l.fixed THEN l.held_until END, :now + l.ttl_us * :us) FROM k
		WHERE l.prefix = $1 AND l.name = k.name RETURNING encode(l.holder, 'hex'), l.token`)

	// renewRequests is renewLocks for shared holders and joins.
	renewRequests = parts.Replace(`WITH g AS MATERIALIZED (
			SELECT r.id, r.expires_at FROM dlock_requests r WHERE r.id = ANY ($1::bytea[]) AND r.kind <> 'tombstone' AND NOT r.broken AND r.expires_at > :now
			ORDER BY r.id FOR UPDATE OF r :skip
		), k AS MATERIALIZED (
			SELECT id FROM g WHERE expires_at > :now
		)
		UPDATE dlock_requests r SET expires_at = greatest(r.expires_at, :now + r.ttl_us * :us) FROM k, dlock_locks l
		WHERE r.id = k.id AND l.prefix = r.prefix AND l.name = r.name
		AND (r.kind = 'join' OR NOT r.exclusive AND r.place <= l.head) RETURNING encode(r.id, 'hex'), r.token`)

	// keep keeps waiting requests alive, for 10 s. It leaves out rows that another transaction has
	// locked: those are granted or removed just now, or are kept by the next one.
	keep = parts.Replace(`WITH g AS (
			SELECT r.id FROM dlock_requests r WHERE r.id = ANY ($1::bytea[]) AND r.kind = 'request' AND r.expires_at > :now
			FOR UPDATE OF r SKIP LOCKED
		)
		UPDATE dlock_requests r SET expires_at = greatest(r.expires_at, :now + CASE WHEN r.exclusive THEN 10000000 ELSE least(r.ttl_us, 10000000) END * :us)
		FROM g WHERE r.id = g.id AND r.expires_at > :now`)

	// look reads what became of requests, by the number of each.
	look = parts.Replace(`SELECT i.n, l.token, l.head, l.beside, encode(l.holder, 'hex'), l.broken, (extract(epoch FROM l.held_until - :now) * 1000000)::bigint,
		coalesce(r.kind, ''), coalesce(r.place, 0), coalesce(r.broken, false), coalesce(r.token, 0),
		coalesce((extract(epoch FROM r.expires_at - :now) * 1000000)::bigint, 0),
		CASE coalesce(
			(SELECT f.permits > 0 FROM dlock_requests f WHERE f.prefix = l.prefix AND f.name = l.name AND f.kind = 'join' LIMIT 1),
			(SELECT f.permits > 0 FROM dlock_requests f WHERE f.prefix = l.prefix AND f.name = l.name AND f.kind = 'request' AND f.place > l.floor
				ORDER BY f.place LIMIT 1),
			CASE WHEN l.holder <> '' AND l.held_until > :now THEN false END) WHEN true THEN 2 WHEN false THEN 1 ELSE 0 END,
		coalesce((extract(epoch FROM (SELECT min(f.expires_at) FROM (
			(SELECT e.expires_at FROM dlock_requests e WHERE e.prefix = l.prefix AND e.name = l.name AND e.kind = 'join' LIMIT 200)
			UNION ALL
			(SELECT e.expires_at FROM dlock_requests e WHERE e.prefix = l.prefix AND e.name = l.name AND e.kind = 'request'
				AND e.place > l.floor AND e.place <= l.head ORDER BY e.place LIMIT 200)) f) - :now) * 1000000)::bigint, 0),
		EXISTS (SELECT FROM dlock_requests a WHERE a.prefix = l.prefix AND a.name = l.name AND a.kind = 'request'
			AND a.place > l.head AND a.place < r.place AND a.expires_at > :now),
		encode(l.label, 'hex'), (extract(epoch FROM :now - l.held_since) * 1000000)::bigint
		FROM unnest($2::bytea[], $3::bytea[]) WITH ORDINALITY AS i(name, id, n)
		JOIN dlock_locks l ON l.prefix = $1 AND l.name = i.name
		LEFT JOIN dlock_requests r ON r.id = i.id`)

	// read reads a lock and the first $3 rows beside it. readHold reads only rows that hold: their
	// number, and not that of the waiters, is what it costs.
	read     = parts.Replace(strings.Replace(readRows, ":rows", `SELECT * FROM dlock_requests r WHERE :beside AND r.kind <> 'tombstone'`, 1))
	readHold = parts.Replace(strings.Replace(readRows, ":rows", `SELECT * FROM dlock_requests r WHERE :beside AND r.kind = 'join'
		UNION ALL SELECT * FROM dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.floor AND r.place <= l.head`, 1))

	// ended reads which requests of clients were ended by force.
	ended = parts.Replace(`SELECT encode(id, 'hex') FROM dlock_requests WHERE client = ANY ($1::bytea[]) AND broken AND kind = 'tombstone' AND expires_at > :now`)

	// list reads which names are in use.
	list = parts.Replace(`SELECT encode(l.name, 'hex') FROM dlock_locks l WHERE l.prefix = $1 AND (l.holder <> '' AND l.held_until > :now OR l.beside AND
		EXISTS (SELECT FROM dlock_requests r WHERE r.prefix = l.prefix AND r.name = l.name AND r.kind <> 'tombstone' AND r.expires_at > :now))`)

	// sweep deletes some expired rows, under any name, unless a client did so less than 3 s ago,
	// which the row without a name says.
	sweep = parts.Replace(`WITH turn AS (
			INSERT INTO dlock_locks AS l (:lock_columns)
			SELECT '', '', 0, 0, 0, 0, false, '', '', '', 0, false, false, :now, :past
			WHERE NOT EXISTS (SELECT FROM dlock_locks o WHERE o.prefix = '' AND o.name = '' AND o.held_since > :now - interval '3 seconds')
			ON CONFLICT (prefix, name) DO UPDATE SET held_since = excluded.held_since WHERE l.held_since <= :now - interval '3 seconds'
			RETURNING 1
		), dead AS (
			SELECT r.id FROM dlock_requests r WHERE r.expires_at <= :now AND EXISTS (SELECT FROM turn) LIMIT 1000 FOR UPDATE OF r SKIP LOCKED
		)
		DELETE FROM dlock_requests r USING dead WHERE r.id = dead.id`)
)

// The statements of a visit, which are one transaction.
var (
	// plans has the statements behind it planned as in the driver's own connections (see open.go).
	plans = `SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`

	create = parts.Replace(`INSERT INTO dlock_locks (:lock_columns)
		VALUES ($1, $2, :micros, 0, 0, 0, false, '', '', '', 0, false, false, :now, :past) ON CONFLICT DO NOTHING`)

	// gate locks the lock's row. What follows sees all that was committed under it before.
	gate = `SELECT FROM dlock_locks WHERE prefix = $1 AND name = $2 FOR UPDATE`

	// bury deletes expired rows beside the lock: some of those that could block a waiter, and some
	// of the first waiters. From then on, a row that is still there counts, whatever its time: its
	// renewal may be under way, and is not waited for.
	bury = parts.Replace(`WITH l AS (SELECT head, floor FROM dlock_locks WHERE prefix = $1 AND name = $2),
		near AS (
			(SELECT r.id, r.expires_at FROM dlock_requests r WHERE :beside AND r.kind = 'join' LIMIT 200)
			UNION ALL
			(SELECT r.id, r.expires_at FROM l, dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.floor AND r.place <= l.head ORDER BY r.place LIMIT 200)
			UNION ALL
			(SELECT r.id, r.expires_at FROM l, dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.head ORDER BY r.place LIMIT 200)
			UNION ALL
			(SELECT r.id, r.expires_at FROM dlock_requests r WHERE :beside AND r.kind = 'tombstone' LIMIT 200)
		), dead AS (
			SELECT r.id FROM dlock_requests r WHERE r.id IN (SELECT n.id FROM near n WHERE n.expires_at <= :now) AND r.expires_at <= :now
			FOR UPDATE OF r SKIP LOCKED
		)
		DELETE FROM dlock_requests r USING dead WHERE r.id = dead.id`)

	// drop ends an exclusive hold of one of the requests, and returns it, with whether it was alive
	// and whether an operator had ended it.
	drop = parts.Replace(`WITH h AS (SELECT holder, held_until, broken FROM dlock_locks WHERE prefix = $1 AND name = $2 AND holder = ANY ($3::bytea[]))
		UPDATE dlock_locks l SET holder = '', held_until = :past, broken = false FROM h WHERE l.prefix = $1 AND l.name = $2
		RETURNING encode(h.holder, 'hex'), h.held_until > :now AND NOT h.broken, h.broken`)

	// leave deletes requests, and returns the same for them.
	leave = parts.Replace(`DELETE FROM dlock_requests r WHERE r.id = ANY ($1::bytea[]) AND r.kind <> 'tombstone'
		RETURNING encode(r.id, 'hex'), r.expires_at > :now AND NOT r.broken, r.broken`)

	// entomb leaves tombstones of requests that leave has deleted.
	entomb = parts.Replace(`INSERT INTO dlock_requests AS r (:request_columns)
		SELECT i.id, $1, $2, 'tombstone', l.last + $7 + i.n, i.id, i.client, true, 0, false, i.ended, 0, 0, '', :now, :now + i.lasts * :us
		FROM dlock_locks l, unnest($3::bytea[], $4::bytea[], $5::bigint[], $6::boolean[]) WITH ORDINALITY AS i(id, client, lasts, ended, n)
		WHERE l.prefix = $1 AND l.name = $2
		ON CONFLICT (id) DO UPDATE SET kind = 'tombstone', broken = r.broken OR excluded.broken, expires_at = greatest(r.expires_at, excluded.expires_at)`)

	// arrive adds requests at the end of the queue, unless they hold already, or the name is in use
	// as the other kind of lock. All of them are of one kind.
	arrive = parts.Replace(`INSERT INTO dlock_requests (:request_columns)
		SELECT i.id, $1, $2, 'request', l.last + i.n, i.id, i.client, i.exclusive, i.permits, i.fixed, false, 0, i.ttl_us, i.label, :now,
		:now + CASE WHEN i.exclusive THEN 10000000 ELSE least(i.ttl_us, 10000000) END * :us
		FROM dlock_locks l, unnest($3::bytea[], $4::bytea[], $5::boolean[], $6::integer[], $7::boolean[], $8::bigint[], $9::bytea[])
			WITH ORDINALITY AS i(id, client, exclusive, permits, fixed, ttl_us, label, n)
		WHERE l.prefix = $1 AND l.name = $2 AND l.holder <> i.id
		AND (i.permits > 0) = coalesce(
			(SELECT r.permits > 0 FROM dlock_requests r WHERE :beside AND r.kind = 'join' LIMIT 1),
			(SELECT r.permits > 0 FROM dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.floor ORDER BY r.place LIMIT 1),
			i.permits > 0 AND (l.holder = '' OR l.held_until <= :now))
		ON CONFLICT (id) DO NOTHING`)

	// join adds requests to holds that are alive. An exclusive hold still has the token that was
	// read; another request that sponsors a join was read too. The server is to find that one by
	// its ID: no index serves IS NOT DISTINCT FROM.
	join = parts.Replace(`INSERT INTO dlock_requests (:request_columns)
		SELECT i.id, $1, $2, 'join', l.last + $12 + i.n, i.owner, i.client, i.exclusive, i.permits, i.fixed, false, i.token, i.ttl_us, i.label, :now, :now + i.ttl_us * :us
		FROM dlock_locks l, unnest($3::bytea[], $4::bytea[], $5::bytea[], $6::boolean[], $7::integer[], $8::boolean[], $9::bigint[], $10::bytea[], $11::bigint[], $13::bytea[])
			WITH ORDINALITY AS i(id, owner, client, exclusive, permits, fixed, ttl_us, label, token, sponsor, n)
		WHERE l.prefix = $1 AND l.name = $2 AND (l.holder <> i.owner OR l.token = i.token) AND
		(l.holder = i.sponsor AND l.held_until > :now AND NOT l.broken OR
		EXISTS (SELECT FROM dlock_requests r WHERE r.id = i.sponsor AND (r.prefix, r.name) IS NOT DISTINCT FROM ($1, $2)
			AND (r.kind = 'join' OR r.kind = 'request' AND NOT r.exclusive AND r.place <= l.head)
			AND r.expires_at > :now AND NOT r.broken))
		ON CONFLICT (id) DO NOTHING`)

	// decide grants what the rule of [driver.Queue] grants, and notifies the clients of the granted
	// requests, but for $3, which made the visit. Only the first waiters can be granted: an
	// exclusive one, or shared ones up to the next exclusive one. owners is how many owners block
	// them, or as many of those as matter. $4 is how many places were given; $5 are the requests
	// that arrived in this visit, whose clients are alive. If $6 is set and nothing is granted, the
	// transaction does not wait for the disk. It returns the granted requests. (With kind IN, the
	// server would read all waiters for the two EXISTS of others: they lie between the two kinds.)
	decide = parts.Replace(`WITH l AS MATERIALIZED (
			SELECT *, :now AS now, holder <> '' AND held_until > :now AS held FROM dlock_locks WHERE prefix = $1 AND name = $2
		), f AS MATERIALIZED (
			SELECT q.* FROM l, LATERAL (
				SELECT * FROM dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.head ORDER BY r.place LIMIT 1) q
			WHERE NOT l.held AND q.expires_at > l.now
		), b AS MATERIALIZED (
			SELECT count(DISTINCT x.owner) AS owners, coalesce(bool_or(x.exclusive), false) AS exclusive, min(nullif(x.permits, 0)) AS permits
			FROM f, l, LATERAL (
				(SELECT r.owner, r.exclusive, r.permits FROM dlock_requests r WHERE :beside AND r.kind = 'join')
				UNION ALL
				(SELECT r.owner, r.exclusive, r.permits FROM dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.floor AND r.place <= l.head
					ORDER BY r.place LIMIT greatest(f.permits, 1))) x
		), w AS (
			SELECT q.id, q.client, q.place, row_number() OVER o AS n, min(nullif(q.permits, 0)) OVER o AS permits
			FROM f, l, b, LATERAL (
				SELECT * FROM dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.head AND r.place < coalesce(
					(SELECT r.place FROM dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.head AND r.exclusive ORDER BY r.place LIMIT 1),
					9223372036854775807)
				ORDER BY r.place LIMIT CASE WHEN f.permits > 0 THEN greatest(f.permits - b.owners, 1) END) q
			WHERE NOT f.exclusive AND NOT b.exclusive
			WINDOW o AS (ORDER BY q.place)
		), g AS MATERIALIZED (
			SELECT f.id, f.client, f.place FROM f, b WHERE f.exclusive AND b.owners = 0
			UNION ALL
			SELECT w.id, w.client, w.place FROM w, b WHERE b.owners + w.n = 1 OR b.owners + w.n <= coalesce(least(b.permits, w.permits), 9223372036854775807)
		), top AS MATERIALIZED (
			SELECT max(g.place) AS place, coalesce(bool_or(f.exclusive), false) AS taken FROM g, f
		), passed AS (
			DELETE FROM dlock_requests r USING top, f WHERE top.taken AND r.id = f.id
		), rest AS MATERIALIZED (
			SELECT (SELECT r.place FROM dlock_requests r WHERE :beside AND r.kind = 'request' AND r.place > l.floor
				AND NOT (top.taken AND r.place = top.place) ORDER BY r.place LIMIT 1) AS first,
			EXISTS (SELECT FROM dlock_requests r WHERE :beside AND r.kind = 'join')
				OR EXISTS (SELECT FROM dlock_requests r WHERE :beside AND r.kind = 'tombstone') AS others
			FROM l, top
		), changed AS (
			UPDATE dlock_locks k SET
			token = CASE WHEN top.place IS NULL THEN k.token WHEN top.taken THEN greatest(k.token + 1, :micros) ELSE k.token + top.place - k.head END,
			head = coalesce(top.place, k.head),
			last = k.last + $4,
			floor = least(coalesce(rest.first - 1, k.last + $4), coalesce(top.place, k.head)),
			beside = rest.first IS NOT NULL OR rest.others,
			holder = CASE WHEN top.taken THEN f.id WHEN l.held THEN k.holder ELSE '' END,
			client = CASE WHEN top.taken THEN f.client ELSE k.client END,
			label = CASE WHEN top.taken THEN f.label ELSE k.label END,
			ttl_us = CASE WHEN top.taken THEN f.ttl_us ELSE k.ttl_us END,
			fixed = CASE WHEN top.taken THEN f.fixed ELSE k.fixed END,
			broken = l.held AND k.broken,
			held_since = CASE WHEN top.taken THEN f.arrived_at ELSE k.held_since END,
			held_until = CASE WHEN NOT top.taken THEN CASE WHEN l.held THEN k.held_until ELSE :past END
				WHEN f.id = ANY ($5::bytea[]) THEN l.now + f.ttl_us * :us
				WHEN NOT f.fixed AND f.expires_at > l.now + interval '5 seconds' THEN l.now + greatest(f.ttl_us, 5000000) * :us
				ELSE l.now + least(greatest(f.expires_at - l.now, interval '1 second'), interval '5 seconds') END
			FROM l, rest, top LEFT JOIN f ON true
			WHERE k.prefix = $1 AND k.name = $2 AND (top.place IS NOT NULL OR $4 > 0 OR k.holder <> '' AND NOT l.held
				OR k.beside <> (rest.first IS NOT NULL OR rest.others)
				OR k.floor < least(coalesce(rest.first - 1, k.last), k.head))
		)
		SELECT NULL::text, pg_notify('dlock_' || encode(n.client, 'hex'), encode(n.id, 'hex'))::text
		FROM (SELECT DISTINCT ON (client) client, id FROM g WHERE client <> $3 ORDER BY client, place) n
		UNION ALL
		SELECT encode(g.id, 'hex'), NULL FROM g
		UNION ALL
		SELECT NULL, set_config('synchronous_commit', 'off', true) WHERE $6::boolean AND NOT EXISTS (SELECT FROM g)`)

	// begin starts the TTLs of shared requests that were granted as they arrived.
	begin = parts.Replace(`UPDATE dlock_requests r SET expires_at = :now + r.ttl_us * :us FROM dlock_locks l
		WHERE l.prefix = $1 AND l.name = $2 AND r.id = ANY ($3::bytea[]) AND r.kind = 'request' AND r.place <= l.head`)

	// refuse deletes requests that do not wait and were not granted.
	refuse = parts.Replace(`DELETE FROM dlock_requests r USING dlock_locks l
		WHERE l.prefix = $1 AND l.name = $2 AND r.id = ANY ($3::bytea[]) AND r.kind = 'request' AND r.place > l.head`)

	// breakLock and breakRequests mark the hold with a token, and return its requests.
	breakLock = parts.Replace(`UPDATE dlock_locks SET broken = true WHERE prefix = $1 AND name = $2 AND token = $3 AND holder <> '' AND held_until > :now
		RETURNING encode(holder, 'hex'), encode(holder, 'hex'), encode(client, 'hex'), ttl_us`)
	breakRequests = parts.Replace(`UPDATE dlock_requests r SET broken = true FROM dlock_locks l WHERE l.prefix = $1 AND l.name = $2 AND :beside AND r.expires_at > :now AND
		(r.kind = 'join' AND r.token = $3 OR r.kind = 'request' AND NOT r.exclusive AND r.place <= l.head AND l.token - (l.head - r.place) = $3)
		RETURNING encode(r.id, 'hex'), encode(r.owner, 'hex'), encode(r.client, 'hex'), r.ttl_us`)

	// lift makes the token of an exclusive hold at least $4, and liftJoins that of its joins.
	lift = parts.Replace(`UPDATE dlock_locks SET token = greatest(token, $4) WHERE prefix = $1 AND name = $2 AND holder = $3 AND held_until > :now AND NOT broken`)

	liftJoins = parts.Replace(`UPDATE dlock_requests r SET token = greatest(r.token, $4) FROM dlock_locks l
		WHERE l.prefix = $1 AND l.name = $2 AND l.holder = $3 AND :beside AND r.kind = 'join' AND r.owner = $3`)
)
