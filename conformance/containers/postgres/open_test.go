package postgres

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
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

// opens tries to open the driver in its three ways, and returns their errors.
func opens(t *testing.T, from string) map[string]error {
	t.Helper()
	errs := map[string]error{}
	c, err := dlock.Open(t.Context(), from, dlock.Logger(nil))
	if errs["Open"] = err; err == nil {
		c.Close()
	}
	for way, b := range map[string]driver.Backend{
		"New":   side(t, config(t, from), netfault.NewProxy(), postgres.Options{}),
		"NewDB": sideOfDB(t, from, netfault.NewProxy(), postgres.Options{}),
	} { // they have no context: the first call reports what they do not
		r := steps.Asked(b, "opens", time.Minute)
		_, err := steps.Acquire(t.Context(), b, r)
		if errs[way] = err; err == nil {
			errs[way] = b.Release(t.Context(), r)
		}
		b.Close()
	}
	return errs
}

// refusals are the errors of everything that opens, migrates and cleans up.
func refusals(t *testing.T, s *service.Server, db *sql.DB) map[string]error {
	t.Helper()
	errs := opens(t, s.URL)
	c, err := dlock.Open(t.Context(), params(t, s.URL, "migrate", "true"), dlock.Logger(nil))
	if errs["migrate=true"] = err; err == nil {
		c.Close()
	}
	errs["Migrate"] = postgres.Migrate(t.Context(), db)
	_, errs["Cleanup"] = postgres.Cleanup(t.Context(), db, time.Hour)
	return errs
}

// fine fails the test if there is an error.
func fine(t *testing.T, what string, errs map[string]error) {
	t.Helper()
	for way, err := range errs {
		if err != nil {
			t.Errorf("%s, by %s: %v", what, way, err)
		}
	}
}

// TestPostgresOpen: opening a server that lacks something fails with an error that names it, and
// the remedy.
func TestPostgresOpen(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, PostgreSQL)
	root := poolOf(t, s.URL)
	says(t, "an empty database", opens(t, s.URL), "not have both tables", "dlock_locks, dlock_requests", "?migrate=true", "postgres.Migrate", "dlock migrate")
	if is := schemaOf(t, root); is != "" {
		t.Errorf("Open made\n%s", is)
	}
	fine(t, "migrated", map[string]error{"migrate=true": refusals(t, s, root)["migrate=true"]})
	fine(t, "migrated", refusals(t, s, root))
	whole := schemaOf(t, root)

	for what, c := range map[string]struct {
		do, undo string
		words    []string
	}{
		"a role that only reads":    {"ALTER ROLE app SET default_transaction_read_only = on", "ALTER ROLE app RESET default_transaction_read_only", []string{"default_transaction_read_only"}},
		"a role without durability": {"ALTER ROLE app SET synchronous_commit = off", "ALTER ROLE app RESET synchronous_commit", []string{"synchronous_commit"}},
		"a column more":             {"ALTER TABLE dlock_locks ADD COLUMN more int", "ALTER TABLE dlock_locks DROP COLUMN more", []string{"another version", "dlock_locks", "more", "drop the tables"}},
		"a column less":             {"ALTER TABLE dlock_locks RENAME COLUMN head TO front", "ALTER TABLE dlock_locks RENAME COLUMN front TO head", []string{"another version", "dlock_locks", "front", "drop the tables"}},
		"policies for rows":         {"ALTER TABLE dlock_locks ENABLE ROW LEVEL SECURITY", "ALTER TABLE dlock_locks DISABLE ROW LEVEL SECURITY", []string{"row-level security", "dlock_locks"}},
		"no more connections":       {"ALTER ROLE app CONNECTION LIMIT 0", "ALTER ROLE app CONNECTION LIMIT -1", []string{"too many connections"}},
		"no login":                  {"ALTER ROLE app NOLOGIN", "ALTER ROLE app LOGIN", []string{"not permitted to log in"}},
	} {
		newRole(t, root, "app")
		for _, g := range neededGrants {
			execute(t, root, g+" TO app")
		}
		from := as(t, s.URL, "app", "")
		fine(t, "before "+what, opens(t, from))
		execute(t, root, c.do)
		says(t, what, opens(t, from), c.words...)
		execute(t, root, c.undo)
		fine(t, "after "+what, opens(t, from))
	}
	for _, table := range []string{"dlock_requests", "dlock_locks"} {
		execute(t, root, "DROP TABLE "+table)
		says(t, "without "+table, opens(t, s.URL), "missing: "+table, "?migrate=true")
		fine(t, "without "+table, map[string]error{"migrate=true": refusals(t, s, root)["migrate=true"]})
		if is := schemaOf(t, root); is != whole {
			t.Errorf("without %s it makes\n%s\nwant\n%s", table, is, whole)
		}
	}
}

// TestPostgresSeveralHosts: a URL names a standby before the primary, and a server that is down.
func TestPostgresSeveralHosts(t *testing.T) {
	t.Parallel()
	s := migrated(t, service.StartOwn(t, PostgreSQL))
	standby := service.StartOwn(t, Standby(s))
	says(t, "a standby", opens(t, standby.URL), "standby")
	says(t, "Migrate", map[string]error{"a standby": postgres.Migrate(t.Context(), poolOf(t, standby.URL))}, "standby")
	for _, hosts := range []string{standby.Addr + "," + s.Addr, "127.0.0.1:1," + standby.Addr + "," + s.Addr, s.Addr + "," + standby.Addr} {
		for _, attrs := range []string{"", "&target_session_attrs=read-write", "&target_session_attrs=primary"} {
			from := "postgres://postgres@" + hosts + "/postgres?sslmode=disable" + attrs
			c, err := dlock.Open(t.Context(), from, dlock.Logger(nil))
			if err != nil {
				t.Errorf("%s: %v", from, err)
				continue
			}
			l := steps.MustLock(t, c.Mutex("several"))
			if err := l.Unlock(t.Context()); err != nil {
				t.Errorf("%s: %v", from, err)
			}
			c.Close()
		}
	}
	for attrs, words := range map[string]string{"standby": "target_session_attrs", "read-only": "target_session_attrs", "any": "standby"} {
		err := steps.FirstLock(t, "postgres://postgres@"+standby.Addr+","+s.Addr+"/postgres?sslmode=disable&target_session_attrs="+attrs)
		says(t, attrs, map[string]error{"Open": err}, words)
	}
	says(t, "two standbys", map[string]error{"Open": steps.FirstLock(t, "postgres://postgres@"+standby.Addr+","+standby.Addr+"/postgres?sslmode=disable")}, "none of the servers takes writes")
}

// TestPostgresSchemaChanges: a client that runs while the tables are changed or removed fails with
// the first statement that cannot be executed, and reports what is there. So does one that waits.
func TestPostgresSchemaChanges(t *testing.T) {
	t.Parallel()
	server := shared(t)
	for what, c := range map[string]struct{ change, words []string }{
		"others": {[]string{"ALTER TABLE dlock_locks RENAME COLUMN head TO front"}, []string{"dlock_locks", "migrate"}},
		"gone":   {[]string{"DROP TABLE dlock_locks", "DROP TABLE dlock_requests"}, []string{"?migrate=true"}},
	} {
		t.Run(what, func(t *testing.T) {
			s := migrated(t, withDatabase(t, server))
			b, other, holder := sideOf(t, s), byURL(t, s.URL), byURL(t, s.URL)
			held := steps.Asked(holder, "a", time.Minute)
			steps.Acquired(t, holder, held)
			waited := steps.Acquiring(other, steps.Waiting(other, "a", time.Minute))
			await.That(t, "one waits", func() bool { return len(steps.Queue(t, b, "a").Waiters()) == 1 })
			execute(t, poolOf(t, s.URL), c.change...)
			_, err := steps.Acquire(t.Context(), b, steps.Asked(b, "b", time.Minute))
			says(t, what, map[string]error{"Acquire": err, "an Acquire that waited": <-waited}, c.words...)
		})
	}
}

// TestPostgresMigrateRace: programs that start together migrate together.
func TestPostgresMigrateRace(t *testing.T) {
	t.Parallel()
	server := shared(t)
	for range 5 {
		s := withDatabase(t, server)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if i%2 == 0 {
					if err := postgres.Migrate(t.Context(), poolOf(t, s.URL)); err != nil {
						t.Errorf("Migrate: %v", err)
					}
					return
				}
				c, err := dlock.Open(t.Context(), params(t, s.URL, "migrate", "true"), dlock.Logger(nil))
				if err != nil {
					t.Errorf("Open: %v", err)
					return
				}
				defer c.Close()
				if l, err := c.Mutex("migrated").Lock(await.Context(t)); err != nil {
					t.Errorf("client %d: %v", i, err)
				} else if err := l.Unlock(t.Context()); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			})
		}
		await.All(t, &wg)
	}
}

// TestPostgresMigrateUnderUse: Migrate of a database that is in use does not keep its clients
// waiting, although a transaction that reads the tables stays open.
func TestPostgresMigrateUnderUse(t *testing.T) {
	t.Parallel()
	s := migrated(t, shared(t))
	root := poolOf(t, s.URL)
	tx, err := root.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	one[int](t, tx, "SELECT count(*) FROM dlock_locks")
	done, stop := steps.TakeTurns(t, "migrate", 4, sideOf(t, s), steps.ClientOf(t, sideOf(t, s)))
	steps.Further(t, done, 20)
	for range 10 {
		if err := postgres.Migrate(t.Context(), root); err != nil {
			t.Errorf("Migrate: %v", err)
		}
	}
	steps.Further(t, done, 20)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := postgres.Revert(ctx, root, true); err == nil {
		t.Error("Revert removed tables that a transaction reads")
	}
	steps.Further(t, done, 20)
	stop()
}

// TestPostgresSecrets: no error, log line or String contains a password.
func TestPostgresSecrets(t *testing.T) {
	t.Parallel()
	const canary = "canary-7f3a"
	s := migrated(t, withPasswords(t))
	execute(t, poolOf(t, s.URL), "CREATE ROLE app LOGIN PASSWORD '"+canary+"'", "GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
	var logs bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	from := as(t, s.URL, "app", canary)
	var seen []string
	fails := func(what, url string) {
		t.Helper()
		c, err := dlock.Open(t.Context(), url, dlock.Logger(logger))
		if err == nil {
			c.Close()
			t.Errorf("%s: Open succeeded", what)
		}
		seen = append(seen, what+": "+fmt.Sprintf("%v %+v %#v", err, err, err))
		db, err := postgres.OpenDB(url)
		if err == nil {
			err = errors.Join(db.PingContext(t.Context()), db.Close())
		}
		seen = append(seen, what+", by OpenDB: "+fmt.Sprintf("%v %+v %#v", err, err, err))
	}
	fails("a wrong password", as(t, s.URL, "app", canary+"-no"))
	fails("an unknown parameter", params(t, from, "passwort", canary))
	fails("a parameter that is not for URLs", params(t, from, "password", canary))
	fails("a bad value", params(t, from, "migrate", canary))
	fails("a bad value of the library", params(t, from, "sslmode", "perhaps"))
	fails("a password that breaks the URL", strings.Replace(from, canary, canary+"%zz", 1))
	fails("a password with a slash", strings.Replace(from, canary, canary+"/x", 1))
	fails("an unknown database", with(t, from, toDatabase("none")))
	fails("no server there", with(t, from, func(u *url.URL) { u.Host = "127.0.0.1:1" }))
	fails("a file that is not there", params(t, from, "sslmode", "verify-full", "sslrootcert", "/none"))
	c, err := dlock.Open(t.Context(), from, dlock.Logger(logger))
	if err != nil {
		t.Fatal(err)
	}
	b := side(t, config(t, from), netfault.NewProxy(), postgres.Options{})
	seen = append(seen, fmt.Sprintf("%v %+v %#v %s", c, c, c, c), fmt.Sprintf("%v %+v", b.Backend, b.Backend))
	s.Kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = c.Mutex("a").Lock(ctx)
	seen = append(seen, fmt.Sprintf("%v %+v %#v", err, err, err))
	_, err = steps.Acquire(ctx, b, steps.Asked(b, "a", time.Minute))
	seen = append(seen, fmt.Sprintf("%v %+v", err, err))
	c.Close()
	for _, text := range append(seen, logs.String()) {
		if strings.Contains(text, canary) {
			t.Errorf("the password is shown: %s", text)
		}
	}
	s.Restart(t)
}

// TestPostgresURL: the parts of a URL, and the errors of wrong URLs.
func TestPostgresURL(t *testing.T) {
	t.Parallel()
	s := migrated(t, shared(t))
	for from, words := range map[string]string{
		"postgres:///test":                             "host",
		"postgres://postgres@" + s.Addr:                "database",
		with(t, s.URL, toDatabase("a/b")):              "database",
		params(t, s.URL, "nonsense", "1"):              "nonsense",
		params(t, s.URL, "migrate", "perhaps"):         "migrate",
		params(t, s.URL, "pool_size", "1"):             "pool_size",
		params(t, s.URL, "connect_timeout", "0"):       "connect_timeout",
		params(t, s.URL, "sslmode", "perhaps"):         "sslmode",
		params(t, s.URL, "statement_timeout", "1"):     "statement_timeout",
		with(t, s.URL, toDatabase("none")):             "none",
		params(t, s.URL, "options", "-c nonsense=on"):  "nonsense",
		params(t, s.URL, "search_path", "pg_catalog"):  "search_path",
		params(t, s.URL, "target_session_attrs", "no"): "target_session_attrs",
	} {
		c, err := dlock.Open(t.Context(), from, dlock.Logger(nil))
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("Open(%s): %v; want it to say %q", from, err, words)
		}
	}
	from := with(t, params(t, s.URL, "ttl", "10s", "prefix", "p/", "application_name", "the test's", "pool_size", "2"), func(u *url.URL) { u.Scheme = "postgresql" })
	c, err := dlock.Open(t.Context(), from, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a name").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	b := side(t, config(t, s.URL), netfault.NewProxy(), postgres.Options{Prefix: "p/"})
	if q := steps.Queue(t, b, "a name"); len(q.Holders()) != 1 || q.Holders()[0].TTL != 10*time.Second || q.Holders()[0].Token != l.Token() {
		t.Errorf("there is %+v", q)
	}
	if n := one[int](t, b.db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'the test''s' AND datname = current_database()"); n < 1 || n > 2 {
		t.Errorf("%d connections have the name of the application", n)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := steps.Acquire(t.Context(), b, steps.Asked(b, "a", time.Minute)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	db, err := postgres.OpenDB(from)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if got := one[string](t, db, "SELECT current_database() || ' ' || current_setting('application_name')"); got != databaseOf(t, s.URL)+" the test's" {
		t.Errorf("OpenDB connects to %s", got)
	}
}

// TestPostgresFull: on a server that has no room for more the first call fails with an error that
// says so, after its time, and succeeds once there is room. Nothing is left of the failed call.
func TestPostgresFull(t *testing.T) {
	t.Parallel()
	s := migrated(t, service.StartOwn(t, PostgreSQL))
	root := poolOf(t, s.URL)
	b := sideOf(t, s)
	r := steps.Asked(b, "full", time.Minute)
	steps.Acquired(t, b, r)
	steps.Released(t, b, r)
	// no file may grow: a new name needs a page
	execute(t, root, "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
		"CREATE TRIGGER full_disk BEFORE INSERT ON dlock_locks FOR EACH ROW EXECUTE FUNCTION full_disk()")
	next := steps.Asked(b, "another", time.Minute)
	start := time.Now()
	_, err := steps.Acquire(t.Context(), b, next)
	says(t, "a full server", map[string]error{"Acquire": err}, "No space left")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it failed after %s", took)
	}
	execute(t, root, "DROP TRIGGER full_disk ON dlock_locks")
	await.That(t, "the failed call holds nothing", func() bool { return steps.Queue(t, b, next.Name).Len() == 0 })
	steps.Acquired(t, b, steps.Asked(b, next.Name, time.Minute))
}

// TestPostgresWinterTime: the server's time zone goes an hour ahead, and back, while a lease is
// held: nothing depends on it.
func TestPostgresWinterTime(t *testing.T) {
	t.Parallel()
	s := migrated(t, service.StartOwn(t, PostgreSQL))
	root := poolOf(t, s.URL)
	c := steps.ClientOf(t, sideOf(t, s), dlock.TTL(3*time.Second))
	l := steps.MustLock(t, c.Mutex("winter"))
	for _, zone := range []string{"Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"} {
		execute(t, root, "ALTER SYSTEM SET timezone = '"+zone+"'")
		one[bool](t, root, "SELECT pg_reload_conf()")
		until := l.Until()
		await.That(t, "the lease is renewed, or lost", func() bool { return l.Until().After(until) || l.Err() != nil })
		b := sideOf(t, s)
		q := steps.Queue(t, b, "winter")
		if h := q.Holders(); l.Err() != nil || len(h) != 1 || h[0].Left > 3*time.Second || h[0].Left <= 0 || h[0].Age > time.Minute || h[0].Age < 0 {
			t.Errorf("in %s: %v, there is %+v", zone, l.Err(), h)
		}
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestPostgresFirstConnection: Open makes one connection, which serves the first calls, and has the
// settings of those that follow.
func TestPostgresFirstConnection(t *testing.T) {
	t.Parallel()
	s := migrated(t, shared(t))
	root := poolOf(t, s.URL)
	execute(t, root, "CREATE TABLE seen (settings text)",
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO seen SELECT concat_ws(' ', current_setting('lock_timeout'), current_setting('plan_cache_mode'),
				current_setting('enable_seqscan'), current_setting('jit'), current_setting('default_transaction_isolation'));
			RETURN NULL; END $$`,
		"CREATE TRIGGER see AFTER INSERT OR UPDATE ON dlock_locks FOR EACH ROW EXECUTE FUNCTION see()")
	own, p := ownSide(t, s)
	steps.Acquired(t, own, steps.Asked(own, "first connection", time.Minute))
	if n := p.Counts().Open; n != 1 {
		t.Errorf("%d connections are open; want 1", n)
	}
	const want = "2s force_generic_plan off off read committed"
	if got := one[string](t, root, "SELECT coalesce(string_agg(DISTINCT settings, ', '), '') FROM seen"); got != want {
		t.Errorf("the lock was taken in a session with %q; want %q", got, want)
	}
}
