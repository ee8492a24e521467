package mysql

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// scripted is a server that answers as a test says. Questions about sessions and tables it answers
// by itself.
type scripted struct {
	takes  time.Duration                              // each statement
	packet int                                        // max_allowed_packet; 0: 16 MB
	strict bool                                       // the test answers all
	answer func(stmt string) (said answer, err error) // nil: nothing to everything

	mu    sync.Mutex
	conns int
	stmts []string
}

// Connect implements [sqldriver.Connector].
func (s *scripted) Connect(context.Context) (sqldriver.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns++
	return &scriptedConn{s, s.conns}, nil
}

// Driver implements [sqldriver.Connector].
func (*scripted) Driver() sqldriver.Driver { return nil }

// said returns the statements that contain a text.
func (s *scripted) said(text string) (stmts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stmt := range s.stmts {
		if strings.Contains(stmt, text) {
			stmts = append(stmts, stmt)
		}
	}
	return stmts
}

// count returns how many statements contain a text.
func (s *scripted) count(text string) int { return len(s.said(text)) }

// longest returns the length of the longest statement.
func (s *scripted) longest() (n int) {
	for _, stmt := range s.said("") {
		n = max(n, len(stmt))
	}
	return n
}

// say records a statement and answers it.
func (s *scripted) say(stmt string) (answer, error) {
	s.mu.Lock()
	s.stmts = append(s.stmts, stmt)
	s.mu.Unlock()
	time.Sleep(s.takes)
	switch {
	case s.strict:
	case strings.HasPrefix(stmt, "SELECT @@"):
		return reads("READ-COMMITTED", "0", "0", "1700000000.5", "1", "0", "1", "NO_CHAIN", "STRICT_TRANS_TABLES", "2"), nil
	case strings.Contains(stmt, "information_schema.COLUMNS"):
		return ownTables(cmp.Or(s.packet, 1<<24)), nil
	case strings.HasSuffix(stmt, " LIMIT 0"): // it asks for a right
		return answer{}, nil
	}
	if s.answer == nil {
		return answer{}, nil
	}
	return s.answer(stmt)
}

// reads is an answer of one row.
func reads(row ...string) answer { return answer{rows: [][]string{row}} }

// ownTables is the answer of a database with the tables of this driver, to a user with all rights.
func ownTables(packet int) (a answer) {
	for table, columns := range tables {
		for _, c := range columns {
			key := ""
			if slices.Contains(keys[table], c) {
				key = "PRI"
			}
			a.rows = append(a.rows, []string{table, c, fmt.Sprint(packet), "select,insert,update,references", key})
		}
	}
	return a
}

type scriptedConn struct {
	s *scripted
	n int // not of size 0: then all pointers might be equal
}

func (*scriptedConn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }
func (*scriptedConn) Begin() (sqldriver.Tx, error)           { return nil, errors.ErrUnsupported }
func (*scriptedConn) Close() error                           { return nil }

func (c *scriptedConn) ExecContext(_ context.Context, stmt string, _ []sqldriver.NamedValue) (sqldriver.Result, error) {
	a, err := c.s.say(stmt)
	return scriptedResult{a}, err
}

func (c *scriptedConn) QueryContext(_ context.Context, stmt string, _ []sqldriver.NamedValue) (sqldriver.Rows, error) {
	a, err := c.s.say(stmt)
	return &scriptedRows{rows: a.rows}, err
}

type scriptedResult struct{ a answer }

func (r scriptedResult) RowsAffected() (int64, error) { return r.a.affected, nil }
func (r scriptedResult) LastInsertId() (int64, error) { return r.a.id, nil }

type scriptedRows struct {
	rows [][]string
	next int
}

func (r *scriptedRows) Columns() []string {
	if len(r.rows) == 0 {
		return nil
	}
	return make([]string, len(r.rows[0]))
}

func (*scriptedRows) Close() error { return nil }

func (r *scriptedRows) Next(dest []sqldriver.Value) error {
	if r.next == len(r.rows) {
		return io.EOF
	}
	for i, v := range r.rows[r.next] {
		dest[i] = []byte(v)
	}
	r.next++
	return nil
}

// client returns a client of the server. The test's end closes it.
func (s *scripted) client(t *testing.T, o Options) *Backend {
	t.Helper()
	db := sql.OpenDB(s)
	b, err := New(db, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		db.Close()
	})
	return b
}

// exclusive is a request of its own owner and client.
func exclusive(name string) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, Client: id, TTL: time.Minute}
}

// free is a server where locks are free until they are taken. Some of them have waiters: those only
// pass releases.
type free struct {
	mu      sync.Mutex
	holders map[string]string // IDs by name, both in hexadecimal
	queued  map[string]bool
}

var (
	takenRow = regexp.MustCompile(`\(X'[0-9a-f]*', X'([0-9a-f]*)', LAST_INSERT_ID\(.*?\), 0, 0, X'([0-9a-f]{32})'`)
	listed   = regexp.MustCompile(`name (?:IN \(|= )((?:X'[0-9a-f]*'(?:, )?)+)`)
	quoted   = regexp.MustCompile(`X'([0-9a-f]*)'`)
)

// token is the token of all holders.
const token = 1000

// answer answers what concerns exclusive requests.
func (f *free) answer(stmt string) (a answer, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holders == nil {
		f.holders = map[string]string{}
	}
	var names [][]string
	if list := listed.FindStringSubmatch(stmt); list != nil {
		names = quoted.FindAllStringSubmatch(list[1], -1)
	}
	switch {
	case is(stmt, take):
		for _, row := range takenRow.FindAllStringSubmatch(stmt, -1) {
			name, id := row[1], row[2]
			if a.id = isHeld; f.holders[name] == "" || f.holders[name] == id {
				f.holders[name], a.id = id, token
			}
		}
	case is(stmt, held):
		for _, m := range names {
			if id := f.holders[m[1]]; id != "" {
				a.rows = append(a.rows, []string{strings.ToUpper(m[1]), strings.ToUpper(id), strconv.Itoa(token), "0", "0", "60000000"})
			}
		}
	case is(stmt, look):
		for i := range strings.Split(stmt, " UNION ALL ") {
			a.rows = append(a.rows, []string{strconv.Itoa(i), strconv.Itoa(token), "0", "0", driver.ID{}.String(), "0", "0", "", "0", "0", "0", ""})
		}
	case is(stmt, give), is(stmt, pass):
		for _, m := range names {
			if id := f.holders[m[1]]; id != "" && strings.Contains(stmt, id) && (is(stmt, pass) || !f.queued[m[1]]) {
				delete(f.holders, m[1])
				a.affected++
			}
		}
	case is(stmt, look):
		a.rows = [][]string{{"0", "1000", "0", "0", none, "0", "-1", "", "0", "0", "0", ""}}
	}
	return a, nil
}

// none is the zero ID, as a server prints it.
var none = driver.ID{}.String()

// is reports whether a statement is that one, with its parameters filled in.
func is(stmt, unfilled string) bool {
	start, _, _ := strings.Cut(unfilled, ":")
	return strings.HasPrefix(stmt, start)
}
