package fence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"
)

// counted is a database that counts statements. Each statement changes the given number of rows,
// and each query returns 1, which is true as well.
type counted struct {
	rows int64
	n    *int
}

func (c counted) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c counted) Driver() driver.Driver                        { return nil }
func (c counted) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (c counted) Close() error                                 { return nil }
func (c counted) Begin() (driver.Tx, error)                    { return c, nil }
func (c counted) Commit() error                                { return nil }
func (c counted) Rollback() error                              { return nil }

func (c counted) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	*c.n++
	return driver.RowsAffected(c.rows), nil
}

func (c counted) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	*c.n++
	return &one{}, nil
}

// one is one row with the value 1.
type one struct{ read bool }

func (o *one) Columns() []string { return []string{"v"} }
func (o *one) Close() error      { return nil }
func (o *one) Next(dest []driver.Value) error {
	if o.read {
		return io.EOF
	}
	o.read, dest[0] = true, int64(1)
	return nil
}

// TestStatements holds how many statements each call takes.
func TestStatements(t *testing.T) {
	l := lock(t, open(t).Mutex("a"))
	for _, c := range []struct {
		what          string
		dialect       Dialect
		rows          int64 // that MySQL says were changed
		admit, shared int
		claim         int
	}{
		{"MySQL, a resource that is known", MySQL, 2, 1, 2, 2},
		{"MySQL, a new resource, or a client that counts found rows", MySQL, 1, 2, 2, 2},
		{"PostgreSQL", PostgreSQL, 1, 1, 2, 2},
		{"SQLite", SQLite, 1, 1, 1, 2},
	} {
		n := 0
		db := sql.OpenDB(counted{c.rows, &n})
		defer db.Close()
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		s := &SQL{Dialect: c.dialect}
		took := func(what string, want int, f func() error) {
			t.Helper()
			n = 0
			if err := f(); err != nil || n != want {
				t.Errorf("%s: %s takes %d statements (%v), want %d", c.what, what, n, err, want)
			}
		}
		took("Admit", c.admit, func() error { return s.Admit(t.Context(), tx, "a", Mark{1, "a"}) })
		took("AdmitShared", c.shared, func() error { return s.AdmitShared(t.Context(), tx, "a", Mark{1, "a"}) })
		took("Claim", c.claim, func() error {
			_, err := s.Claim(t.Context(), tx, "a", l)
			return err
		})
		tx.Rollback()
	}
}

// TestStale holds that a statement which changes no row is a refusal.
func TestStale(t *testing.T) {
	n := 0
	db := sql.OpenDB(counted{0, &n})
	defer db.Close()
	for _, d := range []Dialect{MySQL, PostgreSQL, SQLite} {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := (&SQL{Dialect: d}).Admit(t.Context(), tx, "a", Mark{1, "a"}); !errors.Is(err, ErrStale) {
			t.Errorf("dialect %d: %v, want ErrStale", d, err)
		}
		tx.Rollback()
	}
}
