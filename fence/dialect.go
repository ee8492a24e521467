package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
)

// Dialect selects the kind of database that an [SQL] is for. The zero Dialect is not valid.
type Dialect uint8

const (
	MySQL      Dialect = iota + 1 // MySQL 8.0 or newer
	PostgreSQL                    // PostgreSQL 9.5 or newer
	SQLite                        // SQLite 3.24 or newer

	MariaDB = MySQL // MariaDB 10.6 or newer
)

// dialect has the statements for a database. Those that admit or claim lock the resource's row
// until the transaction ends, and decide by the row as it is then, not by a snapshot.
type dialect interface {
	schema() string
	admit(ctx context.Context, tx *sql.Tx, resource string, m Mark) (ok bool, err error)
	admitShared(ctx context.Context, tx *sql.Tx, resource string, m Mark) (ok bool, err error)
	claim(ctx context.Context, tx *sql.Tx, resource, owner string) (token int64, err error)
}

var errNoRow = errors.New("the row of the resource was deleted from the table; its rows must never be deleted")

// missingTable is how the errors of database drivers say that a table is missing: MySQL and
// MariaDB, PostgreSQL, SQLite. The message of a PostgreSQL server may be in another language, so
// its code is looked at as well.
var missingTable = map[Dialect]*regexp.Regexp{
	MySQL:      regexp.MustCompile(`\bError 1146\b`),
	PostgreSQL: regexp.MustCompile(`\b42P01\b|(?:^|: )relation "[^"]*" does not exist`),
	SQLite:     regexp.MustCompile(`\bno such table: `),
}

// explain says in the error of a statement that the table is missing, if it is. It keeps the cause.
func (s *SQL) explain(err error) error {
	if err == nil {
		return nil
	}
	missing := missingTable[s.Dialect].MatchString(err.Error())
	if coded := interface{ SQLState() string }(nil); errors.As(err, &coded) {
		missing = coded.SQLState() == "42P01"
	}
	if !missing {
		return err
	}
	return fmt.Errorf("the table %s does not exist; create it with CreateTable or the statement of Schema: %w", s.table(), err)
}
