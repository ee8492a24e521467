package postgres

import (
	"context"
	"database/sql"
	"errors"
	"strings"
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

// split is a grant of several privileges as grants of one each.
func split(grant string) (parts []string) {
	privileges, rest, _ := strings.Cut(strings.TrimPrefix(grant, "GRANT "), " ON ")
	for p := range strings.SplitSeq(privileges, ",") {
		parts = append(parts, "GRANT "+strings.TrimSpace(p)+" ON "+rest)
	}
	return parts
}

// newRole makes a user without rights on the tables, after one of that name is gone with its
// rights.
func newRole(t service.T, root *sql.DB, user string) {
	t.Helper()
	execute(t, root, "DO $$ BEGIN CREATE ROLE "+user+" LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$", "DROP OWNED BY "+user)
}

// TestPostgresRights: the grants of the documentation suffice, each of them is needed, and each
// missing one is named when a client opens or makes its first call, before that changes anything.
func TestPostgresRights(t *testing.T) {
	t.Parallel()
	s := migrated(t, shared(t))
	root := poolOf(t, s.URL)
	user := "rights_" + databaseOf(t, s.URL)
	from := as(t, s.URL, user, "")
	var each []string
	for _, g := range neededGrants {
		each = append(each, split(g)...)
	}
	const all, none = -1, -2
	try := func(name string, without int, words ...string) {
		t.Run(name, func(t *testing.T) {
			newRole(t, root, user)
			for i, g := range each {
				if i != without && without != none {
					execute(t, root, g+" TO "+user)
				}
			}
			if without == all {
				if err := useAll(t, from, "all"); err != nil {
					t.Error(err)
				}
				return
			}
			errs := map[string]error{}
			c, err := dlock.Open(t.Context(), from, dlock.Logger(nil))
			if errs["Open"] = err; err == nil {
				c.Close()
			}
			b := side(t, config(t, from), netfault.NewProxy(), postgres.Options{})
			_, errs["Acquire"] = steps.Acquire(t.Context(), b, steps.Asked(b, "first", time.Minute))
			_, errs["Acquire again"] = steps.Acquire(t.Context(), b, steps.Asked(b, "first", time.Minute))
			_, errs["Inspect"] = b.Inspect(t.Context(), "first")
			says(t, name, errs, append(words, "docs/postgres.md")...)
			if n := one[int](t, root, "SELECT (SELECT count(*) FROM dlock_locks WHERE name = 'first') + (SELECT count(*) FROM dlock_requests WHERE name = 'first')"); n != 0 {
				t.Errorf("calls that were refused left %d rows", n)
			}
		})
	}
	try("all", all)
	try("none", none, "missing: SELECT ON dlock_locks", "SELECT ON dlock_requests", "DELETE ON dlock_requests")
	for i, g := range each {
		right := strings.TrimPrefix(g, "GRANT ")
		try("without "+right, i, "missing: "+right)
	}
}

// TestPostgresSchemas: tables in a schema that the search_path does not name, or that the user may
// not use, are reported with their schema.
func TestPostgresSchemas(t *testing.T) {
	t.Parallel()
	s := shared(t)
	root := poolOf(t, s.URL)
	user := "schemas_" + databaseOf(t, s.URL)
	newRole(t, root, user)
	from := as(t, s.URL, user, "")
	execute(t, root, "CREATE SCHEMA locks")
	there := params(t, s.URL, "search_path", "locks")
	makes := open(t, there)
	defer makes.Close()
	if err := postgres.Migrate(t.Context(), makes); err != nil {
		t.Fatal(err)
	}
	for _, g := range neededGrants {
		execute(t, makes, g+" TO "+user)
	}
	first := func(from string) error {
		b := side(t, config(t, from), netfault.NewProxy(), postgres.Options{})
		_, err := steps.Acquire(t.Context(), b, steps.Asked(b, "schemas", time.Minute))
		return err
	}
	says(t, "a schema that may not be used", map[string]error{"Open": steps.FirstLock(t, from), "New": first(from)}, "missing: dlock_locks, dlock_requests", "USAGE ON SCHEMA locks")
	execute(t, root, "GRANT USAGE ON SCHEMA locks TO "+user)
	says(t, "a schema that is not in the search_path", map[string]error{"Open": steps.FirstLock(t, from), "New": first(from)},
		"missing: dlock_locks, dlock_requests", "in the schema locks", "?search_path=locks")
	if err := useAll(t, params(t, from, "search_path", "locks"), "by the URL"); err != nil {
		t.Error(err)
	}
	if err := useAll(t, params(t, from, "options", "-c search_path=locks,public"), "by options"); err != nil {
		t.Error(err)
	}
	execute(t, root, "ALTER ROLE "+user+" SET search_path = locks")
	if err := useAll(t, from, "by the role"); err != nil {
		t.Error(err)
	}
	if n := one[int](t, root, "SELECT count(*) FROM pg_class WHERE relname LIKE 'dlock%' AND relkind = 'r' AND relnamespace <> 'locks'::regnamespace"); n != 0 {
		t.Errorf("%d tables were made in other schemas", n)
	}
}

// TestPostgresRightsToMigrate: CREATE on the schema makes the tables; only their owner removes
// them; SELECT and DELETE clean up. If a right is missing nothing is done, and the error says so.
func TestPostgresRightsToMigrate(t *testing.T) {
	t.Parallel()
	s := shared(t)
	root := poolOf(t, s.URL)
	database := databaseOf(t, s.URL)
	maker, other := "maker_"+database, "other_"+database
	newRole(t, root, maker)
	newRole(t, root, other)
	execute(t, root, "GRANT CREATE ON SCHEMA public TO "+maker)
	made, others := poolOf(t, as(t, s.URL, maker, "")), poolOf(t, as(t, s.URL, other, ""))
	clean := func(db *sql.DB) error { _, err := postgres.Cleanup(t.Context(), db, 0); return err }
	refused := func(what string, err error, words ...string) {
		t.Helper()
		says(t, "without the right", map[string]error{what: err}, append(words, "permission denied")...)
	}
	err := postgres.Migrate(t.Context(), others)
	refused("Migrate", err, "CREATE")
	if is := schemaOf(t, root); is != "" {
		t.Errorf("a refused Migrate made\n%s", is)
	}
	if err := postgres.Migrate(t.Context(), made); err != nil {
		t.Fatalf("Migrate with CREATE: %v", err)
	}
	if err := postgres.Migrate(t.Context(), others); err != nil {
		t.Errorf("Migrate again without rights: %v", err)
	}
	locksIn(t, made)
	whole := schemaOf(t, root)
	err = postgres.Revert(t.Context(), others, true)
	says(t, "another user", map[string]error{"Revert": err}, "owner")
	if is := schemaOf(t, root); is != whole {
		t.Errorf("a refused Revert left\n%s\nof\n%s", is, whole)
	}
	refused("Cleanup", clean(others))
	for _, g := range []string{"SELECT, DELETE ON dlock_locks", "SELECT, DELETE ON dlock_requests"} {
		execute(t, root, "GRANT "+g+" TO "+other)
	}
	if err := clean(others); err != nil && code(err) != "42501" {
		t.Errorf("Cleanup: %v", err)
	} else if err != nil { // to lock a row needs UPDATE
		execute(t, root, "GRANT UPDATE ON dlock_locks, dlock_requests TO "+other)
		if err := clean(others); err != nil {
			t.Errorf("Cleanup with SELECT, UPDATE and DELETE: %v", err)
		}
	}
	if err := postgres.Revert(t.Context(), made, false); err != nil {
		t.Errorf("Revert by the owner: %v", err)
	}
	if is := schemaOf(t, root); is != "" {
		t.Errorf("Revert leaves\n%s", is)
	}
}

// useAll does everything that the driver can do with a name, by clients of a URL and over a pool,
// and returns the first error.
func useAll(t *testing.T, from, name string) error {
	t.Helper()
	b := side(t, config(t, from), netfault.NewProxy(), postgres.Options{})
	c, other := steps.ClientOf(t, byURL(t, from)), steps.ClientOf(t, b)
	ctx := await.Bounded(t, time.Minute)
	of := func(c *dlock.Client) []dlock.Mutex {
		rw := c.RWMutex(name + "/rw")
		return []dlock.Mutex{c.Mutex(name), rw.Write(), rw.Read(), c.Semaphore(name+"/permits", 1)}
	}
	firsts, seconds := of(c), of(other)
	for i, second := range []int{0, 2, 1, 3} { // a reader waits for a writer, a writer for a reader
		l, err := firsts[i].Lock(ctx)
		if err != nil {
			return err
		}
		waits := func(n int) {
			await.That(t, "so many wait", func() bool {
				q, err := b.Inspect(ctx, l.Name())
				return err != nil || len(q.Waiters()) == n
			})
		}
		waited := make(chan error, 1)
		go func() {
			next, err := seconds[second].Lock(ctx)
			if err == nil {
				err = next.Unlock(ctx)
			}
			waited <- err
		}()
		waits(1)
		gone, leave := context.WithCancel(ctx)
		left := make(chan error, 1)
		go func() {
			_, err := seconds[second].Lock(gone)
			left <- err
		}()
		waits(2)
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled request: %v", err)
		}
		joined, err := seconds[i].Lock(l.Context(ctx))
		_, inspected := c.Inspect(ctx, l.Name())
		_, listed := c.List(ctx)
		if err != nil {
			return err
		}
		for _, err := range []error{joined.Unlock(ctx), l.Err(), l.Renew(ctx), inspected, listed, l.Unlock(ctx), <-waited} {
			if err != nil {
				return err
			}
		}
	}
	fixed, err := c.Mutex(name + "/fixed").Lock(ctx)
	if err != nil {
		return err
	}
	if err := fixed.UnlockAfter(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	for _, m := range firsts {
		p, err := m.Lock(ctx)
		if err != nil {
			return err
		}
		if err := c.Break(ctx, p.Name(), p.Token(), dlock.Force()); err != nil {
			return err
		}
		await.Closed(t, "the loss of what was broken", p.Lost())
	}
	return nil
}

// TestPostgresDefaults: dlock works where the sessions of a server, those of the user's pool too,
// begin with settings that are not the usual ones.
func TestPostgresDefaults(t *testing.T) {
	onOwn(t, func(t *testing.T, s *service.Server) {
		migrated(t, s) // with these, too
		u := leastRights(t, s, "dlock", "password")
		if err := useAll(t, u, "defaults"); err != nil {
			t.Error(err)
		}
		steps.NewChecker(t).Wants("such a server", u, map[string][2]string{"laws": steps.Holds, "rights": {"fine", ""}, "tables": {"fine", ""}, "version": {"fine", "."}})
		b, c := byURL(t, u), sideOf(t, s)
		for i := range 3 {
			steps.Acquired(t, b, steps.Asked(b, "name/"+string(rune('a'+i)), time.Minute))
		}
		r := steps.Asked(b, "read", time.Minute)
		for range 3 {
			r.ID = driver.NewID()
			r.Owner, r.Mode = r.ID, driver.Shared
			steps.Acquired(t, b, r)
		}
		for _, l := range []interface {
			driver.Backend
			driver.Lister
		}{b.(*postgres.Backend), c} {
			if names, err := l.List(t.Context()); len(names) < 4 || err != nil {
				t.Errorf("the names are %q, %v", names, err)
			}
			if q := steps.Queue(t, l, "read"); len(q.Arrivals) != 3 {
				t.Errorf("the queue has %d requests", len(q.Arrivals))
			}
		}
	}, "-c", "default_transaction_isolation=serializable", "-c", "default_transaction_deferrable=on", "-c", "bytea_output=escape", "-c", "timezone=Asia/Kolkata",
		"-c", "datestyle=SQL,DMY", "-c", "intervalstyle=sql_standard", "-c", "standard_conforming_strings=off", "-c", "extra_float_digits=-15",
		"-c", "row_security=off", "-c", "max_prepared_transactions=5")
}

// TestPostgresPooledDefaults: behind PgBouncer, where nothing is prepared and no session can be set
// up, dlock works with a role whose sessions begin with settings that are not the usual ones.
func TestPostgresPooledDefaults(t *testing.T) {
	t.Parallel()
	s := migrated(t, service.StartOwn(t, PostgreSQL))
	leastRights(t, s, "dlock", "")
	for name, value := range map[string]string{
		"bytea_output": "escape", "default_transaction_isolation": "serializable", "timezone": "Asia/Kolkata", "datestyle": "SQL, DMY",
		"intervalstyle": "sql_standard", "standard_conforming_strings": "off", "extra_float_digits": "-15",
	} {
		t.Run(name, func(t *testing.T) {
			root := poolOf(t, s.URL)
			execute(t, root, "ALTER ROLE dlock SET "+name+" = '"+value+"'")
			defer execute(t, root, "ALTER ROLE dlock RESET "+name)
			b := service.StartOwn(t, Before(s)) // it has no sessions from before
			from := params(t, as(t, b.URL, "dlock", ""), "default_query_exec_mode", "exec")
			own := byURL(t, as(t, b.URL, "dlock", ""))
			exercise(t, own, "pooled/own/"+name)
			exercise(t, side(t, config(t, from), netfault.NewProxy(), postgres.Options{}), "pooled/pool/"+name)
		})
	}
}
