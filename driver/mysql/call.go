package mysql

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"encoding/hex"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
)

// bin is an argument in binary: a name, an ID.
type bin []byte

// statement returns CALL dlock_<procedure>(args…). Numbers and hexadecimal digits mean the same in every sql_mode and character set, need no
// placeholders, and can hold no SQL; without placeholders a statement is one round trip whatever the DSN says.
func statement(procedure string, args ...any) string {
	var s strings.Builder
	s.WriteString("CALL dlock_" + procedure)
	for i, a := range args {
		s.WriteString([]string{"(", ", "}[min(i, 1)])
		switch a := a.(type) {
		case bin:
			s.WriteString("X'" + hex.EncodeToString(a) + "'")
		case driver.ID:
			s.WriteString("X'" + a.String() + "'")
		case text:
			s.WriteString("_utf8mb4 X'" + hex.EncodeToString([]byte(a)) + "'")
		case time.Duration:
			s.WriteString(strconv.FormatInt(a.Microseconds(), 10))
		case int:
			s.WriteString(strconv.Itoa(a))
		case driver.Token:
			s.WriteString(strconv.FormatUint(uint64(a), 10))
		case bool:
			s.WriteString(strconv.Itoa(number(a)))
		}
	}
	if len(args) == 0 {
		s.WriteString("(")
	}
	return s.String() + ")"
}

// text is an argument for people.
type text string

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// results are the rows of each result set, as text; NULL is empty.
type results [][][]string

// query sends a statement and reads all that the server answers: an error may come last.
func query(ctx context.Context, db querier, stmt string) (results, error) {
	rows, err := db.QueryContext(ctx, stmt)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var sets results
	for {
		columns, err := rows.Columns()
		if err != nil {
			return nil, err
		}
		raw, at := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
		for i := range raw {
			at[i] = &raw[i]
		}
		var set [][]string
		for rows.Next() {
			if err := rows.Scan(at...); err != nil {
				return nil, err
			}
			row := make([]string, len(raw))
			for i, v := range raw {
				row[i] = string(v)
			}
			set = append(set, row)
		}
		sets = append(sets, set)
		if !rows.NextResultSet() {
			return sets, rows.Err()
		}
	}
}

// querier is a pool or a connection.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

const (
	callTimeout = 3 * time.Second  // for one statement
	patience    = 10 * time.Second // for a call, while nobody knows what became of it
)

// call is a statement that is sent until it is answered. The procedures may be called twice.
type call struct {
	stmt  string
	time  time.Duration // that a copy has
	begun time.Time
	left  atomic.Bool  // nobody waits for it any more: it is not sent again
	doubt atomic.Int32 // how many copies may be under way, or were executed without an answer that somebody read

	read bool      // the last copy was answered: whoever reads that takes it out of doubt
	sent time.Time // before the copy that was answered was sent
	sets results
	err  error
	done chan struct{}
}

func newCall(procedure string, args ...any) *call {
	return &call{stmt: statement(procedure, args...), time: callTimeout, begun: time.Now(), done: make(chan struct{})}
}

var errNotSent = errors.New("not sent")

// carry sends the call until it is answered, nobody waits for it, or patience is over.
func (c *call) carry(db *sql.DB) {
	defer close(c.done)
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		c.doubt.Add(1) // before left is read, as whoever leaves writes left before it reads the doubt: one of the two sees the other
		if c.left.Load() {
			c.doubt.Add(-1)
			c.err = cmp.Or(c.err, errNotSent)
			return
		}
		c.sent = time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), c.time)
		c.sets, c.err = query(ctx, db, c.stmt)
		cancel()
		what := judge(c.err)
		if c.read = what == answered; c.read {
			return
		}
		if what != unknown {
			c.doubt.Add(-1)
		}
		if time.Since(c.begun) > patience {
			return
		}
		if what == rolledBack && wait > 16*time.Millisecond {
			wait = 16 * time.Millisecond
		}
		time.Sleep(wait)
	}
}

// outcome is what an error tells about a statement.
type outcome int

const (
	answered   outcome = iota // it was executed, or refused for good
	rolledBack                // it did nothing, and may succeed if it is sent again
	unreached                 // the server is not there, or not yet: it did nothing
	unknown                   // nobody knows
)

func judge(err error) outcome {
	var e *mysql.MySQLError
	var verify *tls.CertificateVerificationError
	var op *net.OpError
	switch {
	case err == nil, errors.As(err, &verify), errors.Is(err, mysql.ErrNoTLS), err.Error() == "sql: database is closed":
		return answered
	case errors.As(err, &e):
		switch e.Number {
		case 1213, 1205, 1062, 1020: // deadlock, lock wait timeout, duplicate key, changed record: the procedure rolled back
			return rolledBack
		case 1040, 1203, 1226, 1290, 1836: // too many connections, three ways; read-only, as in a failover
			return unreached
		case 1053, 1317, 1927, 3168, 3169: // shutdown or killed, maybe after the COMMIT
			return unknown
		}
		return answered
	case errors.As(err, &op) && op.Op == "dial":
		return unreached
	}
	return unknown
}

// wait returns when the call is answered, or at the end of ctx or stop: then it is left to itself.
func (c *call) wait(ctx context.Context, stop <-chan struct{}) error {
	select {
	case <-c.done:
		if c.read {
			c.doubt.Add(-1)
		}
		return c.err
	case <-ctx.Done():
		c.left.Store(true)
		return ctx.Err()
	case <-stop:
		c.left.Store(true)
		return driver.ErrClosed
	}
}

// lanes let one call at a time go to each name: on the server they would only wait for each other, each with a connection.
type lanes struct {
	mu sync.Mutex
	m  map[string]*lane
}

// lane are the calls on a name that wait for the one under way. Those that let others go on come first.
type lane struct{ urgent, queue []*call }

// send gives the call to the network, and returns when it is answered, or at the end of ctx or stop: then it goes on alone if it was sent.
func (b *Backend) send(ctx context.Context, stop <-chan struct{}, name string, urgent bool, c *call) error {
	v := &b.lanes
	v.mu.Lock()
	l := v.m[name]
	if l == nil {
		l = &lane{}
		v.m[name] = l
		go b.drive(name, l)
	}
	if urgent {
		l.urgent = append(l.urgent, c)
	} else {
		l.queue = append(l.queue, c)
	}
	v.mu.Unlock()
	err := c.wait(ctx, stop)
	if c.doubt.Load() > 0 {
		b.wakeName(name) // an answer that told of grants may be lost
	}
	return err
}

func (b *Backend) drive(name string, l *lane) {
	v := &b.lanes
	for {
		v.mu.Lock()
		from := &l.urgent
		if len(*from) == 0 {
			from = &l.queue
		}
		if len(*from) == 0 {
			delete(v.m, name)
			v.mu.Unlock()
			return
		}
		c := (*from)[0]
		*from = slices.Delete(*from, 0, 1)
		v.mu.Unlock()
		c.carry(b.db)
		if c.left.Load() && c.doubt.Load() > 0 { // so the answer came after whoever left had woken them
			b.wakeName(name)
		}
	}
}
