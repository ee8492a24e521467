package advisory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
)

const (
	// proofInterval is how often each session proves its hold.
	proofInterval = time.Second
	// answerTime is for how long a caller waits for the answer to a statement, or for a connection.
	answerTime = 10 * time.Second
	// cleanUp is how long the statements have that are sent when nothing waits for them.
	cleanUp = 3 * time.Second
	// mostIdle is how many idle sessions are kept.
	mostIdle = 4
)

// Options configure [New].
type Options struct {
	Key    string // the text of a name, with {name} once
	Hash   string // how a key is made of it: Extended, Text or Number; "": Extended, or Text
	Class  string // the first of two keys, in decimal digits; empty: there is one
	Prefix string // before each name
	Most   int    // how many connections there may be

	// Connect opens a connection.
	Connect func(context.Context) (*pgx.Conn, error)
}

// Check refuses a key, hash or class that is none.
func (o Options) Check() error {
	_, err := newKeyer(o)
	return err
}

// New returns a backend that has connections of its own. It reaches the server, and fails if the
// server's advisory locks cannot be used from here.
func New(ctx context.Context, o Options) (*adapt.Backend, error) {
	k, err := newKeyer(o)
	if err != nil {
		return nil, err
	}
	c := &calls{connect: o.Connect, keys: k, most: o.Most - 1, asks: make(chan *session, 1), holds: map[driver.ID]*hold{}, caught: map[string]*session{}}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.asks <- nil
	b, err := adapt.New(c, adapt.Options{
		Backend: "postgres", Format: "advisory", MinTTL: time.Second, MaxTTL: 24 * time.Hour,
		RetryDelay: 5 * time.Second, // a Watch waits in the server's queue
		Close:      c.close,
	})
	if err == nil {
		_, err = c.Holder(ctx, "1") // which needs what later calls need
	}
	if err != nil {
		_ = c.close()
		return nil, err
	}
	return b, nil
}

// calls implement [adapt.Calls], [adapt.Waker], [adapt.Inspector], [adapt.Namer] and
// [driver.Notifier].
type calls struct {
	connect func(context.Context) (*pgx.Conn, error)
	keys    keyer
	most    int           // sessions for locks; one more is for questions
	asks    chan *session // has that one while it is not in use; nil: it has to be opened
	ctx     context.Context
	end     func()
	tasks   sync.WaitGroup

	mu     sync.Mutex // guards what follows
	open   int        // sessions for locks, idle ones too
	idle   []*session
	holds  map[driver.ID]*hold
	caught map[string]*session // by key: sessions of a Watch that have it
	lost   func(driver.ID)
}

// hold is a request that has a lock, or for which one was asked.
type hold struct {
	r     driver.Request
	key   string
	s     *session
	holds bool      // the server said so
	since time.Time // of that
	until time.Time // the client ends it then

	ended chan struct{} // receives when it has ended otherwise
}

// Notify implements [driver.Notifier].
func (c *calls) Notify(lost func(driver.ID)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = lost
}

// CheckName implements [adapt.Namer].
func (c *calls) CheckName(name string) error { return c.keys.check(name) }

// expiry is an expression that makes the server end the session if it sends nothing for longer than
// ttl. The second on top is for clocks that run at different speeds.
func expiry(ttl time.Duration) string {
	return fmt.Sprintf("set_config('idle_session_timeout', '%d', false)", (ttl + time.Second).Milliseconds())
}

// holders are rows of the sessions that have the lock of a key.
func (c *calls) holders(key string) string {
	return `FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND ` + c.keys.found(key)
}

// take is a statement that returns whether the session has got the lock, and otherwise the process
// of a session that has it.
func (c *calls) take(key string, ttl time.Duration) string {
	return fmt.Sprintf(`SELECT got, CASE WHEN got THEN NULL ELSE (SELECT min(l.pid) %s) END
	FROM (SELECT %s, pg_try_advisory_lock(%s) AS got OFFSET 0) x`, c.holders(key), expiry(ttl), key)
}

// Try implements [adapt.Calls].
func (c *calls) Try(ctx context.Context, r driver.Request) error {
	key := c.keys.key(r.Name)
	c.mu.Lock()
	before := c.holds[r.ID]
	c.mu.Unlock()
	if before != nil {
		if before.holds && before.s.ctx.Err() == nil {
			return c.Extend(ctx, r, r.TTL)
		}
		if err := c.Release(ctx, before.r, 0); err != nil && !errors.Is(err, driver.ErrLost) {
			return err
		}
	}
	h := &hold{r: r, key: key, until: time.Now().Add(r.TTL), ended: make(chan struct{}, 1)}
	c.mu.Lock()
	h.s = c.caught[key]
	delete(c.caught, key)
	c.mu.Unlock()
	statement := "SELECT true, NULL, " + expiry(r.TTL) // it has the lock while it answers
	if h.s == nil {
		statement = c.take(key, r.TTL)
	}
	for {
		fresh := false
		if h.s == nil {
			var err error
			if h.s, fresh, err = c.session(ctx); err != nil {
				return err
			}
		}
		c.mu.Lock()
		c.holds[r.ID] = h
		c.mu.Unlock()
		row, err := h.s.query(ctx, statement, 2)
		switch {
		case err == nil && row[0].is():
			c.mu.Lock()
			h.holds, h.since = true, time.Now()
			c.mu.Unlock()
			c.tasks.Go(func() { c.keep(h) })
			return nil
		case err == nil:
			c.forget(h)
			c.giveBack(h.s)
			if row[1] == "" { // until a moment ago
				return driver.ErrHeld
			}
			return &driver.HeldError{Label: process(row[1].number())}
		case errors.Is(err, errClosed) && !fresh && ctx.Err() == nil: // it was idle for too long
			c.forget(h)
			c.discard(h.s)
			h.s, statement = nil, c.take(key, r.TTL)
			continue
		}
		c.discard(h.s) // which frees the lock, if the server has it
		return bad(err)
	}
}

// bad is an error of the server. That of a text that the database cannot encode is one of the name.
func bad(err error) error {
	e := (*pgconn.PgError)(nil)
	if errors.As(err, &e) && strings.HasPrefix(e.Code, "22") {
		return fmt.Errorf("%w name for an advisory lock: %w", driver.ErrInvalid, err)
	}
	return err
}

// process is what errors and Inspect call a session of which no more is known.
func process(pid int64) string { return fmt.Sprintf("process %d", pid) }

// session returns a session without a lock.
func (c *calls) session(ctx context.Context) (s *session, fresh bool, err error) {
	c.mu.Lock()
	for n := len(c.idle); n > 0; n = len(c.idle) {
		s, c.idle = c.idle[n-1], c.idle[:n-1]
		if s.ctx.Err() == nil {
			c.mu.Unlock()
			return s, false, nil
		}
		c.open-- // the server has ended it
	}
	if c.open >= c.most {
		c.mu.Unlock()
		return nil, false, fmt.Errorf("all %d connections have locks or wait for one, and each lock needs its own: pool_size sets how many there are", c.most)
	}
	c.open++
	c.mu.Unlock()
	if s, err = openSession(ctx, c.connect); err != nil {
		c.mu.Lock()
		c.open--
		c.mu.Unlock()
	}
	return s, true, err
}

// giveBack ends the use of a session that has no lock.
func (c *calls) giveBack(s *session) {
	c.mu.Lock()
	keep := len(c.idle) < mostIdle && s.ctx.Err() == nil && c.ctx.Err() == nil
	if keep {
		c.idle = append(c.idle, s)
	}
	c.mu.Unlock()
	if !keep {
		c.discard(s)
	}
}

// discard closes a session. It is called once for each.
func (c *calls) discard(s *session) {
	s.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
}

// forget removes a hold from the record.
func (c *calls) forget(h *hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds[h.r.ID] == h {
		delete(c.holds, h.r.ID)
	}
}

// keep proves a hold each second, until it ends. A hold whose time is over, or whose session has
// ended, is lost.
func (c *calls) keep(h *hold) {
	tick := time.NewTicker(proofInterval)
	defer tick.Stop()
	for {
		c.mu.Lock()
		stands, left := c.holds[h.r.ID] == h && h.holds, time.Until(h.until)
		c.mu.Unlock()
		if !stands {
			return
		}
		if left <= 0 || h.s.ctx.Err() != nil {
			c.lose(h)
			return
		}
		select {
		case <-tick.C:
		case <-time.After(left):
			continue
		case <-h.s.ctx.Done():
			continue
		case <-h.ended:
			return
		case <-c.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, min(left, proofInterval))
		err := c.prove(ctx, h, "NULL")
		cancel()
		if errors.Is(err, driver.ErrLost) {
			c.lose(h)
			return
		}
	}
}

// prove asks the session of a hold whether it is there, and evaluates an expression in it. Its
// process is the same unless something in between has changed the session.
func (c *calls) prove(ctx context.Context, h *hold, also string) error {
	row, err := h.s.query(ctx, "SELECT pg_backend_pid(), "+also, 1)
	if errors.Is(err, errClosed) || err == nil && uint32(row[0].number()) != h.s.pid {
		return driver.ErrLost
	}
	return err
}

// drop closes the session of a hold. The hold stays on record until its release. It returns false
// if that was done before.
func (c *calls) drop(h *hold) bool {
	c.mu.Lock()
	was := h.holds
	h.holds = false
	c.mu.Unlock()
	if was {
		c.discard(h.s)
	}
	return was
}

// lose ends a hold that is lost, or whose time is over, and reports it.
func (c *calls) lose(h *hold) {
	if !c.drop(h) {
		return
	}
	c.mu.Lock()
	lost := c.lost
	c.mu.Unlock()
	if lost != nil {
		lost(h.r.ID)
	}
}

// Extend implements [adapt.Calls].
func (c *calls) Extend(ctx context.Context, r driver.Request, ttl time.Duration) error {
	now := time.Now()
	until := now.Add(ttl)
	c.mu.Lock()
	h := c.holds[r.ID]
	holds := h != nil && h.holds && now.Before(h.until)
	if holds && h.until.After(until) {
		until = h.until
	}
	c.mu.Unlock()
	if !holds {
		return driver.ErrLost
	}
	err := c.prove(ctx, h, expiry(until.Sub(now)))
	c.mu.Lock()
	switch {
	case err == nil && !(h.holds && time.Now().Before(h.until)): // its time was over before that
		err = driver.ErrLost
	case err == nil && until.After(h.until):
		h.until = until
	}
	c.mu.Unlock()
	if errors.Is(err, driver.ErrLost) {
		c.lose(h)
	}
	return err
}

// Release implements [adapt.Calls]. There is no other time than now.
func (c *calls) Release(ctx context.Context, r driver.Request, _ time.Duration) error {
	c.mu.Lock()
	h := c.holds[r.ID]
	holds := h != nil && h.holds
	c.mu.Unlock()
	if h == nil {
		return driver.ErrLost
	}
	if holds {
		row, err := h.s.query(ctx, "SELECT pg_advisory_unlock("+h.key+")", 1)
		switch {
		case err == nil:
			c.mu.Lock()
			was := h.holds
			h.holds = false
			c.mu.Unlock()
			if was {
				h.ended <- struct{}{}
			}
			c.forget(h)
			if !row[0].is() {
				if was {
					c.discard(h.s)
				}
				return driver.ErrLost
			}
			if was {
				c.giveBack(h.s)
			}
			return nil
		case !errors.Is(err, errClosed):
			return err
		}
		c.drop(h)
	}
	return c.freed(ctx, h)
}

// freed returns ErrLost once the server no longer has the lock for a session that is closed.
func (c *calls) freed(ctx context.Context, h *hold) error {
	row, err := c.ask(ctx, fmt.Sprintf("SELECT count(*) %s AND l.pid = %d", c.holders(h.key), h.s.pid), 1)
	if err != nil {
		return err
	}
	if row[0].number() > 0 {
		return fmt.Errorf("the server has not noticed yet that the session of %s, which had the lock, was closed", process(int64(h.s.pid)))
	}
	c.forget(h)
	return driver.ErrLost
}

// ask sends a question on the session that is there for questions.
func (c *calls) ask(ctx context.Context, statement string, columns int) ([]field, error) {
	var s *session
	select {
	case s = <-c.asks:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, driver.ErrClosed
	}
	defer func() { c.asks <- s }()
	for {
		fresh := s == nil || s.ctx.Err() != nil
		if fresh {
			var err error
			if s, err = openSession(ctx, c.connect); err != nil {
				s = nil
				return nil, err
			}
		}
		row, err := s.query(ctx, statement, columns)
		if err != nil && !canceled(err) {
			s.close() // a statement that hangs would keep the next ones from it
			if errors.Is(err, errClosed) && !fresh && ctx.Err() == nil {
				continue // it was idle for too long
			}
		}
		return row, err
	}
}

// Watch implements [adapt.Waker]. It misses no release, since it waits for the lock itself: so it
// need not call ready.
func (c *calls) Watch(ctx context.Context, name string, _, wake func()) error {
	key := c.keys.key(name)
	for ctx.Err() == nil {
		s, _, err := c.session(ctx)
		if err != nil {
			return err
		}
		got := false
		for !got && err == nil && ctx.Err() == nil {
			got, err = c.wait(ctx, s, key)
		}
		switch {
		case got:
			c.handOver(ctx, s, key, wake)
		case s.ctx.Err() != nil:
			c.discard(s)
			if ctx.Err() == nil {
				return err
			}
		default:
			c.giveBack(s)
			if err != nil && ctx.Err() == nil && !canceled(err) {
				return err
			}
		}
	}
	return ctx.Err()
}

// wait waits in the server's queue until the session has the lock, ctx ends, or the session's
// lock_timeout is over. The error of a session that goes on is that of a canceled statement.
func (c *calls) wait(ctx context.Context, s *session, key string) (got bool, err error) {
	// The count is right also if the lock was granted at the moment at which the wait ended. The
	// session may stay idle after that for as long as a Try takes.
	statement := fmt.Sprintf(`SET idle_session_timeout = 10000;
DO $dlock$ BEGIN PERFORM pg_advisory_lock(%s); EXCEPTION WHEN lock_not_available THEN END $dlock$;
SELECT count(*) FROM pg_locks l
	WHERE l.locktype = 'advisory' AND l.granted AND l.pid = pg_backend_pid()`, key)
	done := make(chan struct{})
	var row []field
	go func() {
		defer close(done)
		row, err = s.query(c.ctx, statement, 1)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		stop, cancel := context.WithTimeout(context.Background(), cleanUp)
		// this cancels no other statement: the session sends none until this has returned
		_, _ = c.ask(stop, fmt.Sprintf("SELECT pg_cancel_backend(%d)", s.pid), 1)
		select {
		case <-done:
		case <-stop.Done():
			s.close()
			<-done
		}
		cancel()
	}
	if err == nil && row[0].number() > 0 && ctx.Err() == nil {
		return true, nil
	}
	if err != nil && !canceled(err) {
		s.close()
		return false, err
	}
	if err != nil || row[0].number() > 0 {
		// a wait that is canceled may have got the lock at that moment
		free, cancel := context.WithTimeout(context.Background(), cleanUp)
		defer cancel()
		if _, err := s.query(free, "SELECT pg_advisory_unlock_all()", 1); err != nil {
			s.close()
		}
	}
	return false, err
}

// handOver lets the next Try of the lock take over the session, which has it. If none does until
// ctx ends, the lock is released.
func (c *calls) handOver(ctx context.Context, s *session, key string, wake func()) {
	c.mu.Lock()
	c.caught[key] = s
	c.mu.Unlock()
	wake()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		c.mu.Lock()
		mine := c.caught[key] == s
		if mine && (ctx.Err() != nil || s.ctx.Err() != nil) {
			delete(c.caught, key)
		}
		c.mu.Unlock()
		switch {
		case !mine:
			return
		case ctx.Err() != nil || s.ctx.Err() != nil:
			c.discard(s) // which frees it
			return
		}
		select {
		case <-tick.C:
			wake()
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
	}
}

// Holder implements [adapt.Inspector]. Of several holders, which share the lock, it returns one.
func (c *calls) Holder(ctx context.Context, name string) (*driver.Entry, error) {
	row, err := c.ask(ctx, fmt.Sprintf(`SELECT h.pid, a.usename, a.client_addr, a.application_name
	FROM (SELECT min(l.pid) AS pid %s) h LEFT JOIN pg_stat_activity a ON a.pid = h.pid`,
		c.holders(c.keys.key(name))), 4)
	if err != nil || row[0] == "" {
		return nil, bad(err)
	}
	pid := row[0].number()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.holds {
		if h.holds && int64(h.s.pid) == pid {
			return &driver.Entry{Request: h.r, Age: time.Since(h.since), Left: time.Until(h.until)}, nil
		}
	}
	e := &driver.Entry{Foreign: true}
	e.Label = process(pid)
	user, addr, app := row[1], row[2], row[3]
	if user != "" {
		e.Label += " of " + string(user)
	}
	if addr != "" { // otherwise the user may not see it, or it is a socket of the machine
		e.Label += "@" + strings.TrimSuffix(strings.TrimSuffix(string(addr), "/32"), "/128")
	}
	if app != "" {
		e.Label += " (" + string(app) + ")"
	}
	return e, nil
}

// close closes all sessions, which frees their locks.
func (c *calls) close() error {
	c.end()
	c.mu.Lock()
	for _, s := range c.idle {
		s.close()
	}
	for _, h := range c.holds {
		h.s.close()
	}
	for _, s := range c.caught {
		s.close()
	}
	c.mu.Unlock()
	c.tasks.Wait()
	select {
	case s := <-c.asks:
		if s != nil {
			s.close()
		}
	case <-time.After(cleanUp): // its question hangs, and ends with its context
	}
	return nil
}
