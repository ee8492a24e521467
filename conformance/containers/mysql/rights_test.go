package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// documentedGrants are the statements of docs/mysql.md that give a user what it needs.
func documentedGrants(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/mysql.md")
	if err != nil {
		t.Fatal(err)
	}
	var grants []string
	for line := range strings.Lines(string(page)) {
		if line = strings.TrimSuffix(strings.TrimSpace(line), ";"); strings.HasPrefix(line, "GRANT ") {
			grants = append(grants, line)
		}
	}
	if len(grants) < 2 {
		t.Fatalf("docs/mysql.md has the grants %q only", grants)
	}
	return grants
}

// split is a grant of several privileges as grants of one each.
func split(grant string) (parts []string) {
	privileges, rest, _ := strings.Cut(strings.TrimPrefix(grant, "GRANT "), " ON ")
	for p := range strings.SplitSeq(privileges, ",") {
		parts = append(parts, "GRANT "+strings.TrimSpace(p)+" ON "+rest)
	}
	return parts
}

// leastRights makes the user dlock with a password, and gives it what the documentation says in
// the server's database. It returns the server's URL for it.
func leastRights(t *testing.T, s *service.Server, root *sql.DB, password string) string {
	t.Helper()
	d := mysqlOf(t, s)
	execute(t, root, "DROP USER IF EXISTS dlock", "CREATE USER dlock IDENTIFIED BY '"+password+"'")
	for _, g := range documentedGrants(t) {
		execute(t, root, strings.Replace(g, " ON app.", " ON "+d.DBName+".", 1))
	}
	return strings.Replace(s.URL, "root@", "dlock:"+password+"@", 1)
}

// TestMySQLRights: the grants of the documentation suffice, each of them is needed, and each
// missing one is named when a client opens or makes its first call, before that changes anything.
func TestMySQLRights(t *testing.T) {
	t.Parallel()
	var documented []string
	for _, g := range documentedGrants(t) {
		documented = append(documented, split(g)...)
	}
	const all, none = -1, -2
	onShared(t, func(t *testing.T, s *service.Server) {
		migrated(t, s)
		d := mysqlOf(t, s)
		root := d.pool(t)
		user := "rights_" + d.DBName
		u := strings.Replace(s.URL, "root@", user+":password@", 1)
		execute(t, root, "DROP USER IF EXISTS "+user)
		defer execute(t, root, "DROP USER IF EXISTS "+user)
		execute(t, root, "CREATE TABLE another (k INT PRIMARY KEY)")
		try := func(name string, without int, words ...string) {
			t.Run(name, func(t *testing.T) {
				execute(t, root, "DROP USER IF EXISTS "+user, "CREATE USER "+user+" IDENTIFIED BY 'password'", "GRANT SELECT ON "+d.DBName+".another TO "+user)
				for i, g := range documented {
					if i != without && without != none {
						execute(t, root, strings.NewReplacer(" ON app.", " ON "+d.DBName+".", " TO dlock", " TO "+user).Replace(g))
					}
				}
				if without == all {
					if err := useAll(t, s, user, "all"); err != nil {
						t.Error(err)
					}
					return
				}
				errs := map[string]error{}
				c, err := dlock.Open(t.Context(), u, dlock.Logger(nil))
				if errs["Open"] = err; err == nil {
					c.Close()
				}
				as := dsn{d.Clone()}
				as.User, as.Passwd = user, "password"
				b := as.side(t, netfault.NewProxy(), mysql.Options{})
				_, errs["Acquire"] = steps.Acquire(t.Context(), b, steps.Asked(b, "first", time.Minute))
				_, errs["Acquire again"] = steps.Acquire(t.Context(), b, steps.Asked(b, "first", time.Minute))
				_, errs["Inspect"] = b.Inspect(t.Context(), "first")
				says(t, name, errs, append(words, "docs/mysql.md")...)
				if n := one[int](t, root, "SELECT (SELECT COUNT(*) FROM dlock_locks WHERE name = 'first') + (SELECT COUNT(*) FROM dlock_requests WHERE name = 'first')"); n != 0 {
					t.Errorf("calls that were refused left %d rows", n)
				}
			})
		}
		try("all", all)
		try("none", none, "missing: SELECT ON dlock_locks, SELECT ON dlock_requests")
		for i, g := range documented {
			right, rest, _ := strings.Cut(strings.TrimPrefix(g, "GRANT "), " ON app.")
			table, _, _ := strings.Cut(rest, " ")
			try("without "+right+" ON "+table, i, "missing: "+right+" ON "+table)
		}
	})
}

// TestMySQLRightsToMigrate: CREATE and SELECT make the tables, SELECT, DROP and LOCK TABLES remove
// them, SELECT and DELETE clean up. If one is missing nothing is done, and the error names it.
func TestMySQLRightsToMigrate(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		d := mysqlOf(t, s)
		root := d.pool(t)
		user := "migrate_" + d.DBName
		execute(t, root, "DROP USER IF EXISTS "+user)
		defer execute(t, root, "DROP USER IF EXISTS "+user)
		as := func(rights string) *sql.DB {
			t.Helper()
			execute(t, root, "DROP USER IF EXISTS "+user, "CREATE USER "+user, "GRANT "+rights+" ON "+d.DBName+".* TO "+user)
			c := dsn{d.Clone()}
			c.User = user
			return c.pool(t)
		}
		up := func(db *sql.DB) error { return mysql.Migrate(t.Context(), db) }
		down := func(db *sql.DB) error { return mysql.Revert(t.Context(), db, false) }
		clean := func(db *sql.DB) error { _, err := mysql.Cleanup(t.Context(), db, 0); return err }
		refused := func(what, rights string, do func(*sql.DB) error, words ...string) {
			t.Helper()
			before := schemaOf(t, root)
			says(t, rights, map[string]error{what: do(as(rights))}, append(words, "denied")...)
			if after := schemaOf(t, root); after != before {
				t.Errorf("%s with %s: left\n%s\nof\n%s", what, rights, after, before)
			}
		}
		done := func(what, rights string, do func(*sql.DB) error) {
			t.Helper()
			if err := do(as(rights)); err != nil {
				t.Errorf("%s with %s: %v", what, rights, err)
			}
		}
		refused("Migrate", "SELECT, DROP", up, "CREATE and SELECT")
		refused("Migrate", "CREATE, DROP", up, "CREATE and SELECT")
		refused("Migrate", "INSERT", up, "CREATE and SELECT")
		done("Migrate", "CREATE, SELECT", up)
		done("Migrate again", "SELECT", up)
		locksIn(t, root)
		refused("Revert", "SELECT, LOCK TABLES, CREATE", down, "SELECT, DROP and LOCK TABLES")
		refused("Revert", "SELECT, DROP, CREATE", down, "SELECT, DROP and LOCK TABLES")
		refused("Revert", "DROP, LOCK TABLES, CREATE", down, "SELECT, DROP and LOCK TABLES")
		refused("Cleanup", "SELECT", clean, "DELETE")
		done("Cleanup", "SELECT, DELETE", clean)
		done("Revert", "SELECT, DROP, LOCK TABLES", down)
		if left := schemaOf(t, root); left != "" {
			t.Errorf("Revert leaves\n%s", left)
		}
	})
}

// useAll does everything that the driver can do with a name, as that user, and returns the first
// error.
func useAll(t *testing.T, s *service.Server, user, name string) error {
	t.Helper()
	d := mysqlOf(t, s)
	d.User, d.Passwd = user, "password"
	b := d.side(t, netfault.NewProxy(), mysql.Options{})
	c, other := steps.ClientOf(t, byURL(t, strings.Replace(s.URL, "root@", user+":password@", 1))), steps.ClientOf(t, b)
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
			return fmt.Errorf("the cancelled request: %w", err)
		}
		joined, err := seconds[i].Lock(l.Context(ctx))
		_, inspected := c.Inspect(ctx, l.Name())
		_, listed := c.List(ctx)
		if err != nil {
			return err
		}
		if err := errors.Join(joined.Unlock(ctx), l.Err(), l.Renew(ctx), inspected, listed, l.Unlock(ctx), <-waited); err != nil {
			return err
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

// TestMySQLDefaults: dlock works where the sessions of a server, those of the user's pool too,
// begin with settings that are not the usual ones: transactions are read-only, answers are cut
// short, statements are not committed.
func TestMySQLDefaults(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) {
		root := mysqlOf(t, s).pool(t)
		readOnly := "SET GLOBAL transaction_read_only = 1"
		if s.Kind.Name == "mariadb" {
			readOnly = "SET GLOBAL tx_read_only = 1"
		}
		execute(t, root, readOnly, "SET GLOBAL sql_select_limit = 1", "SET GLOBAL autocommit = 0", "SET GLOBAL sql_safe_updates = 1",
			"SET GLOBAL completion_type = 'CHAIN'", "SET GLOBAL transaction_isolation = 'SERIALIZABLE'")
		migrated(t, s) // with these, too; root's connection is from before
		u := leastRights(t, s, root, "password")
		if err := useAll(t, s, "dlock", "defaults"); err != nil {
			t.Error(err)
		}
		steps.NewChecker(t).Wants("such a server", u, map[string][2]string{"laws": steps.Holds, "rights": {"fine", ""}, "tables": {"fine", ""}, "version": {"fine", "."}})
		// a queue and names that are more than the sessions' limit
		b, c := byURL(t, u), mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{})
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
		}{b.(*mysql.Backend), c} {
			if names, err := l.List(t.Context()); len(names) < 4 || err != nil {
				t.Errorf("the names are %q, %v", names, err)
			}
			if q := steps.Queue(t, l, "read"); len(q.Arrivals) != 3 {
				t.Errorf("the queue has %d requests", len(q.Arrivals))
			}
		}
	})
}
