package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
)

// Options configure [New]. The zero value is useful.
type Options struct {
	Prefix string // beside every name in the tables; at most 255 bytes
	// how long a waiter that another client granted has to confirm it; 0: 1s
	GrantWindow time.Duration

	// Identity names the queues, for contexts that carry holds between clients of one process:
	// clients of the same queues have the same. Empty: the pool, so that another pool over the same
	// database is taken for other queues.
	Identity string
}

// Backend is a client of one MySQL or MariaDB. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker] and [driver.Lister], whose contracts it keeps.
type Backend struct {
	pool   *pool
	o      Options
	prefix bin
	caps   driver.Capabilities
	lanes  lanes
	ctx    context.Context // ends with Close
	stop   <-chan struct{} // its Done
	cancel context.CancelFunc
	tasks  sync.WaitGroup // what goes on in the background

	mu       sync.Mutex
	closed   bool
	mine     map[driver.ID]*mine // what may stand in the queues
	holds    map[string]int      // how many of those were granted that let nobody else in, by name
	names    map[string]*group   // those who wait, by name
	watching bool                // there is a goroutine that looks for grants
	kept     time.Time           // when it last kept alive what waits; its own
	nudge    chan struct{}       // has a token in it if that has to think again
}

// mine is a request of this client that may stand in a queue. The backend's mu guards it.
type mine struct {
	r         driver.Request
	asking    int           // calls of Acquire under way
	stands    bool          // the server said that it stands in the queue
	told      bool          // there was news of it since it last asked
	given     *driver.Grant // the reply to another call granted it
	until     time.Time     // it cannot have expired before; zero: it was not granted
	uncertain bool          // a copy of its acquire may be under way
	releases  int           // how often a release of it was sent
}

// New returns a backend over a pool of github.com/go-sql-driver/mysql, which the caller owns and
// Close leaves open. It does not reach the server yet. Nothing depends on the pool's DSN beyond the
// database; a connection is used for one statement at a time, and what an earlier user left open in
// it is rolled back. A caller that holds the only connection of a pool while it waits for a lock
// waits for itself.
func New(db *sql.DB, o Options) (*Backend, error) {
	if o.Identity == "" {
		o.Identity = fmt.Sprintf("%p", db)
	}
	return newBackend(&pool{db: db}, o, "mysql")
}

func newBackend(p *pool, o Options, scheme string) (*Backend, error) {
	if o.GrantWindow == 0 {
		o.GrantWindow = time.Second
	}
	if o.GrantWindow < 10*time.Millisecond || len(o.Prefix) > 255 {
		return nil, fmt.Errorf("%w options: the grant window is at least 10ms, and the prefix has at most 255 bytes", driver.ErrInvalid)
	}
	b := &Backend{
		pool: p, o: o, prefix: bin(o.Prefix), lanes: lanes{m: map[string]*lane{}},
		mine: map[driver.ID]*mine{}, holds: map[string]int{}, names: map[string]*group{}, nudge: make(chan struct{}, 1),
		caps: driver.Capabilities{
			Backend: scheme, Identity: o.Identity + "/" + o.Prefix, Queue: true, Fencing: true, Shared: true, Semaphores: true, Joins: true,
			Inspect: true, Durable: true, ServerEndsFixed: true, FixedOutlives: true, MinTTL: 50 * time.Millisecond, MaxTTL: 100 * 365 * 24 * time.Hour,
		},
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.stop = b.ctx.Done()
	return b, nil
}

// Capabilities implements [driver.Capable].
func (b *Backend) Capabilities() driver.Capabilities { return b.caps }

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if r.TTL < b.caps.MinTTL || r.TTL > b.caps.MaxTTL {
		return driver.Grant{}, fmt.Errorf("%w TTL %s: it is %s at least and %s at most", driver.ErrInvalid, r.TTL, b.caps.MinTTL, b.caps.MaxTTL)
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrClosed
	}
	m := b.mine[r.ID]
	if m == nil {
		m = &mine{r: r}
		b.mine[r.ID] = m
	}
	m.asking++
	b.mu.Unlock()
	g, err := b.acquire(ctx, m, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	m.asking--
	if b.closed {
		return driver.Grant{}, driver.ErrClosed // Close removes it
	}
	if err != nil {
		b.giveUp(m)
		return driver.Grant{}, explain(err)
	}
	return g, nil
}

func (b *Backend) acquire(ctx context.Context, m *mine, r driver.Request) (driver.Grant, error) {
	var w *waiter
	defer func() {
		if w != nil {
			b.leave(w)
		}
	}()
	for {
		b.mu.Lock()
		wait := number(r.Wait)
		if !m.until.IsZero() { // what was granted is not asked for anew: it may have expired
			wait = -1
		}
		given, told := m.given, m.told
		m.told = false
		stood := m.stands
		b.mu.Unlock()
		if given != nil && w != nil {
			return *given, nil
		}
		c := newCall("acquire", b.prefix, bin(r.Name), r.ID, r.Owner, r.Client, r.Mode == driver.Shared, r.Limit, r.TTL, r.Fixed, wait, b.o.GrantWindow, text(r.Label))
		if stood { // an outage shorter than its TTL ends no wait
			c.patience = max(patience, r.TTL)
		}
		err := b.send(ctx, b.stop, r.Name, told, c)
		var a verdict
		if err == nil {
			a, err = parseAcquire(c.sets)
			b.hear(c, a.news)
		}
		b.mu.Lock()
		m.uncertain = m.uncertain || c.doubt.Load() > 0
		switch {
		case err != nil && isNo(err):
			m.stands = false
		case err == nil:
			m.stands = true
			if a.granted {
				b.holding(m, c.sent)
			}
		}
		b.mu.Unlock()
		if err != nil {
			return driver.Grant{}, b.waited(ctx, stood && c.trouble.Load() == nil, err)
		}
		if a.granted {
			return driver.Grant{Token: a.token, TTL: r.TTL, SentAt: c.sent}, nil
		}
		if w == nil {
			w = b.join(m)
			a.fresh = false // nobody dropped it
		}
		b.waits(w, a)
		if err := w.sleep(ctx, b.stop); err != nil {
			return driver.Grant{}, b.waited(ctx, true, err)
		}
	}
}

// waited is the error of an Acquire that ended with ctx, if it did: where the server said that the
// request stands in the queue, and answers, it says so.
func (b *Backend) waited(ctx context.Context, stands bool, err error) error {
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) {
		return err
	}
	if t := b.pool.trouble.Load(); t != nil && stands {
		return fmt.Errorf("%w: %w", err, *t)
	}
	if !stands {
		return err
	}
	return driver.Waited(ctx)
}

// holding takes note of a proof that the request holds. b.mu is held.
func (b *Backend) holding(m *mine, since time.Time) {
	if m.until.IsZero() && m.r.Mode == driver.Exclusive && b.mine[m.r.ID] == m {
		b.holds[m.r.Name]++
	}
	m.until = since.Add(m.r.TTL)
}

// forget takes note that the request stands nowhere any more. b.mu is held.
func (b *Backend) forget(m *mine) {
	id, name := m.r.ID, m.r.Name
	if b.mine[id] != m {
		return
	}
	delete(b.mine, id)
	if m.until.IsZero() || m.r.Mode == driver.Shared {
		return
	}
	if b.holds[name]--; b.holds[name] == 0 {
		delete(b.holds, name)
		if g := b.names[name]; g != nil { // somebody else's turn: ours may be next
			b.urge(g)
		}
	}
}

// isNo reports whether the error is one of the answers to acquire: the request stands nowhere.
func isNo(err error) bool {
	return errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrUpgrade) || errors.Is(err, driver.ErrConflict)
}

// verdict is what dlock_acquire says to a request that may stand.
type verdict struct {
	granted bool
	token   driver.Token
	expiry  time.Duration // of who waits: until the next of those who hold expires
	fresh   bool          // of who waits: it did not before
	place   int64         // of who waits
	head    int64         // of the queue: who waits is not below
	news    string        // whom the call granted
}

var answers = map[string]error{
	"granted": nil, "arrived": nil, "waiting": nil,
	"held": driver.ErrHeld, "lost": driver.ErrLost, "upgrade": driver.ErrUpgrade, "conflict": driver.ErrConflict,
}

func parseAcquire(sets results) (verdict, error) {
	row, err := single(sets, 6)
	if err != nil {
		return verdict{}, err
	}
	no, known := answers[row[0]]
	if !known {
		return verdict{}, fmt.Errorf("unexpected answer %q", row[0])
	}
	token, _ := strconv.ParseUint(row[1], 10, 64)
	expiry, _ := strconv.ParseInt(row[2], 10, 64)
	place, _ := strconv.ParseInt(row[3], 10, 64)
	head, _ := strconv.ParseInt(row[4], 10, 64)
	return verdict{
		granted: row[0] == "granted", token: driver.Token(token), expiry: time.Duration(expiry) * time.Microsecond,
		fresh: row[0] == "arrived", place: place, head: head, news: row[5],
	}, no
}

// single returns the one row that a procedure answers with last.
func single(sets results, columns int) ([]string, error) {
	if len(sets) > 0 {
		if last := sets[len(sets)-1]; len(last) == 1 && len(last[0]) == columns {
			return last[0], nil
		}
	}
	return nil, fmt.Errorf("unexpected answer %q", sets)
}

// giveUp removes a request whose Acquire failed, if it may stand somewhere. b.mu is held.
func (b *Backend) giveUp(m *mine) {
	if !m.stands && !m.uncertain {
		b.forget(m)
		return
	}
	b.tasks.Go(func() { b.settle(m) })
}

// settle sends a release until it is answered, the client is closed, or the request has surely
// expired.
func (b *Backend) settle(m *mine) {
	end := time.Now().Add(2*m.r.TTL + 10*time.Second)
	for wait := 20 * time.Millisecond; time.Now().Before(end); wait = min(2*wait, 2*time.Second) {
		b.mu.Lock()
		uncertain := m.uncertain
		b.mu.Unlock()
		c := b.releaseCall(m.r, uncertain)
		if b.send(b.ctx, b.stop, m.r.Name, true, c) == nil {
			b.released(m, c)
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-b.stop: // Close does it
			t.Stop()
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(m)
}

func (b *Backend) releaseCall(r driver.Request, tombstone bool) *call {
	ttl := time.Duration(0)
	if tombstone {
		ttl = r.TTL
	}
	return newCall("release", b.prefix, bin(r.Name), r.ID, r.Client, ttl, b.o.GrantWindow)
}

// released takes note of the answer to a release: 1 it was there, 0 it was not, -1 it was ended by
// force.
func (b *Backend) released(m *mine, c *call) (int, error) {
	row, err := single(c.sets, 3)
	if err != nil {
		return 0, err
	}
	b.hear(c, row[2])
	b.mu.Lock()
	defer b.mu.Unlock()
	if m != nil {
		b.forget(m)
		b.advance(m.r.Name, row[1])
	}
	return strconv.Atoi(row[0])
}

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	var known mine // as it is now
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	m := b.mine[r.ID]
	if m != nil {
		known = *m
		m.releases++
		m.uncertain = m.uncertain || r.Uncertain
	}
	b.mu.Unlock()
	c := b.releaseCall(r, r.Uncertain || known.uncertain)
	if err := b.send(ctx, b.stop, r.Name, true, c); err != nil {
		return explain(err)
	}
	n, err := b.released(m, c)
	switch {
	case err != nil:
		return err
	case n == 1, n == 0 && int(c.doubt.Load())+known.releases > 0 && time.Now().Before(known.until):
		return nil // of the second kind: an earlier copy did it, since nothing else can have
	}
	return driver.ErrLost
}

// Inspect implements [driver.Backend].
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	c := newCall("inspect", b.prefix, bin(name), driver.ID{}, b.o.GrantWindow)
	if err := b.ask(ctx, name, c); err != nil {
		return driver.Queue{}, err
	}
	var q driver.Queue
	for _, row := range c.sets[0] {
		e, err := parseEntry(name, row)
		if err != nil {
			return driver.Queue{}, err
		}
		if e.Join() {
			q.Joins = append(q.Joins, e)
		} else {
			q.Arrivals = append(q.Arrivals, e)
		}
	}
	return q, nil
}

// parseEntry reads a row of dlock_inspect: id, owner, client, shared, permits, token, ttl, fixed,
// broken, left, age, label.
func parseEntry(name string, row []string) (*driver.Entry, error) {
	if len(row) != 12 {
		return nil, fmt.Errorf("unexpected request %q", row)
	}
	var errs []error
	num := func(i int) int64 {
		n, err := strconv.ParseInt(row[i], 10, 64)
		errs = append(errs, err)
		return n
	}
	id := func(i int) (id driver.ID) {
		errs = append(errs, id.UnmarshalText([]byte(row[i])))
		return id
	}
	label, err := hex.DecodeString(row[11])
	errs = append(errs, err)
	us := time.Microsecond
	e := &driver.Entry{Broken: num(8) != 0, Left: time.Duration(num(9)) * us, Age: time.Duration(num(10)) * us}
	e.Request = driver.Request{
		Name: name, ID: id(0), Owner: id(1), Client: id(2), Limit: int(num(4)), Token: driver.Token(num(5)),
		TTL: time.Duration(num(6)) * us, Fixed: num(7) != 0, Label: string(label),
	}
	if num(3) != 0 {
		e.Mode = driver.Shared
	}
	return e, errors.Join(errs...)
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	c := newCall("break", b.prefix, bin(name), t, force, driver.ID{}, b.o.GrantWindow)
	if err := b.ask(ctx, name, c); err != nil {
		return err
	}
	row, err := single(c.sets, 2)
	if err != nil {
		return err
	}
	b.hear(c, row[1])
	if row[0] == "0" && (c.doubt.Load() == 0 || !force) {
		return driver.ErrNotHeld
	}
	return nil
}

// List implements [driver.Lister].
func (b *Backend) List(ctx context.Context) ([]string, error) {
	c := newCall("list", b.prefix)
	if err := b.ask(ctx, "", c); err != nil {
		return nil, err
	}
	var names []string
	for _, row := range c.sets[0] {
		name, err := hex.DecodeString(row[0])
		if err != nil {
			return nil, err
		}
		names = append(names, string(name))
	}
	return names, nil
}

// ask sends a call that needs no clean-up.
func (b *Backend) ask(ctx context.Context, name string, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return driver.ErrClosed
	}
	return explain(b.send(ctx, b.stop, name, true, c))
}

// explain says what a user can do about an error of the server.
func explain(err error) error {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return err
	}
	if lacksRight(err) {
		return fmt.Errorf("the server's user lacks a right (docs/mysql.md lists those that suffice): %w", err)
	}
	switch e.Number {
	case 1146, 1305, 1318: // no such table, no such procedure, other parameters
		return fmt.Errorf("%w: %w", errSchema, err)
	case 1665:
		return fmt.Errorf("%w: %w", errBinlog, err)
	case 1290, 1836:
		return fmt.Errorf("the server is read-only: %w", err)
	}
	return err
}

// lacksRight reports whether the server refused the user something.
func lacksRight(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains([]uint16{1044, 1142, 1143, 1227, 1370}, e.Number)
}

var (
	errSchema = errors.New("the database has not all the tables and procedures of this version of dlock: open it once with ?migrate=true, call mysql.Migrate, or apply the files of package migrations")
	errBinlog = errors.New("the server writes its binary log by statement, with which READ COMMITTED transactions cannot write: set binlog_format to ROW or MIXED")
)

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.cancel()
	b.mu.Unlock()
	b.tasks.Wait() // each ends with the context
	type leaving struct {
		name string
		call *call
	}
	b.mu.Lock()
	left := make(chan leaving, len(b.mine))
	for _, m := range b.mine {
		if m.r.Fixed && !m.until.IsZero() && m.asking+m.releases == 0 {
			continue // it stands until its time
		}
		left <- leaving{m.r.Name, b.releaseCall(m.r, m.uncertain || m.asking > 0)}
	}
	b.mu.Unlock()
	close(left)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range min(8, len(left)) {
		wg.Go(func() {
			for l := range left {
				if ctx.Err() == nil {
					_ = b.send(ctx, nil, l.name, true, l.call)
				}
			}
		})
	}
	wg.Wait()
	if b.pool.owned {
		return b.pool.db.Close()
	}
	return nil
}

// news are the requests that a call granted: id:token:told, for each; told is 1 if it is of the
// client that made the call.
func parseNews(news string, visit func(id driver.ID, token driver.Token, told bool)) {
	for item := range strings.SplitSeq(strings.TrimSuffix(news, ","), ",") {
		f := strings.Split(item, ":")
		var id driver.ID
		if len(f) != 3 || id.UnmarshalText([]byte(f[0])) != nil {
			continue
		}
		token, _ := strconv.ParseUint(f[1], 10, 64)
		visit(id, driver.Token(token), f[2] == "1")
	}
}
