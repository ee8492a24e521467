package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
)

// TestPostgresBlockedRows keeps statements waiting for a row that a second connection has locked,
// so that they come one after the other in a known order, with connections of each isolation level.
func TestPostgresBlockedRows(t *testing.T) {
	each := func(name string, run func(*schedule)) part {
		return part{name, func(t *service.Trial, s *service.Server) {
			for _, level := range isolations {
				t.Run(level, func(t *service.Trial) {
					run(&schedule{t: t, s: s, db: poolOf(t, s.URL), level: level, name: level})
				})
			}
		}}
	}
	abreast(t, shared(t),
		each("a release before an arrival", (*schedule).releaseThenArrival),
		each("an arrival before a release", (*schedule).arrivalThenRelease),
		each("takes at the instant of an expiry", (*schedule).takesTogether),
		each("a take while its name is made", (*schedule).takeOfANewName),
		each("a reader and a writer together", (*schedule).readerAndWriter),
		each("permits together", (*schedule).permitsTogether),
		each("a join while its hold ends", (*schedule).joinInRelease),
		each("a join while its hold is broken", (*schedule).joinInBreak),
		each("a join while its hold is raised", (*schedule).joinInRaise),
		each("a cancelled wait before its grant", (*schedule).cancelThenGrant),
		each("a cancelled wait after its grant", (*schedule).grantThenCancel),
		each("a late renewal", (*schedule).lateRenewal),
		each("a renewal that is under way as its hold expires", (*schedule).renewalUnderWay),
		each("a sign of life that is under way as its request expires", (*schedule).keepUnderWay),
		each("a clean-up while a request arrives", (*schedule).cleanupAndArrival),
		each("a row that stays locked", (*schedule).lockedRow),
	)
}

// schedule is one race.
type schedule struct {
	t     *service.Trial
	s     *service.Server
	db    *sql.DB // of the test
	level string  // the isolation of the clients
	name  string  // of the lock
}

// side is a client. Its connections have the isolation.
func (c *schedule) side() *poolSide {
	conf := config(c.t, c.s.URL)
	conf.ConnConfig.RuntimeParams["default_transaction_isolation"] = c.level
	conf.MaxConns = 8
	return side(c.t, conf, netfault.NewProxy(), postgres.Options{})
}

// locked locks rows until the result is called, and returns when it has.
func (c *schedule) locked(query string, args ...any) (unlock func()) {
	c.t.Helper()
	tx, err := c.db.BeginTx(context.Background(), nil)
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	c.t.Cleanup(func() { tx.Rollback() })
	if _, err := tx.Exec(query, args...); err != nil {
		c.t.Fatalf("%v", err)
	}
	begun := time.Now()
	return func() {
		c.t.Helper()
		// After three seconds a client sends a statement again, which then waits behind those that
		// came after it.
		if time.Since(begun) > 2500*time.Millisecond {
			c.t.Stalled()
		}
		if err := tx.Commit(); err != nil {
			c.t.Fatalf("%v", err)
		}
	}
}

// lockRow locks the row of the lock.
func (c *schedule) lockRow() (unlock func()) {
	c.t.Helper()
	return c.locked("SELECT 1 FROM dlock_locks WHERE name = $1 FOR UPDATE", []byte(c.name))
}

// wait waits until that many sessions wait for a row. Each race has a database of its own.
func (c *schedule) wait(n int) {
	c.t.Helper()
	await.That(c.t, "statements wait for the row", func() bool { return c.waiting() == n })
}

// waiting is how many sessions wait for a row.
func (c *schedule) waiting() int {
	c.t.Helper()
	return one[int](c.t, c.db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

// release releases a request in the background.
func release(b driver.Backend, r driver.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		done <- b.Release(ctx, r)
	}()
	return done
}

func (c *schedule) got(what string, done <-chan error) {
	c.t.Helper()
	if err := <-done; err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// holders are the requests that hold, as the server has it.
func (c *schedule) holders(b driver.Backend, want ...driver.Request) {
	c.t.Helper()
	var is, ids []driver.ID
	for _, e := range steps.Queue(c.t, b, c.name).Holders() {
		is = append(is, e.ID)
	}
	for _, r := range want {
		ids = append(ids, r.ID)
	}
	if !slices.Equal(is, ids) {
		c.t.Fatalf("%v hold, want %v", is, ids)
	}
}

func (c *schedule) releaseThenArrival() {
	a, b := c.side(), c.side()
	first, next := steps.Asked(a, c.name, time.Minute), steps.Waiting(b, c.name, time.Minute)
	steps.Acquired(c.t, a, first)
	unlock := c.lockRow()
	released := release(a, first)
	c.wait(1)
	arrived := steps.Acquiring(b, next)
	c.wait(2)
	unlock()
	c.got("release", released)
	c.got("arrival", arrived)
	c.holders(a, next)
}

func (c *schedule) arrivalThenRelease() {
	a, b := c.side(), c.side()
	first, next := steps.Asked(a, c.name, time.Minute), steps.Waiting(b, c.name, time.Minute)
	steps.Acquired(c.t, a, first)
	unlock := c.lockRow()
	arrived := steps.Acquiring(b, next)
	c.wait(1)
	released := release(a, first) // its give waits for the arrival, and must not free the lock then
	c.wait(2)
	unlock()
	c.got("release", released)
	c.got("arrival", arrived)
	c.holders(a, next)
}

func (c *schedule) takesTogether() {
	a := c.side()
	steps.Acquired(c.t, a, steps.Asked(a, c.name, 50*time.Millisecond))
	await.That(c.t, "the hold expires", func() bool { return len(steps.Queue(c.t, a, c.name).Holders()) == 0 })
	unlock := c.lockRow()
	var results []<-chan error
	for range 3 {
		b := c.side()
		results = append(results, steps.Acquiring(b, steps.Asked(b, c.name, time.Minute)))
	}
	c.wait(3)
	unlock()
	granted := 0
	for _, done := range results {
		switch err := <-done; {
		case err == nil:
			granted++
		case !errors.Is(err, driver.ErrHeld):
			c.t.Errorf("a take: %v", err)
		}
	}
	if granted != 1 {
		c.t.Errorf("%d of three takes were granted", granted)
	}
}

// takeOfANewName: a take that waits for the first row of its name sees who has the lock then. Takes
// of other names pass it.
func (c *schedule) takeOfANewName() {
	a := c.side()
	insert := "INSERT INTO dlock_locks VALUES ('', $1, 7, 1, 0, 1, $2, $3, '', '', 60000000, false, false, now(), now() + $4 * interval '1 second')"
	holder, reader := driver.NewID(), driver.NewID()
	for what, commit := range map[string]func(name []byte) func(){
		"held":   func(name []byte) func() { return c.locked(insert, name, false, holder[:], 60) },
		"beside": func(name []byte) func() { return c.locked(insert, name, true, []byte{}, -60) },
	} {
		name := what + " " + c.level
		unlock := commit([]byte(name))
		if what == "beside" {
			if _, err := c.db.Exec(`INSERT INTO dlock_requests VALUES ($1, '', $2, 'request', 1, $1, '', false, 0, false, false, 0, 60000000, '', now(),
				now() + interval '1 minute')`, reader[:], []byte(name)); err != nil {
				c.t.Fatalf("%v", err)
			}
		}
		taken := steps.Acquiring(a, steps.Asked(a, name, time.Minute))
		c.wait(1)
		start, other := time.Now(), steps.Asked(a, "not "+name, time.Minute)
		steps.Acquired(c.t, a, other)
		if took := time.Since(start); took > time.Second { // a statement waits for a row for 2 s
			c.t.Errorf("%s: beside it a take of another name took %s", what, took)
		}
		steps.Released(c.t, a, other)
		unlock()
		if err := <-taken; !errors.Is(err, driver.ErrHeld) {
			c.t.Errorf("%s: a take that waited: %v", what, err)
		}
	}
}

func (c *schedule) readerAndWriter() {
	a := c.side()
	old := steps.Asked(a, c.name, time.Minute)
	steps.Acquired(c.t, a, old)
	steps.Released(c.t, a, old)
	unlock := c.lockRow()
	w, r := c.side(), c.side()
	writer, reader := steps.Waiting(w, c.name, time.Minute), steps.Waiting(r, c.name, time.Minute)
	reader.Mode = driver.Shared
	read := steps.Acquiring(r, reader)
	c.wait(1)
	wrote := steps.Acquiring(w, writer) // its take waits, and finds the reader beside the lock
	c.wait(2)
	unlock()
	c.got("reader", read)
	c.holders(a, reader)
	steps.Released(c.t, r, reader)
	c.got("writer", wrote)
	c.holders(a, writer)
}

func (c *schedule) permitsTogether() {
	a := c.side()
	old := steps.Asked(a, c.name, time.Minute)
	old.Mode, old.Limit = driver.Shared, 2
	steps.Acquired(c.t, a, old)
	steps.Released(c.t, a, old)
	unlock := c.lockRow()
	var results []<-chan error
	for range 5 {
		b := c.side()
		r := steps.Asked(b, c.name, time.Minute)
		r.Mode, r.Limit = driver.Shared, 2
		results = append(results, steps.Acquiring(b, r))
	}
	c.wait(5)
	unlock()
	granted := 0
	for _, done := range results {
		switch err := <-done; {
		case err == nil:
			granted++
		case !errors.Is(err, driver.ErrHeld):
			c.t.Errorf("an attempt: %v", err)
		}
	}
	if granted != 2 {
		c.t.Errorf("%d of five attempts got one of two permits", granted)
	}
	if q := steps.Queue(c.t, a, c.name); q.Len() != 2 {
		c.t.Errorf("%d requests are left", q.Len())
	}
}

// joinOf is a join of the hold from another client.
func joinOf(b driver.Backend, r driver.Request) driver.Request {
	j := steps.Asked(b, r.Name, time.Minute)
	j.Owner = r.ID
	return j
}

func (c *schedule) joinInRelease() {
	for _, joinFirst := range []bool{false, true} {
		a, b, d := c.side(), c.side(), c.side()
		hold, next := steps.Asked(a, c.name, time.Minute), steps.Waiting(d, c.name, time.Minute)
		join := joinOf(b, hold)
		steps.Acquired(c.t, a, hold)
		waits := steps.Acquiring(d, next)
		await.That(c.t, "the next one waits", func() bool { return len(steps.Queue(c.t, a, c.name).Waiters()) == 1 })
		unlock := c.lockRow()
		var released, joined <-chan error
		if joinFirst {
			joined = steps.Acquiring(b, join)
			c.wait(1)
			released = release(a, hold)
		} else {
			released = release(a, hold)
			c.wait(1)
			joined = steps.Acquiring(b, join)
		}
		c.wait(2)
		unlock()
		c.got("release", released)
		if err := <-joined; joinFirst {
			if err != nil {
				c.t.Fatalf("the join: %v", err)
			}
			c.holders(a, join)
			steps.Released(c.t, b, join)
		} else if !errors.Is(err, driver.ErrLost) {
			c.t.Fatalf("a join of a hold that has ended: %v", err)
		}
		c.got("the next one", waits)
		c.holders(a, next)
		steps.Released(c.t, d, next)
	}
}

func (c *schedule) joinInBreak() {
	for _, joinFirst := range []bool{false, true} {
		a, b := c.side(), c.side()
		hold := steps.Asked(a, c.name, time.Minute)
		join := joinOf(b, hold)
		g := steps.Acquired(c.t, a, hold)
		unlock := c.lockRow()
		broken := make(chan error, 1)
		end := func() { broken <- a.Break(context.Background(), c.name, g.Token, false) }
		var joined <-chan error
		if joinFirst {
			joined = steps.Acquiring(b, join)
			c.wait(1)
			go end()
		} else {
			go end()
			c.wait(1)
			joined = steps.Acquiring(b, join)
		}
		c.wait(2)
		unlock()
		c.got("break", broken)
		if err := <-joined; joinFirst && err != nil || !joinFirst && !errors.Is(err, driver.ErrLost) {
			c.t.Fatalf("the join: %v", err)
		}
		for _, e := range steps.Queue(c.t, a, c.name).Holders() {
			if !e.Broken {
				c.t.Errorf("%+v is not broken", e)
			}
		}
		_ = b.Release(context.Background(), join)
		_ = a.Release(context.Background(), hold)
	}
}

func (c *schedule) joinInRaise() {
	for _, joinFirst := range []bool{false, true} {
		a, b := c.side(), c.side()
		hold := steps.Asked(a, c.name, time.Minute)
		join := joinOf(b, hold)
		g := steps.Acquired(c.t, a, hold)
		unlock := c.lockRow()
		raised := make(chan error, 1)
		raise := func() { raised <- a.Raise(context.Background(), hold, g.Token+1000) }
		var joined <-chan error
		if joinFirst {
			joined = steps.Acquiring(b, join)
			c.wait(1)
			go raise()
		} else {
			go raise()
			c.wait(1)
			joined = steps.Acquiring(b, join)
		}
		c.wait(2)
		unlock()
		c.got("raise", raised)
		c.got("join", joined)
		for _, e := range steps.Queue(c.t, a, c.name).Holders() {
			if e.Token != g.Token+1000 {
				c.t.Errorf("a request of the raised hold has token %d, want %d", e.Token, g.Token+1000)
			}
		}
		steps.Released(c.t, b, join)
		steps.Released(c.t, a, hold)
	}
}

// inQueue is a holder, a waiter and one behind it, each of another client.
func (c *schedule) inQueue() (sides [3]*poolSide, rs [3]driver.Request, done [3]<-chan error) {
	c.t.Helper()
	for i := range sides {
		sides[i] = c.side()
		rs[i] = steps.Waiting(sides[i], c.name, time.Minute)
		done[i] = steps.Acquiring(sides[i], rs[i])
		await.That(c.t, "it is in the queue", func() bool { return steps.Queue(c.t, sides[0], c.name).Len() == i+1 })
	}
	c.got("the first", done[0])
	return sides, rs, done
}

func (c *schedule) cancelThenGrant() {
	sides, rs, done := c.inQueue()
	unlock := c.lockRow()
	gone := release(sides[1], rs[1])
	c.wait(1)
	released := release(sides[0], rs[0])
	c.wait(2)
	unlock()
	c.got("the release of the waiter", gone)
	c.got("the release of the holder", released)
	c.got("the last", done[2])
	c.holders(sides[0], rs[2])
}

func (c *schedule) grantThenCancel() {
	sides, rs, done := c.inQueue()
	unlock := c.lockRow()
	released := release(sides[0], rs[0])
	c.wait(1)
	gone := release(sides[1], rs[1])
	c.wait(2)
	unlock()
	c.got("the release of the holder", released)
	c.got("the release of the one that was granted", gone)
	c.got("the last", done[2])
	c.holders(sides[0], rs[2])
}

// expire waits until a hold has expired, as everything sees it that does not wait for its row.
func (c *schedule) expire(r driver.Request) {
	c.t.Helper()
	await.That(c.t, "the hold expires", func() bool {
		return one[int](c.t, c.db, `SELECT (SELECT count(*) FROM dlock_locks WHERE holder = $1 AND held_until > clock_timestamp())
			+ (SELECT count(*) FROM dlock_requests WHERE id = $1 AND expires_at > clock_timestamp())`, r.ID[:]) == 0
	})
}

// lateRenewal: a renewal that waited for the row beyond the end of its hold renews nothing.
func (c *schedule) lateRenewal() {
	a := c.side()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		// a busy machine may send the renewal after the end of the hold
		for ttl := 500 * time.Millisecond; !c.renewsLate(a, mode, ttl); ttl *= 2 {
			if ttl > 10*time.Second {
				c.t.Fatalf("no renewal waits for the row of a hold of %s", ttl)
			}
		}
	}
}

// renewsLate is lateRenewal with a hold of that TTL. It reports whether the renewal waited.
func (c *schedule) renewsLate(a driver.Backend, mode driver.Mode, ttl time.Duration) (waited bool) {
	c.t.Helper()
	r := steps.Asked(a, c.name, ttl)
	r.Mode = mode
	steps.Acquired(c.t, a, r)
	row := "SELECT 1 FROM dlock_locks WHERE holder = $1 FOR UPDATE"
	if mode == driver.Shared {
		row = "SELECT 1 FROM dlock_requests WHERE id = $1 FOR UPDATE"
	}
	unlock := c.locked(row, r.ID[:])
	renewed := make(chan error, 1)
	go func() { renewed <- steps.Renewed(a, r) }()
	await.That(c.t, "the renewal waits for the row, or is over", func() bool {
		waited = c.waiting() == 1
		return waited || len(renewed) > 0
	})
	c.expire(r)
	unlock()
	if err := <-renewed; !errors.Is(err, driver.ErrLost) {
		service.Strict(c.t).Fatalf("a renewal of a %s hold that came after its end: %v", mode, err)
	}
	_ = a.Release(context.Background(), r)
	return waited
}

// renewalUnderWay: a renewal that has written its row, and has not committed, makes the hold count
// as alive. Otherwise it would succeed after the decision.
func (c *schedule) renewalUnderWay() {
	a, b := c.side(), c.side()
	const ttl = 500 * time.Millisecond
	reader := steps.Asked(a, c.name, ttl)
	reader.Mode = driver.Shared
	steps.Acquired(c.t, a, reader)
	commit := c.locked("UPDATE dlock_requests SET expires_at = clock_timestamp() + interval '1 minute' WHERE id = $1", reader.ID[:])
	c.expire(reader)
	next := steps.Waiting(b, c.name, time.Minute)
	waits := steps.Acquiring(b, next)
	await.That(c.t, "the next one arrives", func() bool {
		return one[int](c.t, c.db, "SELECT count(*) FROM dlock_requests WHERE id = $1", next.ID[:]) == 1
	})
	decided := time.Now()
	await.That(c.t, "the next one has asked again", func() bool { return time.Since(decided) > 300*time.Millisecond })
	commit()
	select {
	case err := <-waits:
		c.t.Fatalf("the writer was granted (%v) beside a reader whose renewal succeeded", err)
	default:
	}
	c.holders(b, reader)
	steps.Released(c.t, a, reader)
	c.got("the writer", waits)
	c.holders(b, next)
}

// keepUnderWay: a waiter whose sign of life is under way is not passed over as a dead one.
func (c *schedule) keepUnderWay() {
	sides, rs, done := c.inQueue()
	execute(c.t, c.db, "UPDATE dlock_requests SET expires_at = clock_timestamp() + interval '1 minute'")
	tx := c.locked("UPDATE dlock_requests SET expires_at = clock_timestamp() + interval '2 minutes' WHERE id = $1", rs[1].ID[:])
	released := release(sides[0], rs[0]) // it grants the waiter, and so waits for its row
	c.wait(1)
	tx()
	c.got("the release", released)
	c.got("the waiter", done[1])
	steps.Released(c.t, sides[1], rs[1])
	c.got("the last", done[2])
}

// cleanupAndArrival: a request that arrives while its name is cleaned up is not lost.
func (c *schedule) cleanupAndArrival() {
	a := c.side()
	old := steps.Asked(a, c.name, time.Minute)
	old.Mode = driver.Shared
	steps.Acquired(c.t, a, old)
	steps.Released(c.t, a, old)
	unlock := c.locked("DELETE FROM dlock_locks WHERE name = $1", []byte(c.name))
	r := steps.Waiting(a, c.name, time.Minute)
	r.Mode = driver.Shared
	arrived := steps.Acquiring(a, r)
	c.wait(1)
	unlock()
	c.got("arrival", arrived)
	c.holders(a, r)
}

// lockedRow: a row that another transaction has locked for long stops calls for its name, and not
// those for other names, nor renewals.
func (c *schedule) lockedRow() {
	b := c.side()
	held := steps.Asked(b, c.name, time.Minute)
	steps.Acquired(c.t, b, held)
	other := steps.Asked(b, "held", time.Minute)
	steps.Acquired(c.t, b, other)
	pairs := func() time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				for range 20 {
					r := steps.Asked(b, fmt.Sprint("other", i), time.Minute)
					steps.Acquired(c.t, b, r)
					steps.Released(c.t, b, r)
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	before := min(pairs(), pairs())
	unlock := c.lockRow()
	var released, arrived []<-chan error
	released = append(released, release(b, held))
	for range 20 {
		arrived = append(arrived, steps.Acquiring(b, steps.Waiting(b, c.name, time.Minute)))
	}
	c.wait(1) // one visit for all of them
	after := min(pairs(), pairs())
	for i, res := range b.Renew(context.Background(), []driver.Request{other, held}) {
		if i == 0 && res.Err != nil {
			c.t.Errorf("a renewal beside the locked row: %v", res.Err)
		}
	}
	unlock()
	c.got("release", released[0])
	if ratio := float64(after) / float64(before); ratio > 10 {
		service.Strict(c.t).Fatalf("with a row locked, pairs on other names take %s, %.1f times as long", after, ratio)
	}
	_ = arrived // they end with the client
}
