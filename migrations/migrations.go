// Package migrations has the SQL that makes and removes the tables of driver/mysql, for MySQL and
// MariaDB.
//
// Apply it with mysql.Migrate of driver/mysql, with ?migrate=true in a URL, or with a migration
// tool. The folder mysql has the form of golang-migrate, with one statement in each file, so that
// its multi-statement mode is not needed. The folder goose has the form of goose. Both make the
// same schema. Every up-statement may be repeated. docs/mysql.md says how to run them beside an
// application's own migrations.
//
// The source is mysql/*.up.sql, with one table in each file. mysql.Migrate executes these files,
// and go generate makes all others from them.
package migrations

import "embed"

// Files are the folders mysql and goose.
//
//go:embed mysql/*.sql goose/*.sql
var Files embed.FS

//go:generate go test -run ^TestOneSource$ . -update
