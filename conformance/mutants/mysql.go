package main

const mysqlTests = "conformance/containers/mysql"

// mysql are bugs of the driver for MySQL and MariaDB.
var mysql = []mutant{
	{
		name: "mysql: an acquire that is sent again does not find the grant of its first copy",
		file: "driver/mysql/statements.go",
		old:  "LAST_INSERT_ID(IF(:mine, token, IF(holder = VALUES(holder), 4, IF(others = 1 AND held_until > :now, 5, others + 1))))),",
		new:  "LAST_INSERT_ID(IF(holder = VALUES(holder), 4, IF(others = 1 AND held_until > :now, 5, others + 1)))),",
		pkg:  mysqlTests, test: "TestMySQLFaults/mysql/lost replies",
	},
	{
		name: "mysql: a release that is sent again, and finds nothing, is taken for a loss",
		file: "driver/mysql/release.go",
		old:  "if found || !(m != nil && m.broken) && before.RemovedBefore(t.copies) {",
		new:  "if found {",
		pkg:  mysqlTests, test: "TestMySQLFaults/mariadb/lost replies",
	},
	{
		name: "mysql: a copy of an acquire that arrives after its release acquires",
		file: "driver/mysql/acquire.go",
		old:  "m.Uncertain = m.Uncertain || t.doubt.Load() > 0 || m.left != nil",
		new:  "m.Uncertain = m.Uncertain || m.left != nil",
		pkg:  mysqlTests, test: "TestMySQLFaults/mariadb/a late copy of what was sent twice",
	},
	{
		name: "mysql: a hold is trusted from when the answer came, after a wait for the row",
		file: "driver/mysql/pool.go",
		old:  "\ta.sent = time.Now()\n\tif err = a.fill(within, conn, stmt); err == nil {\n",
		new:  "\tif err = a.fill(within, conn, stmt); err == nil {\n\t\ta.sent = time.Now()\n",
		pkg:  mysqlTests, test: "TestMySQLFaults/mariadb/a row that is blocked",
	},
	{
		name: "mysql: a release frees the lock of another holder",
		file: "driver/mysql/statements.go",
		old:  "AND name IN (:names) AND holder IN (:ids) AND others = 0 AND NOT broken AND held_until > :now",
		new:  "AND name IN (:names) AND others = 0 AND NOT broken AND held_until > :now",
		pkg:  mysqlTests, test: "TestMySQLFaults/mariadb/expired rows are stolen",
	},
	{
		name: "mysql: a renewal revives a hold that has expired",
		file: "driver/mysql/statements.go",
		old:  "WHERE prefix = :prefix AND name IN (:names) AND holder IN (:ids) AND held_until > :now AND NOT broken`)",
		new:  "WHERE prefix = :prefix AND name IN (:names) AND holder IN (:ids) AND NOT broken`)",
		pkg:  mysqlTests, test: "TestMySQLConformance/mariadb/renew-never-acquires",
	},
	{
		name: "mysql: a statement that was killed fails its call",
		file: "driver/mysql/errors.go",
		old:  "1317: unknown,",
		new:  "1317: never,",
		pkg:  mysqlTests, test: "TestMySQLField/mariadb/queries are killed beside the user's work",
	},
	{
		name: "mysql: a deadlock fails its call",
		file: "driver/mysql/errors.go",
		old:  "1213: collided,",
		new:  "1213: never,",
		pkg:  mysqlTests, test: "TestMySQLFaults/mysql/deadlocks with others",
	},
	{
		name: "mysql: a server that is read-only for a time ends a wait",
		file: "driver/mysql/errors.go",
		old:  "1290: later,",
		new:  "1290: never,",
		pkg:  mysqlTests, test: "TestMySQLRefuses/mariadb",
	},
	{
		name: "mysql: the joins beside a hold that passes on are counted before its row is locked",
		file: "driver/mysql/statements.go",
		old:  "WHERE a.prefix = l.prefix AND a.name = l.name AND a.kind = 'join') <= :joins",
		new:  "WHERE a.prefix = :prefix AND a.name = :name AND a.kind = 'join') <= :joins",
		pkg:  mysqlTests, test: "TestMySQLRaces/mysql/a join that comes while a swap waits",
	},
	{
		name: "mysql: a join takes the row of an exclusive request for its hold",
		file: "driver/mysql/statements.go",
		old:  "AND (s.kind = 'join' OR s.kind = 'request' AND s.mode = 'shared' AND s.place <= l.head) AND s.expires_at",
		new:  "AND s.kind <> 'tombstone' AND s.expires_at",
		pkg:  mysqlTests, test: "TestMySQLRaces/mariadb/a join whose hold passes to the next request",
	},
	{
		name: "mysql: a fixed lease keeps the time that its grant left to its client",
		file: "driver/mysql/statements.go",
		old:  "GREATEST(IF(fixed, :past, held_until + INTERVAL 1 MICROSECOND), :now",
		new:  "GREATEST(held_until + INTERVAL 1 MICROSECOND, :now",
		pkg:  mysqlTests, test: "TestMySQLConformance/mysql/fixed-queued",
	},
	{
		name: "mysql: the age of a holder counts from its grant",
		file: "driver/mysql/statements.go",
		old:  "l.held_since = IFNULL(q.arrived_at, :now),",
		new:  "l.held_since = :now,",
		pkg:  mysqlTests, test: "TestMySQLConformance/mysql/inspect-age",
	},
}
