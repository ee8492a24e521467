package mysql

import (
	"bytes"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/netfault"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// opens tries to open the driver in both ways, and returns what they say.
func opens(t *testing.T, s *service.Server, user, params string) map[string]error {
	t.Helper()
	errs := map[string]error{}
	c, err := dlock.Open(t.Context(), strings.Replace(s.URL, "root@", user+"@", 1)+params, dlock.Logger(nil))
	if errs["Open"] = err; err == nil {
		c.Close()
	}
	d := mysqlOf(t, s)
	d.User = user
	b, err := mysql.New(d.pool(t), mysql.Options{})
	if err == nil { // New has no context: what it does not say, the first call does
		r := steps.Asked(b, "opens", time.Minute)
		if _, err = b.Acquire(t.Context(), r); err == nil {
			err = b.Release(t.Context(), r)
		}
		b.Close()
	}
	errs["New"] = err
	return errs
}

// refusals is what all that opens, migrates and cleans up says.
func refusals(t *testing.T, s *service.Server, db *sql.DB) map[string]error {
	t.Helper()
	errs := opens(t, s, "root", "")
	errs["migrate=true"] = opens(t, s, "root", "?migrate=true")["Open"]
	errs["Migrate"] = mysql.Migrate(t.Context(), db)
	_, errs["Cleanup"] = mysql.Cleanup(t.Context(), db, time.Hour)
	return errs
}

// says fails the test unless all errors name what is wrong.
func says(t *testing.T, what string, errs map[string]error, words ...string) {
	t.Helper()
	for way, err := range errs {
		for _, w := range words {
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(w)) {
				t.Errorf("%s, by %s: %v; want it to say %q", what, way, err, w)
			}
		}
	}
}

// TestMySQLOpen: what a server lacks is said when it is opened, with the way to mend it.
func TestMySQLOpen(t *testing.T) {
	t.Parallel()
	onMySQL(t, func(t *testing.T, s *service.Server) {
		root := mysqlOf(t, s).pool(t)
		says(t, "an empty database", opens(t, s, "root", ""), "tables", "?migrate=true", "mysql.Migrate")
		for way, err := range opens(t, s, "root", "?migrate=true") {
			if err != nil {
				t.Errorf("migrated, by %s: %v", way, err)
			}
		}
		if err := mysql.Migrate(t.Context(), root); err != nil {
			t.Errorf("Migrate again: %v", err)
		}
		migrated(t, s)

		execute(t, root, "CREATE USER writer@'%' IDENTIFIED BY ''", "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON test.* TO writer@'%'")
		for way, err := range opens(t, s, "writer", "") {
			if err != nil {
				t.Errorf("with a writer, by %s: %v", way, err)
			}
		}
		execute(t, root, "SET GLOBAL read_only = 1")
		says(t, "a server that takes no writes", opens(t, s, "writer", ""), "read-only")
		execute(t, root, "SET GLOBAL read_only = 0")

		version := one[int](t, root, "CALL dlock_version()")
		execute(t, root, "DROP PROCEDURE dlock_version", fmt.Sprint("CREATE PROCEDURE dlock_version() SELECT ", version-1))
		says(t, "an older schema", refusals(t, s, root), fmt.Sprint(version-1), fmt.Sprint(version), "another version", "migrate again")
		execute(t, root, "DROP PROCEDURE dlock_version", fmt.Sprint("CREATE PROCEDURE dlock_version() SELECT ", version+1))
		says(t, "a newer schema", refusals(t, s, root), fmt.Sprint(version+1), fmt.Sprint(version), "newer version")
		execute(t, root, "DROP PROCEDURE dlock_version")
		says(t, "a schema without a version", opens(t, s, "root", ""), "?migrate=true")
		execute(t, root, fmt.Sprintf("CREATE PROCEDURE dlock_version() BEGIN SELECT %d; SELECT @@max_allowed_packet; END", version))

		execute(t, root, "DROP TABLE dlock_requests")
		says(t, "a schema without a table", opens(t, s, "root", ""), "dlock_requests")
	})
}

// TestMySQLSchemaChanges: a client that runs while the schema is changed is refused by the first
// procedure that changed, and says which schema is there. So is one that waits, by what it looks
// with.
func TestMySQLSchemaChanges(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		migrated(t, s)
		root := mysqlOf(t, s).pool(t)
		version := one[int](t, root, "CALL dlock_version()")
		for what, c := range map[string]struct {
			change []string
			words  []string
		}{
			"newer": {[]string{"DROP PROCEDURE dlock_version", fmt.Sprint("CREATE PROCEDURE dlock_version() SELECT ", version+1)},
				[]string{fmt.Sprint(version), fmt.Sprint(version + 1), "newer version"}},
			"older": {[]string{"DROP PROCEDURE dlock_version", fmt.Sprint("CREATE PROCEDURE dlock_version() SELECT ", version-1)},
				[]string{fmt.Sprint(version), fmt.Sprint(version - 1), "another version"}},
			"gone": {[]string{"DROP PROCEDURE dlock_version"}, []string{"?migrate=true"}},
		} {
			s := migrated(t, withDatabase(t, s))
			b, other, holder, db := sideOf(t, s), sideOf(t, s), sideOf(t, s), mysqlOf(t, s).pool(t)
			held := steps.Asked(holder, "a", time.Minute)
			steps.Acquired(t, holder, held)
			waited := steps.Acquiring(other, steps.Waiting(other, "a", time.Minute))
			await.That(t, "one waits", func() bool { return len(steps.Queue(t, b, "a").Waiters()) == 1 })
			change := c.change
			// a lock that is asked for, and one that is waited for
			for _, p := range []string{"dlock_acquire", "dlock_look"} {
				change = append(change, "DROP PROCEDURE "+p, "CREATE PROCEDURE "+p+"(IN p INT) SELECT p")
			}
			execute(t, db, change...)
			_, err := b.Acquire(t.Context(), steps.Asked(b, "b", time.Minute))
			says(t, what, map[string]error{"Acquire": err}, c.words...)
			// MariaDB lets a session that called a procedure while it was dropped call it on, and
			// who waits there is granted as before. A new session has nothing but the new one.
			sessions := one[string](t, db, "SELECT GROUP_CONCAT(id) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
			for id := range strings.SplitSeq(sessions, ",") {
				db.ExecContext(t.Context(), "KILL "+id) // it may have gone
			}
			steps.Released(t, holder, held) // it does not know yet, and this procedure is as it was
			says(t, what, map[string]error{"an Acquire that waited": <-waited}, c.words...)
		}
	})
}

// TestMySQLMigrateRace: programs that start together migrate together.
func TestMySQLMigrateRace(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				c, err := dlock.Open(t.Context(), s.URL+"?migrate=true", dlock.Logger(nil))
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
	})
}

// TestMySQLBinlogFormat: with a binary log of statements the server refuses what READ COMMITTED
// transactions write.
func TestMySQLBinlogFormat(t *testing.T) {
	t.Parallel()
	onMySQL(t, func(t *testing.T, s *service.Server) {
		db := mysqlOf(t, s).open()
		defer db.Close()
		err := mysql.Migrate(t.Context(), db)
		errs := opens(t, s, "root", "?migrate=true")
		if err != nil {
			errs["Migrate"] = err
		}
		says(t, "a binary log of statements", errs, "binlog_format", "ROW")
	}, "--log-bin=binlog", "--server-id=1", "--binlog-format=STATEMENT")
}

// TestMySQLWinterTime: the server's own time zone goes an hour ahead, and back, while a lease is
// held.
func TestMySQLWinterTime(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k service.Kind) {
		for lead := 8 * time.Second; !sawSummer(t, k, lead); lead *= 2 {
			if lead > 2*time.Minute {
				t.Fatal("the server was never up before its clock changed")
			}
		}
	})
}

// sawSummer starts a server whose summer begins after lead and ends after two of them. It reports
// whether there was time enough to see both.
func sawSummer(t *testing.T, k service.Kind, lead time.Duration) bool {
	ahead := time.Now().UTC().Add(lead).Truncate(time.Second)
	back := ahead.Add(lead)
	// In the form of POSIX: standard time is UTC here, summer time one hour more; each begins on a
	// day and at a local time.
	stamp := func(t time.Time) string { return fmt.Sprintf("%d/%s", t.YearDay()-1, t.Format("15:04:05")) }
	zone := "STD0SUM," + stamp(ahead) + "," + stamp(back.Add(time.Hour))
	command := k.Command
	k.Command = func(dir string, ports []int) []string {
		return append([]string{"env", "TZ=" + zone}, command(dir, ports)...)
	}
	s := migrated(t, service.StartOwn(t, k))
	saw := true
	t.Run("ahead", func(t *testing.T) { saw = sawChange(t, s, ahead, back) })
	if saw {
		t.Run("back", func(t *testing.T) { saw = sawChange(t, s, back, back.Add(time.Hour)) })
	}
	return saw
}

// sawChange holds leases while the server's local time changes, and reports whether there was time
// enough to see both sides of the change, before the next one.
func sawChange(t *testing.T, s *service.Server, at, next time.Time) bool {
	root := mysqlOf(t, s).pool(t)
	hour := func() int {
		return one[int](t, root, "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW())")
	}
	was := hour()
	b, other := sideOf(t, s), sideOf(t, s)
	const ttl = 4 * time.Second
	held := steps.ClientOf(t, other, dlock.TTL(3*ttl))
	dies, lives := steps.Asked(b, "change/dies", ttl), steps.Waiting(b, "change/dies", time.Minute)
	l, err := held.Mutex("change/lives").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if time.Until(at) < ttl/2 {
		return false
	}
	<-time.After(time.Until(at) - ttl/2)
	start := time.Now()
	steps.Acquired(t, b, dies)
	steps.Acquired(t, b, lives)
	if took := time.Since(start); took < ttl-100*time.Millisecond || took > ttl+10*time.Second {
		t.Errorf("a hold of %s blocked others for %s", ttl, took)
	}
	await.That(t, "the clock changes", func() bool { return hour() != was || time.Now().After(next) })
	if time.Now().After(next) {
		return false
	}
	if q := steps.Queue(t, b, "change/dies"); len(q.Holders()) != 1 || q.Holders()[0].Left > time.Minute || q.Holders()[0].Left < 30*time.Second || q.Holders()[0].Age > 30*time.Second {
		t.Errorf("after the change there is %+v", q.Holders())
	}
	if err := errors.Join(l.Err(), l.Renew(t.Context())); err != nil {
		t.Errorf("what was held and renewed: %v", err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	steps.Released(t, b, lives)
	return true
}

// TestMySQLSecrets: no error, log line or String shows a password.
func TestMySQLSecrets(t *testing.T) {
	t.Parallel()
	const canary = "canary-7f3a"
	onMySQL(t, func(t *testing.T, s *service.Server) {
		migrated(t, s)
		execute(t, mysqlOf(t, s).pool(t), "CREATE USER app@'%' IDENTIFIED BY '"+canary+"'", "GRANT ALL ON test.* TO app@'%'")
		var logs bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
		as := func(user, password string) string { return strings.Replace(s.URL, "root@", user+":"+password+"@", 1) }
		var seen []string
		fails := func(what, url string) {
			t.Helper()
			c, err := dlock.Open(t.Context(), url, dlock.Logger(logger))
			if err == nil {
				c.Close()
				t.Errorf("%s: Open succeeded", what)
			}
			seen = append(seen, what+": "+fmt.Sprintf("%v %+v %#v", err, err, err))
		}
		fails("a wrong password", as("app", canary+"-no"))
		fails("an unknown parameter", as("app", canary)+"?passwort="+canary)
		fails("a bad value", as("app", canary)+"?migrate="+canary)
		fails("a password that breaks the URL", as("app", canary+"%zz"))
		fails("an unknown database", as("app", canary)+"-none")
		fails("nobody listens", strings.Replace(as("app", canary), s.Addr, "127.0.0.1:1", 1))
		c, err := dlock.Open(t.Context(), as("app", canary), dlock.Logger(logger))
		if err != nil {
			t.Fatal(err)
		}
		d := mysqlOf(t, s)
		d.User, d.Passwd = "app", canary
		b := d.side(t, netfault.NewProxy(), mysql.Options{})
		seen = append(seen, fmt.Sprintf("%v %+v %#v %s", c, c, c, c), fmt.Sprintf("%v %+v %#v", b.Backend, b.Backend, b.Backend))
		s.Kill(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Mutex("a").Lock(ctx)
		seen = append(seen, fmt.Sprintf("%v %+v %#v", err, err, err))
		_, err = b.Acquire(ctx, steps.Asked(b, "a", time.Minute))
		seen = append(seen, fmt.Sprintf("%v %+v", err, err))
		c.Close()
		for _, text := range append(seen, logs.String()) {
			if strings.Contains(text, canary) {
				t.Errorf("the password is shown: %s", text)
			}
		}
		s.Restart(t)
	})
}

// TestMySQLURL: what a URL can say, and what it is told when it is wrong.
func TestMySQLURL(t *testing.T) {
	t.Parallel()
	s := migrated(t, shared(t, MariaDB))
	for url, words := range map[string]string{
		"mysql:///test":                    "host",
		"mysql://root@" + s.Addr:           "database",
		s.URL + "/deeper":                  "database",
		s.URL + "?nonsense=1":              "nonsense",
		s.URL + "?migrate=perhaps":         "migrate",
		"mysql://root@h1:1,h2:2/test":      "host",
		"mysql://root@" + s.Addr + "/none": "none",
	} {
		c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("Open(%s): %v; want it to say %q", url, err, words)
		}
	}
	c, err := dlock.Open(t.Context(), s.URL+"?ttl=10s&prefix=p/", dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a name").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	b := mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{Prefix: "p/"})
	if q := steps.Queue(t, b, "a name"); len(q.Holders()) != 1 || q.Holders()[0].TTL != 10*time.Second || q.Holders()[0].Token != l.Token() {
		t.Errorf("there is %+v", q)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := b.Acquire(t.Context(), steps.Asked(b, "a", time.Minute)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// hiding wraps the client library as some tracers do: rows that show no further result set.
type hiding struct{ sqldriver.Connector }

type hidingConn struct{ sqldriver.Conn }

type hidingRows struct{ sqldriver.Rows }

// Connect implements [sqldriver.Connector].
func (h hiding) Connect(ctx context.Context) (sqldriver.Conn, error) {
	c, err := h.Connector.Connect(ctx)
	return hidingConn{c}, err
}

// QueryContext implements [sqldriver.QueryerContext].
func (c hidingConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	rows, err := c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, query, args)
	return hidingRows{rows}, err
}

// TestMySQLHiddenResults: a pool whose driver hides what procedures return is refused by the first
// call, in words.
func TestMySQLHiddenResults(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		migrated(t, s)
		c, err := gomysql.NewConnector(mysqlOf(t, s).Config)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(hiding{c})
		defer db.Close()
		b, err := mysql.New(db, mysql.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		_, err = b.Acquire(t.Context(), steps.Asked(b, "a", time.Minute))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "NextResultSet") {
			t.Errorf("Acquire: %v", err)
		}
		for what, err := range map[string]error{"Migrate": mysql.Migrate(t.Context(), db), "Renew": steps.Renewed(b, steps.Asked(b, "a", time.Minute))} {
			if !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
