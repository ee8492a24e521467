// Package migrations has the SQL that makes and removes the tables of driver/mysql, for MySQL and
// MariaDB, and of driver/postgres, for PostgreSQL.
//
// Apply it with mysql.Migrate or postgres.Migrate of the drivers, with ?migrate=true in a URL, or
// with a migration tool. The folders mysql and postgres have the form of golang-migrate, with one
// statement in each file, so that its multi-statement mode is not needed. The folders goose (for
// MySQL and MariaDB) and goose-postgres have the form of goose. Both forms make the same schema.
// Every up-statement may be repeated. docs/mysql.md and docs/postgres.md say how to run them beside
// an application's own migrations.
//
// The source is mysql/*.up.sql and postgres/*.up.sql, with one table or index in each file.
// mysql.Migrate and postgres.Migrate execute these files, and go generate makes all others from
// them.
package migrations

import "embed"

// Files are the folders mysql, goose, postgres and goose-postgres.
//
//go:embed mysql/*.sql goose/*.sql postgres/*.sql goose-postgres/*.sql
var Files embed.FS

//go:generate go test -run ^TestOneSource$ . -update
