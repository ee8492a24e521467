package mysql

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
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

// statement returns CALL dlock_<procedure>(args…). Numbers and hexadecimal digits mean the same in
// every sql_mode and character set, need no placeholders, and can hold no SQL; without placeholders
// a statement is one round trip whatever the DSN says.
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

// answer is what the server says to a statement.
type answer struct {
	sets results
	sent time.Time // before it was sent
}

// pool is where a client's connections come from.
type pool struct {
	db     *sql.DB
	owned  bool // it is the client's alone
	gate   gate
	fits   atomic.Bool  // the schema was seen to be this driver's
	asking atomic.Int32 // statements that have a connection, or want one
	// why the last of them had no answer of the server; nil: it had one
	trouble atomic.Pointer[error]
}

// ask sends a statement, and has the server's whole answer within limit. A connection whose
// statement ended with anything else is closed, and never goes back to the pool: whoever kills a
// procedure, or ends its time, keeps it from ending its transaction and from putting the session's
// settings back, and what somebody else did on that connection next would be part of it. While ctx
// lives no error matches a context's.
func (p *pool) ask(ctx context.Context, limit time.Duration, stmt string) (a answer, err error) {
	p.asking.Add(1)
	defer p.asking.Add(-1)
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() {
		var e *mysql.MySQLError
		if p.trouble.Store(nil); err != nil && !errors.As(err, &e) {
			p.trouble.Store(&err)
		}
	}()
	conn, err := p.db.Conn(within)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = cmp.Or(p.busy(), err)
		}
		return a, &notSent{plain(ctx, err, limit)}
	}
	defer conn.Close()
	a.sent = time.Now()
	if a.sets, err = query(within, conn, stmt); err == nil {
		return a, nil
	}
	discard(conn)
	if errors.Is(err, sqldriver.ErrBadConn) {
		return a, &notSent{err}
	}
	return a, plain(ctx, err, limit)
}

// discard closes a connection instead of giving it back.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
}

// notSent is an error before the statement was sent.
type notSent struct{ err error }

func (e *notSent) Error() string { return e.err.Error() }
func (e *notSent) Unwrap() error { return e.err }

// plain is err without the ends of contexts that are not the caller's.
func plain(ctx context.Context, err error, limit time.Duration) error {
	ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	switch {
	case errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("the connection to the server broke: %w", err)
	case !ended, ctx.Err() != nil:
		return err
	case err == context.DeadlineExceeded: // nothing else is known
		return fmt.Errorf("the server did not answer within %s", limit)
	}
	return errors.New(err.Error()) // the dialler's: it says more
}

// busy is the reason for which there is no connection, if others have them all.
func (p *pool) busy() error {
	s := p.db.Stats()
	if p.owned || s.MaxOpenConnections == 0 || s.InUse < s.MaxOpenConnections || int(p.asking.Load()) > s.MaxOpenConnections {
		return nil
	}
	return fmt.Errorf("all %d connections of the pool are in use: give dlock a pool of its own (docs/mysql.md)", s.MaxOpenConnections)
}

// query sends a statement and reads all that the server answers: an error may come last.
func query(ctx context.Context, conn *sql.Conn, stmt string) (results, error) {
	rows, err := conn.QueryContext(ctx, stmt)
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

const (
	// for one statement; the server gives up after 2 s of waiting for a row or a table
	callTimeout = 3 * time.Second
	patience    = 10 * time.Second // for a call, while nobody knows what became of it
)

// call is a statement that is sent until it is answered. The procedures may be called twice.
type call struct {
	stmt     string
	urgent   bool          // it lets others go on
	time     time.Duration // that a copy has
	patience time.Duration
	begun    time.Time
	left     atomic.Bool // nobody waits for it any more: it is not sent again
	// how many copies may be under way, or were executed without an answer that somebody read
	doubt   atomic.Int32
	trouble atomic.Pointer[error] // what became of the last copy

	read bool      // the last copy was answered: whoever reads that takes it out of doubt
	sent time.Time // before the copy that was answered was sent
	sets results
	err  error
	done chan struct{}
}

func newCall(procedure string, args ...any) *call {
	return &call{stmt: statement(procedure, args...), time: callTimeout, patience: patience, begun: time.Now(), done: make(chan struct{})}
}

var errNotSent = errors.New("not sent")

// carry sends the call until it is answered, nobody waits for it, or patience is over. Each copy
// has a place at the gate.
func (c *call) carry(p *pool, gated bool) {
	defer close(c.done)
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		if gated {
			p.gate.enter(p.db, c.urgent)
		}
		// before left is read, as whoever leaves writes left before it reads the doubt: one of the
		// two sees the other
		c.doubt.Add(1)
		left, err := c.left.Load(), cmp.Or(c.err, errNotSent)
		if !left {
			var a answer
			if err = p.fit(context.Background()); err == nil {
				a, err = p.ask(context.Background(), c.time, c.stmt)
			}
			c.sets, c.sent = a.sets, a.sent
		}
		if c.err = err; gated {
			p.gate.leave()
		}
		if left {
			c.doubt.Add(-1)
			return
		}
		what := judge(err)
		if c.read = what == answered; c.read {
			return
		}
		c.trouble.Store(&err)
		if what != unknown {
			c.doubt.Add(-1)
		}
		if time.Since(c.begun) > c.patience {
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

// judge takes for refused only what the server refuses before it does anything, or by a condition
// that the procedure handles by rolling back. A statement that was killed (1317), or whose time was
// over (1969, 3024), may have committed.
func judge(err error) outcome {
	var e *mysql.MySQLError
	var unsent *notSent
	switch {
	case err == nil, errors.Is(err, errSchema), errors.Is(err, errOther):
		return answered
	case errors.As(err, &unsent):
		if final(err) {
			return answered
		}
		return unreached
	case !errors.As(err, &e):
		return unknown
	}
	switch e.Number {
	case 1213, 1205, 1062, 1020:
		// deadlock, lock wait timeout, duplicate key, changed record: the procedure rolled back
		return rolledBack
	case 1040, 1203, 1226, 1290, 1836:
		// too many connections, three ways; read-only, as in a failover
		return unreached
	case 1665: // a binary log of statements
		return answered
	}
	switch string(e.SQLState[:2]) {
	case "0A", "22", "23", "28", "42":
		// not supported, bad data, constraints, authorization, syntax and access
		return answered
	}
	return unknown
}

// final reports whether an error of connecting will be the same the next time.
func final(err error) bool {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return !slices.Contains([]uint16{1040, 1053, 1129, 1203, 1226, 1290, 1836, 1927, 3168, 3169}, e.Number)
	}
	var verify *tls.CertificateVerificationError
	for _, no := range []error{mysql.ErrNoTLS, mysql.ErrOldPassword, mysql.ErrNativePassword, mysql.ErrCleartextPassword, mysql.ErrUnknownPlugin} {
		if errors.Is(err, no) {
			return true
		}
	}
	return errors.As(err, &verify) || err.Error() == "sql: database is closed"
}

// wait returns when the call is answered, or at the end of ctx or stop: then it is left to itself.
func (c *call) wait(ctx context.Context, p *pool, stop <-chan struct{}) error {
	select {
	case <-c.done:
		if c.read {
			c.doubt.Add(-1)
		}
		return c.err
	case <-ctx.Done():
		c.left.Store(true)
		return c.late(ctx, p)
	case <-stop:
		c.left.Store(true)
		return driver.ErrClosed
	}
}

// late is the end of ctx, with the reason why there was no answer before, as far as it is known.
func (c *call) late(ctx context.Context, p *pool) error {
	err, why := ctx.Err(), p.busy()
	for _, t := range []*error{c.trouble.Load(), p.trouble.Load()} {
		if why == nil && t != nil {
			why = *t
		}
	}
	if why == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, why)
}

// gate bounds how many statements a client has at the server, so that a server on which they hang,
// for the length of a backup or of a change of tables, keeps connections for other programs, and a
// pool keeps some for renewals. Those that let others go on come first: a burst of new requests
// delays no release, and makes nobody miss the window of a grant.
type gate struct {
	mu            sync.Mutex
	in            int
	urgent, queue []chan struct{}
}

const gateWidth = 30

func (g *gate) enter(db *sql.DB, urgent bool) {
	most := gateWidth
	if n := db.Stats().MaxOpenConnections; n > 0 {
		most = max(1, min(most, n-2))
	}
	g.mu.Lock()
	if g.in < most {
		g.in++
		g.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	to := &g.queue
	if urgent {
		to = &g.urgent
	}
	*to = append(*to, turn)
	g.mu.Unlock()
	<-turn
}

// leave passes the place on.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	from := &g.urgent
	if len(*from) == 0 {
		from = &g.queue
	}
	if len(*from) == 0 {
		g.in--
		return
	}
	close((*from)[0])
	*from = (*from)[1:]
}

// lanes let one call at a time go to each name: on the server they would only wait for each other,
// each with a connection.
type lanes struct {
	mu sync.Mutex
	m  map[string]*lane
}

// lane are the calls on a name that wait for the one under way. Those that let others go on come
// first.
type lane struct{ urgent, queue []*call }

// send gives the call to the network, and returns when it is answered, or at the end of ctx or
// stop: then it goes on alone if it was sent.
func (b *Backend) send(ctx context.Context, stop <-chan struct{}, name string, urgent bool, c *call) error {
	v := &b.lanes
	c.urgent = urgent
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
	err := c.wait(ctx, b.pool, stop)
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
		c.carry(b.pool, true)
		// so the answer came after whoever left had woken them
		if c.left.Load() && c.doubt.Load() > 0 {
			b.wakeName(name)
		}
	}
}
