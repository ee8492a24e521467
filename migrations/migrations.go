// Package migrations has the SQL that makes (and removes) the tables of
// driver/mysql, for MySQL and MariaDB.
//
// Apply it with mysql.Migrate of driver/mysql, with ?migrate=true in a URL, or with a tool: the
// folder mysql is in the form of golang-migrate (one statement in each file, so that its
// multi-statement mode is not needed), the folder goose in that of goose. Both make the same
// schema. Every up-statement may be repeated.
//
// The source is mysql/*.up.sql, a table in each: mysql.Migrate executes them, and go generate makes
// all others of them.
package migrations

import "embed"

// Files has the folders mysql and goose.
//
//go:embed mysql/*.sql goose/*.sql
var Files embed.FS

//go:generate go test -run ^TestOneSource$ . -update
