package postgres

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/postgres/internal/advisory"
)

// schemes are the schemes of the driver's URLs.
var schemes = []string{"postgres", "postgresql"}

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, open)
		driver.RegisterChecker(scheme, check)
	}
}

// passed are the parameters of libpq that a URL may have, and that pgx reads. (connect_timeout,
// target_session_attrs, application_name and sslpassword are read here too.)
var passed = []string{
	"sslmode", "sslcert", "sslkey", "sslrootcert", "sslcertmode", "sslsni", "sslnegotiation", "channel_binding", "require_auth",
	"search_path", "options", "passfile", "service", "servicefile", "min_protocol_version", "max_protocol_version",
}

// settings are what a URL asks for.
type settings struct {
	text        string // for pgx, without passwords: its errors may show it
	password    string // of the URL; empty: from PGPASSWORD or the file of passwords
	sslPassword string
	addrs       string // for errors
	poolSize    int
	migrate     bool
	o           Options
	advisory    *advisory.Options // of format=advisory; nil: dlock's own locks
	// how long one address may take once it is reached
	startTime time.Duration
	openings  kit.Openings

	mu   sync.Mutex
	last *pgx.ConnConfig // the last whose files could be read
}

// open opens the backend that a URL names. It reaches the server, and fails if something is missing
// there.
func open(ctx context.Context, c driver.Config) (driver.Backend, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	if s.advisory != nil {
		return s.openAdvisory(ctx)
	}
	p, err := s.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", s.addrs, explainOpen(err))
	}
	b, err := newBackend(p, s.o, c.Client)
	if err != nil {
		p.close()
		return nil, err
	}
	if s.migrate {
		err = p.migrate(ctx)
	}
	if err == nil {
		err = p.checkServer(ctx)
	}
	if err == nil {
		_, err = b.Inspect(ctx, "dlock") // which needs the rights that later calls need
	}
	if err != nil {
		b.Close()
		p.close()
		return nil, fmt.Errorf("reach %s: %w", s.addrs, explainOpen(err))
	}
	return b, nil
}

// explainOpen is explain for an error that may come from the choice among several servers.
func explainOpen(err error) error {
	// pgx has no name for it
	if serverError(err) == nil && strings.Contains(err.Error(), "read only connection") {
		return fmt.Errorf("none of the servers takes writes: %w", explain(err))
	}
	return explain(err)
}

// open makes the pool, and its first connection, on which it finds out whether a pooler is in
// between.
func (s *settings) open(ctx context.Context) (*pool, error) {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p := &pool{owned: true, openings: &s.openings}
	made, err := pgxpool.ParseConfig("host=replaced.below sslmode=disable")
	if err != nil {
		return nil, hideText(err)
	}
	if made.ConnConfig, err = s.config(); err != nil {
		return nil, err
	}
	made.MaxConns = int32(s.poolSize)
	// What a burst opened is closed again. Each check of the pool takes all idle connections for a
	// moment, in which a call may open another one: so there are few checks.
	made.MaxConnIdleTime = 10 * time.Second
	made.HealthCheckPeriod = 20 * time.Second
	// a statement shows by itself whether the connection works, and is repeated
	made.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	var detected atomic.Bool
	made.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		end, err := s.openings.Begin(ctx)
		if err != nil {
			return err
		}
		if err := s.refresh(c); err != nil {
			end(err)
			return err
		}
		c.Tracer = opening{end}
		switch {
		case p.pooled.Load():
			c.DefaultQueryExecMode = pgx.QueryExecModeExec
		case detected.Load():
			maps.Copy(c.RuntimeParams, sessionSettings) // which a pooler may refuse
		}
		return nil
	}
	source, err := pgxpool.NewWithConfig(context.Background(), made)
	if err != nil {
		return nil, hideText(err)
	}
	p.source = pgxSource{source}
	if err := p.detect(within); err != nil {
		p.close()
		return nil, plain(ctx, err, patience)
	}
	detected.Store(true)
	return p, nil
}

// sessionSettings are those of the driver's own connections.
var sessionSettings = map[string]string{
	// A statement that has to wait for a row ends before the driver stops waiting for its answer,
	// so few are left waiting at the server.
	"lock_timeout":                  "2s",
	"default_transaction_isolation": "read committed",
	// The server plans each statement once for a connection. Otherwise it would plan those with
	// arrays each time, which takes longer than most of them, since it expects fewer elements then.
	// Such a plan may be older than the rows in the tables: it uses the indexes.
	"plan_cache_mode": "force_generic_plan",
	"enable_seqscan":  "off",
	"jit":             "off", // which the costs in such a plan would call for
}

// detect finds out whether a pooler is between here and the server. Without one it gives the
// connection the settings of the later ones.
func (p *pool) detect(ctx context.Context) error {
	_, err := p.with(ctx, func(conn *pgx.Conn) error {
		var pid int64
		if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()::int8", pgx.QueryExecModeExec).Scan(&pid); err != nil {
			return err
		}
		if uint32(pid) != conn.PgConn().PID() {
			p.pooled.Store(true)
			_ = conn.Close(ctx) // it would prepare statements
			return nil
		}
		var set strings.Builder
		for name, value := range sessionSettings {
			fmt.Fprintf(&set, "SET %s = '%s'; ", name, value)
		}
		_, err := conn.Exec(ctx, set.String(), pgx.QueryExecModeSimpleProtocol)
		return err
	})
	return err
}

// refresh gives a new connection the certificates and the password that the files have now.
func (s *settings) refresh(c *pgx.ConnConfig) error {
	now, err := s.config()
	if err == nil {
		c.TLSConfig, c.Fallbacks, c.Password = now.TLSConfig, now.Fallbacks, now.Password
	}
	return err
}

// config reads the connection's settings for pgx, and the files that they name. While those cannot
// be used (one is missing or half written, or the key does not match the new certificate yet), it
// returns the settings with what could be read last, until the client's certificate expires.
func (s *settings) config() (*pgx.ConnConfig, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := pgx.ParseConfigOptions{ParseConfigOptions: pgconn.ParseConfigOptions{GetSSLPassword: func(context.Context) string { return s.sslPassword }}}
	config, err := pgx.ParseConfigWithOptions(s.text, o)
	if err != nil {
		if s.last == nil || expired(s.last.TLSConfig) {
			return nil, hideText(err)
		}
		return s.last.Copy(), nil
	}
	if s.password != "" {
		config.Password = s.password
	}
	config.ConnectTimeout = s.startTime // pgx's dialer has the time of the URL
	s.last = config
	return config.Copy(), nil
}

// expired reports whether the client's certificate has expired.
func expired(c *tls.Config) bool {
	return c != nil && slices.ContainsFunc(c.Certificates, func(pair tls.Certificate) bool {
		return pair.Leaf != nil && time.Now().After(pair.Leaf.NotAfter)
	})
}

// hideText returns an error of pgx's parser without the text that it parsed.
func hideText(err error) error {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	return &kit.NotSent{Err: errors.New(text)}
}

// parse reads a URL.
func parse(c driver.Config) (*settings, error) {
	u := c.URL
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	if len(c.Hosts) == 0 {
		return nil, bad("want a host: %s://user:password@host:5432/database", u.Scheme)
	}
	database := strings.Trim(u.Path, "/")
	if database == "" || strings.Contains(database, "/") {
		return nil, bad("the path has to name the database: %s://user:password@host:5432/database", u.Scheme)
	}
	addrs := c.Addrs("5432")
	s := &settings{addrs: strings.Join(addrs, ","), o: Options{Prefix: c.Prefix}}
	var hosts, ports []string
	for _, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" || port == "" {
			return nil, bad("want hosts as in %s://user:password@host1:5432,host2:5432/database", u.Scheme)
		}
		hosts, ports = append(hosts, host), append(ports, port)
	}
	is := map[string]string{"host": strings.Join(hosts, ","), "port": strings.Join(ports, ","), "dbname": database, "user": u.User.Username()}
	s.password, _ = u.User.Password()

	p, given := c.Params(), u.Query()
	for _, name := range passed {
		if value := p.String(name, ""); given.Has(name) {
			is[name] = value
		}
	}
	s.sslPassword = p.String("sslpassword", os.Getenv("PGSSLPASSWORD"))
	seconds := p.Int("connect_timeout", 3)
	is["application_name"] = p.String("application_name", cmp.Or(os.Getenv("PGAPPNAME"), "dlock"))
	writable := "any"
	if len(addrs) > 1 {
		writable = "read-write"
	}
	is["target_session_attrs"] = p.String("target_session_attrs", writable)
	s.poolSize = p.Int("pool_size", 8)
	s.migrate = p.Bool("migrate", false)
	format := p.String("format", "")
	locks := advisory.Options{Key: p.String("key", ""), Hash: p.String("hash", ""), Class: p.String("class", ""), Prefix: c.Prefix, Most: s.poolSize}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if err := s.readFormat(format, locks); err != nil {
		return nil, err
	}
	switch {
	case seconds <= 0 || seconds > 3600:
		return nil, bad("connect_timeout has to be from 1 to 3600 seconds")
	case s.poolSize < 2 || s.poolSize > 10000:
		return nil, bad("pool_size has to be from 2 to 10000")
	case !slices.Contains([]string{"any", "read-write", "primary"}, is["target_session_attrs"]):
		return nil, bad("target_session_attrs has to be read-write, primary or any: locks need a server that takes writes")
	}
	is["connect_timeout"] = strconv.Itoa(seconds)
	s.openings.Late = time.Duration(seconds) * time.Second
	s.startTime = s.openings.Late
	if len(addrs) == 1 {
		// There is no other address to go to. One that hangs occupies a place of the pool, and one
		// more is opened whenever the last one is late: so the pool has places for as many.
		s.startTime *= time.Duration(min(s.poolSize, 10))
	}
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	var words []string
	for name, value := range is {
		if value == "" && name == "user" {
			continue // from PGUSER, or the user of the operating system
		}
		words = append(words, name+"='"+quote.Replace(value)+"'")
	}
	slices.Sort(words)
	s.text = strings.Join(words, " ")
	if _, err := s.config(); err != nil {
		return nil, bad("%w", err)
	}
	return s, nil
}

// OpenDB returns a pool for the database that a URL names, with the settings that a client of that
// URL has, for [Migrate], [Revert] and [Cleanup]. It does not reach the server yet. The caller
// closes the pool. No error contains a password. An error about the URL matches
// [driver.ErrInvalid].
func OpenDB(rawURL string) (*sql.DB, error) {
	want := fmt.Errorf("%w URL: want postgres://user:password@host:5432/database", driver.ErrInvalid)
	scheme, rest, _ := strings.Cut(rawURL, "://")
	if !slices.Contains(schemes, scheme) {
		if strings.ContainsAny(scheme, "/?#@:") {
			return nil, want
		}
		return nil, fmt.Errorf("%w URL: the scheme %q is none of %s", driver.ErrInvalid, scheme, strings.Join(schemes, ", "))
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	// net/url knows one host only
	user := strings.LastIndexByte(rest[:end], '@') + 1
	hosts := strings.Split(rest[user:end], ",")
	for _, h := range hosts {
		if u, err := url.Parse("x://" + h); err != nil || u.Host != h || h == "" {
			return nil, want
		}
	}
	u, err := url.Parse(scheme + "://" + rest[:user] + hosts[0] + rest[end:])
	if err != nil || strings.Contains(u.Path, "@") { // an @ in a password that has a "/" too
		return nil, want
	}
	own := u.Query()
	for _, shared := range []string{"ttl", "prefix", "label", "identity"} { // they concern locks
		own.Del(shared)
	}
	u.RawQuery = own.Encode()
	s, err := parse(driver.Config{URL: u, Hosts: hosts})
	if err != nil {
		return nil, err
	}
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // as a pooler may need
	return stdlib.OpenDB(*config, stdlib.OptionBeforeConnect(func(_ context.Context, c *pgx.ConnConfig) error { return s.refresh(c) })), nil
}
