package getlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
)

const (
	// proofInterval is how often each session proves its hold.
	proofInterval = time.Second
	// waitTime is for how long one statement waits in the server's queue. At its end the session
	// loses its place there.
	waitTime = time.Minute
	// cleanUp is how long the statements have that are sent when nothing waits for them.
	cleanUp = 3 * time.Second
	// mostIdle is how many idle sessions are kept.
	mostIdle = 4
)

// Options configure [New].
type Options struct {
	Backend string // the scheme
	Key     string // the named lock of a name, with {name} once
	Prefix  string // before each name
	MariaDB bool   // it is not MySQL
	Most    int    // how many connections there may be
}

// Check refuses a key or a prefix that no server can have.
func (o Options) Check() error {
	_, err := newNamer(o.Key, o.Prefix, true)
	return err
}

// New returns a backend over a pool, which Close closes.
func New(db *sql.DB, o Options) (*adapt.Backend, error) {
	n, err := newNamer(o.Key, o.Prefix, o.MariaDB)
	if err != nil {
		return nil, err
	}
	c := &calls{db: db, names: n, most: o.Most - 1, holds: map[driver.ID]*hold{}, caught: map[string]*session{}}
	c.ctx, c.end = context.WithCancel(context.Background())
	return adapt.New(c, adapt.Options{
		Backend: o.Backend, Format: "get_lock", MinTTL: time.Second, MaxTTL: 24 * time.Hour,
		RetryDelay: 5 * time.Second, // a Watch waits in the server's queue
		Close:      c.close,
	})
}

// calls implement [adapt.Calls], [adapt.Waker], [adapt.Inspector], [adapt.Namer] and
// [driver.Notifier].
type calls struct {
	db    *sql.DB
	names namer
	most  int // sessions; one more connection is for queries and for KILL QUERY
	ctx   context.Context
	end   func()
	tasks sync.WaitGroup

	mu     sync.Mutex // guards what follows
	open   int        // sessions, idle ones too
	idle   []*session
	holds  map[driver.ID]*hold
	caught map[string]*session // by lock: sessions of a Watch that have it
	lost   func(driver.ID)
}

// hold is a request that has a named lock, or for which one was asked.
type hold struct {
	r     driver.Request
	lock  string
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
func (c *calls) CheckName(name string) error { return c.names.check(name) }

// Try implements [adapt.Calls].
func (c *calls) Try(ctx context.Context, r driver.Request) error {
	lock := c.names.lock(r.Name)
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
	h := &hold{r: r, lock: lock, until: time.Now().Add(r.TTL), ended: make(chan struct{}, 1)}
	c.mu.Lock()
	h.s = c.caught[lock]
	delete(c.caught, lock)
	c.mu.Unlock()
	statement := fmt.Sprintf("SELECT IS_USED_LOCK(%s) = CONNECTION_ID(), 0", literal(lock))
	if h.s == nil {
		statement = fmt.Sprintf("SELECT GET_LOCK(%s, 0), IS_USED_LOCK(%[1]s)", literal(lock))
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
		err := h.s.expireAfter(ctx, r.TTL)
		var row []sql.NullInt64
		if err == nil {
			row, err = h.s.query(ctx, statement, 2)
		}
		switch {
		case err == nil && row[0].Int64 == 1:
			c.mu.Lock()
			h.holds, h.since = true, time.Now()
			c.mu.Unlock()
			c.tasks.Go(func() { c.keep(h) })
			return nil
		case err == nil && row[0].Valid: // 0
			c.forget(h)
			c.giveBack(h.s)
			if !row[1].Valid { // until a moment ago
				return driver.ErrHeld
			}
			return &driver.HeldError{Label: connection(row[1].Int64)}
		case errors.Is(err, errClosed) && !fresh && ctx.Err() == nil: // it was idle for too long
			c.forget(h)
			c.discard(h.s)
			h.s, statement = nil, fmt.Sprintf("SELECT GET_LOCK(%s, 0), IS_USED_LOCK(%[1]s)", literal(lock))
			continue
		case err == nil:
			err = errors.New("the server could not take the lock: GET_LOCK returned NULL")
		}
		c.discard(h.s) // which frees the lock, if the server has it
		return err
	}
}

// connection is what errors and Inspect call a connection of which no more is known.
func connection(id int64) string { return fmt.Sprintf("connection %d", id) }

// session returns a session without a lock.
func (c *calls) session(ctx context.Context) (s *session, fresh bool, err error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		s, c.idle = c.idle[n-1], c.idle[:n-1]
		c.mu.Unlock()
		return s, false, nil
	}
	if c.open >= c.most {
		c.mu.Unlock()
		return nil, false, fmt.Errorf("all %d connections have locks or wait for one, and each lock needs its own: pool_size sets how many there are", c.most)
	}
	c.open++
	c.mu.Unlock()
	if s, err = openSession(ctx, c.db); err != nil {
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
// closed, is lost.
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
		ctx, cancel := context.WithTimeout(c.ctx, min(left, proofInterval))
		err := c.prove(ctx, h)
		cancel()
		if errors.Is(err, driver.ErrLost) {
			c.lose(h)
			return
		}
		select {
		case <-tick.C:
		case <-time.After(time.Until(h.end(c))):
		case <-h.s.ctx.Done():
		case <-h.ended:
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// end returns when the hold ends.
func (h *hold) end(c *calls) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return h.until
}

// prove asks the server whether the session has the lock.
func (c *calls) prove(ctx context.Context, h *hold) error {
	row, err := h.s.query(ctx, fmt.Sprintf("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", literal(h.lock)), 1)
	if errors.Is(err, errClosed) || err == nil && row[0].Int64 != 1 {
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
	until := time.Now().Add(ttl)
	c.mu.Lock()
	h := c.holds[r.ID]
	holds := h != nil && h.holds && time.Now().Before(h.until)
	c.mu.Unlock()
	if !holds {
		return driver.ErrLost
	}
	err := h.s.expireAfter(ctx, ttl)
	if err == nil {
		err = c.prove(ctx, h)
	} else if errors.Is(err, errClosed) {
		err = driver.ErrLost
	}
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
		row, err := h.s.query(ctx, fmt.Sprintf("SELECT RELEASE_LOCK(%s)", literal(h.lock)), 1)
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
			if row[0].Int64 != 1 {
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
	var has sql.NullBool
	err := c.db.QueryRowContext(ctx, fmt.Sprintf("SELECT IS_USED_LOCK(%s) = %d", literal(h.lock), h.s.id)).Scan(&has)
	if err != nil {
		return err
	}
	if has.Bool {
		return fmt.Errorf("the server has not noticed yet that %s, which had the lock, was closed", connection(h.s.id))
	}
	c.forget(h)
	return driver.ErrLost
}

// Watch implements [adapt.Waker]. It misses no release, since it waits for the lock itself: so it
// need not call ready.
func (c *calls) Watch(ctx context.Context, name string, _, wake func()) error {
	lock := c.names.lock(name)
	for ctx.Err() == nil {
		s, _, err := c.session(ctx)
		if err != nil {
			return err
		}
		got, err := c.wait(ctx, s, lock)
		switch {
		case got:
			c.handOver(ctx, s, lock, wake)
		case err != nil || s.ctx.Err() != nil:
			c.discard(s)
			if err != nil {
				return err
			}
		default:
			c.giveBack(s)
		}
	}
	return ctx.Err()
}

// wait waits in the server's queue until the session has the lock, ctx ends, or waitTime is over.
func (c *calls) wait(ctx context.Context, s *session, lock string) (got bool, err error) {
	// it is active while it waits; after that it may stay idle for as long as a Try takes
	if err := s.expireAfter(ctx, 10*time.Second); err != nil {
		return false, err
	}
	done := make(chan struct{})
	var row []sql.NullInt64
	go func() {
		defer close(done)
		row, err = s.query(c.ctx, fmt.Sprintf("SELECT GET_LOCK(%s, %d)", literal(lock), waitTime/time.Second), 1)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		kill, cancel := context.WithTimeout(context.Background(), cleanUp)
		_, _ = c.db.ExecContext(kill, fmt.Sprintf("KILL QUERY %d", s.id))
		select {
		case <-done:
		case <-kill.Done():
			s.close()
			<-done
		}
		cancel()
	}
	if err == nil && row[0].Int64 == 1 {
		if ctx.Err() == nil {
			return true, nil
		}
		free, cancel := context.WithTimeout(context.Background(), cleanUp)
		defer cancel()
		if _, err := s.query(free, fmt.Sprintf("SELECT RELEASE_LOCK(%s)", literal(lock)), 1); err != nil {
			s.close()
		}
		return false, nil
	}
	if ctx.Err() != nil { // interrupted
		return false, nil
	}
	return false, err
}

// handOver lets the next Try of the lock take over the session, which has it. If none does until
// ctx ends, the lock is released.
func (c *calls) handOver(ctx context.Context, s *session, lock string, wake func()) {
	c.mu.Lock()
	c.caught[lock] = s
	c.mu.Unlock()
	wake()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		c.mu.Lock()
		mine := c.caught[lock] == s
		if mine && (ctx.Err() != nil || s.ctx.Err() != nil) {
			delete(c.caught, lock)
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
		}
	}
}

// Holder implements [adapt.Inspector].
func (c *calls) Holder(ctx context.Context, name string) (*driver.Entry, error) {
	var id sql.NullInt64
	if err := c.db.QueryRowContext(ctx, "SELECT IS_USED_LOCK("+literal(c.names.lock(name))+")").Scan(&id); err != nil || !id.Valid {
		return nil, err
	}
	c.mu.Lock()
	for _, h := range c.holds {
		if h.holds && h.s.id == id.Int64 {
			e := &driver.Entry{Request: h.r, Age: time.Since(h.since), Left: time.Until(h.until)}
			c.mu.Unlock()
			return e, nil
		}
	}
	c.mu.Unlock()
	e := &driver.Entry{Foreign: true}
	e.Label = connection(id.Int64)
	var user string
	err := c.db.QueryRowContext(ctx, fmt.Sprintf("SELECT CONCAT(user, '@', host) FROM information_schema.processlist WHERE id = %d", id.Int64)).Scan(&user)
	if err == nil {
		e.Label += " of " + user
	} // otherwise the user may not see it, or it has just ended
	return e, nil
}

// close closes all sessions, which frees their locks, and the pool.
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
	return c.db.Close()
}
