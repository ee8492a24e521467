package main

const postgresTests = "conformance/containers/postgres"

// postgres are bugs of the driver for PostgreSQL.
var postgres = []mutant{
	{
		name: "postgres: a visit does not lock the lock's row before it decides",
		file: "driver/postgres/visit.go",
		old:  "	add(gate, prefix, name)\n",
		new:  "",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/permits together/read committed",
	},
	{
		name: "postgres: a decision counts a hold as dead while its renewal is under way",
		file: "driver/postgres/statements.go",
		old:  "r.place > l.floor AND r.place <= l.head\n\t\t\t\t\tORDER BY r.place LIMIT greatest(f.permits, 1))) x",
		new:  "r.place > l.floor AND r.place <= l.head AND r.expires_at > :now\n\t\t\t\t\tORDER BY r.place LIMIT greatest(f.permits, 1))) x",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/a renewal that is under way as its hold expires/read committed",
	},
	{
		name: "postgres: a renewal that waited for its row revives a hold",
		file: "driver/postgres/statements.go",
		old:  "SELECT name FROM g WHERE held_until > :now\n",
		new:  "SELECT name FROM g\n",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/a late renewal/read committed",
	},
	{
		name: "postgres: a renewal that waited for its row revives a shared hold",
		file: "driver/postgres/statements.go",
		old:  "SELECT id FROM g WHERE expires_at > :now\n",
		new:  "SELECT id FROM g\n",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/a late renewal/read committed",
	},
	{
		name: "postgres: a join joins a hold that has ended",
		file: "driver/postgres/statements.go",
		old:  "AND (l.holder <> i.owner OR l.token = i.token) AND\n\t\t(l.holder = i.sponsor AND l.held_until > :now AND NOT l.broken OR\n",
		new:  "AND (true OR\n",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/a join while its hold ends/read committed",
	},
	{
		name: "postgres: a join joins a hold that an operator has ended",
		file: "driver/postgres/statements.go",
		old:  "(l.holder = i.sponsor AND l.held_until > :now AND NOT l.broken OR\n",
		new:  "(l.holder = i.sponsor AND l.held_until > :now OR\n",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/a join while its hold is broken/read committed",
	},
	{
		name: "postgres: the joins of a raised hold keep their token",
		file: "driver/postgres/raise.go",
		old:  ", &op{sql: liftJoins, args: args})...)",
		new:  ")...)",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/a join while its hold is raised/read committed",
	},
	{
		name: "postgres: a take overwrites a holder that came while it waited for the row",
		file: "driver/postgres/statements.go",
		old:  "WHERE l.holder <> excluded.holder AND l.held_until <= :now AND NOT l.beside\n",
		new:  "WHERE l.holder <> excluded.holder AND NOT l.beside\n",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/a take while its name is made/read committed",
	},
	{
		name: "postgres: a take passes over a reader that came while it waited for the row",
		file: "driver/postgres/statements.go",
		old:  "WHERE l.holder <> excluded.holder AND l.held_until <= :now AND NOT l.beside\n",
		new:  "WHERE l.holder <> excluded.holder AND l.held_until <= :now\n",
		pkg:  postgresTests, test: "TestPostgresBlockedRows/a take while its name is made/read committed",
	},
	{
		name: "postgres: a release leaves no tombstone",
		file: "driver/postgres/visit.go",
		old:  "			if c.entombs {\n",
		new:  "			if false {\n",
		pkg:  postgresTests, test: "TestPostgresConformance/late-duplicate",
	},
	{
		name: "postgres: a deadlock fails its call",
		file: "driver/postgres/errors.go",
		old:  "\"40P01\": collided,",
		new:  "\"40P01\": never,",
		pkg:  "driver/postgres", test: "TestKindOf",
	},
	{
		name: "postgres: statements go where the session's search_path leads",
		file: "driver/postgres/task.go",
		old:  "o.named = names.in(o.sql)",
		new:  "o.named = o.sql; _ = names",
		pkg:  postgresTests, test: "TestPostgresSearchPath",
	},
	{
		name: "postgres: a client begins in a session whose search_path another program has set",
		file: "driver/postgres/schema.go",
		old:  "p.owned && s.path != s.start",
		new:  "false",
		pkg:  postgresTests, test: "TestPostgresSearchPath",
	},
	{
		name: "postgres: a fixed lease keeps the time that its grant left to its client",
		file: "driver/postgres/statements.go",
		old:  "greatest(CASE WHEN NOT l.fixed THEN l.held_until END, ",
		new:  "greatest(l.held_until, ",
		pkg:  postgresTests, test: "TestPostgresConformance/fixed-queued",
	},
	{
		name: "postgres: the age of a holder counts from its grant",
		file: "driver/postgres/statements.go",
		old:  "CASE WHEN top.taken THEN f.arrived_at ELSE",
		new:  "CASE WHEN top.taken THEN l.now ELSE",
		pkg:  postgresTests, test: "TestPostgresConformance/inspect-age",
	},
}
