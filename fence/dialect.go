package fence

import (
	"context"
	"database/sql"
	"errors"
)

// Dialect says which database an [SQL] is for.
type Dialect uint8

const (
	MySQL      Dialect = iota + 1 // MySQL 8.0 or newer
	PostgreSQL                    // PostgreSQL 9.5 or newer
	SQLite                        // SQLite 3.24 or newer

	MariaDB = MySQL // MariaDB 10.6 or newer
)

// dialect is what a database is told. Whatever admits or claims locks the resource's row until the
// transaction ends, and judges by the row as it is then, not by a snapshot.
type dialect interface {
	schema() string
	admit(ctx context.Context, tx *sql.Tx, resource string, m Mark) (ok bool, err error)
	admitShared(ctx context.Context, tx *sql.Tx, resource string, m Mark) (ok bool, err error)
	claim(ctx context.Context, tx *sql.Tx, resource, owner string) (token int64, err error)
}

var errNoRow = errors.New("the row of the resource is gone: nobody may delete it")
