package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// onOwn runs a test on a server of its own, with arguments for it.
func onOwn(t *testing.T, f func(t *testing.T, s *service.Server), args ...string) {
	t.Helper()
	f(t, service.StartOwn(t, PostgreSQL.With(args...)))
}

// shared returns the server that tests share, with a new database. They leave it running, and its
// settings as they are.
func shared(t *testing.T) *service.Server {
	t.Helper()
	sharedServer.mu.Lock()
	defer sharedServer.mu.Unlock()
	if sharedServer.started == nil {
		sharedServer.started = service.StartOwn(untilTheEnd{t}, PostgreSQL)
	}
	service.Watch(t, sharedServer.started)
	return withDatabase(t, sharedServer.started)
}

var sharedServer struct {
	mu      sync.Mutex
	started *service.Server
}

// untilTheEnd is a test whose servers are removed at the end of the run.
type untilTheEnd struct{ service.T }

func (untilTheEnd) Cleanup(func()) {}

// withDatabase returns the server as clients see it that name a new database of it.
func withDatabase(t service.T, s *service.Server) *service.Server {
	t.Helper()
	c := *s
	name := fmt.Sprint("test", databases.Add(1))
	db := open(t, s.URL)
	defer db.Close()
	execute(t, db, "CREATE DATABASE "+name)
	c.URL = with(t, s.URL, toDatabase(name))
	return &c
}

var databases atomic.Int64

// with is a URL that was changed.
func with(t service.T, text string, change func(*url.URL)) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatalf("not a URL")
	}
	change(u)
	return u.String()
}

// params is a URL with more parameters.
func params(t service.T, text string, pairs ...string) string {
	t.Helper()
	return with(t, text, func(u *url.URL) {
		q := u.Query()
		for i := 0; i < len(pairs); i += 2 {
			q.Set(pairs[i], pairs[i+1])
		}
		u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // as libpq has it
	})
}

// toDatabase changes the database of a URL.
func toDatabase(name string) func(*url.URL) { return func(u *url.URL) { u.Path = "/" + name } }

// as is a URL with another user.
func as(t service.T, text, user, password string) string {
	t.Helper()
	return with(t, text, func(u *url.URL) {
		if u.User = url.User(user); password != "" {
			u.User = url.UserPassword(user, password)
		}
	})
}

// databaseOf is the name of the database of a URL.
func databaseOf(t service.T, text string) (name string) {
	t.Helper()
	with(t, text, func(u *url.URL) { name = strings.Trim(u.Path, "/") })
	return name
}

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

// statementTime is for how long a test waits for a statement of its own.
const statementTime = 3 * time.Minute

// config is the configuration of a pool of pgx for a URL.
func config(t service.T, text string) *pgxpool.Config {
	t.Helper()
	c, err := pgxpool.ParseConfig(text)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return c
}

// open returns a pool for a URL, which the caller closes.
func open(t service.T, text string) *sql.DB {
	t.Helper()
	return stdlib.OpenDB(*config(t, text).ConnConfig)
}

// poolOf returns a pool for a URL, which the test closes.
func poolOf(t service.T, text string) *sql.DB {
	t.Helper()
	db := open(t, text)
	t.Cleanup(func() { db.Close() })
	return db
}

// through makes all connections of a configuration go through the proxy.
func through(c *pgx.ConnConfig, p *netfault.Proxy) { c.DialFunc = p.Dial }

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

// code is the SQLSTATE of a server's error; empty: it is another.
func code(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestPostgresServers(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, PostgreSQL)
	if !strings.HasPrefix(s.Version, "postgres ") {
		t.Errorf("it calls itself %q", s.Version)
	}
	p := netfault.NewProxy()
	defer p.Close()
	c := config(t, s.URL).ConnConfig
	through(c, p)
	db := stdlib.OpenDB(*c)
	defer db.Close()
	db.SetMaxOpenConns(1)
	execute(t, db, "CREATE TABLE t (k int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "SELECT 1")
	before := p.Counts().RoundTrips
	for range 10 {
		execute(t, db, "SELECT 1")
	}
	if n := p.Counts().RoundTrips - before; n != 10 {
		t.Errorf("10 statements are %d round trips", n)
	}

	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Quiet)
	defer cancel()
	if _, err := db.ExecContext(ctx, "SELECT 1"); !await.IsTimeout(err) && !errors.Is(err, context.DeadlineExceeded) {
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
	if n := one[int](t, db, "SELECT count(*) FROM t"); n != 2 {
		t.Errorf("after a restart on its data there are %d rows, want 2", n)
	}
	s.RestartEmpty(t)
	if _, err := db.Exec("SELECT * FROM t"); code(err) != "42P01" {
		t.Errorf("after a restart without data: %v", err)
	}
}

// TestPostgresReplay: what a client sent is executed once more, on a connection that was recorded
// from its beginning, and on one that had prepared the statement before.
func TestPostgresReplay(t *testing.T) {
	t.Parallel()
	s := shared(t)
	p := netfault.NewProxy()
	defer p.Close()
	line := record(p)
	c := config(t, s.URL).ConnConfig
	through(c, p)
	db := stdlib.OpenDB(*c)
	defer db.Close()
	execute(t, db, "CREATE TABLE t (k serial PRIMARY KEY)", "INSERT INTO t DEFAULT VALUES")
	for _, conn := range []string{"an old connection", "a new connection"} {
		before := one[int](t, db, "SELECT count(*) FROM t")
		if conn == "a new connection" {
			db.SetMaxIdleConns(-1)
		}
		r := p.Record()
		for range 3 {
			execute(t, db, "INSERT INTO t DEFAULT VALUES")
		}
		if err := line.replay(s.URL, r); err != nil {
			t.Fatal(err)
		}
		if n := one[int](t, db, "SELECT count(*) FROM t") - before; n != 6 {
			t.Errorf("after 3 INSERTs on %s and their copies there are %d more rows", conn, n)
		}
	}
}

// TestPostgresReplyIsLost: the server executes a statement whose reply is dropped.
func TestPostgresReplyIsLost(t *testing.T) {
	t.Parallel()
	s := shared(t)
	p := netfault.NewProxy()
	defer p.Close()
	c := config(t, s.URL).ConnConfig
	through(c, p)
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // one round trip
	db := stdlib.OpenDB(*c)
	defer db.Close()
	execute(t, db, "CREATE TABLE t (k int PRIMARY KEY)")
	dropped := p.DropReply("INSERT INTO t")
	if _, err := db.Exec("INSERT INTO t VALUES (1)"); err == nil {
		t.Fatal("a dropped reply arrived")
	}
	await.Closed(t, "the drop", dropped)
	if n := one[int](t, db, "SELECT count(*) FROM t"); n != 1 {
		t.Fatalf("after an INSERT without a reply there are %d rows, want 1", n)
	}
}

// TestPostgresStandby: a standby has what its primary has, and takes its place.
func TestPostgresStandby(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, PostgreSQL)
	execute(t, poolOf(t, s.URL), "CREATE TABLE t (k int PRIMARY KEY)")
	standby := service.StartOwn(t, Standby(s))
	execute(t, poolOf(t, s.URL), "INSERT INTO t VALUES (1)")
	db := poolOf(t, standby.URL)
	await.That(t, "the standby has the row", func() bool { return one[int](t, db, "SELECT count(*) FROM t") == 1 })
	if _, err := db.Exec("INSERT INTO t VALUES (2)"); code(err) != "25006" {
		t.Errorf("a standby is written to: %v", err)
	}
	s.Kill(t)
	promote(t, standby)
	execute(t, db, "INSERT INTO t VALUES (2)")
}

// promote makes a standby take writes, and waits until it does.
func promote(t service.T, standby *service.Server) {
	t.Helper()
	db := open(t, standby.URL)
	defer db.Close()
	if !one[bool](t, db, "SELECT pg_promote()") {
		t.Fatalf("the standby is not promoted")
	}
}

// TestPostgresBouncer: PgBouncer is what the tests need: transactions of one client run in several
// sessions, and it knows no prepared statements.
func TestPostgresBouncer(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, PostgreSQL)
	b := service.StartOwn(t, Before(s))
	if !strings.HasPrefix(b.Version, "pgbouncer 1.") {
		t.Errorf("it calls itself %q", b.Version)
	}
	c := config(t, b.URL).ConnConfig
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*c)
	defer db.Close()
	conn := func(db *sql.DB) *sql.Conn {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	client, prepares := conn(db), conn(poolOf(t, b.URL))
	first := one[int](t, client, "SELECT pg_backend_pid()")
	if prepared := one[int](t, prepares, "SELECT pg_backend_pid()"); prepared != first {
		t.Errorf("a session that is free is not used: %d and %d", first, prepared)
	}
	tx, err := db.Begin() // it takes the session
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	taken := one[int](t, tx, "SELECT pg_backend_pid()")
	if second := one[int](t, client, "SELECT pg_backend_pid()"); first == second || taken == second {
		t.Errorf("one client has the session %d, then %d; another %d", first, second, taken)
	}
	var pid int
	if err := prepares.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); code(err) != "26000" {
		t.Errorf("a statement that was prepared in another session: %d, %v", pid, err)
	}
}
