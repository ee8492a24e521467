package postgres

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
)

// sideOf opens the driver over a pool of the test's.
func sideOf(t service.T, s *service.Server) *poolSide {
	t.Helper()
	return side(t, config(t, s.URL), netfault.NewProxy(), postgres.Options{})
}

// exercise does everything that the driver can do, and is strict about time.
func exercise(t testing.TB, b driver.Backend, name string) {
	t.Helper()
	const ttl = time.Minute
	a := steps.Asked(b, name, ttl)
	start := time.Now()
	g := steps.Acquired(t, b, a)
	if g.Token == 0 || g.TTL != ttl || g.SentAt.Before(start) {
		t.Fatalf("granted %+v", g)
	}
	if again := steps.Acquired(t, b, a); again.Token != g.Token {
		t.Fatalf("sent again it has token %d, before %d", again.Token, g.Token)
	}
	q := steps.Queue(t, b, name)
	took := time.Since(start)
	if e := q.Holders(); len(e) != 1 || e[0].ID != a.ID || e[0].Left > ttl || e[0].Left < ttl-took || e[0].Age < 0 || e[0].Age > took {
		t.Fatalf("after %s there is %+v", took, e)
	}
	steps.Refused(t, b, steps.Asked(b, name, ttl), g.SentAt.Add(ttl))
	for range 2 { // the second one may write what is due
		if r := b.Renew(context.Background(), []driver.Request{a, steps.Asked(b, name, ttl)}); r[0].Err != nil || !errors.Is(r[1].Err, driver.ErrLost) {
			t.Fatalf("Renew: %v, %v", r[0].Err, r[1].Err)
		}
	}
	next := steps.Waiting(b, name, ttl)
	granted := make(chan driver.Grant, 1)
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() {
		var n driver.Grant
		if n, failed = steps.Acquire(context.Background(), b, next); failed == nil {
			granted <- n
		}
	})
	await.That(t, "the next one waits", func() bool { return len(steps.Queue(t, b, name).Waiters()) == 1 })
	steps.Released(t, b, a)
	wg.Wait()
	if failed != nil {
		t.Fatalf("Acquire of the next: %v", failed)
	}
	if n := <-granted; n.Token <= g.Token {
		service.Strict(t).Fatalf("token %d after %d", n.Token, g.Token)
	}
	if err := b.Release(context.Background(), a); !errors.Is(err, driver.ErrLost) {
		t.Fatalf("a second Release: %v", err)
	}
	if names, err := b.(driver.Lister).List(context.Background()); err != nil || !slices.Contains(names, name) {
		t.Fatalf("List: %q, %v", names, err)
	}
	steps.Released(t, b, next)

	const short = 200 * time.Millisecond
	start = time.Now()
	steps.Acquired(t, b, steps.Asked(b, name, short))
	after := steps.Waiting(b, name, ttl)
	steps.Acquired(t, b, after)
	if took := time.Since(start); took < short {
		service.Strict(t).Fatalf("a hold of %s blocked others for %s", short, took)
	} else if took > short+10*time.Second {
		t.Fatalf("a hold of %s blocked others for %s", short, took)
	}
	if err := b.(driver.Breaker).Break(context.Background(), name, steps.Queue(t, b, name).Holders()[0].Token, true); err != nil {
		t.Fatalf("Break: %v", err)
	}
	if r := b.Renew(context.Background(), []driver.Request{after}); !errors.Is(r[0].Err, driver.ErrLost) {
		t.Fatalf("Renew of a broken hold: %v", r[0].Err)
	}
	if n := steps.Queue(t, b, name).Len(); n != 0 {
		t.Fatalf("%d requests are left", n)
	}
}

// sessionState is what the driver may have changed of the session of the pool's only connection.
func sessionState(t service.T, db rower) (conn int64, state string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), statementTime)
	defer cancel()
	if err := db.QueryRowContext(ctx, `SELECT pg_backend_pid(), (SELECT string_agg(name || '=' || setting, '; ' ORDER BY name) FROM pg_settings
			WHERE source IN ('session', 'client', 'override') AND name <> 'in_hot_standby')
		|| '; listens ' || (SELECT count(*) FROM pg_listening_channels()) || '; cursors ' || (SELECT count(*) FROM pg_cursors WHERE name <> '')
		|| '; locks ' || (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
		|| '; temporary ' || (SELECT count(*) FROM pg_class WHERE relpersistence = 't')`).Scan(&conn, &state); err != nil {
		t.Fatalf("%v", err)
	}
	return conn, state
}

// killPostgres ends connections of the database at random, except its own, until stop.
func killPostgres(t testing.TB, s *service.Server) (killed *atomic.Int64, stop func()) {
	t.Helper()
	db, killed := poolOf(t, s.URL), new(atomic.Int64)
	db.SetMaxIdleConns(-1) // so that took has the time that a client needs for a new connection
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		// on a slow server calls need longer too, and each has to get through now and then
		var took time.Duration
		for ; ctx.Err() == nil; <-time.After(time.Duration(1+rand.IntN(20))*time.Millisecond + 2*took) {
			start := time.Now()
			var n int64
			err := db.QueryRow(`SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 1) x`).Scan(&n)
			if err != nil {
				continue // the test has restarted the server
			}
			killed.Add(n)
			took = min(time.Since(start), 500*time.Millisecond)
		}
	})
	return killed, sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// transactions returns how many transactions the connections of a user have open, and how many of
// those wait for a row or a table.
func transactions(t service.T, db *sql.DB, user string) (open, wait int) {
	t.Helper()
	n := one[int](t, db, `SELECT COALESCE(sum(CASE WHEN wait_event_type = 'Lock' THEN 1000001 ELSE 1 END), 0) FROM pg_stat_activity
		WHERE usename = $1 AND xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'`, user)
	return n % 1000000, n / 1000000
}

// userOf makes a user with the rights of all on the database's tables, and returns the URL for it.
// A user belongs to the whole server: so its name has that of the database.
func userOf(t service.T, s *service.Server, name string) (url, user string) {
	t.Helper()
	user = name + "_" + databaseOf(t, s.URL)
	db := open(t, s.URL)
	defer db.Close()
	execute(t, db, "CREATE ROLE "+user+" LOGIN", "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+user)
	return as(t, s.URL, user, ""), user
}

// says fails the test unless all errors name what is wrong.
func says(t testing.TB, what string, errs map[string]error, words ...string) {
	t.Helper()
	for way, err := range errs {
		for _, w := range words {
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(w)) {
				t.Errorf("%s, by %s: %v; want it to say %q", what, way, err, w)
			}
		}
	}
}

// ownSide opens the driver on connections of its own, behind a proxy.
func ownSide(t service.T, s *service.Server, pairs ...string) (driver.Backend, *netfault.Proxy) {
	t.Helper()
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	return byURL(t, params(t, behind(t, s.URL, p), pairs...)), p
}
