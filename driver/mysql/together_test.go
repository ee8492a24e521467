package mysql

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
)

// scripted is a server that answers statements as a test tells it, each after a while.
type scripted struct {
	takes  time.Duration
	packet int // max_allowed_packet; 0: 16 MB
	answer func(stmt string) (row []string, err error)

	mu    sync.Mutex
	stmts []string
}

func (s *scripted) Connect(context.Context) (sqldriver.Conn, error) { return scriptedConn{s}, nil }
func (*scripted) Driver() sqldriver.Driver                          { return nil }

// count returns how many statements called the procedure.
func (s *scripted) count(procedure string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stmt := range s.stmts {
		if strings.HasPrefix(stmt, "CALL dlock_"+procedure+"(") {
			n++
		}
	}
	return n
}

type scriptedConn struct{ s *scripted }

func (scriptedConn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }
func (scriptedConn) Begin() (sqldriver.Tx, error)           { return nil, errors.ErrUnsupported }
func (scriptedConn) Close() error                           { return nil }

func (c scriptedConn) QueryContext(_ context.Context, stmt string, _ []sqldriver.NamedValue) (sqldriver.Rows, error) {
	c.s.mu.Lock()
	c.s.stmts = append(c.s.stmts, stmt)
	c.s.mu.Unlock()
	time.Sleep(c.s.takes)
	if stmt == statement("version") {
		return &scriptedRows{row: []string{fmt.Sprint(schema)}, then: []string{fmt.Sprint(cmp.Or(c.s.packet, 1<<24))}, another: true}, nil
	}
	row, err := c.s.answer(stmt)
	return &scriptedRows{row: row, another: strings.HasPrefix(stmt, "CALL dlock_look(")}, err
}

type scriptedRows struct {
	row     []string
	read    bool
	another bool     // another set follows
	then    []string // its row; nil: it is empty
}

func (r *scriptedRows) HasNextResultSet() bool { return r.another }
func (r *scriptedRows) NextResultSet() error {
	if !r.another {
		return io.EOF
	}
	r.another = false
	if r.then != nil {
		r.row, r.read = r.then, false
	}
	return nil
}

func (r *scriptedRows) Columns() []string { return make([]string, len(r.row)) }
func (r *scriptedRows) Close() error      { return nil }
func (r *scriptedRows) Next(dest []sqldriver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read = true
	for i, v := range r.row {
		dest[i] = []byte(v)
	}
	return nil
}

// did is what a server says that does all that travel together but those that leave names.
func did(stmt string, leave ...string) []string {
	_, text, _ := strings.Cut(stmt, "'")
	_, text, _ = strings.Cut(text, "'") // the prefix
	_, text, _ = strings.Cut(text, "'")
	var answer strings.Builder
	for i, c := range strings.Split(strings.TrimSuffix(strings.TrimSuffix(text, "')"), ";"), ";") {
		name, _, _ := strings.Cut(c, ",")
		if !strings.Contains(strings.Join(leave, " "), name) {
			fmt.Fprintf(&answer, "%d:%d,", i+1, 7)
		}
	}
	return []string{answer.String()}
}

// aloneAnswer is what a server says to a call of its own: token 9.
func aloneAnswer(stmt string) []string {
	if strings.HasPrefix(stmt, "CALL dlock_release(") {
		return []string{"1", "0", ""}
	}
	return []string{"granted", "9", "", "0", "0", "", ""}
}

// TestCallsTravelTogether: while calls are under way, those that come travel together, at most so
// many in one; each gets its own answer, whatever becomes of the others.
func TestCallsTravelTogether(t *testing.T) {
	const n = 40
	unknown := errors.New("reset")
	for what, tt := range map[string]struct {
		answer          func(stmt string) ([]string, error) // of those that travel together
		together, alone int                                 // calls
		seven           int                                 // how many got their token together
		doubt           bool                                // a copy may be under way
	}{
		"all are done": {func(stmt string) ([]string, error) { return did(stmt), nil }, 1, inFlight, n - inFlight, false},
		"some are left": {func(stmt string) ([]string, error) {
			return did(stmt, fmt.Sprintf("%x", "name 7"), fmt.Sprintf("%x", "name 8")), nil
		},
			1, inFlight + 2, n - inFlight - 2, false},
		"it was rolled back": {func(string) ([]string, error) { return nil, &mysql.MySQLError{Number: 1213} }, 1, n, 0, false},
		"it is refused": {func(string) ([]string, error) {
			return nil, &mysql.MySQLError{Number: 1406, SQLState: [5]byte{'2', '2', '0', '0', '1'}}
		}, 1, n, 0, false},
		"nobody knows":          {func(string) ([]string, error) { return nil, unknown }, 1, n, 0, true},
		"the answer is strange": {func(string) ([]string, error) { return []string{"a", "b"}, nil }, 1, n, 0, true},
		"the answer is nothing": {func(string) ([]string, error) { return []string{""}, nil }, 1, n, 0, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{takes: time.Millisecond, answer: func(stmt string) ([]string, error) {
					if strings.HasPrefix(stmt, "CALL dlock_together(") {
						return tt.answer(stmt)
					}
					return aloneAnswer(stmt), nil
				}}
				db := sql.OpenDB(s)
				defer db.Close()
				p := &pool{db: db}
				p.checked.Store(true)
				calls := make([]*call, n)
				var wg sync.WaitGroup
				for i := range n {
					c := newCall("acquire", i)
					id := driver.NewID()
					c.simple = simpleAcquire(nil, driver.Request{Name: fmt.Sprint("name ", i), ID: id, Owner: id, TTL: time.Minute})
					calls[i] = c
					wg.Go(func() { c.run(p, true) })
					synctest.Wait() // in this order
				}
				wg.Wait()
				seven := 0
				for i, c := range calls {
					row, err := c.sets.single(7)
					if !c.answered || c.err != nil || err != nil || row[0] != "granted" || row[1] != "7" && row[1] != "9" {
						t.Fatalf("call %d: answered %t, %q, %v", i, c.answered, c.sets, c.err)
					}
					if row[1] == "7" {
						seven++
					}
					want := int32(1) // its answer was not read yet
					if tt.doubt && i >= inFlight {
						want = 2
					}
					if got := c.doubt.Load(); got != want {
						t.Errorf("call %d: %d copies are in doubt; want %d", i, got, want)
					}
					if c.sent.IsZero() {
						t.Errorf("call %d: nobody knows when it was sent", i)
					}
				}
				if got := [3]int{s.count("together"), s.count("acquire"), seven}; got != [3]int{tt.together, tt.alone, tt.seven} {
					t.Errorf("%d calls together, %d alone, %d answered together; want %d, %d, %d", got[0], got[1], got[2], tt.together, tt.alone, tt.seven)
				}
			})
		})
	}
}

// TestWhoLeftDoesNotTravel: a call that nobody waits for any more is not sent, and a full
// transaction takes the releases first.
func TestWhoLeftDoesNotTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: time.Millisecond, answer: func(stmt string) ([]string, error) {
			if strings.HasPrefix(stmt, "CALL dlock_together(") {
				return did(stmt), nil
			}
			return aloneAnswer(stmt), nil
		}}
		db := sql.OpenDB(s)
		defer db.Close()
		p := &pool{db: db}
		p.checked.Store(true)
		var wg sync.WaitGroup
		send := func(urgent bool, left bool) *call {
			r := driver.Request{Name: "a", ID: driver.NewID(), TTL: time.Minute}
			c := newCall("acquire")
			if c.simple = simpleAcquire(nil, r); urgent {
				c.simple = simpleRelease(nil, r)
			}
			c.urgent = urgent
			c.left.Store(left)
			wg.Go(func() { c.run(p, true) })
			synctest.Wait()
			return c
		}
		for range inFlight {
			send(false, false)
		}
		gone := send(false, true)
		for range maxTogether {
			send(false, false)
		}
		last := send(true, false)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if gone.doubt.Load() != 0 || gone.answered {
			t.Errorf("what nobody waited for: answered %t, %d copies in doubt", gone.answered, gone.doubt.Load())
		}
		if !last.answered {
			t.Error("a release waits for new requests")
		}
		wg.Wait()
		if n := s.count("together"); n != 2 {
			t.Errorf("%d transactions for %d calls", n, maxTogether+1)
		}
		if sum := p.joiner.calls + p.limiter.running; sum != 0 {
			t.Errorf("%d calls are under way for ever", sum)
		}
	})
}

// TestSlowAnswersKeepNobodyWaiting: what waits for an answer that is late is sent beside it.
func TestSlowAnswersKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: time.Second, answer: func(stmt string) ([]string, error) {
			if strings.HasPrefix(stmt, "CALL dlock_together(") {
				return did(stmt), nil
			}
			return aloneAnswer(stmt), nil
		}}
		db := sql.OpenDB(s)
		defer db.Close()
		p := &pool{db: db}
		p.checked.Store(true)
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 100 {
			c := newCall("acquire")
			c.simple = simpleAcquire(nil, driver.Request{Name: fmt.Sprint(i), ID: driver.NewID(), TTL: time.Minute})
			wg.Go(func() { c.run(p, true) })
		}
		wg.Wait()
		if took := time.Since(began); took > time.Second+10*slowAnswer {
			t.Errorf("100 calls took %s, a call takes a second", took)
		}
	})
}
