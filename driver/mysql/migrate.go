package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/migrations"
)

// schema is the number of the last migration that this driver needs.
const schema = 15

// Migrate brings the database of the pool to the schema that this version of the driver needs. It does nothing if that is there
// already, whoever applied it, and goes on where an earlier one was interrupted. Several at once wait for each other. The user needs CREATE, CREATE VIEW and
// CREATE ROUTINE, at run time neither.
func Migrate(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Procedures keep the sql_mode of their creation. The connection is not given back with ours.
	defer conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	if _, err := conn.ExecContext(ctx, "SET SESSION sql_mode = 'STRICT_ALL_TABLES', SESSION completion_type = 0, SESSION autocommit = 1"); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "SET SESSION TRANSACTION READ WRITE"); err != nil {
		return err
	}
	have, err := version(ctx, conn)
	if err != nil || have >= schema {
		return err
	}
	sets, err := query(ctx, conn, "SELECT GET_LOCK(CONCAT('dlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)), 60)")
	if err != nil {
		return err
	}
	if row, err := single(sets, 1); err != nil || row[0] != "1" {
		return errors.New("another migration of this database goes on for more than a minute")
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		_, _ = query(ctx, conn, "SELECT RELEASE_LOCK(CONCAT('dlock.migrate.', LEFT(SHA2(DATABASE(), 256), 32)))")
	}()
	if have, err = version(ctx, conn); err != nil {
		return err
	}
	files, err := fs.Glob(migrations.Files, "mysql/*.up.sql")
	if err != nil {
		return err
	}
	slices.Sort(files)
	for _, f := range files {
		number, _, _ := strings.Cut(path.Base(f), "_")
		if n, err := strconv.Atoi(number); err != nil || n <= have {
			continue
		}
		stmt, err := migrations.Files.ReadFile(f)
		if err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, string(stmt)); err != nil {
			return fmt.Errorf("migration %s: %w", path.Base(f), err)
		}
	}
	return nil
}

// version returns the number of the last migration that was applied; 0: not all of the first.
func version(ctx context.Context, db querier) (int, error) {
	sets, err := query(ctx, db, statement("version"))
	var e *mysql.MySQLError
	if errors.As(err, &e) && e.Number == 1305 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	row, err := single(sets, 1)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(row[0])
}

// Cleanup removes what the tables keep of names, of any prefix, to which nobody has come for the given time and which nobody uses, and
// returns how many names that were. It disturbs nobody; run it now and then where names are used once. Tokens grow across it as long as the
// server's clock is not set back by more than that time.
func Cleanup(ctx context.Context, db *sql.DB, unused time.Duration) (int, error) {
	const batch = 1000
	if unused < 0 {
		return 0, fmt.Errorf("%w: the time is negative", driver.ErrInvalid)
	}
	for total := 0; ; {
		sets, err := query(ctx, db, statement("cleanup", unused, batch))
		if err != nil {
			return total, explain(err)
		}
		row, err := single(sets, 1)
		if err != nil {
			return total, err
		}
		n, err := strconv.Atoi(row[0])
		total += n
		if err != nil || n < batch/2 { // others may have come between
			return total, err
		}
	}
}
