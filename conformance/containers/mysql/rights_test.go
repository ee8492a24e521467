package mysql

import (
	"context"
	"errors"
	"os"
	"strings"
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

// TestMySQLRights: the grants of the documentation suffice, each of them is needed, and one that is
// missing is named.
func TestMySQLRights(t *testing.T) {
	t.Parallel()
	var documented []string
	for _, g := range documentedGrants(t) {
		documented = append(documented, split(g)...)
	}
	onShared(t, func(t *testing.T, s *service.Server) {
		migrated(t, s)
		root := mysqlOf(t, s).pool(t)
		var grants []string
		for _, g := range documented {
			grants = append(grants, strings.Replace(g, " ON test.", " ON "+mysqlOf(t, s).DBName+".", 1))
		}
		for missing := -1; missing < len(grants); missing++ {
			name := "all"
			if missing >= 0 {
				name = "without " + documented[missing]
			}
			t.Run(name, func(t *testing.T) {
				execute(t, root, "DROP USER IF EXISTS dlock", "CREATE USER dlock IDENTIFIED BY 'password'")
				for i, g := range grants {
					if i != missing {
						execute(t, root, g)
					}
				}
				err := useAll(t, s, driver.NewID().String())
				var e *gomysql.MySQLError
				switch {
				case missing < 0 && err != nil:
					t.Errorf("with all grants: %v", err)
				case missing >= 0 && err == nil:
					t.Errorf("it is not needed")
				case missing >= 0 && (!errors.As(err, &e) || !strings.Contains(err.Error(), "denied")):
					t.Errorf("what is missing is not named: %v", err)
				}
			})
		}
	})
}

// useAll does everything that the driver can do with a name, as the user dlock, and returns the
// first error.
func useAll(t *testing.T, s *service.Server, name string) error {
	t.Helper()
	c, err := dlock.Open(t.Context(), strings.Replace(s.URL, "root@", "dlock:password@", 1), dlock.Logger(nil))
	if err != nil {
		return err
	}
	defer c.Close()
	d := mysqlOf(t, s)
	d.User, d.Passwd = "dlock", "password"
	b := d.side(t, netfault.NewProxy(), mysql.Options{})
	other := steps.ClientOf(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		next, err := other.Mutex(name).Lock(ctx)
		if err == nil {
			err = next.Unlock(ctx)
		}
		waited <- err
	}()
	<-time.After(1500 * time.Millisecond) // the other one polls for its grant meanwhile
	_, inspected := c.Inspect(ctx, name)
	_, listed := b.List(ctx)
	if err := errors.Join(l.Err(), l.Renew(ctx), inspected, listed, l.Unlock(ctx)); err != nil {
		cancel()
		return errors.Join(err, await.From(t, waited))
	}
	if err := await.From(t, waited); err != nil {
		return err
	}
	p, err := c.Semaphore(name+"/permits", 2).Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.Break(ctx, name+"/permits", p.Token(), dlock.Force()))
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
		migrated(t, s) // with these, too
		for _, stmt := range append([]string{"CREATE USER dlock IDENTIFIED BY 'password'"}, documentedGrants(t)...) {
			execute(t, root, stmt)
		}
		if err := useAll(t, s, "defaults"); err != nil {
			t.Error(err)
		}
		u := strings.Replace(s.URL, "root@", "dlock:password@", 1)
		steps.NewChecker(t).Wants("such a server", u, map[string][2]string{"laws": steps.Holds, "rights": {"fine", ""}, "schema": {"fine", ""}, "version": {"fine", "."}})
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
