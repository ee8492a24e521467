package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
)

// TestPostgresField does, on one server, what operators and real programs do.
func TestPostgresField(t *testing.T) {
	onOwn(t, func(t *testing.T, s *service.Server) {
		abreast(t, s,
			part{"cleanup", postgresCleanup},
			part{"the dead", postgresDead},
			part{"a busy pool", postgresBusyPool},
			part{"a renewal that misses its row", postgresMissedRow},
			part{"permits", postgresPermits},
			part{"a restored dump", postgresRestored},
			part{"work in the same pool", postgresSamePool},
			part{"a replica identity", postgresPublished},
		)
	}, "-c", "wal_level=logical")
}

// postgresCleanup: what is removed is judged by the last token, and what is held or waited for
// stays.
func postgresCleanup(t *service.Trial, s *service.Server) {
	b, db := sideOf(t, s), poolOf(t, s.URL)
	first, next := steps.Asked(b, "cleanup/fresh", time.Minute), steps.Waiting(b, "cleanup/fresh", time.Minute)
	steps.Acquired(t, b, first)
	got := steps.Acquiring(b, next)
	await.That(t, "one waits", func() bool { return len(steps.Queue(t, b, "cleanup/fresh").Waiters()) == 1 })
	// both came long ago
	execute(t, db, "UPDATE dlock_locks SET held_since = held_since - interval '2 hours' WHERE name = 'cleanup/fresh'")
	steps.Released(t, b, first)
	if err := await.From(t, got); err != nil {
		t.Fatal(err)
	}
	steps.Released(t, b, next)
	cleaned := func(want int) {
		t.Helper()
		if n, err := postgres.Cleanup(t.Context(), db, time.Hour); n != want || err != nil {
			t.Errorf("Cleanup removed %d names; want %d: %v", n, want, err)
		}
	}
	cleaned(0)
	if n := one[int](t, db, "SELECT count(*) FROM dlock_locks WHERE name = 'cleanup/fresh'"); n != 1 {
		t.Error("a name whose last token is a moment old is gone")
	}

	const unused, held, waited = 2500, 300, 400
	insertLocks(t, db, "convert_to('cleanup/unused/' || n, 'UTF8')", unused, false, false)
	insertLocks(t, db, "convert_to('cleanup/held/' || n, 'UTF8')", held, true, false)
	insertLocks(t, db, "convert_to('cleanup/waited/' || n, 'UTF8')", waited, false, true)
	insertRequests(t, db, "convert_to('cleanup/waited/' || n, 'UTF8')", waited, 3600)
	cleaned(0)
	execute(t, db, "UPDATE dlock_locks SET held_since = held_since - interval '2 hours' WHERE name <> 'cleanup/fresh'")
	cleaned(unused)
	if n := one[int](t, db, "SELECT count(*) FROM dlock_locks WHERE name <> ''"); n != 1+held+waited {
		t.Errorf("%d names are left; want %d", n, 1+held+waited)
	}
	execute(t, db, "DELETE FROM dlock_requests", "DELETE FROM dlock_locks")
	postgresCleanupBeside(t, s)
}

// postgresCleanupBeside: a name that is taken while Cleanup is on its way to it stays, and one
// whose row another transaction has does not keep it waiting. Tokens grow although rows are
// removed.
func postgresCleanupBeside(t testing.TB, s *service.Server) {
	db := poolOf(t, s.URL)
	for _, name := range []string{"'beside/first'", "'beside/second'"} {
		insertLocks(t, db, name, 1, false, false)
	}
	execute(t, db, "UPDATE dlock_locks SET held_since = held_since - interval '2 hours'")
	unlock := lockRow(t, s, "beside/first")
	if n, err := postgres.Cleanup(t.Context(), db, time.Hour); err != nil || n != 1 {
		t.Errorf("Cleanup of one that is unused and one whose row is locked: %d, %v", n, err)
	}
	unlock()

	const names = 20
	var wg sync.WaitGroup
	var over atomic.Bool
	var mu sync.Mutex
	type grant struct {
		token driver.Token
		seen  time.Time
	}
	last := map[string]grant{}
	for range 4 {
		b := sideOf(t, s)
		wg.Go(func() {
			for i := 0; !over.Load(); i++ {
				r := steps.Asked(b, fmt.Sprint("beside/", i%names), time.Minute)
				begun := time.Now()
				g, err := steps.Acquire(t.Context(), b, r)
				if errors.Is(err, driver.ErrHeld) {
					continue
				} else if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				mu.Lock()
				// a row that is removed at once may be missed by a statement that had read the
				// clock before
				if before := last[r.Name]; g.Token <= before.token && begun.After(before.seen) {
					service.Strict(t).Errorf("token %d of %s after %d", g.Token, r.Name, before.token)
				}
				last[r.Name] = grant{g.Token, time.Now()}
				mu.Unlock()
				if err := steps.Renewed(b, r); err != nil {
					t.Errorf("a hold beside Cleanup: %v", err)
				}
				if err := b.Release(t.Context(), r); err != nil {
					t.Errorf("Release beside Cleanup: %v", err)
				}
			}
		})
	}
	removed := 0
	await.That(t, "names that are in use all the time were removed in between", func() bool {
		n, err := postgres.Cleanup(t.Context(), db, 0)
		if err != nil {
			t.Errorf("Cleanup: %v", err)
		}
		removed += n
		return removed >= 100
	})
	over.Store(true)
	await.All(t, &wg)
}

// postgresMissedRow: a renewal of one hold whose statement changes no row, although the hold
// stands, is sent again.
func postgresMissedRow(t *service.Trial, s *service.Server) {
	b, db := sideOf(t, s), poolOf(t, s.URL)
	r := steps.Asked(b, "missed", time.Minute)
	steps.Acquired(t, b, r)
	execute(t, db, "CREATE SEQUENCE updates",
		"CREATE FUNCTION miss() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF nextval(''updates'') = 1 THEN RETURN NULL; END IF; RETURN NEW; END'",
		"CREATE TRIGGER miss BEFORE UPDATE ON dlock_locks FOR EACH ROW EXECUTE FUNCTION miss()")
	if err := steps.Renewed(b, r); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if n := one[int](t, db, "SELECT last_value FROM updates"); n < 2 {
		t.Errorf("%d updates were tried; want one that misses the row, and another", n)
	}
	steps.Released(t, b, r)
}

// postgresDead: requests of clients that died, behind a living waiter or alone in a queue, do not
// stay, and a release that finds them takes no more statements.
func postgresDead(t *service.Trial, s *service.Server) {
	const many = 250
	db := poolOf(t, s.URL)
	stored := func(name string) int {
		return one[int](t, db, "SELECT count(*) FROM dlock_requests WHERE name = $1", []byte(name))
	}
	b := sideOf(t, s)
	l := record(b.line)
	sweeps := func() { // a client that makes calls does; one that only waits does not
		r := steps.Asked(b, "dead/other", time.Minute)
		steps.Acquired(t, b, r)
		steps.Released(t, b, r)
	}
	dies := func(name string, others int) {
		gone := sideOf(t, s)
		for range many {
			go steps.Acquire(t.Context(), gone, steps.Waiting(gone, name, time.Minute))
		}
		await.That(t, "they wait", func() bool { return len(steps.Queue(t, b, name).Waiters()) == many+others })
		t.Cleanup(gone.line.Isolate())
		// the server may be at what they sent before, and would have them live on
		await.That(t, "what they sent is done", func() bool {
			return one[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' AND query LIKE '%dlock_requests%' AND pid <> pg_backend_pid()") == 0
		})
		execute(t, db, fmt.Sprintf("UPDATE dlock_requests SET expires_at = expires_at - interval '1 minute' "+
			"WHERE id IN (SELECT id FROM dlock_requests WHERE kind = 'request' AND name = '%s' ORDER BY place DESC LIMIT %d)", name, many))
	}

	const name = "dead/behind"
	held := steps.Asked(b, name, time.Minute)
	steps.Acquired(t, b, held)
	lives := steps.Waiting(b, name, time.Minute)
	got := steps.Acquiring(b, lives)
	await.That(t, "one that will live waits", func() bool { return stored(name) == 1 })
	dies(name, 1)
	await.That(t, "the dead behind it are gone", func() bool { sweeps(); return stored(name) == 1 })
	steps.Released(t, b, held)
	if err := await.From(t, got); err != nil {
		t.Fatal(err)
	}
	steps.Released(t, b, lives)

	const queued = "dead/before"
	held = steps.Asked(b, queued, time.Minute)
	steps.Acquired(t, b, held)
	dies(queued, 0)
	n := l.spoken(func() { steps.Released(t, b, held) })
	if n["give"] > 1 || n["visit"] > 3 {
		t.Errorf("%d dead at the head of a queue: the release made %v; want one to give, and few visits", many, n)
	}
	steps.Acquired(t, b, steps.Asked(b, queued, time.Minute)) // at once
	await.That(t, "the dead are gone", func() bool { sweeps(); return stored(queued) == 0 })
}

// postgresBusyPool: an error says that other users of the pool have all connections.
func postgresBusyPool(t *service.Trial, s *service.Server) {
	const conns, says = 5, "all 5 connections of the pool are in use"
	c := config(t, s.URL)
	c.MaxConns = conns
	b := side(t, c, netfault.NewProxy(), postgres.Options{})
	held := steps.Asked(b, "busy/held", time.Minute)
	steps.Acquired(t, b, held)
	for range conns {
		tx, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, acquire := steps.Acquire(ctx, b, steps.Asked(b, "busy/asked", time.Minute))
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for what, err := range map[string]error{"Acquire": acquire, "Renew": b.Renew(short, []driver.Request{held})[0].Err} {
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want it to say %q", what, err, says)
		}
	}
	// these have no end of their own
	for what, call := range map[string]func(context.Context) error{
		"Inspect": func(ctx context.Context) error { _, err := b.Inspect(ctx, "busy/held"); return err },
		"Acquire": func(ctx context.Context) error {
			_, err := steps.Acquire(ctx, b, steps.Asked(b, "busy/asked", time.Minute))
			return err
		},
	} {
		begun, still := time.Now(), steps.MeasureStalls()
		err := call(context.Background())
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want it to say %q", what, err, says)
		}
		// 10 s, and what the last copy takes
		if took := time.Since(begun) - still(); took > 15*time.Second {
			t.Errorf("%s ended after %s", what, took)
		}
	}
}

// postgresPermits: a waiter for a permit learns of another client's release as soon if its own
// client has a permit too.
func postgresPermits(t *service.Trial, s *service.Server) {
	b, other := sideOf(t, s), sideOf(t, s)
	permit := func(b driver.Backend, name string) driver.Request {
		r := steps.Waiting(b, name, time.Minute)
		r.Mode, r.Limit = driver.Shared, 2
		return r
	}
	took := map[bool][]time.Duration{}
	for i := range 24 {
		name, own := fmt.Sprint("permits/", i), i%2 == 0
		mine := permit(other, name)
		if own {
			mine = permit(b, name)
		}
		side := map[bool]driver.Backend{true: b, false: other}[own]
		steps.Acquired(t, side, mine)
		theirs := permit(other, name)
		steps.Acquired(t, other, theirs)
		next := permit(b, name)
		got := steps.Acquiring(b, next)
		await.That(t, "it waits", func() bool { return len(steps.Queue(t, other, name).Waiters()) == 1 })
		<-time.After(time.Duration(i) * time.Millisecond)
		start := time.Now()
		steps.Released(t, other, theirs)
		if err := await.From(t, got); err != nil {
			t.Fatal(err)
		}
		took[own] = append(took[own], time.Since(start))
		steps.Released(t, b, next)
		steps.Released(t, side, mine)
	}
	with, without := steps.Median(took[true]), steps.Median(took[false])
	t.Logf("a permit is passed to another client in %s, to one that has another permit in %s", without, with)
	// it was the longest poll, of 100 ms, before both were treated alike
	if with > 3*without+50*time.Millisecond {
		t.Errorf("a permit is passed to another client in %s, and to one that has another permit in %s", without, with)
	}
}

// postgresRestored: a dump that is restored elsewhere gives the tables as they were: holds end in
// their time, and tokens go on growing.
func postgresRestored(t *service.Trial, s *service.Server) {
	b := sideOf(t, s)
	r := steps.Asked(b, "restored", 2*time.Second)
	token := steps.Acquired(t, b, r).Token
	execute(t, b.db, "CREATE TABLE old_locks AS SELECT * FROM dlock_locks", "CREATE TABLE old_requests AS SELECT * FROM dlock_requests")
	for range 20 {
		r := steps.Asked(b, "restored/other", time.Minute)
		steps.Acquired(t, b, r)
		steps.Released(t, b, r)
	}
	steps.Released(t, b, r)
	execute(t, b.db, "BEGIN; TRUNCATE dlock_locks, dlock_requests; INSERT INTO dlock_locks SELECT * FROM old_locks; INSERT INTO dlock_requests SELECT * FROM old_requests; COMMIT")
	next := steps.Waiting(b, "restored", time.Minute)
	if g := steps.Acquired(t, b, next); g.Token <= token {
		service.Strict(t).Errorf("token %d after %d", g.Token, token)
	}
	steps.Released(t, b, next)
	exercise(t, b, "restored/other")
}

// postgresSamePool: transactions, prepared statements, temporary tables, advisory locks and LISTEN
// of the user's on connections of the same pool stay as they are.
func postgresSamePool(t *service.Trial, s *service.Server) {
	c := config(t, s.URL)
	c.MaxConns = 4
	b := side(t, c, netfault.NewProxy(), postgres.Options{})
	execute(t, b.db, "CREATE TABLE work (n int)")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			r := steps.Asked(b, fmt.Sprint("same/", i%3), time.Minute)
			if _, err := steps.Acquire(t.Context(), b, r); err == nil {
				steps.Released(t, b, r)
			}
		}
	})
	const rounds = 100
	for i := range rounds {
		tx, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, stmt := range []string{"CREATE TEMPORARY TABLE mine (n int) ON COMMIT DROP", "INSERT INTO mine VALUES (1)", "SELECT pg_advisory_xact_lock(4711)",
			"SET LOCAL timezone = 'Asia/Tokyo'", fmt.Sprintf("INSERT INTO work SELECT %d FROM mine", i)} {
			if _, err := tx.Exec(t.Context(), stmt); err != nil {
				t.Fatalf("%s: %v", stmt, err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
	if n := one[int](t, b.db, "SELECT count(DISTINCT n) FROM work"); n != rounds {
		t.Errorf("%d of %d rows of the user's are there", n, rounds)
	}
	exercise(t, b, "same/everything")
}

// postgresPublished: the tables can be published to other servers: every row has an identity, so an
// UPDATE and a DELETE of a published table are not refused.
func postgresPublished(t *service.Trial, s *service.Server) {
	b := sideOf(t, s)
	execute(t, b.db, "CREATE PUBLICATION everything FOR ALL TABLES")
	defer execute(t, b.db, "DROP PUBLICATION everything")
	exercise(t, b, "published")
}

// TestPostgresOutage: the error of an outage that is longer than the patience of a call has its
// cause. An outage ends no wait whose TTL is longer.
func TestPostgresOutage(t *testing.T) {
	t.Parallel()
	abreast(t, shared(t), part{"a wait", postgresCutOff}, part{"a silent server", postgresSilence})
}

// postgresCutOff: a wait goes on over an outage that is shorter than its TTL.
func postgresCutOff(t *service.Trial, s *service.Server) {
	name := "outage/" + driver.NewID().String()
	b, other := sideOf(t, s), sideOf(t, s)
	held := steps.Asked(other, name, time.Hour)
	steps.Acquired(t, other, held)
	ended := steps.Acquiring(b, steps.Waiting(b, name, time.Minute))
	await.That(t, "it waits", func() bool { return len(steps.Queue(t, other, name).Waiters()) == 1 })
	// An Acquire that was never answered ends after 10 s. So the outage begins when the client
	// knows that it waits: replies to what makes it wait may come, the next one is to a poll.
	before := b.line.Counts().RoundTrips
	await.That(t, "its client knows", func() bool { return b.line.Counts().RoundTrips >= before+4 })
	heal := b.line.Refuse()
	defer heal()
	b.line.Cut()
	select {
	case err := <-ended:
		t.Fatalf("the wait ended in an outage that is shorter than its TTL: %v", err)
	case <-time.After(12 * time.Second): // 10 s of patience, and the pause between two copies
	}
	heal()
	if err := other.Release(t.Context(), held); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := await.From(t, ended); err != nil {
		t.Errorf("Acquire: %v", err)
	}
}

// postgresSilence: with a server that accepts connections and never answers, every call ends, and
// no error is the context's.
func postgresSilence(t *service.Trial, s *service.Server) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	silent := with(t, s.URL, func(u *url.URL) { u.Host = l.Addr().String() })
	b := sideOf(t, s)
	heal := b.line.Hold(netfault.ToClient)
	defer heal()
	var wg sync.WaitGroup
	ends := func(what string, f func() error) {
		wg.Go(func() {
			done := make(chan error, 1)
			go func() { done <- f() }()
			select {
			case err := <-done:
				if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "did not answer") {
					t.Errorf("%s: %v; want it to say that the server did not answer", what, err)
				}
			case <-time.After(25 * time.Second):
				t.Errorf("%s does not end", what)
			}
		})
	}
	opens := func(from string) func() error {
		return func() error {
			c, err := dlock.Open(context.Background(), from, dlock.Logger(nil))
			if err == nil {
				c.Close()
			}
			return err
		}
	}
	ends("Open", opens(silent))
	ends("Open that migrates", opens(params(t, silent, "migrate", "true")))
	ends("Acquire", func() error {
		_, err := steps.Acquire(context.Background(), b, steps.Asked(b, "silence", time.Minute))
		return err
	})
	ends("Inspect", func() error { _, err := b.Inspect(context.Background(), "silence"); return err })
	ends("Renew", func() error {
		return b.Renew(context.Background(), []driver.Request{steps.Asked(b, "silence", time.Minute)})[0].Err
	})
	await.All(t, &wg)
}
