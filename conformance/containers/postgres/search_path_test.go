package postgres

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
)

// TestPostgresSearchPath: another search_path, or temporary tables of the same names, that other
// code has made in a session which it shares with dlock lead no client to other tables.
func TestPostgresSearchPath(t *testing.T) {
	t.Parallel()
	s := migrated(t, shared(t))
	root := poolOf(t, s.URL)
	execute(t, root, "CREATE SCHEMA tenant")
	tenant := *s
	tenant.URL = params(t, s.URL, "search_path", "tenant")
	migrated(t, &tenant)
	other := sideOf(t, s)
	names := 0
	excludes := func(b driver.Backend) {
		t.Helper()
		names++
		name := fmt.Sprint("excluded/", names)
		exercise(t, b, name)
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			r := steps.Asked(b, name, time.Minute)
			r.Mode = mode
			steps.Acquired(t, b, r)
			steps.Refused(t, other, steps.Asked(other, name, time.Minute), time.Now().Add(30*time.Second))
			steps.Released(t, b, r)
		}
	}

	c := config(t, s.URL)
	c.MaxConns = 1
	b := side(t, c, netfault.NewProxy(), postgres.Options{})
	excludes(b)
	for _, stmt := range []string{
		"SET search_path = tenant", "RESET search_path",
		"CREATE TEMPORARY TABLE dlock_locks (LIKE public.dlock_locks INCLUDING ALL)",
		"CREATE TEMPORARY TABLE dlock_requests (LIKE public.dlock_requests INCLUDING ALL)",
	} {
		execute(t, b.db, stmt)
		excludes(b)
	}

	// all its clients share one session
	bouncer := service.StartOwn(t, Before(s, "default_pool_size = 1"))
	pooled := with(t, s.URL, func(u *url.URL) { u.Host = bouncer.Addr })
	p := byURL(t, pooled)
	excludes(p)
	execute(t, poolOf(t, pooled), "SET search_path = tenant")
	excludes(p)
	says(t, "a session with another search_path", map[string]error{"Open": steps.FirstLock(t, pooled)}, "search_path of the session", "shares with dlock")
	for _, table := range []string{"dlock_locks", "dlock_requests"} {
		if n := one[int](t, root, "SELECT count(*) FROM tenant."+table+" WHERE name <> ''"); n != 0 {
			t.Errorf("tenant.%s has %d rows", table, n)
		}
	}
}
