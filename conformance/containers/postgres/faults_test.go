package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
)

// TestPostgresFaults provokes, on one server, the faults of locks in tables.
func TestPostgresFaults(t *testing.T) {
	onOwn(t, func(t *testing.T, s *service.Server) {
		abreast(t, s,
			part{"settings of connections", postgresSettings},
			part{"one connection", postgresOneConnection},
			part{"names", postgresNames},
			part{"racers on fresh names", postgresRacers},
			part{"lost replies", postgresLostReplies},
			part{"cuts at any byte to the server", postgresCuts(netfault.ToServer)},
			part{"cuts at any byte to the client", postgresCuts(netfault.ToClient)},
			part{"a late copy of what was sent twice", postgresLateCopy},
			part{"answers that nothing waits for", postgresUnreadAnswers},
			part{"expired rows are stolen", postgresSteals},
			part{"how long a grant lasts", postgresGrantLasts},
			part{"a row that is blocked", postgresBlockedRow},
			part{"a ghost waiter", postgresGhost},
			part{"a stopped client", postgresStoppedClient},
			part{"renewals beside releases", postgresRenewsBeside},
			part{"renewals around a row that another has", postgresRenewsAround},
			part{"a wait behind a row that another has", postgresWaitsBehindRow},
			part{"a grant that was found", postgresFound},
			part{"a connection that listens", postgresListens},
			part{"calls that travel together", postgresTogether},
			part{"timeouts of the role", postgresTimeouts},
		)
		// those that concern the whole database, or the whole server
		inTurn(t, s,
			part{"isolation of the database", postgresIsolation},
			part{"killed connections", postgresKills},
			part{"deadlocks with others", postgresDeadlocks},
			part{"tables that others lock", postgresLockedTables},
			part{"a long transaction elsewhere", postgresLongTransaction},
			part{"a frozen server", disturbed(postgresFrozenServer)},
			part{"a restart in the middle", disturbed(postgresRestart)},
		)
	})
}

// postgresSettings: nothing depends on how the user's pool connects, and a connection returns with
// the settings that it had.
func postgresSettings(t *service.Trial, s *service.Server) {
	set := func(pairs ...string) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) {
			for i := 0; i < len(pairs); i += 2 {
				c.ConnConfig.RuntimeParams[pairs[i]] = pairs[i+1]
			}
		}
	}
	mode := func(m pgx.QueryExecMode) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = m }
	}
	for name, with := range map[string]func(*pgxpool.Config){
		"the library's own":     func(*pgxpool.Config) {},
		"cached descriptions":   mode(pgx.QueryExecModeCacheDescribe),
		"described":             mode(pgx.QueryExecModeDescribeExec),
		"executed":              mode(pgx.QueryExecModeExec),
		"a cache for one":       func(c *pgxpool.Config) { c.ConnConfig.StatementCacheCapacity = 1 },
		"east":                  set("timezone", "Pacific/Kiritimati"),
		"west":                  set("timezone", "Pacific/Pago_Pago"),
		"dates":                 set("datestyle", "SQL, DMY"),
		"intervals":             set("intervalstyle", "sql_standard"),
		"escapes":               set("bytea_output", "escape"),
		"old strings":           set("standard_conforming_strings", "off", "backslash_quote", "off"),
		"few digits":            set("extra_float_digits", "-15"),
		"repeatable read":       set("default_transaction_isolation", "repeatable read"),
		"serializable":          set("default_transaction_isolation", "serializable"),
		"deferrable":            set("default_transaction_deferrable", "on"),
		"impatient":             set("lock_timeout", "100ms"),
		"quick":                 set("statement_timeout", "1s"),
		"quick in transactions": set("idle_in_transaction_session_timeout", "1s"),
		"another catalog first": set("search_path", "pg_catalog, public"),
		"plans":                 set("plan_cache_mode", "force_generic_plan", "enable_indexscan", "off"),
		"compiled plans":        set("jit", "on", "jit_above_cost", "0"),
		"no waits for disks":    set("synchronous_commit", "local"),
		"everything at once":    func(c *pgxpool.Config) { hostile(c) },
	} {
		t.Run(name, func(t *service.Trial) {
			c := config(t, s.URL)
			with(c)
			c.MaxConns = 1
			b := side(t, c, netfault.NewProxy(), postgres.Options{})
			for try := range 3 {
				conn, before := sessionState(t, b.db)
				exercise(t, b, fmt.Sprint("settings/", name, "/", try))
				again, after := sessionState(t, b.db)
				if after != before {
					t.Errorf("a connection of the user's came back as\n%s, it was\n%s", after, before)
				}
				if again == conn {
					return
				}
			}
			// now and then a statement takes too long, and its connection is closed
			t.Error("it is another connection each time")
		})
	}
}

// postgresLostReplies: the server executed the statement, and the connection broke before the
// answer.
func postgresLostReplies(t *service.Trial, s *service.Server) {
	b, other := sideOf(t, s), sideOf(t, s)
	exercise(t, b, "lost/prepared") // what follows is one round trip each
	for i := range 5 {
		name := fmt.Sprint("lost/", i)
		lose := func(what string) func() {
			dropped := b.line.DropReply(name)
			return func() { t.Helper(); await.Closed(t, what, dropped) }
		}
		r := steps.Asked(b, name, time.Minute)
		was := lose("the reply to Acquire")
		g := steps.Acquired(t, b, r)
		was()
		if q := steps.Queue(t, other, name); q.Len() != 1 || q.Arrivals[0].ID != r.ID || q.Arrivals[0].Token != g.Token {
			t.Fatalf("granted token %d, and there is %+v", g.Token, q)
		}
		was = lose("the reply to an Acquire that is refused")
		steps.Refused(t, b, steps.Asked(b, name, time.Minute), g.SentAt.Add(g.TTL))
		was()
		was = lose("the reply to Renew")
		if p := b.Renew(t.Context(), []driver.Request{r}); errors.Is(p[0].Err, driver.ErrLost) {
			t.Fatalf("Renew: %v", p[0].Err)
		}
		was()
		if p := b.Renew(t.Context(), []driver.Request{r}); p[0].Err != nil {
			t.Fatalf("Renew: %v", p[0].Err)
		}
		was = lose("the reply to Release")
		steps.Released(t, b, r)
		was()
		if n := steps.Queue(t, other, name).Len(); n != 0 {
			t.Fatalf("%d requests are left", n)
		}
	}
	// A release that is lost passes the lock on once.
	const name = "lost/hand-off"
	r, next := steps.Asked(b, name, time.Minute), steps.Waiting(other, name, time.Minute)
	steps.Acquired(t, b, r)
	waited := steps.Acquiring(other, next)
	await.That(t, "one waits", func() bool { return len(steps.Queue(t, other, name).Waiters()) == 1 })
	dropped := b.line.DropReply(name)
	steps.Released(t, b, r)
	await.Closed(t, "the reply to Release", dropped)
	if err := <-waited; err != nil {
		t.Errorf("Acquire: %v", err)
	}
	if q := steps.Queue(t, b, name); len(q.Holders()) != 1 || q.Holders()[0].ID != next.ID {
		t.Errorf("there is %+v", q)
	}
	steps.Released(t, other, next)
}

// postgresCuts cuts the connection of a client after any number of bytes of its calls: each of them
// is answered in the end, with the truth.
func postgresCuts(d netfault.Direction) func(*service.Trial, *service.Server) {
	return func(t *service.Trial, s *service.Server) {
		c := config(t, s.URL)
		c.MaxConns = 4
		b, other := side(t, c, netfault.NewProxy(), postgres.Options{}), sideOf(t, s)
		exercise(t, b, fmt.Sprint("cuts/", d, "/prepared"))
		cuts := 0
		// from the first byte on again, if too few of the places were within an exchange
		for i, n := 0, 0; n < 4000 || cuts < 20 && i < 1000; i, n = i+1, n+1+rand.IntN(60) {
			if n >= 4000 {
				n = rand.IntN(60)
			}
			name := fmt.Sprint("cuts/", d, "/", i, "/", n)
			cut := b.line.CutAfter(d, n)
			r, j := steps.Asked(b, name, time.Minute), steps.Waiting(other, name, time.Minute)
			g := steps.Acquired(t, b, r)
			waited := steps.Acquiring(other, j)
			await.That(t, "the other waits", func() bool { return len(steps.Queue(t, other, name).Waiters()) == 1 })
			if err := steps.Renewed(b, r); errors.Is(err, driver.ErrLost) {
				t.Fatalf("cut after %d bytes: Renew: %v", n, err)
			}
			if q := steps.Queue(t, other, name); len(q.Holders()) != 1 || q.Holders()[0].ID != r.ID || q.Holders()[0].Token != g.Token {
				service.Strict(t).Fatalf("cut after %d bytes: granted token %d, and there is %+v", n, g.Token, q)
			}
			steps.Released(t, b, r)
			if err := <-waited; err != nil {
				t.Fatalf("cut after %d bytes: the next: %v", n, err)
			}
			if q := steps.Queue(t, other, name); len(q.Holders()) != 1 || q.Holders()[0].Token <= g.Token {
				service.Strict(t).Fatalf("cut after %d bytes: after token %d there is %+v", n, g.Token, q)
			}
			steps.Released(t, other, j)
			select {
			case <-cut:
				cuts++
			default:
			}
		}
		if cuts < 20 {
			t.Errorf("%d connections were cut: that proves little", cuts)
		}
		t.Logf("%d connections were cut", cuts)
	}
}

// postgresGrantLasts: the grant of a waiter lasts for its TTL without any statement of its client;
// only for some seconds if the client was silent for 5 s, or if it is fixed.
func postgresGrantLasts(t *service.Trial, s *service.Server) {
	db := poolOf(t, s.URL)
	for what, tt := range map[string]struct {
		fixed                    bool
		ttl, stands, least, most time.Duration
	}{
		"alive":         {false, time.Minute, 9 * time.Second, time.Minute, 2 * time.Minute},
		"a short TTL":   {false, time.Second, 9 * time.Second, 5 * time.Second, 10 * time.Second},
		"silent":        {false, time.Minute, 4 * time.Second, time.Second, 10 * time.Second},
		"nearly absent": {false, time.Minute, 500 * time.Millisecond, time.Second, 10 * time.Second},
		"fixed":         {true, time.Minute, 9 * time.Second, 5 * time.Second, 10 * time.Second},
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} { // that is before it
			b, other := sideOf(t, s), sideOf(t, s)
			name := fmt.Sprint("lasts/", what, "/", mode)
			first, next := steps.Asked(b, name, time.Minute), steps.Waiting(other, name, tt.ttl)
			first.Mode, next.Fixed = mode, tt.fixed
			steps.Acquired(t, b, first)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { steps.Acquire(ctx, other, next) })
			await.That(t, "it waits", func() bool { return len(steps.Queue(t, b, name).Waiters()) == 1 })
			heal := other.line.Isolate()
			// with another ID, so that no sign of life which is on its way changes that again
			ghost := driver.NewID()
			execute(t, db, fmt.Sprintf(`UPDATE dlock_requests SET id = '\x%s', owner = '\x%s', expires_at = clock_timestamp() + %d * interval '1 microsecond' WHERE id = '\x%s'`,
				ghost, ghost, tt.stands.Microseconds(), next.ID))
			steps.Released(t, b, first)
			us := one[int64](t, db, "SELECT (extract(epoch FROM held_until - held_since) * 1000000)::bigint FROM dlock_locks WHERE holder = $1", ghost[:])
			if lasts := time.Duration(us) * time.Microsecond; lasts < tt.least || lasts > tt.most {
				t.Errorf("%s, after %s: granted for %s; want %s to %s", what, mode, lasts, tt.least, tt.most)
			}
			heal()
			cancel()
			wg.Wait()
		}
	}
}

// listening returns how many connections of the database listen.
func listening(t service.T, db rower) int {
	t.Helper()
	return one[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'")
}

// postgresListens: a client that waits listens on one connection, whatever it waits for. It has its
// turn at once, also after that connection was ended, and soon if it cannot listen at all.
func postgresListens(t *service.Trial, s *service.Server) {
	db := poolOf(t, s.URL)
	a := sideOf(t, s)
	own, line := ownSide(t, s)
	for what, disturb := range map[string]func() (undo func()){
		"it listens": func() func() { return func() {} },
		"its connections are ended": func() func() {
			execute(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'")
			return func() {}
		},
		"its connections are reset": func() func() { line.Cut(); return func() {} },
		"its LISTEN is cancelled": func() func() {
			execute(t, db, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'")
			return func() {}
		},
		"it cannot listen any more": func() func() {
			heal := line.Forbid("LISTEN ")
			line.Cut()
			return heal
		},
	} {
		name := "listens/" + what
		first := steps.Asked(a, name, time.Minute)
		steps.Acquired(t, a, first)
		rs := []driver.Request{steps.Waiting(own, name, time.Minute), steps.Waiting(own, name+"/other", time.Minute)}
		other := steps.Asked(a, name+"/other", time.Minute)
		steps.Acquired(t, a, other)
		var waited []<-chan error
		for _, r := range rs {
			waited = append(waited, steps.Acquiring(own, r))
			await.That(t, "it waits", func() bool { return len(steps.Queue(t, a, r.Name).Waiters()) == 1 })
		}
		await.That(t, what+": one connection listens", func() bool { return listening(t, db) == 1 })
		undo := disturb()
		released := time.Now()
		steps.Released(t, a, first)
		if err := <-waited[0]; err != nil {
			t.Fatalf("%s: Acquire: %v", what, err)
		}
		t.Logf("%s: granted after %s", what, time.Since(released).Round(time.Millisecond))
		if took := time.Since(released); took > 5*time.Second {
			t.Errorf("%s: granted after %s", what, took)
		}
		undo()
		if what != "it listens" {
			await.That(t, what+": one connection listens again", func() bool { return listening(t, db) == 1 })
		}
		steps.Released(t, a, other)
		if err := <-waited[1]; err != nil {
			t.Fatalf("%s: the other Acquire: %v", what, err)
		}
		for _, r := range rs {
			steps.Released(t, own, r)
		}
	}
	await.That(t, "no connection listens when nothing waits", func() bool {
		return one[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'") == 0
	})
}

// postgresTogether: each of the calls that travel together has its own outcome.
func postgresTogether(t *service.Trial, s *service.Server) {
	const together = 48
	a, b := sideOf(t, s), sideOf(t, s)
	all := func(prefix string, x *poolSide, f func(driver.Request)) []driver.Request {
		rs := make([]driver.Request, together)
		var wg sync.WaitGroup
		for i := range rs {
			rs[i] = steps.Asked(x, fmt.Sprint("together/", prefix, "/", i), time.Minute)
			wg.Go(func() { f(rs[i]) })
		}
		await.All(t, &wg)
		return rs
	}
	try := func(x *poolSide, r driver.Request) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := steps.Acquire(ctx, x, r)
		return err
	}
	take := func(r driver.Request) {
		if err := try(a, r); err != nil {
			t.Errorf("Acquire of %s: %v", r.Name, err)
		}
	}
	release := func(x *poolSide, rs []driver.Request) {
		var wg sync.WaitGroup
		for _, r := range rs {
			wg.Go(func() {
				if err := x.Release(await.Bounded(t, time.Minute), r); err != nil {
					t.Errorf("Release of %s: %v", r.Name, err)
				}
			})
		}
		await.All(t, &wg)
	}
	stand := func(rs []driver.Request) {
		for _, r := range rs {
			q := steps.Queue(t, b, r.Name)
			if len(q.Holders()) > 1 {
				service.Strict(t).Errorf("%d hold %s", len(q.Holders()), r.Name)
			}
			if q.Len() != 1 || q.Arrivals[0].ID != r.ID || q.Arrivals[0].Left > time.Minute {
				t.Errorf("under %s there is %+v", r.Name, q)
			}
		}
	}
	for round := range 3 { // the names of the first have no rows
		rs := all("each", a, take)
		stand(rs)
		until := time.Now().Add(30 * time.Second) // half of their time
		all("each", b, func(r driver.Request) { steps.Refused(t, b, r, until) })
		release(a, rs)
		lost := a.line.DropReply("together/")
		rs = all(fmt.Sprint("lost/", round), a, take)
		await.Closed(t, "the loss of a reply to acquires", lost)
		stand(rs)
		lost = a.line.DropReply("together/")
		release(a, rs)
		await.Closed(t, "the loss of a reply to releases", lost)
		for _, r := range rs {
			if n := steps.Queue(t, b, r.Name).Len(); n != 0 {
				t.Errorf("%d requests are left under %s", n, r.Name)
			}
		}
	}
	// a row that another has delays its own name only
	release(a, all("row", a, take))
	unlock := lockRow(t, s, "together/row/7")
	var done atomic.Int64
	var rs []driver.Request
	var wg sync.WaitGroup
	wg.Go(func() { rs = all("row", a, func(r driver.Request) { take(r); done.Add(1) }) })
	await.That(t, "the others are granted", func() bool { return done.Load() >= together-1 })
	if done.Load() == together {
		t.Errorf("the one whose row is locked is granted too")
	}
	unlock()
	wg.Wait()
	stand(rs)
	release(a, rs)
	// two clients for all names
	var mu sync.Mutex
	held := map[*poolSide][]driver.Request{}
	for _, x := range []*poolSide{a, b} {
		wg.Go(func() {
			all("two", x, func(r driver.Request) {
				err := try(x, r)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					held[x] = append(held[x], r)
				} else if !errors.Is(err, driver.ErrHeld) {
					t.Errorf("%s: %v", r.Name, err)
				}
			})
		})
	}
	await.All(t, &wg)
	if n := len(held[a]) + len(held[b]); n > together {
		service.Strict(t).Errorf("%d names are held %d times", together, n)
	} else if n < together {
		t.Errorf("of %d names %d are held", together, n)
	}
	stand(held[a])
	stand(held[b])
	release(a, held[a])
	release(b, held[b])
}

// postgresTimeouts: the role's timeouts are as short as an administrator may make them for others.
func postgresTimeouts(t *service.Trial, s *service.Server) {
	root := poolOf(t, s.URL)
	for name, value := range map[string]string{
		"statement_timeout": "500ms", "lock_timeout": "50ms", "idle_in_transaction_session_timeout": "200ms", "transaction_timeout": "500ms", "idle_session_timeout": "300ms",
	} {
		if name == "transaction_timeout" && one[int](t, root, "SELECT current_setting('server_version_num')::int") < 170000 {
			continue // it came with PostgreSQL 17
		}
		t.Run(name, func(t *service.Trial) {
			from, user := userOf(t, s, "timeouts_"+strings.ReplaceAll(name, "_", ""))
			execute(t, root, "ALTER ROLE "+user+" SET "+name+" = '"+value+"'")
			b := side(t, config(t, from), netfault.NewProxy(), postgres.Options{})
			exercise(t, b, "timeouts/"+name)
			own := byURL(t, from)
			exercise(t, own, "timeouts/own/"+name)
			// a row that another transaction has, and a wait for a lock, for longer than that
			r := steps.Asked(own, "timeouts/row/"+name, time.Minute)
			steps.Acquired(t, own, r)
			waited := steps.Acquiring(b, steps.Waiting(b, r.Name, time.Minute))
			await.That(t, "one waits", func() bool { return len(steps.Queue(t, b, r.Name).Waiters()) == 1 })
			unlock := lockRow(t, s, r.Name)
			released := make(chan error, 1)
			go func() { released <- own.Release(context.Background(), r) }()
			<-time.After(2 * time.Second) // calls have 10 s
			unlock()
			if err := errors.Join(<-released, <-waited); err != nil {
				t.Error(err)
			}
		})
	}
}

// postgresLongTransaction: a transaction that stays open keeps every old row version. Clients go
// on, and the lock does not become slow beyond use.
func postgresLongTransaction(t *service.Trial, s *service.Server) {
	const pairs = 2000
	root := poolOf(t, s.URL)
	tx, err := root.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	execute(t, tx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	one[int](t, tx, "SELECT count(*) FROM dlock_locks") // it has a snapshot
	b := sideOf(t, s)
	took := func() time.Duration {
		start := time.Now()
		for range pairs / 2 {
			r := steps.Asked(b, "long", time.Minute)
			steps.Acquired(t, b, r)
			steps.Released(t, b, r)
		}
		return time.Since(start)
	}
	first, second := took(), took()
	t.Logf("%d pairs take %s, and as many more %s", pairs/2, first, second)
	if second > 10*first+5*time.Second {
		t.Errorf("%d pairs take %s, and as many more %s", pairs/2, first, second)
	}
	exercise(t, b, "long/everything")
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	execute(t, root, "VACUUM dlock_locks, dlock_requests")
	exercise(t, b, "long/afterwards")
}

// TestPostgresFailover: the primary is lost, and its standby, which follows it asynchronously,
// takes over. Clients of a URL with both find it. What the standby did not know is lost: that is
// what FailoverSafe says. No token is given twice.
func TestPostgresFailover(t *testing.T) {
	t.Parallel()
	s := migrated(t, service.StartOwn(t, PostgreSQL))
	standby := service.StartOwn(t, Standby(s))
	both := with(t, s.URL, func(u *url.URL) { u.Host += "," + standby.Addr })
	opens := func() *dlock.Client {
		c, err := dlock.Open(t.Context(), both, dlock.Logger(nil), dlock.TTL(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	a, b := opens(), opens()
	held := steps.MustLock(t, a.Mutex("failover/held"))
	waits := steps.Try(t, b.Mutex("failover/held"))
	replica := poolOf(t, standby.URL)
	await.That(t, "the standby knows of the waiter", func() bool {
		return one[int](t, replica, "SELECT count(*) FROM dlock_requests WHERE name = 'failover/held' AND kind = 'request'") == 1
	})
	var last driver.Token
	for range 50 {
		l := steps.MustLock(t, a.Mutex("failover/tokens"))
		last = l.Token()
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill(t)
	promote(t, standby)
	began := time.Now()
	for range 20 {
		l := steps.MustLock(t, b.Mutex("failover/tokens"))
		if l.Token() <= last {
			t.Fatalf("token %d after %d", l.Token(), last)
		}
		last = l.Token()
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("20 pairs %s after the promotion", time.Since(began).Round(time.Millisecond))
	if !waits.Pending() {
		t.Errorf("the waiter ended: %v", waits.Err)
	}
	until := held.Until()
	await.That(t, "the hold is renewed at the new primary, or lost", func() bool { return held.Until().After(until) || held.Err() != nil })
	if err := held.Err(); err != nil {
		t.Errorf("the hold, which the standby knew: %v", err)
	}
	if err := held.Unlock(await.Context(t)); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	l := waits.Got("the waiter", time.Now(), 30*time.Second)
	if err := l.Unlock(await.Context(t)); err != nil {
		t.Errorf("Unlock by the waiter: %v", err)
	}
}

// TestPostgresRefuses: a server that refuses for a time ends no wait and loses no lease, and a Lock
// that begins meanwhile retries.
func TestPostgresRefuses(t *testing.T) {
	onOwn(t, func(t *testing.T, s *service.Server) {
		root := poolOf(t, migrated(t, s).URL)
		root.SetMaxOpenConns(1)
		from, user := userOf(t, s, "refused")
		for what, do := range map[string][2]string{
			"read-only":              {"ALTER ROLE " + user + " SET default_transaction_read_only = on", "ALTER ROLE " + user + " RESET default_transaction_read_only"},
			"no connections":         {"ALTER ROLE " + user + " CONNECTION LIMIT 0", "ALTER ROLE " + user + " CONNECTION LIMIT -1"},
			"the database is closed": {"ALTER DATABASE postgres CONNECTION LIMIT 0", "ALTER DATABASE postgres CONNECTION LIMIT -1"},
		} {
			open := func() *dlock.Client { return steps.ClientOf(t, byURL(t, from), dlock.TTL(time.Minute)) }
			holder, waiter, late := open(), open(), open()
			held := steps.MustLock(t, holder.Mutex(what))
			waits := steps.Try(t, waiter.Mutex(what))
			probe := sideOf(t, s)
			await.That(t, "one waits", func() bool { return len(steps.Queue(t, probe, what).Waiters()) == 1 })
			execute(t, root, do[0])
			execute(t, root, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+user+"'")
			begins := steps.Try(t, late.Mutex(what+"/late"))
			// a Lock that begins has 10 s
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if err := held.Renew(ctx); err == nil {
				t.Errorf("%s: nothing was refused", what)
			}
			cancel()
			for which, a := range map[string]*steps.Attempt{"the one that waits": waits, "the one that begins": begins} {
				if !a.Pending() {
					t.Errorf("%s ended %s: %v", what, which, a.Err)
				}
			}
			execute(t, root, do[1])
			// sessions that began meanwhile keep the role's setting of then
			execute(t, root, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+user+"'")
			if err := held.Unlock(t.Context()); err != nil {
				t.Errorf("%s: Unlock: %v", what, err)
			}
			for _, a := range []*steps.Attempt{waits, begins} {
				if a.Returns(time.Minute); a.Err != nil || a.Pending() {
					t.Errorf("%s has ended, and Lock: %v", what, a.Err)
				}
			}
		}
	})
}

// postgresOneConnection: a client with one connection renews what it holds while it waits for
// others.
func postgresOneConnection(t *service.Trial, s *service.Server) {
	one := config(t, s.URL)
	one.MaxConns = 1
	b := side(t, one, netfault.NewProxy(), postgres.Options{})
	const ttl = 10 * time.Second
	c, other := steps.ClientOf(t, b, dlock.TTL(ttl)), steps.ClientOf(t, sideOf(t, s), dlock.TTL(ttl))
	mine, err := c.Mutex("one/mine").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.Mutex("one/theirs").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			l, err := c.Mutex("one/theirs").Lock(t.Context())
			if err != nil {
				t.Errorf("Lock: %v", err)
				return
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		})
	}
	await.That(t, "all wait", func() bool { return len(steps.Queue(t, b, "one/theirs").Waiters()) == 8 })
	for range 2 {
		until := mine.Until()
		await.That(t, "its hold is renewed, or lost", func() bool { return mine.Until().After(until) || mine.Err() != nil })
	}
	if err := mine.Err(); err != nil {
		t.Errorf("its hold: %v", err)
	}
	if err := theirs.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := mine.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// race lets 32 racers of four clients run for names that were never used before: one holds each,
// and none fails.
func race(t testing.TB, s *service.Server, prefix string, rounds int) {
	t.Helper()
	var sides []*poolSide
	for range 4 {
		sides = append(sides, sideOf(t, s))
	}
	for i := range rounds {
		name := fmt.Sprint(prefix, "/race/", i)
		var wg sync.WaitGroup
		var won atomic.Int64
		start := make(chan struct{})
		for j := range 32 {
			wg.Go(func() {
				<-start
				switch _, err := steps.Acquire(t.Context(), sides[j%len(sides)], steps.Asked(sides[j%len(sides)], name, time.Minute)); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, driver.ErrHeld):
					t.Errorf("a racer: %v", err)
				}
			})
		}
		close(start)
		wg.Wait()
		if n := won.Load(); n > 1 {
			service.Strict(t).Fatalf("%d of 32 hold %s", n, name)
		} else if n == 0 {
			t.Fatalf("none of 32 holds %s", name)
		}
		switch q := steps.Queue(t, sides[0], name); {
		case len(q.Holders()) > 1:
			service.Strict(t).Fatalf("%d hold %s", len(q.Holders()), name)
		case q.Len() != 1:
			t.Fatalf("%d requests stand under %s", q.Len(), name)
		}
	}
}

func postgresRacers(t *service.Trial, s *service.Server) {
	race(t, s, "fresh", 10)
	// The same with waiters: all have their turn.
	var sides []*poolSide
	for range 4 {
		sides = append(sides, sideOf(t, s))
	}
	for i := range 5 {
		name := fmt.Sprint("fresh/turns/", i)
		var wg sync.WaitGroup
		var in, turns atomic.Int64
		for j := range 32 {
			wg.Go(func() {
				b := sides[j%len(sides)]
				r := steps.Waiting(b, name, time.Minute)
				if _, err := steps.Acquire(t.Context(), b, r); err != nil {
					t.Errorf("a racer: %v", err)
					return
				}
				if in.Add(1) != 1 {
					service.Strict(t).Errorf("two hold %s", name)
				}
				turns.Add(1)
				in.Add(-1)
				if err := b.Release(t.Context(), r); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
		wg.Wait()
		if n := turns.Load(); n != 32 {
			t.Errorf("%d of 32 had a turn", n)
		}
	}
}

// postgresKills: connections are killed at any moment, and no call fails.
func postgresKills(t *service.Trial, s *service.Server) {
	done, stop := steps.TakeTurns(t, "kills", 8, sideOf(t, s), steps.ClientOf(t, sideOf(t, s)), steps.ClientOf(t, sideOf(t, s)))
	steps.Further(t, done, 20)
	killed, enough := killPostgres(t, s)
	await.That(t, "connections were killed", func() bool { return killed.Load() >= 50 })
	steps.Further(t, done, 50)
	enough()
	steps.Further(t, done, 50)
	stop()
}

// postgresSteals: a request that finds an expired row takes its place, and the old owner touches
// nothing any more.
func postgresSteals(t *service.Trial, s *service.Server) {
	b, other := sideOf(t, s), sideOf(t, s)
	const short = 300 * time.Millisecond
	for _, wait := range []bool{true, false} {
		name := fmt.Sprint("steal/", wait)
		old, thief := steps.Asked(b, name, short), steps.Asked(other, name, time.Minute)
		thief.Wait = wait
		before := steps.Acquired(t, b, old).Token
		var g driver.Grant
		if wait {
			g = steps.Acquired(t, other, thief)
		} else {
			await.That(t, "the row has expired", func() bool {
				var err error
				g, err = steps.Acquire(t.Context(), other, thief)
				return err == nil
			})
		}
		if g.Token <= before {
			service.Strict(t).Errorf("token %d after %d", g.Token, before)
		}
		if r := b.Renew(t.Context(), []driver.Request{old}); r[0].Err == nil {
			service.Strict(t).Errorf("Renew of the old owner, which was replaced, is nil")
		} else if !errors.Is(r[0].Err, driver.ErrLost) {
			t.Errorf("Renew of the old owner: %v", r[0].Err)
		}
		if err := b.Release(t.Context(), old); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of the old owner: %v", err)
		}
		if q := steps.Queue(t, b, name); q.Len() != 1 || q.Arrivals[0].ID != thief.ID {
			t.Errorf("there is %+v", q)
		}
	}
}

// lockRow locks the row of a name in another transaction, and returns a function that releases it.
func lockRow(t testing.TB, s *service.Server, name string) (unlock func()) {
	t.Helper()
	return lockRowOf(t, s, "dlock_locks", name)
}

// postgresFrozenServer: the server stands still.
func postgresFrozenServer(t testing.TB, s *service.Server) {
	c, b := steps.ClientOf(t, sideOf(t, s), dlock.TTL(5*time.Second)), sideOf(t, s)
	l, err := c.Mutex("frozen/held").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	still, start := steps.MeasureStalls(), time.Now()
	if _, err := c.Mutex("frozen/asked").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock: %v", err)
	}
	if took, not := time.Since(start), still(); took-not > 2*time.Second {
		t.Errorf("Lock returned after %s, of which this process stood still for %s", took, not)
	}
	select {
	case <-l.Lost():
	case <-time.After(time.Minute):
		t.Errorf("the lease is not lost")
	}
	if now := time.Now(); now.Before(l.Until()) {
		t.Errorf("lost %s too early", l.Until().Sub(now))
	}
	s.Continue(t)
	for _, name := range []string{"frozen/held", "frozen/asked"} {
		free := func() bool { return steps.Queue(t, b, name).Len() == 0 }
		await.That(t, "nothing is left of "+name, free)
		// what was sent before the pause may be executed only now, and is removed
		r := steps.Waiting(b, name, time.Minute)
		steps.Acquired(t, b, r)
		steps.Released(t, b, r)
		await.That(t, "nothing is left of "+name, free)
	}
}

// handedOver lets one client wait for a lock of another, which then releases it.
func handedOver(t testing.TB, from, to driver.Backend, r driver.Request, meanwhile func()) driver.Grant {
	t.Helper()
	first := steps.Asked(from, r.Name, time.Minute)
	steps.Acquired(t, from, first)
	var g driver.Grant
	var wg sync.WaitGroup
	wg.Go(func() { g = steps.Acquired(t, to, r) })
	await.That(t, "it waits", func() bool { return len(steps.Queue(t, from, r.Name).Waiters()) == 1 })
	meanwhile()
	steps.Released(t, from, first)
	wg.Wait()
	return g
}

// postgresRestart: the server is killed and started again, on its data.
func postgresRestart(t testing.TB, s *service.Server) {
	steps.AcrossRestart(t, s, sideOf(t, s), steps.ClientOf(t, sideOf(t, s), dlock.TTL(time.Minute)), steps.ClientOf(t, sideOf(t, s), dlock.TTL(time.Minute)))
}

// postgresRenewsBeside: holds that are released while they are renewed with others make no outcome
// uncertain.
func postgresRenewsBeside(t *service.Trial, s *service.Server) {
	const many, abreast = 600, 8
	b := sideOf(t, s)
	all := make([]driver.Request, many)
	each := func(n int, f func(r driver.Request)) {
		var wg sync.WaitGroup
		for i := range abreast {
			wg.Go(func() {
				for j := i; j < n; j += abreast {
					f(all[j])
				}
			})
		}
		wg.Wait()
	}
	for i := range all {
		all[i] = steps.Asked(b, fmt.Sprint("beside/", i), 10*time.Minute)
	}
	each(many, func(r driver.Request) { steps.Acquired(t, b, r) })
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer over.Store(true)
		each(many/2, func(r driver.Request) { steps.Released(t, b, r) })
	})
	renewals := 0
	for ; !over.Load(); renewals++ {
		for i, n := range b.Renew(t.Context(), all) {
			if n.Err != nil && (i >= many/2 || !errors.Is(n.Err, driver.ErrLost)) {
				t.Errorf("renewal %d, of one that is released: %t: %v", renewals, i < many/2, n.Err)
				over.Store(true)
				break
			}
		}
	}
	wg.Wait()
	t.Logf("%d renewals", renewals)
}

// postgresRenewsAround: while another transaction has a row of one hold, the others are renewed: at
// once over connections of the driver's own, and soon over a user's, on which the server goes on
// waiting for a moment when the driver has stopped.
func postgresRenewsAround(t *service.Trial, s *service.Server) {
	const many, locked, ttl = 20, 7, time.Minute
	own, _ := ownSide(t, s)
	for which, b := range map[string]driver.Backend{"own": own, "pool": sideOf(t, s)} {
		for table, mode := range map[string]driver.Mode{"dlock_locks": driver.Exclusive, "dlock_requests": driver.Shared} {
			rs := make([]driver.Request, many)
			for i := range rs {
				rs[i] = steps.Asked(b, fmt.Sprint("around/", which, "/", table, "/", i), ttl)
				rs[i].Mode = mode
				steps.Acquired(t, b, rs[i])
			}
			unlock := lockRowOf(t, s, table, rs[locked].Name)
			missed := func() (others int) {
				for i, n := range b.Renew(t.Context(), rs) {
					switch {
					case i != locked && n.Err != nil:
						others++
					case i == locked && (n.Err == nil || errors.Is(n.Err, driver.ErrLost)):
						t.Errorf("%s, %s: of the one whose row is locked: %v", which, table, n.Err)
					}
				}
				return others
			}
			if n := missed(); n > 0 && which == "own" {
				t.Errorf("%s, %s: %d of %d holds were not renewed beside one whose row is locked", which, table, n, many-1)
			} else if n > 0 {
				t.Logf("%s, %s: %d of %d holds were not renewed at once", which, table, n, many-1)
				if n := missed(); n > 0 {
					t.Errorf("%s, %s: %d of %d holds were not renewed by the next renewal either", which, table, n, many-1)
				}
			}
			unlock()
			for i, n := range b.Renew(t.Context(), rs) {
				if n.Err != nil {
					t.Errorf("%s, %s, renewal %d, when nothing is locked: %v", which, table, i, n.Err)
				}
			}
			for _, r := range rs {
				steps.Released(t, b, r)
			}
		}
	}
}

// postgresWaitsBehindRow: a request waits on, in its place, while another transaction has the row
// of the lock for longer than a waiter stands without a sign of life.
func postgresWaitsBehindRow(t *service.Trial, s *service.Server) {
	const name, ttl = "behind a row", time.Minute
	a, b := sideOf(t, s), sideOf(t, s)
	first, second := steps.Asked(a, name, ttl), steps.Waiting(b, name, ttl)
	steps.Acquired(t, a, first)
	got := steps.Acquiring(b, second)
	waits := func() bool {
		w := steps.Queue(t, a, name).Waiters()
		return len(w) == 1 && w[0].ID == second.ID
	}
	await.That(t, "it waits", waits)
	unlock := lockRow(t, s, name)
	const long = 12 * time.Second
	<-time.After(long)
	if !waits() {
		t.Errorf("after %s it does not wait any more", long)
	}
	unlock()
	steps.Released(t, a, first)
	if err := <-got; err != nil {
		t.Errorf("Acquire: %v", err)
	}
	steps.Released(t, b, second)
}

// postgresIsolation: the database's default isolation level.
func postgresIsolation(t *service.Trial, s *service.Server) {
	root := poolOf(t, s.URL)
	for _, level := range isolations {
		t.Run(level, func(t *service.Trial) {
			execute(t, root, "ALTER DATABASE "+databaseOf(t, s.URL)+" SET default_transaction_isolation = '"+level+"'")
			exercise(t, sideOf(t, s), "isolation/"+level)
			race(t, s, "isolation/"+level, 5)
		})
	}
}

// postgresNames: names are bytes, whatever the collations of the server take for equal.
func postgresNames(t *service.Trial, s *service.Server) {
	names := []string{
		"a", "A", "a ", "a  ", " a", "á", "a\u0301", "ä", "a\u0308", "ß", "ss", "SS", "ｓｓ", "a/b", "a/", "a/B", "ı", "i", "I", "İ", "\u212b", "\u00c5", "A\u030a",
		`'; DROP TABLE dlock_locks; -- `, `\`, `\\`, `"`, "`", `'`, `''`, "%", "_", "?", "$1", ":a", `\x61`, "61", `\141`, "NULL", "{}", "{a}", ",", "🔒", "🔓", "日本", "\u00a0a", "a\u200d", "a\u200b",
		strings.Repeat("x", 254), strings.Repeat("x", 255), strings.Repeat("x", 254) + " ", strings.Repeat("é", 127),
	}
	c := hostile(config(t, s.URL))
	c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	b, other := side(t, c, netfault.NewProxy(), postgres.Options{Prefix: "names/"}), side(t, config(t, s.URL), netfault.NewProxy(), postgres.Options{Prefix: "names/"})
	apart := side(t, config(t, s.URL), netfault.NewProxy(), postgres.Options{Prefix: "names"})
	steps.NamesApart(t, b, other, apart, names)
}

// postgresLateCopy: the reply to an Acquire was lost, so the driver sent it again. The release does
// not know of that, and a copy that comes after the release still creates nothing.
func postgresLateCopy(t *service.Trial, s *service.Server) {
	b, other := sideOf(t, s), sideOf(t, s)
	l := record(b.line)
	first := steps.Asked(b, "late copy/first", time.Minute) // the statement is prepared
	steps.Acquired(t, b, first)
	r := steps.Asked(b, "late copy", time.Minute)
	sent, dropped := b.line.Record(), b.line.DropReply(r.Name)
	steps.Acquired(t, b, r)
	await.Closed(t, "the reply to Acquire", dropped)
	sent.End()
	steps.Released(t, b, r)
	if err := l.replay(s.URL, sent); err != nil {
		t.Fatal(err)
	}
	if q := steps.Queue(t, other, r.Name); q.Len() != 0 {
		t.Errorf("after the copies of an acquire that was released there is %+v", q)
	}
	next := steps.Asked(other, r.Name, time.Minute)
	steps.Acquired(t, other, next)
	steps.Released(t, other, next)
}

// noticing is a connection that calls arrived whenever something arrived.
type noticing struct {
	net.Conn
	arrived *atomic.Pointer[func()]
}

func (c noticing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if f := c.arrived.Load(); f != nil && n > 0 {
		(*f)()
	}
	return n, err
}

// postgresUnreadAnswers: an Acquire whose context ends at the instant at which its answer arrives
// leaves nothing, whichever of the two is seen first.
func postgresUnreadAnswers(t *service.Trial, s *service.Server) {
	c := config(t, s.URL)
	c.MaxConns = 8 // what was left goes on, each on a connection
	var arrived atomic.Pointer[func()]
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return noticing{conn, &arrived}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	b, err := postgres.New(pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	db := poolOf(t, s.URL)
	// hunts the instant at which the answer is there and not read
	cancelled, delay := 0, 50*time.Microsecond
	for i := range 600 {
		ctx, cancel := context.WithCancel(t.Context())
		after := delay
		soon := func() { time.AfterFunc(after, cancel) }
		arrived.Store(&soon)
		r := steps.Asked(b, fmt.Sprint("unread/", i), time.Hour)
		if _, err := steps.Acquire(ctx, b, r); err == nil {
			arrived.Store(nil)
			steps.Released(t, b, r)
			delay -= delay / 16
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		} else {
			cancelled++
			delay += delay / 16
		}
		arrived.Store(nil)
		cancel()
	}
	t.Logf("%d of 600 were cancelled first", cancelled)
	await.That(t, "nothing is left", func() bool {
		return one[int](t, db, "SELECT count(*) FROM dlock_locks WHERE held_until > clock_timestamp()")+
			one[int](t, db, "SELECT count(*) FROM dlock_requests WHERE kind <> 'tombstone'") == 0
	})
}

// postgresBlockedRow: a statement that waits for the row makes a hold shorter by that, and no
// client trusts it for longer.
func postgresBlockedRow(t *service.Trial, s *service.Server) {
	const ttl, blocked = 30 * time.Second, 2500 * time.Millisecond
	from, user := userOf(t, s, "blocked")
	b := side(t, config(t, from), netfault.NewProxy(), postgres.Options{})
	root := poolOf(t, s.URL)
	for _, what := range []string{"acquire", "renew", "hand-off"} {
		name := "blocked/" + what
		first := steps.Asked(b, name, time.Minute)
		steps.Acquired(t, b, first)
		r := steps.Waiting(b, name, ttl)
		switch what {
		case "acquire":
			steps.Released(t, b, first)
		case "renew":
			steps.Released(t, b, first)
			steps.Acquired(t, b, r)
		}
		unlock := lockRow(t, s, name)
		begun := time.Now()
		var until time.Time // as the client trusts it
		var wg sync.WaitGroup
		wg.Go(func() {
			switch what {
			case "renew":
				p := b.Renew(context.Background(), []driver.Request{r})
				if p[0].Err != nil {
					t.Errorf("Renew: %v", p[0].Err)
				}
				until = p[0].SentAt.Add(p[0].TTL)
			case "hand-off":
				steps.Released(t, b, first)
				fallthrough
			default:
				g := steps.Acquired(t, b, r)
				until = g.SentAt.Add(g.TTL)
			}
		})
		await.That(t, "it waits for the row", func() bool { _, wait := transactions(t, root, user); return wait > 0 })
		// less than a statement has
		<-time.After(blocked - time.Since(begun))
		unlock()
		wg.Wait()
		q := steps.Queue(t, b, name)
		if e := q.Holders(); len(e) == 1 && time.Now().Add(e[0].Left).Before(until) {
			service.Strict(t).Errorf("%s: the server keeps it for %s, its client trusts it for %s", what, e[0].Left, time.Until(until))
		}
		floor := ttl - time.Since(begun)
		if what == "hand-off" { // the waiter renews it
			floor = 0
		}
		if e := q.Holders(); len(e) != 1 || e[0].Left < floor || e[0].Left > ttl {
			t.Errorf("%s, the row was blocked for %s: want %s or more to be left; there are %d holders", what, blocked, floor, len(e))
			for _, h := range e {
				t.Errorf("of one %s are left", h.Left)
			}
		}
		steps.Released(t, b, r)
	}
}

// postgresGhost: the statements of calls that have ended do not go on waiting at the server.
func postgresGhost(t *service.Trial, s *service.Server) {
	from, user := userOf(t, s, "ghost")
	b := side(t, config(t, from), netfault.NewProxy(), postgres.Options{})
	root := poolOf(t, s.URL)
	const name = "ghost"
	r := steps.Asked(b, name, time.Minute)
	steps.Acquired(t, b, r)
	steps.Released(t, b, r)
	unlock := lockRow(t, s, name)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := steps.Acquire(ctx, b, steps.Waiting(b, name, time.Minute)); !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire: %v", err)
			}
		})
	}
	await.That(t, "they wait for the row", func() bool { _, wait := transactions(t, root, user); return wait > 0 })
	still, start := steps.MeasureStalls(), time.Now()
	cancel()
	wg.Wait()
	if took, not := time.Since(start), still(); took-not > time.Second {
		t.Errorf("they ended after %s, of which this process stood still for %s", took, not)
	}
	// clean-up may go on trying, for a moment each time
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		if n := one[int](t, root, `SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '8 seconds'`, user); n > 0 {
			t.Fatalf("%d ghosts have waited for a row for eight seconds", n)
		}
	}
	unlock()
	r = steps.Waiting(b, name, time.Minute) // one of them may take the lock now, and is removed
	steps.Acquired(t, b, r)
	steps.Released(t, b, r)
	await.That(t, "nothing of them is left", func() bool { return steps.Queue(t, b, name).Len() == 0 })
}

// postgresFound: a waiter that was granted by the release of another client trusts the grant for no
// longer than the server keeps it. One that had not been kept alive, or is fixed, is confirmed
// first, and has its whole time.
func postgresFound(t *service.Trial, s *service.Server) {
	const ttl = time.Minute
	db := poolOf(t, s.URL)
	for what, tt := range map[string]struct {
		fixed  bool
		silent time.Duration // for so long it was not kept alive
	}{
		"kept alive":     {false, 0},
		"not kept alive": {false, 7 * time.Second},
		"fixed":          {true, 0},
	} {
		a, b := sideOf(t, s), sideOf(t, s)
		name := fmt.Sprint("found/", what)
		r := steps.Waiting(b, name, ttl)
		r.Fixed = tt.fixed
		began := time.Now()
		var place int64
		g := handedOver(t, a, b, r, func() {
			execute(t, db, fmt.Sprintf("UPDATE dlock_requests SET expires_at = expires_at - interval '%d seconds' WHERE name = '%s'", tt.silent/time.Second, name))
			place = one[int64](t, db, "SELECT place FROM dlock_requests WHERE name = $1", []byte(name))
		})
		now := time.Now()
		h := steps.Queue(t, a, name).Holders()
		// The proof is as much older than the grant as the statement took to reach the server.
		earliest := began.Add(began.Sub(now))
		if len(h) != 1 || h[0].ID != r.ID || h[0].Token != g.Token || g.SentAt.Before(earliest) || g.SentAt.After(now) {
			t.Fatalf("%s: granted %+v, there is %+v", what, g, h)
		}
		if until := g.SentAt.Add(g.TTL); h[0].Left < time.Until(until) {
			service.Strict(t).Errorf("%s: the server keeps it for %s, its client trusts it for %s", what, h[0].Left, until.Sub(now))
		}
		if g.TTL < ttl/2 || g.TTL > ttl || tt.fixed && g.TTL != ttl {
			t.Errorf("%s: it is granted for %s, want %s", what, g.TTL, ttl)
		}
		if p := one[int64](t, db, "SELECT head FROM dlock_locks WHERE name = $1", []byte(name)); p != place {
			t.Errorf("%s: it holds in place %d, and had %d while it waited", what, p, place)
		}
		if p := b.Renew(t.Context(), []driver.Request{r}); p[0].Err != nil || p[0].TTL != ttl {
			t.Errorf("%s: Renew: %+v", what, p[0])
		}
		if h := steps.Queue(t, a, name).Holders(); len(h) != 1 || h[0].Left < ttl/2 {
			t.Errorf("%s: after a renewal there is %+v", what, h)
		}
		steps.Released(t, b, r)
	}
}

// postgresLockedTables: tables that others lock for a time, and transactions of theirs that lock
// rows, end no call.
func postgresLockedTables(t *service.Trial, s *service.Server) {
	conn, err := poolOf(t, s.URL).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	done, stop := steps.TakeTurns(t, "tables", 8, sideOf(t, s), steps.ClientOf(t, sideOf(t, s)), steps.ClientOf(t, byURL(t, s.URL)))
	steps.Further(t, done, 20)
	for _, how := range [][]string{
		{"BEGIN", "LOCK TABLE dlock_locks, dlock_requests IN ACCESS EXCLUSIVE MODE", "ROLLBACK"},
		{"BEGIN", "LOCK TABLE dlock_requests IN EXCLUSIVE MODE", "ROLLBACK"},
		{"BEGIN", "LOCK TABLE dlock_locks IN SHARE MODE", "ROLLBACK"},
		{"BEGIN", "UPDATE dlock_locks SET label = label", "UPDATE dlock_locks SET ttl_us = ttl_us + 1", "ROLLBACK"},
		{"BEGIN", "SELECT count(*) FROM (SELECT FROM dlock_requests FOR SHARE) x", "ROLLBACK"},
		{"BEGIN", "DELETE FROM dlock_requests", "ROLLBACK"},
	} {
		last := len(how) - 1
		execute(t, conn, how[:last]...)
		<-time.After(2 * time.Second) // calls have 10 s
		execute(t, conn, how[last])
		steps.Further(t, done, 20)
	}
	for _, statement := range []string{"VACUUM FULL dlock_locks", "VACUUM FULL dlock_requests", "REINDEX TABLE dlock_locks", "CLUSTER dlock_requests USING dlock_requests_pkey", "VACUUM (FREEZE, ANALYZE)"} {
		var err error
		for range 10 { // the server may choose it to end a deadlock
			if _, err = conn.ExecContext(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "40P01") {
				break
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		steps.Further(t, done, 20)
	}
	stop()
}

// postgresDeadlocks: transactions of others take our rows in an order in which they deadlock with
// us. No call fails.
func postgresDeadlocks(t *service.Trial, s *service.Server) {
	done, stop := steps.TakeTurns(t, "deadlocks", 8, sideOf(t, s), steps.ClientOf(t, sideOf(t, s)), steps.ClientOf(t, sideOf(t, s)))
	steps.Further(t, done, 20)
	db := poolOf(t, s.URL)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				begun := time.Now()
				_ = func() error {
					tx, err := db.BeginTx(ctx, nil)
					if err != nil {
						return err
					}
					defer tx.Rollback()
					// requests first, then the lock's row: the reverse of statements that change a
					// queue; the server looks for deadlocks as soon as one waits
					for _, stmt := range []string{"SET LOCAL deadlock_timeout = '10ms'", "SELECT count(*) FROM (SELECT FROM dlock_requests FOR UPDATE) x",
						"SELECT count(*) FROM (SELECT FROM dlock_locks WHERE convert_from(name, 'UTF8') LIKE 'deadlocks/%' FOR UPDATE) x"} {
						if _, err := tx.ExecContext(ctx, stmt); err != nil {
							return err
						}
					}
					return nil
				}()
				// four of them must not take all the time of the rows: our calls have 10 s
				<-time.After(time.Millisecond + min(2*time.Since(begun), time.Second))
			}
		})
	}
	await.That(t, "there were deadlocks", func() bool {
		return one[int](t, db, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") >= 5
	})
	steps.Further(t, done, 20)
	cancel()
	wg.Wait()
	stop()
}

// postgresLocker is a client in a process of its own, which locks and unlocks all the time.
var postgresLocker = service.NewProgram("postgres locker", func(in *bufio.Scanner, out io.Writer, args []string) error {
	c, err := dlock.Open(context.Background(), args[0], dlock.Logger(nil), dlock.TTL(postgresTTL))
	if err != nil {
		return err
	}
	m := c.Mutex(args[1])
	for i := 0; ; i++ {
		l, err := m.Lock(context.Background())
		if err != nil {
			continue // a grant that it slept through
		}
		l.Unlock(context.Background())
		if i == 0 {
			fmt.Fprintln(out, "locked")
		}
	}
})

// postgresStoppedClient: a client that is stopped in the middle of a call keeps no row locked.
func postgresStoppedClient(t *service.Trial, s *service.Server) {
	from, user := userOf(t, s, "stopped")
	child := postgresLocker.Start(t, from, "stopped")
	child.Expect("locked")
	root, b := poolOf(t, s.URL), sideOf(t, s)
	for range 15 {
		<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
		child.Stop()
		await.That(t, "the stopped client has no transaction open", func() bool { open, _ := transactions(t, root, user); return open == 0 })
		start, r := time.Now(), steps.Waiting(b, "stopped", time.Minute)
		steps.Acquired(t, b, r)
		if took := time.Since(start); took > postgresTTL+10*time.Second {
			t.Errorf("its lock was free after %s", took)
		}
		steps.Released(t, b, r)
		child.Continue()
	}
}

// lockRowOf locks the only row that a table has for a name.
func lockRowOf(t testing.TB, s *service.Server, table, name string) (unlock func()) {
	t.Helper()
	db := open(t, s.URL)
	t.Cleanup(func() { db.Close() })
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() { tx.Rollback(); db.Close() })
	t.Cleanup(unlock)
	var n int
	if err := tx.QueryRow("SELECT count(*) FROM (SELECT 1 FROM "+table+" WHERE prefix = '' AND name = $1 FOR UPDATE) x", []byte(name)).Scan(&n); err != nil || n != 1 {
		t.Fatalf("%d rows of %q are locked, %v", n, name, err)
	}
	return unlock
}
