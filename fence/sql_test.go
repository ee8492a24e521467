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

// serialization is what a driver says of a transaction that has to be tried again.
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
	over := lock(t, c.Mutex("b"))
	over.Unlock(t.Context())
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
		"claim of nothing": func() error {
			_, err := s.Claim(t.Context(), tx, "a", nil)
			return err
		},
		"claim of no name": func() error {
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
	if _, err := s.Claim(t.Context(), tx, "a", over); !errors.Is(err, dlock.ErrNotHeld) {
		t.Errorf("the claim of a lease that is over: %v", err)
	}
	for _, d := range []Dialect{MySQL, PostgreSQL, SQLite} {
		text, err := (&SQL{Dialect: d, Table: "app.fences"}).Schema()
		if err != nil || !strings.Contains(text, "CREATE TABLE IF NOT EXISTS app.fences (") {
			t.Errorf("schema: %q, %v", text, err)
		}
	}
}
