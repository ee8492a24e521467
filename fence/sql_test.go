package fence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/dlock-go/dlock"
)

// failing is a database whose statements all fail in the same way. Real ones are in
// conformance/containers.
type failing struct{ err error }

func (f failing) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f failing) Driver() driver.Driver                        { return nil }
func (f failing) Prepare(string) (driver.Stmt, error)          { return nil, f.err }
func (f failing) Close() error                                 { return nil }
func (f failing) Begin() (driver.Tx, error)                    { return f, nil }
func (f failing) Commit() error                                { return nil }
func (f failing) Rollback() error                              { return nil }

// serialization is the error of a database driver for a transaction that has to be retried.
type serialization struct{ code string }

func (s *serialization) Error() string { return "could not serialize access: " + s.code }

func TestErrorsOfTheDatabaseStayWhatTheyAre(t *testing.T) {
	db := sql.OpenDB(failing{&serialization{"40001"}})
	defer db.Close()
	l := lock(t, open(t).Mutex("a"))
	for _, d := range []Dialect{MySQL, MariaDB, PostgreSQL, SQLite} {
		s := &SQL{Dialect: d}
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		_, claimed := s.Claim(t.Context(), tx, "a", l)
		for what, err := range map[string]error{
			"admit":  s.Admit(t.Context(), tx, "a", Mark{1, "a"}),
			"shared": s.AdmitShared(t.Context(), tx, "a", Mark{1, "a"}),
			"claim":  claimed,
			"schema": s.CreateTable(t.Context(), db),
		} {
			var own *serialization
			if !errors.As(err, &own) || own.code != "40001" || errors.Is(err, ErrStale) {
				t.Errorf("%s: %v", what, err)
			}
			if e := (*dlock.Error)(nil); !errors.As(err, &e) {
				t.Errorf("%s: %T is no *dlock.Error", what, err)
			}
		}
		tx.Rollback()
	}
}

// coded is an error with the code of an SQL state, as those of the drivers for PostgreSQL are.
type coded struct{ text, state string }

func (c *coded) Error() string    { return c.text }
func (c *coded) SQLState() string { return c.state }

// TestMissingTable holds that the error says which table is missing and how to create it, and that
// it keeps its cause. An error that merely looks similar stays as it is.
func TestMissingTable(t *testing.T) {
	l := lock(t, open(t).Mutex("a"))
	for _, c := range []struct {
		dialect Dialect
		cause   error
		missing bool
	}{
		{MySQL, errors.New("Error 1146 (42S02): Table 'shop.fences' doesn't exist"), true},
		{MySQL, errors.New("Error 1146: Table 'shop.fences' doesn't exist"), true},
		{MySQL, errors.New("Error 1142 (42000): INSERT command denied to user 'a'@'b' for table 'fences'"), false},
		{PostgreSQL, errors.New(`ERROR: relation "app.fences" does not exist (SQLSTATE 42P01)`), true},
		{PostgreSQL, errors.New(`pq: relation "app.fences" does not exist`), true},
		{PostgreSQL, &coded{"FEHLER: Relation »app.fences« existiert nicht", "42P01"}, true},
		{PostgreSQL, errors.New(`ERROR: column "token" of relation "fences" does not exist (SQLSTATE 42703)`), false},
		{PostgreSQL, &coded{`ERROR: column "token" of relation "fences" does not exist`, "42703"}, false},
		{SQLite, errors.New("SQL logic error: no such table: app.fences (1)"), true},
		{SQLite, errors.New("no such table: app.fences"), true},
		{SQLite, errors.New("no such column: token"), false},
	} {
		db := sql.OpenDB(failing{c.cause})
		defer db.Close()
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		s := &SQL{Dialect: c.dialect, Table: "app.fences"}
		_, claimed := s.Claim(t.Context(), tx, "a", l)
		for what, err := range map[string]error{
			"admit":  s.Admit(t.Context(), tx, "a", Mark{1, "a"}),
			"shared": s.AdmitShared(t.Context(), tx, "a", Mark{1, "a"}),
			"claim":  claimed,
		} {
			text := err.Error()
			if said := strings.Contains(text, "the table app.fences does not exist") && strings.Contains(text, "CreateTable"); said != c.missing {
				t.Errorf("%s: %v, want it to name CreateTable: %v", what, err, c.missing)
			}
			if !errors.Is(err, c.cause) || errors.Is(err, ErrStale) || errors.Is(err, dlock.ErrInvalid) {
				t.Errorf("%s: %#v does not keep its cause", what, err)
			}
		}
		tx.Rollback()
	}
}

func TestBadCalls(t *testing.T) {
	db := sql.OpenDB(failing{errors.New("it was sent to the database")})
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	c := open(t)
	l := lock(t, c.Mutex("a"))
	released := lock(t, c.Mutex("b"))
	released.Unlock(t.Context())
	good, s := Mark{1, "a"}, &SQL{Dialect: MySQL}
	calls := map[string]func() error{
		"no SQL":     func() error { return (*SQL)(nil).Admit(t.Context(), tx, "a", good) },
		"no tx":      func() error { return s.Admit(t.Context(), nil, "a", good) },
		"no dialect": func() error { return (&SQL{}).Admit(t.Context(), tx, "a", good) },
		"table": func() error {
			return (&SQL{Dialect: SQLite, Table: "x; DROP TABLE y"}).Admit(t.Context(), tx, "a", good)
		},
		"no name":   func() error { return s.Admit(t.Context(), tx, "", good) },
		"long name": func() error { return s.AdmitShared(t.Context(), tx, strings.Repeat("x", 256), good) },
		"no mark":   func() error { return s.Admit(t.Context(), tx, "a", Mark{}) },
		"great":     func() error { return s.Admit(t.Context(), tx, "a", Mark{math.MaxInt64 + 1, "a"}) },
		"claim of no lease": func() error {
			_, err := s.Claim(t.Context(), tx, "a", nil)
			return err
		},
		"claim with no name": func() error {
			_, err := s.Claim(t.Context(), tx, "", l)
			return err
		},
		"claim without tx": func() error {
			_, err := s.Claim(t.Context(), nil, "a", l)
			return err
		},
		"no database": func() error { return s.CreateTable(t.Context(), nil) },
		"no schema": func() error {
			_, err := (&SQL{}).Schema()
			return err
		},
	}
	for what, call := range calls {
		if err := call(); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Claim(t.Context(), tx, "a", released); !errors.Is(err, dlock.ErrNotHeld) {
		t.Errorf("the claim of a released lease: %v", err)
	}
	for _, d := range []Dialect{MySQL, PostgreSQL, SQLite} {
		text, err := (&SQL{Dialect: d, Table: "app.fences"}).Schema()
		if err != nil || !strings.Contains(text, "CREATE TABLE IF NOT EXISTS app.fences (") {
			t.Errorf("schema: %q, %v", text, err)
		}
	}
}
