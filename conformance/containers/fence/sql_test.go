package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/fence"
)

// TestSQL tests the promises of Admit, AdmitShared and Claim on each database.
func TestSQL(t *testing.T) {
	t.Parallel()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			for _, part := range []struct {
				name string
				run  func(t *testing.T, s database)
				on   []fence.Dialect // nil: all
			}{
				{"order", order, nil},
				{"names", names, nil},
				{"shared", shared, nil},
				{"claim", claim, nil},
				{"waits", waits, nil},
				{"serialization", serialization, nil},
				{"missing table", missingTable, nil},
				// only one transaction at a time writes to a file of SQLite
				{"shared side by side", sharedSideBySide, []fence.Dialect{fence.MySQL, fence.PostgreSQL}},
				{"new ones side by side", newSideBySide, []fence.Dialect{fence.MySQL, fence.PostgreSQL}},
				// the other databases take their snapshot before they wait, and fail (see
				// serialization), or have none
				{"snapshot", snapshot, []fence.Dialect{fence.MySQL}},
				{"old snapshot", oldSnapshot, []fence.Dialect{fence.MySQL}},
				{"read before", readBefore, []fence.Dialect{fence.MySQL}},
			} {
				if part.on == nil || slices.Contains(part.on, s.fences.Dialect) {
					t.Run(part.name, func(t *testing.T) { part.run(t, s) })
				}
			}
		})
	}
}

// admit calls Admit in a transaction of its own.
func (s database) admit(t testing.TB, resource string, m fence.Mark) error {
	return s.alone(t, func(tx *sql.Tx) error { return s.fences.Admit(t.Context(), tx, resource, m) })
}

func (s database) admitShared(t testing.TB, resource string, m fence.Mark) error {
	return s.alone(t, func(tx *sql.Tx) error { return s.fences.AdmitShared(t.Context(), tx, resource, m) })
}

func (s database) alone(t testing.TB, f func(*sql.Tx) error) error {
	tx := s.begin(t.Context(), t, sql.LevelDefault)
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (s database) want(t testing.TB, resource string, m fence.Mark, want error) {
	t.Helper()
	if err := s.admit(t, resource, m); !errors.Is(err, want) {
		t.Errorf("%s, %+v: %v, want %v", resource, m, err, want)
	}
}

func mark(token uint64, owner string) fence.Mark {
	return fence.Mark{Token: dlock.Token(token), Owner: owner}
}

func order(t *testing.T, s database) {
	s.want(t, "order", mark(5, "x"), nil)
	s.want(t, "order", mark(5, "x"), nil)
	s.want(t, "order", mark(5, "y"), fence.ErrStale)
	s.want(t, "order", mark(4, "x"), fence.ErrStale)
	s.want(t, "order", mark(7, "y"), nil)
	s.want(t, "order", mark(5, "x"), fence.ErrStale)
	// Tokens that floating point cannot distinguish, up to the greatest.
	s.want(t, "order", mark(1<<60+1, "x"), nil)
	s.want(t, "order", mark(1<<60, "x"), fence.ErrStale)
	s.want(t, "order", mark(math.MaxInt64, "z"), nil)
	s.want(t, "order", mark(math.MaxInt64-1, "z"), fence.ErrStale)
	var writes int
	row := s.db.QueryRowContext(t.Context(), s.numbered("SELECT writes FROM dlock_fences WHERE resource = ?"), "order")
	if err := row.Scan(&writes); err != nil || writes != 5 {
		t.Errorf("%d writes were admitted (%v), want 5", writes, err)
	}
	// An admission that was rolled back does not count.
	tx := s.begin(t.Context(), t, sql.LevelDefault)
	if err := s.fences.Admit(t.Context(), tx, "back", mark(9, "x")); err != nil {
		t.Fatal(err)
	}
	tx.Rollback()
	s.want(t, "back", mark(1, "y"), nil)
}

func names(t *testing.T, s database) {
	all := []string{"a", "A", "a ", " a", "ä", "a\u0308", "a/b", "a'b", "a%", strings.Repeat("x", 255), strings.Repeat("x", 254)}
	for i, name := range all {
		s.want(t, name, mark(uint64(100-i), "x"), nil)
	}
}

func shared(t *testing.T, s database) {
	m := func(token uint64, want error) {
		t.Helper()
		if err := s.admitShared(t, "shared", mark(token, "r")); !errors.Is(err, want) {
			t.Errorf("shared %d: %v, want %v", token, err, want)
		}
	}
	m(9, nil) // before any exclusive mark
	m(8, nil)
	s.want(t, "shared", mark(5, "x"), nil) // shared marks did not raise the token
	m(6, nil)
	m(5, fence.ErrStale) // the same token, of another hold
	m(4, fence.ErrStale)
	if err := s.admitShared(t, "shared", mark(5, "x")); err != nil {
		t.Errorf("the same hold with AdmitShared: %v", err)
	}
	s.want(t, "shared", mark(5, "x"), nil)
}

// sharedSideBySide: shared holders are admitted at the same time, and an exclusive holder is not.
func sharedSideBySide(t *testing.T, s database) {
	s.want(t, "together", mark(1, "w"), nil)
	a, b := s.begin(t.Context(), t, sql.LevelDefault), s.begin(t.Context(), t, sql.LevelDefault)
	for i, tx := range []*sql.Tx{a, b} {
		if err := s.fences.AdmitShared(t.Context(), tx, "together", mark(uint64(3-i), "r")); err != nil {
			t.Fatal(err)
		}
	}
	s.waitsFor(t, "together", mark(5, "w"), func() {
		if err := errors.Join(a.Commit(), b.Commit()); err != nil {
			t.Error(err)
		}
	}, nil)
}

// waitsFor asserts that an Admit waits until release, and then returns want.
func (s database) waitsFor(t *testing.T, resource string, m fence.Mark, release func(), want error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.admit(t, resource, m) }()
	select {
	case err := <-done:
		t.Errorf("it did not wait: %v", err)
		release()
		return
	case <-time.After(await.Quiet):
	}
	release()
	select {
	case err := <-done:
		if !errors.Is(err, want) {
			t.Errorf("after the wait: %v, want %v", err, want)
		}
	case <-time.After(await.Patience):
		t.Error("it still waits")
	}
}

// waits: an admitted transaction blocks others until it ends, also for a new resource, and the
// others are then compared with the mark that it left.
func waits(t *testing.T, s database) {
	for _, known := range []bool{true, false} {
		name := fmt.Sprint("waits ", known)
		if known {
			s.want(t, name, mark(1, "x"), nil)
		}
		tx := s.begin(t.Context(), t, sql.LevelDefault)
		if err := s.fences.Admit(t.Context(), tx, name, mark(6, "x")); err != nil {
			t.Fatal(err)
		}
		s.waitsFor(t, name, mark(5, "y"), func() {
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		}, fence.ErrStale)
		tx = s.begin(t.Context(), t, sql.LevelDefault)
		if err := s.fences.Admit(t.Context(), tx, name, mark(9, "x")); err != nil {
			t.Fatal(err)
		}
		s.waitsFor(t, name, mark(8, "y"), func() { tx.Rollback() }, nil)
	}
}

// serialization: a transaction that has to be tried again fails with the database's own error,
// which is not a refusal: its mark is the greatest.
func serialization(t *testing.T, s database) {
	var failed func(error) bool
	ctx := t.Context()
	s.want(t, "serial", mark(1, "x"), nil)
	var stands *sql.Tx
	switch s.fences.Dialect {
	case fence.PostgreSQL: // the snapshot is older than the row
		stands = s.begin(ctx, t, sql.LevelRepeatableRead)
		if _, err := stands.ExecContext(ctx, "SELECT 1 FROM counters LIMIT 1"); err != nil {
			t.Fatal(err)
		}
		s.want(t, "serial", mark(2, "x"), nil)
		failed = func(err error) bool {
			var own *pgconn.PgError
			return errors.As(err, &own) && own.Code == "40001"
		}
	case fence.SQLite: // the transaction has read
		stands = s.begin(ctx, t, sql.LevelDefault)
		if err := stands.QueryRowContext(ctx, "SELECT writes FROM dlock_fences WHERE resource = 'serial'").Scan(new(int)); err != nil {
			t.Fatal(err)
		}
		s.want(t, "serial", mark(2, "x"), nil)
		failed = func(err error) bool {
			var own *sqlite.Error
			return errors.As(err, &own) && own.Code()&0xff == 5 // SQLITE_BUSY
		}
	case fence.MySQL: // the wait for the row takes too long
		other := s.begin(ctx, t, sql.LevelDefault)
		if err := s.fences.Admit(ctx, other, "serial", mark(2, "x")); err != nil {
			t.Fatal(err)
		}
		stands = s.begin(ctx, t, sql.LevelDefault)
		if _, err := stands.ExecContext(ctx, "SET innodb_lock_wait_timeout = 1"); err != nil {
			t.Fatal(err)
		}
		failed = func(err error) bool {
			var own *gomysql.MySQLError
			return errors.As(err, &own) && own.Number == 1205
		}
	}
	err := s.fences.Admit(ctx, stands, "serial", mark(3, "y"))
	if !failed(err) || errors.Is(err, fence.ErrStale) {
		t.Errorf("%v, want the database's own error", err)
	}
	if e := (*dlock.Error)(nil); !errors.As(err, &e) || e.Name != "serial" {
		t.Errorf("%#v is not a *dlock.Error of the resource", err)
	}
}

// missingTable holds that the error of a missing table says how to create it, and keeps the cause.
func missingTable(t *testing.T, s database) {
	c, err := dlock.Open(t.Context(), "memory:?ttl=1h")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("missing").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cause := map[fence.Dialect]any{fence.MySQL: new(*gomysql.MySQLError), fence.PostgreSQL: new(*pgconn.PgError), fence.SQLite: new(*sqlite.Error)}
	s.fences = &fence.SQL{Dialect: s.fences.Dialect, Table: "dlock_no_fences"}
	for what, err := range map[string]error{
		"admit":  s.admit(t, "missing", mark(1, "x")),
		"shared": s.admitShared(t, "missing", mark(1, "x")),
		"claim": s.alone(t, func(tx *sql.Tx) error {
			_, err := s.fences.Claim(t.Context(), tx, "missing", l)
			return err
		}),
	} {
		if err == nil || !strings.Contains(err.Error(), "the table dlock_no_fences does not exist") || !strings.Contains(err.Error(), "CreateTable") {
			t.Errorf("%s: %v, want it to name the table and CreateTable", what, err)
		}
		if !errors.As(err, cause[s.fences.Dialect]) {
			t.Errorf("%s: %#v does not keep the database's own error", what, err)
		}
	}
}

// newSideBySide: transactions that are open at the same time admit new resources, on every level of
// isolation. They neither wait for each other nor deadlock.
func newSideBySide(t *testing.T, s database) {
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, known := range []string{"0", "9"} {
			s.want(t, fmt.Sprint("side/", level, known), mark(1, "x"), nil)
		}
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		a, b := s.begin(ctx, t, level), s.begin(ctx, t, level)
		for i, tx := range []*sql.Tx{a, b, a, b} {
			if err := s.fences.Admit(ctx, tx, fmt.Sprint("side/", level, 4+i), mark(1, "x")); err != nil {
				t.Errorf("%s: %v", level, err)
			}
		}
		if err := errors.Join(a.Commit(), b.Commit()); err != nil {
			t.Errorf("%s: %v", level, err)
		}
	}
}

// snapshot: a transaction that begins with Admit sees the changes that others committed while it
// waited there.
func snapshot(t *testing.T, s database) {
	ctx := t.Context()
	const name = "snapshot"
	if err := s.create(ctx, name); err != nil {
		t.Fatal(err)
	}
	first, second := s.begin(ctx, t, sql.LevelRepeatableRead), s.begin(ctx, t, sql.LevelRepeatableRead)
	if err := s.fences.Admit(ctx, first, name, mark(1, "x")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.fences.Admit(ctx, second, name, mark(2, "y")) }()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(await.Quiet):
	}
	if _, err := first.ExecContext(ctx, "UPDATE counters SET n = 7 WHERE name = ?", name); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Commit(), await.From(t, done)); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := second.QueryRowContext(ctx, "SELECT n FROM counters WHERE name = ?", name).Scan(&n); err != nil || n != 7 {
		t.Errorf("it reads %d, %v, want the value that was committed while it waited", n, err)
	}
}

// oldSnapshot: a transaction is compared with the present mark, not with the one in its snapshot.
func oldSnapshot(t *testing.T, s database) {
	s.want(t, "old", mark(1, "x"), nil)
	tx := s.begin(t.Context(), t, sql.LevelRepeatableRead)
	if err := tx.QueryRowContext(t.Context(), "SELECT writes FROM dlock_fences WHERE resource = 'old'").Scan(new(int)); err != nil {
		t.Fatal(err)
	}
	s.want(t, "old", mark(9, "y"), nil)
	for what, admit := range map[string]func(context.Context, *sql.Tx, string, fence.Mark) error{"shared": s.fences.AdmitShared, "exclusive": s.fences.Admit} {
		err := admit(t.Context(), tx, "old", mark(5, "r"))
		var own *gomysql.MySQLError
		if changed := errors.As(err, &own) && own.Number == 1020; !changed && !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: %v, want ErrStale, or MariaDB's error that the row has changed", what, err)
		}
	}
}

// readBefore tests the page's statement on a transaction that read anything before Admit: its plain
// reads keep showing the past (or MariaDB refuses it), and its locking reads show the present.
func readBefore(t *testing.T, s database) {
	ctx := t.Context()
	const name = "read before"
	if err := s.create(ctx, name); err != nil {
		t.Fatal(err)
	}
	tx := s.begin(ctx, t, sql.LevelRepeatableRead)
	if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM counters").Scan(new(int)); err != nil {
		t.Fatal(err)
	}
	if err := s.alone(t, func(older *sql.Tx) error {
		if err := s.fences.Admit(ctx, older, name, mark(1, "x")); err != nil {
			return err
		}
		_, err := older.ExecContext(ctx, "UPDATE counters SET n = 7 WHERE name = ?", name)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	err := s.fences.Admit(ctx, tx, name, mark(2, "y"))
	if own := (*gomysql.MySQLError)(nil); errors.As(err, &own) && own.Number == 1020 {
		return // MariaDB, with innodb_snapshot_isolation
	}
	var n int
	if err == nil {
		err = tx.QueryRowContext(ctx, "SELECT n FROM counters WHERE name = ? FOR UPDATE", name).Scan(&n)
	}
	if err != nil || n != 7 {
		t.Errorf("it reads %d, %v, want the value that the older holder committed", n, err)
	}
}

// claim: a resource counts its tokens by itself, and refuses older claims.
func claim(t *testing.T, s database) {
	c, err := dlock.Open(t.Context(), "memory:?ttl=1h")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hold := func() *dlock.Lease {
		t.Helper()
		l, err := c.Mutex(fmt.Sprint("claim", time.Now().UnixNano())).Lock(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	claimed := func(l *dlock.Lease) (m fence.Mark) {
		t.Helper()
		if err := s.alone(t, func(tx *sql.Tx) (err error) {
			m, err = s.fences.Claim(t.Context(), tx, "claim", l)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return m
	}
	first, second := hold(), hold()
	a := claimed(first)
	if again := claimed(first); again != a || a.Token != 1 {
		t.Errorf("%+v, and again %+v, want the same, 1", a, again)
	}
	s.want(t, "claim", a, nil)
	b := claimed(second)
	if b.Token != 2 || b.Owner == a.Owner {
		t.Errorf("the second holder has %+v", b)
	}
	s.want(t, "claim", a, fence.ErrStale)
	s.want(t, "claim", b, nil)
	late := claimed(first) // the holder was stopped before its claim
	if late.Token != 3 {
		t.Errorf("a late claim is %+v", late)
	}
	s.want(t, "claim", b, fence.ErrStale)
	s.want(t, "claim", late, nil)
}
