package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// mysqlKinds are the servers that every test of the driver runs on.
var mysqlKinds = []service.Kind{MySQL, MariaDB}

// onMySQL runs a test on a server of its own of each kind, side by side.
func onMySQL(t *testing.T, f func(t *testing.T, s *service.Server), args ...string) {
	t.Helper()
	for _, k := range mysqlKinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			f(t, service.StartOwn(t, k.With(args...)))
		})
	}
}

// onShared runs a test on a server of each kind that tests share, side by side. Each has a database
// of its own there, and leaves the server running and its global settings as they are.
func onShared(t *testing.T, f func(t *testing.T, s *service.Server)) {
	t.Helper()
	for _, k := range mysqlKinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			f(t, shared(t, k))
		})
	}
}

// onEach runs a test for each kind of server, side by side whatever -parallel says: for tests that
// mostly wait.
func onEach(t *testing.T, f func(t *testing.T, k service.Kind)) {
	t.Helper()
	var wg sync.WaitGroup
	for _, k := range mysqlKinds {
		wg.Go(func() {
			t.Run(k.Name, func(t *testing.T) { f(t, k) })
		})
	}
	await.All(t, &wg)
}

// shared returns the shared server of the kind, with a new database.
func shared(t *testing.T, k service.Kind) *service.Server {
	t.Helper()
	v := sharedServers[k.Name]
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.started == nil {
		v.started = service.StartOwn(untilTheEnd{t}, k)
	}
	service.Watch(t, v.started)
	return withDatabase(t, v.started)
}

type sharedServer struct {
	mu      sync.Mutex
	started *service.Server
}

var sharedServers = map[string]*sharedServer{MySQL.Name: {}, MariaDB.Name: {}}

// untilTheEnd is a test whose servers are removed at the end of the run.
type untilTheEnd struct{ service.T }

func (untilTheEnd) Cleanup(func()) {}

// withDatabase returns the server as clients see it that name a new database of it.
func withDatabase(t service.T, s *service.Server) *service.Server {
	t.Helper()
	c := *s
	name := fmt.Sprint("test", databases.Add(1))
	execute(t, mysqlOf(t, s).pool(t), "CREATE DATABASE "+name)
	c.URL = s.URL[:strings.LastIndex(s.URL, "/")+1] + name
	return &c
}

var databases atomic.Int64

// part is a part of a test.
type part struct {
	name string
	run  func(*service.Trial, *service.Server)
}

// inTurn runs parts of a test one after the other, each on a migrated database of its own.
func inTurn(t *testing.T, s *service.Server, parts ...part) {
	t.Helper()
	m := service.NewMonitor(s)
	defer m.Stop()
	for _, p := range parts {
		m.Try(t, p.name, func(t *service.Trial) {
			service.Watch(t, s)
			p.run(t, migrated(t, withDatabase(t, s)))
		})
	}
}

// abreast is inTurn, but side by side: more of them than t.Parallel would on a small machine, since
// many of them wait, and not all, since the server has to do the work of the others.
func abreast(t *testing.T, s *service.Server, parts ...part) {
	t.Helper()
	const most = 6
	m := service.NewMonitor(s)
	defer m.Stop()
	var wg sync.WaitGroup
	free := make(chan struct{}, most)
	for _, p := range parts {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			m.Try(t, p.name, func(t *service.Trial) {
				service.Watch(t, s)
				p.run(t, migrated(t, withDatabase(t, s)))
			})
		})
	}
	await.All(t, &wg)
}

// disturbed is a part in which the server stands still because the test says so: every failure of
// it counts.
func disturbed(p func(testing.TB, *service.Server)) func(*service.Trial, *service.Server) {
	return func(t *service.Trial, s *service.Server) { p(service.Strict(t), s) }
}

// pool returns a pool over connections as d says, which the test closes.
func (d dsn) pool(t service.T) *sql.DB {
	t.Helper()
	db := d.open()
	t.Cleanup(func() { db.Close() })
	return db
}

// execute executes statements.
func execute(t service.T, db execer, statements ...string) {
	t.Helper()
	for _, s := range statements {
		ctx, cancel := context.WithTimeout(context.Background(), statementTime)
		_, err := db.ExecContext(ctx, s)
		cancel()
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// execer is a pool or a connection.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// rower is a pool or a connection.
type rower interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// one returns the only value that a query returns.
func one[V any](t service.T, db rower, query string, args ...any) (v V) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), statementTime)
	defer cancel()
	if err := db.QueryRowContext(ctx, query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func TestMySQLServers(t *testing.T) {
	t.Parallel()
	for _, k := range mysqlKinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			s := service.StartOwn(t, k)
			if !strings.HasPrefix(s.Version, k.Name+" ") {
				t.Errorf("%s calls itself %q", k.Name, s.Version)
			}
			p := netfault.NewProxy()
			defer p.Close()
			db := mysqlOf(t, s).through(p).pool(t)
			db.SetMaxOpenConns(1)
			execute(t, db, "CREATE TABLE t (k INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
			before := p.Counts().RoundTrips
			for range 10 {
				execute(t, db, "DO 1")
			}
			if n := p.Counts().RoundTrips - before; n != 10 {
				t.Errorf("10 statements are %d round trips", n)
			}

			s.Pause(t)
			ctx, cancel := context.WithTimeout(t.Context(), await.Quiet)
			defer cancel()
			if _, err := db.ExecContext(ctx, "DO 1"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a paused server answered: %v", err)
			}
			s.Continue(t)
			if err := db.PingContext(await.Bounded(t, await.Patience)); err != nil {
				t.Errorf("a server that goes on: %v", err)
			}

			execute(t, db, "INSERT INTO t VALUES (2)")
			s.Pause(t)
			s.Kill(t)
			if err := db.PingContext(await.Bounded(t, await.Patience)); err == nil || await.IsTimeout(err) {
				t.Errorf("a dead server: %v", err)
			}
			s.Restart(t)
			if n := one[int](t, db, "SELECT COUNT(*) FROM t"); n != 2 {
				t.Errorf("after a restart on its data there are %d rows, want 2", n)
			}
			s.RestartEmpty(t)
			var e *mysql.MySQLError
			if _, err := db.Exec("SELECT * FROM t"); !errors.As(err, &e) || e.Number != 1146 {
				t.Errorf("after a restart without data: %v", err)
			}
		})
	}
}

func TestMySQLReplyIsLost(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		p := netfault.NewProxy()
		defer p.Close()
		db := mysqlOf(t, s).through(p).pool(t)
		execute(t, db, "CREATE TABLE t (k INT PRIMARY KEY)")
		dropped := p.DropReply("INSERT INTO t")
		if _, err := db.Exec("INSERT INTO t VALUES (1)"); err == nil {
			t.Fatal("a dropped reply arrived")
		}
		await.Closed(t, "the drop", dropped)
		if n := one[int](t, db, "SELECT COUNT(*) FROM t"); n != 1 {
			t.Fatalf("after an INSERT without a reply there are %d rows, want 1", n)
		}
	})
}

// TestMySQLServerOfTheUser uses a server as a user may name it: with a password and another
// database.
func TestMySQLServerOfTheUser(t *testing.T) {
	own := shared(t, MariaDB)
	execute(t, mysqlOf(t, own).pool(t), "CREATE DATABASE other", "CREATE USER app IDENTIFIED BY 'p@ss/word'", "GRANT ALL ON other.* TO app")
	u := url.URL{Scheme: "mysql", User: url.UserPassword("app", "p@ss/word"), Host: own.Addr, Path: "/other"}
	t.Setenv("DLOCK_TEST_MARIADB_URL", u.String())
	s := service.Start(t, MariaDB)
	defer service.Unreport(s.Version + ": " + s.Origin)
	if s.Own() || s.Addr != own.Addr {
		t.Fatalf("got %+v", s)
	}
	if got := one[string](t, mysqlOf(t, s).pool(t), "SELECT CONCAT(SUBSTRING_INDEX(CURRENT_USER(), '@', 1), ' ', DATABASE())"); got != "app other" {
		t.Fatalf("connected as %q", got)
	}
	if _, _, err := net.SplitHostPort(s.Addr); err != nil {
		t.Fatal(err)
	}
}

func TestMySQLReplay(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		p := netfault.NewProxy()
		defer p.Close()
		db := mysqlOf(t, s).through(p).pool(t)
		execute(t, db, "CREATE TABLE t (k INT AUTO_INCREMENT PRIMARY KEY)")
		for _, conn := range []string{"an old connection", "a new connection"} {
			before := one[int](t, db, "SELECT COUNT(*) FROM t")
			if conn == "a new connection" {
				db.SetMaxIdleConns(-1)
			}
			r := p.Record()
			for range 3 {
				execute(t, db, "INSERT INTO t VALUES ()")
			}
			if err := replay(s, r); err != nil {
				t.Fatal(err)
			}
			if n := one[int](t, db, "SELECT COUNT(*) FROM t") - before; n != 6 {
				t.Errorf("after 3 INSERTs on %s and their copies there are %d more rows", conn, n)
			}
		}
	})
}
