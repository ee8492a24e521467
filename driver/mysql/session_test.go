package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// usual is the server's answer about a session that is as the driver wants it.
var usual = []string{"READ-COMMITTED", "0", "0", "1700000000.5", "1", "0", "1", "NO_CHAIN", "STRICT_TRANS_TABLES", "2"}

// setting is the usual answer, except for the values that are given by place.
func setting(other map[int]string) []string {
	row := slices.Clone(usual)
	for at, value := range other {
		row[at] = value
	}
	return row
}

const endsTransaction = "ROLLBACK AND NO CHAIN NO RELEASE"

// pooled is a pool of a server with sessions that are all alike. unknown is a variable that the
// server does not have.
func pooled(t *testing.T, row []string, unknown string) (*scripted, *pool) {
	s := &scripted{strict: true}
	s.answer = func(stmt string) (answer, error) {
		if !strings.HasPrefix(stmt, "SELECT @@") {
			return answer{affected: 1}, nil
		}
		if unknown != "" && strings.Contains(stmt, "@@"+unknown) {
			return answer{}, serverError(1193, "HY000")
		}
		if stmt == "SELECT @@timestamp LIMIT 1" {
			return reads(row[3]), nil
		}
		return reads(row...), nil
	}
	db := sql.OpenDB(s)
	t.Cleanup(func() { db.Close() })
	return s, &pool{db: db}
}

// TestSessions: a session that is as the driver wants it is used as it is. Any other is set before
// each statement, and set back after it. Each connection is asked once.
func TestSessions(t *testing.T) {
	for what, c := range map[string]struct {
		is        map[int]string
		set, back string // "": it is as the driver wants it
	}{
		"usual":            {},
		"REPEATABLE READ":  {is: map[int]string{0: "REPEATABLE-READ"}},
		"SERIALIZABLE":     {is: map[int]string{0: "SERIALIZABLE"}},
		"READ UNCOMMITTED": {map[int]string{0: "READ-UNCOMMITTED"}, "SESSION transaction_isolation = 'READ-COMMITTED'", "SESSION transaction_isolation = 'READ-UNCOMMITTED'"},
		"read-only":        {map[int]string{1: "1"}, "SESSION transaction_read_only = 0", "SESSION transaction_read_only = 1"},
		"stopped clock":    {map[int]string{2: "1"}, "timestamp = DEFAULT", "timestamp = 1700000000.5"},
		"no autocommit":    {map[int]string{4: "0"}, "SESSION autocommit = 1", "SESSION autocommit = 0"},
		"safe updates":     {map[int]string{5: "1"}, "SESSION sql_safe_updates = 0", "SESSION sql_safe_updates = 1"},
		"max_join_size":    {map[int]string{6: "0"}, "SESSION sql_big_selects = 1", "SESSION sql_big_selects = 0"},
		"CHAIN":            {map[int]string{7: "CHAIN"}, "SESSION completion_type = 'NO_CHAIN'", "SESSION completion_type = 'CHAIN'"},
		"RELEASE":          {map[int]string{7: "RELEASE"}, "SESSION completion_type = 'NO_CHAIN'", "SESSION completion_type = 'RELEASE'"},
		"patient for rows": {is: map[int]string{9: "50"}},
		"all": {
			map[int]string{0: "READ-UNCOMMITTED", 1: "1", 2: "1", 4: "0", 5: "1", 6: "0", 7: "CHAIN"},
			"SESSION autocommit = 1, SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1, SESSION completion_type = 'NO_CHAIN', " +
				"SESSION transaction_isolation = 'READ-COMMITTED', SESSION transaction_read_only = 0, timestamp = DEFAULT",
			"SESSION autocommit = 0, SESSION sql_safe_updates = 1, SESSION sql_big_selects = 0, SESSION completion_type = 'CHAIN', " +
				"SESSION transaction_isolation = 'READ-UNCOMMITTED', SESSION transaction_read_only = 1, timestamp = 1700000000.5",
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, p := pooled(t, setting(c.is), "")
			for range 2 {
				for _, stmt := range []string{"UPDATE", "SELECT"} {
					if _, err := p.ask(t.Context(), time.Minute, stmt, false); err != nil {
						t.Fatal(err)
					}
				}
			}
			got := s.said("")
			got = slices.DeleteFunc(got, func(stmt string) bool { return stmt == "SELECT @@timestamp LIMIT 1" })
			if len(got) == 0 || !strings.HasPrefix(got[0], "SELECT @@transaction_isolation, @@transaction_read_only, ") {
				t.Fatalf("it does not ask first: %q", got)
			}
			want := slices.Repeat([]string{"UPDATE", "SELECT"}, 2)
			if c.set != "" {
				want = nil
				for _, stmt := range []string{"UPDATE", "SELECT", "UPDATE", "SELECT"} {
					want = append(want, endsTransaction, "SET "+c.set, stmt, "SET "+c.back)
				}
			}
			if !slices.Equal(got[1:], want) {
				t.Errorf("it says\n%s\nwant\n%s", strings.Join(got[1:], "\n"), strings.Join(want, "\n"))
			}
			if s.conns != 1 {
				t.Errorf("it took %d connections", s.conns)
			}
		})
	}
}

// TestLongWaitsForRows: a statement for several locks, and any for a while after one that was not
// answered, does not wait for rows as long as the session would.
func TestLongWaitsForRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := pooled(t, setting(map[int]string{4: "0", 9: "50"}), "")
		said := s.answer
		s.answer = func(stmt string) (answer, error) {
			if stmt == "UPDATE slow" {
				time.Sleep(3 * time.Second)
				return answer{}, context.DeadlineExceeded
			}
			return said(stmt)
		}
		ask := func(stmt string, many bool) (around string) {
			before := len(s.said(""))
			_, _ = p.ask(t.Context(), 2*time.Second, stmt, many)
			var sets []string
			for _, said := range s.said("")[before:] {
				if strings.HasPrefix(said, "SET ") {
					sets = append(sets, strings.ReplaceAll(said, "SESSION ", ""))
				}
			}
			return strings.Join(sets, "; ")
		}
		usual, short := "SET autocommit = 1; SET autocommit = 0",
			"SET autocommit = 1, innodb_lock_wait_timeout = 2; SET autocommit = 0, innodb_lock_wait_timeout = 50"
		for _, c := range []struct {
			stmt string
			many bool
			want string
			then time.Duration
		}{
			{"UPDATE", false, usual, 0},
			{"UPDATE", true, short, 0},
			{"UPDATE", false, usual, 0},
			{"UPDATE slow", false, "SET autocommit = 1", 0},
			{"UPDATE", false, short, carefulTime},
			{"UPDATE", false, usual, 0},
		} {
			if got := ask(c.stmt, c.many); got != c.want {
				t.Errorf("%s, many: %v: %q; want %q", c.stmt, c.many, got, c.want)
			}
			time.Sleep(c.then)
		}
	})
}

// TestEachSessionIsAskedOnce: the answer of one connection is used for no other.
func TestEachSessionIsAskedOnce(t *testing.T) {
	asked := 0
	s, p := pooled(t, usual, "")
	s.answer = func(stmt string) (answer, error) {
		if strings.HasPrefix(stmt, "SELECT @@") {
			if asked++; asked == 2 {
				return reads(setting(map[int]string{4: "0"})...), nil
			}
			return reads(usual...), nil
		}
		return answer{}, nil
	}
	db := p.db
	db.SetMaxIdleConns(3)
	for range 2 {
		var taken []*sql.Conn
		for range 3 {
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			is, err := p.sessions.of(t.Context(), conn)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			_ = conn.Raw(func(c any) error { n = c.(*scriptedConn).n; return nil })
			if strange := is.set != ""; strange != (n == 2) {
				t.Errorf("session %d: %+v", n, is)
			}
			taken = append(taken, conn)
		}
		for _, conn := range taken {
			conn.Close()
		}
	}
	if asked != 3 {
		t.Errorf("it asks %d times for 3 sessions", asked)
	}
}

// TestSessionsAreForgotten: the memory for a pool that keeps making new connections is bounded.
func TestSessionsAreForgotten(t *testing.T) {
	_, p := pooled(t, usual, "")
	p.db.SetMaxIdleConns(-1)
	for range 3*maxSessions + 1 {
		if _, err := p.ask(t.Context(), time.Minute, "UPDATE", false); err != nil {
			t.Fatal(err)
		}
		if n := len(p.sessions.known); n > maxSessions {
			t.Fatalf("%d sessions are known", n)
		}
	}
}

// TestOldNamesOfTheIsolation: a server that does not know the new name is asked for the old one.
func TestOldNamesOfTheIsolation(t *testing.T) {
	s, p := pooled(t, setting(map[int]string{0: "READ-UNCOMMITTED", 1: "1"}), "transaction_isolation")
	for range 2 {
		if _, err := p.ask(t.Context(), time.Minute, "UPDATE", false); err != nil {
			t.Fatal(err)
		}
	}
	set := "SET SESSION tx_isolation = 'READ-COMMITTED', SESSION tx_read_only = 0"
	back := "SET SESSION tx_isolation = 'READ-UNCOMMITTED', SESSION tx_read_only = 1"
	got := s.said("")
	want := []string{endsTransaction, set, "UPDATE", back, endsTransaction, set, "UPDATE", back}
	if len(got) < 2 || !strings.HasPrefix(got[0], "SELECT @@transaction_isolation,") || !strings.HasPrefix(got[1], "SELECT @@tx_isolation, @@tx_read_only,") ||
		!slices.Equal(got[2:], want) {
		t.Errorf("it says\n%s", strings.Join(got, "\n"))
	}
}

// TestSessionsThatSayNothing: no statement is sent in a session whose settings are not known.
func TestSessionsThatSayNothing(t *testing.T) {
	for what, said := range map[string]func(stmt string) (answer, error){
		"no name is known": func(string) (answer, error) { return answer{}, serverError(1193, "HY000") },
		"an error":         func(string) (answer, error) { return answer{}, serverError(1053, "08S01") },
		"no row":           func(string) (answer, error) { return answer{}, nil },
		"another row":      func(string) (answer, error) { return reads("READ-COMMITTED"), nil },
	} {
		s, p := pooled(t, nil, "")
		s.answer = said
		a, err := p.ask(t.Context(), time.Minute, "UPDATE", false)
		if err == nil || kindOf(err, true) != later || s.count("UPDATE") > 0 {
			t.Errorf("%s: %+v, %v; want an error that says that nothing was sent", what, a, err)
		}
	}
}

// TestSessionsThatFail: a connection in which a statement failed, or in which the settings were not
// set back, does not return to the pool. If the statement itself was answered, that is its answer;
// if it was not sent, the error says so.
func TestSessionsThatFail(t *testing.T) {
	for fails, c := range map[string]struct {
		kind  kind // of the error
		fails bool
	}{
		endsTransaction:              {later, true},
		"SET SESSION autocommit = 1": {later, true},
		"UPDATE":                     {unknown, true},
		"SET SESSION autocommit = 0": {unknown, false},
	} {
		s, p := pooled(t, setting(map[int]string{4: "0"}), "")
		said := s.answer
		s.answer = func(stmt string) (answer, error) {
			if stmt == fails {
				return answer{}, errors.New("reset")
			}
			return said(stmt)
		}
		a, err := p.ask(t.Context(), time.Minute, "UPDATE", false)
		if (err != nil) != c.fails || c.fails && kindOf(err, true) != c.kind || !c.fails && a.affected != 1 {
			t.Errorf("after %q failed: %+v, %v", fails, a, err)
		}
		_, _ = p.ask(t.Context(), time.Minute, "SELECT", false)
		if s.conns != 2 {
			t.Errorf("after %q failed the connection is used again", fails)
		}
	}
}

// TestSessionsOfThePoolOfTheClient: its DSN sets them, and they are not asked.
func TestSessionsOfThePoolOfTheClient(t *testing.T) {
	s, p := pooled(t, nil, "")
	p.owned = true
	for range 3 {
		if _, err := p.ask(t.Context(), time.Minute, "UPDATE", false); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"UPDATE", "UPDATE", "UPDATE"}
	if got := s.said(""); !slices.Equal(got, want) {
		t.Errorf("it says %q; want %q", got, want)
	}
}

// wrapper makes connections that cannot be distinguished: they wrap a value that is not comparable.
type wrapper struct{ *scripted }

type wrapped struct {
	sqldriver.Conn
	hooks any // a slice
}

func (w wrapper) Connect(ctx context.Context) (sqldriver.Conn, error) {
	c, err := w.scripted.Connect(ctx)
	return wrapped{c, []string{"hook"}}, err
}

func (w wrapped) ExecContext(ctx context.Context, stmt string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	return w.Conn.(*scriptedConn).ExecContext(ctx, stmt, args)
}

func (w wrapped) QueryContext(ctx context.Context, stmt string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	return w.Conn.(*scriptedConn).QueryContext(ctx, stmt, args)
}

// TestSessionsThatCannotBeDistinguished: they are asked each time.
func TestSessionsThatCannotBeDistinguished(t *testing.T) {
	s, _ := pooled(t, usual, "")
	db := sql.OpenDB(wrapper{s})
	defer db.Close()
	p := &pool{db: db}
	for i := range 3 {
		if _, err := p.ask(t.Context(), time.Minute, fmt.Sprint("UPDATE ", i), false); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.count("SELECT @@"); n != 3 {
		t.Errorf("they are asked %d times; want 3", n)
	}
}
