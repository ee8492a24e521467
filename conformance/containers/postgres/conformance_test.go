package postgres

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
)

// postgresTTL is the shortest that a busy machine with the race detector keeps alive.
const postgresTTL = time.Second

// poolSide is a client of the driver with a pool of the test's, and a proxy before the server.
type poolSide struct {
	*postgres.Backend
	pool *pgxpool.Pool
	db   *sql.DB // the same pool, for the test's statements
	line *netfault.Proxy
	once sync.Once
}

// Close closes the backend, its pool and its proxy.
func (s *poolSide) Close() error {
	err := s.Backend.Close()
	s.once.Do(func() {
		s.line.Close() // a pool takes leave of its servers, and waits for them
		err = errors.Join(err, s.db.Close())
		s.pool.Close()
	})
	return err
}

// side opens a client over a pool of that configuration. The schema is there.
func side(t service.T, c *pgxpool.Config, p *netfault.Proxy, o postgres.Options) *poolSide {
	t.Helper()
	through(c.ConnConfig, p)
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		p.Close()
		t.Fatalf("%v", err)
	}
	b, err := postgres.New(pool, o)
	if err != nil {
		pool.Close()
		p.Close()
		t.Fatalf("%v", err)
	}
	s := &poolSide{Backend: b, pool: pool, db: stdlib.OpenDBFromPool(pool), line: p}
	t.Cleanup(func() { s.Close() })
	return s
}

// dbSide is poolSide with a pool of database/sql.
type dbSide struct {
	*postgres.Backend
	db   *sql.DB
	line *netfault.Proxy
	once sync.Once
}

// Close closes the backend, its pool and its proxy.
func (s *dbSide) Close() error {
	err := s.Backend.Close()
	s.once.Do(func() {
		s.line.Close()
		err = errors.Join(err, s.db.Close())
	})
	return err
}

// sideOfDB opens a client over a pool of database/sql for a URL. The schema is there.
func sideOfDB(t service.T, text string, p *netfault.Proxy, o postgres.Options) *dbSide {
	t.Helper()
	c := config(t, text).ConnConfig
	through(c, p)
	db := stdlib.OpenDB(*c)
	b, err := postgres.NewDB(db, o)
	if err != nil {
		db.Close()
		p.Close()
		t.Fatalf("%v", err)
	}
	s := &dbSide{Backend: b, db: db, line: p}
	t.Cleanup(func() { s.Close() })
	return s
}

// migrated is the server with the schema of dlock.
func migrated(t service.T, s *service.Server) *service.Server {
	t.Helper()
	db := open(t, s.URL)
	defer db.Close()
	if err := postgres.Migrate(context.Background(), db); err != nil {
		t.Fatalf("%v", err)
	}
	return s
}

// behind is a URL whose server is reached through the proxy.
func behind(t service.T, text string, p *netfault.Proxy) string {
	t.Helper()
	return with(t, text, func(u *url.URL) {
		var err error
		if u.Host, err = p.Addr(u.Host); err != nil {
			t.Fatalf("%v", err)
		}
	})
}

// byURL opens the driver on connections of its own.
func byURL(t service.T, text string) driver.Backend {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatalf("not a URL")
	}
	c := driver.Config{URL: u, Hosts: strings.Split(u.Host, ","), TTL: time.Minute, Client: driver.NewID()}
	b, err := driver.Lookup(u.Scheme)(context.Background(), c)
	// a busy machine may stand still for as long as a call waits
	for end := time.Now().Add(await.Patience); err != nil && strings.Contains(err.Error(), "did not answer") && time.Now().Before(end); {
		<-time.After(time.Second) // other tests open theirs too
		b, err = driver.Lookup(u.Scheme)(context.Background(), c)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// known is a backend whose queues are known by the server, not by the proxy through which it is
// reached. Its Close closes the proxy too.
type known struct {
	*postgres.Backend
	identity string
	line     *netfault.Proxy
}

// Close closes the backend and its proxy.
func (k known) Close() error {
	defer k.line.Close()
	return k.Backend.Close()
}

// Capabilities are those of the backend, but for the identity.
func (k known) Capabilities() driver.Capabilities {
	c := k.Backend.Capabilities()
	c.Identity = k.identity
	return c
}

// harness is [service.Harness] for the server, and for those before it. from is the server's URL
// for the clients' user.
func harness(name string, s *service.Server, from string, opens func(conformance.T, *netfault.Proxy) driver.Backend, before ...*service.Server) conformance.Harness {
	var lines sync.Map // by backend
	h := service.Harness(name, func(t conformance.T, p *netfault.Proxy) driver.Backend {
		l := record(p)
		b := opens(t, p)
		lines.Store(b, l)
		return b
	}, append(before, s)...)
	h.TTL = postgresTTL
	h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
		return side(t, config(t, s.URL), netfault.NewProxy(), postgres.Options{Prefix: prefix})
	}
	h.Stored = func(t conformance.T, _ driver.Backend, name string) int {
		t.Helper()
		db := open(t, s.URL)
		defer db.Close()
		return one[int](t, db, "SELECT count(*) FROM dlock_requests WHERE name = $1", []byte(name))
	}
	h.Record = nil
	if s.Own() { // a user with a password is greeted in other words each time
		h.Record = func(t conformance.T, b driver.Backend) func() {
			found, _ := lines.Load(b)
			l := found.(*line)
			r := l.p.Record()
			return func() {
				t.Helper()
				if err := l.replay(from, r); err != nil {
					t.Errorf("replay: %v", err)
				}
			}
		}
	} else {
		h.Without = append(h.Without, "Record")
	}
	return h
}

// leastRights makes the user dlock, and gives it what dlock needs in the server's database. It
// returns the URL for it.
func leastRights(t service.T, s *service.Server, user, password string) string {
	t.Helper()
	root := open(t, s.URL)
	defer root.Close()
	execute(t, root, "CREATE ROLE "+user+" LOGIN PASSWORD '"+password+"'")
	for _, g := range neededGrants {
		execute(t, root, g+" TO "+user)
	}
	return as(t, s.URL, user, password)
}

// neededGrants give a user what dlock needs.
var neededGrants = []string{"GRANT SELECT, INSERT, UPDATE ON dlock_locks", "GRANT SELECT, INSERT, UPDATE, DELETE ON dlock_requests"}

// TestPostgresConformance runs the suite with a user that has the rights of the documentation, and
// no others.
func TestPostgresConformance(t *testing.T) {
	s := migrated(t, service.Start(t, PostgreSQL))
	from := s.URL
	if s.Own() {
		from = leastRights(t, s, "dlock", "")
	}
	conformance.Run(t, harness("postgres", s, from, func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return known{byURL(t, behind(t, from, p)).(*postgres.Backend), s.Addr, p}
	}))
}

// hostile is a configuration with settings of sessions that a driver may stumble over.
func hostile(c *pgxpool.Config) *pgxpool.Config {
	c.MaxConns = 3
	for name, value := range map[string]string{
		"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on", "timezone": "Asia/Kolkata", "datestyle": "SQL, DMY",
		"intervalstyle": "sql_standard", "bytea_output": "escape", "statement_timeout": "30s", "lock_timeout": "20s", "standard_conforming_strings": "off",
		"extra_float_digits": "-15", "enable_indexscan": "off", "plan_cache_mode": "force_generic_plan", "row_security": "off", "transform_null_equals": "on",
		"idle_in_transaction_session_timeout": "10s", "application_name": "the user's", "quote_all_identifiers": "on",
		"backslash_quote": "off", "array_nulls": "off", "default_tablespace": "", "search_path": "pg_catalog, public",
	} {
		c.ConnConfig.RuntimeParams[name] = value
	}
	return c
}

// TestPostgresPoolConformance runs the suite with a user's pool whose connections are as different
// from the driver's own as possible.
func TestPostgresPoolConformance(t *testing.T) {
	s := migrated(t, service.Start(t, PostgreSQL))
	with := hostile(config(t, s.URL)).ConnConfig.RuntimeParams
	var pairs []string
	for name, value := range with {
		pairs = append(pairs, name, value)
	}
	conformance.Run(t, service.OtherConnections(harness("postgres, a pool of the user's", s, params(t, s.URL, pairs...), func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return side(t, hostile(config(t, s.URL)), p, postgres.Options{Identity: s.Addr})
	})))
}

// TestPostgresDBConformance runs the suite with a pool of database/sql.
func TestPostgresDBConformance(t *testing.T) {
	s := migrated(t, service.Start(t, PostgreSQL))
	conformance.Run(t, service.OtherConnections(harness("postgres, a pool of database/sql", s, s.URL, func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return sideOfDB(t, s.URL, p, postgres.Options{Identity: s.Addr})
	})))
}

// TestPostgresPooledConformance runs the suite behind PgBouncer, which gives each transaction
// another session of the server.
func TestPostgresPooledConformance(t *testing.T) {
	s := migrated(t, service.StartOwn(t, PostgreSQL))
	b := service.StartOwn(t, Before(s))
	server := leastRights(t, s, "dlock", "")
	from := as(t, b.URL, "dlock", "")
	conformance.Run(t, service.Beside(harness("postgres behind pgbouncer", s, server, func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return known{byURL(t, behind(t, from, p)).(*postgres.Backend), s.Addr, p}
	}, b)))
}

// TestPostgresPooledPoolConformance is the same with a pool of the user's that is set up for
// poolers.
func TestPostgresPooledPoolConformance(t *testing.T) {
	s := migrated(t, service.StartOwn(t, PostgreSQL))
	b := service.StartOwn(t, Before(s))
	from := params(t, b.URL, "default_query_exec_mode", "exec")
	conformance.Run(t, service.OtherConnections(harness("postgres behind pgbouncer, a pool of the user's", s, s.URL, func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return side(t, config(t, from), p, postgres.Options{Identity: s.Addr})
	}, b)))
}
