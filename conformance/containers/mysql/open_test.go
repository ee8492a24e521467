package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// opens tries to open the driver in both ways, and returns their errors.
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
	if err == nil { // New has no context: the first call reports what New does not
		r := steps.Asked(b, "opens", time.Minute)
		if _, err = steps.Acquire(t.Context(), b, r); err == nil {
			err = b.Release(t.Context(), r)
		}
		b.Close()
	}
	errs["New"] = err
	return errs
}

// refusals are the errors of everything that opens, migrates and cleans up.
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

// TestMySQLOpen: opening a server that lacks something fails with an error that names it, and the
// remedy.
func TestMySQLOpen(t *testing.T) {
	t.Parallel()
	onMySQL(t, func(t *testing.T, s *service.Server) {
		root := mysqlOf(t, s).pool(t)
		says(t, "an empty database", opens(t, s, "root", ""), "not have both tables", "dlock_locks, dlock_requests", "?migrate=true", "mysql.Migrate", "dlock migrate")
		if is := schemaOf(t, root); is != "" {
			t.Errorf("Open made\n%s", is)
		}
		for way, err := range opens(t, s, "root", "?migrate=true") {
			if err != nil {
				t.Errorf("migrated, by %s: %v", way, err)
			}
		}
		if err := mysql.Migrate(t.Context(), root); err != nil {
			t.Errorf("Migrate again: %v", err)
		}
		whole := schemaOf(t, root)

		execute(t, root, "CREATE USER writer@'%' IDENTIFIED BY ''", "GRANT SELECT, INSERT, UPDATE, DELETE ON test.* TO writer@'%'")
		for way, err := range opens(t, s, "writer", "") {
			if err != nil {
				t.Errorf("with a writer, by %s: %v", way, err)
			}
		}
		execute(t, root, "SET GLOBAL read_only = 1")
		says(t, "a server that takes no writes", opens(t, s, "writer", ""), "read-only")
		execute(t, root, "SET GLOBAL read_only = 0")

		for _, table := range []string{"dlock_requests", "dlock_locks"} {
			execute(t, root, "DROP TABLE "+table)
			says(t, "without "+table, opens(t, s, "root", ""), "missing: "+table, "?migrate=true")
			says(t, "a writer without "+table, opens(t, s, "writer", ""), "missing: "+table, "?migrate=true")
			if err := opens(t, s, "root", "?migrate=true")["Open"]; err != nil {
				t.Errorf("without %s: %v", table, err)
			}
			if is := schemaOf(t, root); is != whole {
				t.Errorf("without %s it makes\n%s\nwant\n%s", table, is, whole)
			}
		}
		execute(t, root, "ALTER TABLE dlock_locks ADD COLUMN more INT")
		says(t, "a column more", refusals(t, s, root), "another version", "dlock_locks", "more", "drop the tables")
		execute(t, root, "ALTER TABLE dlock_locks DROP COLUMN more, DROP COLUMN head")
		says(t, "a column less", refusals(t, s, root), "another version", "dlock_locks", "head", "drop the tables")
	})
}

// TestMySQLDocumentedQueries: the queries of docs/mysql.md show the holders and the waiters.
func TestMySQLDocumentedQueries(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/mysql.md")
	if err != nil {
		t.Fatal(err)
	}
	var queries []string
	for block := range strings.SplitSeq(string(page), "```") {
		if q, is := strings.CutPrefix(block, "sql\nSELECT "); is {
			queries = append(queries, "SELECT "+q)
		}
	}
	if len(queries) != 2 {
		t.Fatalf("docs/mysql.md has the queries %q", queries)
	}
	onShared(t, func(t *testing.T, s *service.Server) {
		b, other := byURL(t, migrated(t, s).URL), byURL(t, s.URL)
		held := steps.Asked(b, "a", time.Minute)
		held.Label = "the holder"
		tokens := map[string]driver.Token{held.Label: steps.Acquired(t, b, held).Token}
		next := steps.Waiting(other, "a", time.Minute)
		next.Label = "the next"
		waited := steps.Acquiring(other, next)
		await.That(t, "one waits", func() bool { return len(steps.Queue(t, b, "a").Waiters()) == 1 })
		reader := steps.Asked(b, "b", time.Minute)
		reader.Mode, reader.Label = driver.Shared, "the reader"
		tokens[reader.Label] = steps.Acquired(t, b, reader).Token
		var shown []string
		for _, q := range queries {
			rows, err := mysqlOf(t, s).pool(t).Query(q)
			if err != nil {
				t.Fatalf("%s: %v", q, err)
			}
			defer rows.Close()
			columns, err := rows.Columns()
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				values, at := make([]sql.NullString, len(columns)), make([]any, len(columns))
				for i := range values {
					at[i] = &values[i]
				}
				if err := rows.Scan(at...); err != nil {
					t.Fatal(err)
				}
				of := map[string]string{"state": "holds"} // the first query has no such column
				for i, c := range columns {
					of[c] = values[i].String
				}
				shown = append(shown, of["name"]+" "+of["label"]+" "+of["state"])
				if token := tokens[of["label"]]; token != 0 && of["token"] != fmt.Sprint(token) {
					t.Errorf("%s has the token %s, want %d", of["label"], of["token"], token)
				}
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(shown, ", "); got != "a the holder holds, a the next waits, b the reader holds" {
			t.Errorf("the queries show %s", got)
		}
		steps.Released(t, b, held)
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

// TestMySQLSmallPacket: a server whose packets are too small for dlock is refused.
func TestMySQLSmallPacket(t *testing.T) {
	t.Parallel()
	onMySQL(t, func(t *testing.T, s *service.Server) {
		migrated(t, s)
		execute(t, mysqlOf(t, s).pool(t), "SET GLOBAL max_allowed_packet = 8192")
		errs := opens(t, s, "root", "")
		says(t, "small packets", errs, "max_allowed_packet", "16384")
		for way, err := range errs {
			if !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("%s: %v does not match ErrUnsupported", way, err)
			}
		}
	})
}

// TestMySQLFull: on a server that has no room for a row the first call fails with an error that
// says so, after its time, and succeeds once there is room. Nothing is left of the failed call.
func TestMySQLFull(t *testing.T) {
	t.Parallel()
	onMySQL(t, func(t *testing.T, s *service.Server) {
		root := mysqlOf(t, s).pool(t)
		execute(t, root, "SET GLOBAL innodb_file_per_table = 0")
		migrated(t, s)
		execute(t, root, "CREATE TABLE filler (k INT AUTO_INCREMENT PRIMARY KEY, v VARBINARY(7000) NOT NULL) ENGINE = InnoDB")
		for size := 7000; size > 0; size /= 10 { // a page that the last one left may have room
			for {
				_, err := root.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO filler (v) VALUES (REPEAT('x', %d))", size))
				var e *gomysql.MySQLError
				if errors.As(err, &e) && e.Number == 1114 {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		b := mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{})
		var failed error
		var r driver.Request
		for n := 0; failed == nil; n++ { // a page of the table may have room
			if n == 10000 {
				t.Fatal("the server is never full")
			}
			r = steps.Asked(b, fmt.Sprint(strings.Repeat("n", 200), n), time.Minute)
			_, failed = steps.Acquire(t.Context(), b, r)
		}
		says(t, "a full server", map[string]error{"Acquire": failed}, "full")
		execute(t, root, "DROP TABLE filler")
		if n := one[int](t, root, "SELECT COUNT(*) FROM dlock_locks WHERE name = CAST(? AS BINARY) AND held_until > UTC_TIMESTAMP(6)", r.Name); n != 0 {
			t.Errorf("%d rows hold for a call that failed", n)
		}
		steps.Acquired(t, b, steps.Asked(b, r.Name, time.Minute))
	}, "--innodb-data-file-path=ibdata1:12M")
}

// TestMySQLSchemaChanges: a client that runs while the tables are changed or removed fails with the
// first statement that cannot be executed, and reports what is there. So does one that waits.
func TestMySQLSchemaChanges(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		for what, c := range map[string]struct{ change, words []string }{
			"others": {[]string{"ALTER TABLE dlock_locks RENAME COLUMN head TO front"}, []string{"another version", "front", "drop the tables"}},
			"gone":   {[]string{"DROP TABLE dlock_locks", "DROP TABLE dlock_requests"}, []string{"?migrate=true", "missing"}},
		} {
			s := migrated(t, withDatabase(t, s))
			b, other, holder := mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{}), byURL(t, s.URL), byURL(t, s.URL)
			held := steps.Asked(holder, "a", time.Minute)
			steps.Acquired(t, holder, held)
			waited := steps.Acquiring(other, steps.Waiting(other, "a", time.Minute))
			await.That(t, "one waits", func() bool { return len(steps.Queue(t, b, "a").Waiters()) == 1 })
			execute(t, mysqlOf(t, s).pool(t), c.change...)
			_, err := steps.Acquire(t.Context(), b, steps.Asked(b, "b", time.Minute))
			says(t, what, map[string]error{"Acquire": err, "an Acquire that waited": <-waited}, c.words...)
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

// TestMySQLBinlogFormat: with a binary log of statements the server refuses writes of READ
// COMMITTED transactions. The driver's own connections always have these, those of a user's pool if
// they are set so.
func TestMySQLBinlogFormat(t *testing.T) {
	t.Parallel()
	onMySQL(t, func(t *testing.T, s *service.Server) {
		root := mysqlOf(t, s).pool(t)
		if err := mysql.Migrate(t.Context(), root); err != nil {
			t.Error(err)
		}
		errs := opens(t, s, "root", "")
		if err := errs["New"]; err != nil {
			t.Errorf("a pool with REPEATABLE READ: %v", err)
		}
		execute(t, root, "SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED")
		says(t, "a binary log of statements", opens(t, s, "root", "?migrate=true"), "binlog_format", "ROW")
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
	b, other := mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{}), mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{})
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
	if err := steps.Renewed(b, lives); err != nil { // after a wait it has less time at first
		t.Error(err)
	}
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
		t.Errorf("the hold that was renewed: %v", err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	steps.Released(t, b, lives)
	return true
}

// TestMySQLSecrets: no error, log line or String contains a password.
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
		fails("no server there", strings.Replace(as("app", canary), s.Addr, "127.0.0.1:1", 1))
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
		_, err = steps.Acquire(ctx, b, steps.Asked(b, "a", time.Minute))
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

// TestMySQLURL: the parts of a URL, and the errors of wrong URLs.
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
	if _, err := steps.Acquire(t.Context(), b, steps.Asked(b, "a", time.Minute)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
