package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// schemes are the schemes of the driver's URLs.
var schemes = []string{"mysql", "mysqls", "mariadb", "mariadbs"}

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, open)
		driver.RegisterChecker(scheme, check)
	}
}

// settings are what a URL asks for.
type settings struct {
	config   *mysql.Config
	tls      *driver.TLS // nil: no TLS
	poolSize int
	migrate  bool
	o        Options

	openings kit.Openings

	named bool   // format=get_lock
	key   string // the parameter, for that format
}

// open opens the backend that a URL names. It reaches the server, and fails if something is missing
// there.
func open(ctx context.Context, c driver.Config) (driver.Backend, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	db, err := s.open()
	if err != nil {
		return nil, err
	}
	if s.named {
		return s.openNamed(ctx, db, strings.TrimSuffix(c.URL.Scheme, "s"))
	}
	b, err := newBackend(&pool{db: db, owned: true, openings: &s.openings}, s.o, strings.TrimSuffix(c.URL.Scheme, "s"))
	if err == nil && s.migrate {
		err = b.pool.migrate(ctx)
	}
	if err == nil {
		err = b.pool.checkServer(ctx)
	}
	if err == nil {
		_, err = b.Inspect(ctx, "dlock") // which needs the rights that later calls need
	}
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("reach %s: %w", s.config.Addr, err)
	}
	return b, nil
}

// open makes the pool. It does not reach the server yet.
func (s *settings) open() (*sql.DB, error) {
	if s.tls != nil {
		err := s.config.Apply(mysql.BeforeConnect(func(_ context.Context, c *mysql.Config) (err error) {
			c.TLS, err = s.tls.Config(c.Addr)
			return err
		}))
		if err != nil {
			return nil, err
		}
	}
	c := newConnector(&s.openings, s.config.Timeout)
	for i, prefix := range []string{"transaction_", "tx_"} {
		config := s.config.Clone()
		config.Params[prefix+"isolation"], config.Params[prefix+"read_only"] = "'READ-COMMITTED'", "0"
		var err error
		if c.names[i], err = mysql.NewConnector(config); err != nil {
			return nil, err
		}
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(s.poolSize)
	db.SetMaxIdleConns(s.poolSize)
	db.SetConnMaxIdleTime(2 * time.Second) // what a burst opened is closed again
	return db, nil
}

// checkServer reaches the server, and returns an error if dlock cannot work there.
func (p *pool) checkServer(ctx context.Context) error {
	is, err := p.variables(ctx)
	if err != nil {
		return explain(err)
	}
	switch {
	case is["read_only"] == "ON" || is["super_read_only"] == "ON":
		return errors.New("the server is read-only, perhaps a replica: use the address of the primary")
	case is["log_bin"] == "ON" && is["binlog_format"] == "STATEMENT":
		return errBinlog
	}
	return explain(p.checkSchema(ctx))
}

// parse reads a URL.
func parse(c driver.Config) (*settings, error) {
	u := c.URL
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	if len(c.Hosts) != 1 {
		return nil, bad("want exactly one host: %s://user:password@host:3306/database", u.Scheme)
	}
	addr := c.Addrs("3306")[0]
	database := strings.Trim(u.Path, "/")
	if database == "" || strings.Contains(database, "/") {
		return nil, bad("the path has to name the database: %s://user:password@host:3306/database", u.Scheme)
	}
	s := &settings{config: mysql.NewConfig(), o: Options{Prefix: c.Prefix}}
	s.config.Net, s.config.Addr, s.config.DBName, s.config.User = "tcp", addr, database, u.User.Username()
	s.config.Passwd, _ = u.User.Password()
	s.config.Logger = &mysql.NopLogger{}
	// so that no call has to set them; sql_select_limit: answers are complete, whatever the
	// server's default is
	s.config.Params = map[string]string{"innodb_lock_wait_timeout": "2", "lock_wait_timeout": "2", "autocommit": "1",
		"sql_mode": "'STRICT_ALL_TABLES'", "sql_safe_updates": "0", "sql_big_selects": "1", "sql_select_limit": "18446744073709551615",
		"completion_type": "'NO_CHAIN'"}
	p := c.Params()
	s.config.Timeout = p.Duration("dial_timeout", 3*time.Second)
	s.openings.Late = s.config.Timeout
	s.poolSize = p.Int("pool_size", 32)
	s.migrate = p.Bool("migrate", false)
	format := p.String("format", "")
	s.key = p.String("key", "")
	if strings.HasSuffix(u.Scheme, "s") {
		s.tls = p.TLS()
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if s.config.Timeout <= 0 || s.poolSize < 2 {
		return nil, bad("dial_timeout has to be positive, and pool_size at least 2")
	}
	return s, s.readFormat(format)
}

// OpenDB returns a pool for the database that a URL names, with the settings that a client of that
// URL has, for [Migrate], [Revert] and [Cleanup]. It does not reach the server yet. The caller
// closes the pool. No error contains a password. An error about the URL matches
// [driver.ErrInvalid].
func OpenDB(rawURL string) (*sql.DB, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%w URL: want mysql://user:password@host:3306/database", driver.ErrInvalid)
	}
	if !slices.Contains(schemes, u.Scheme) {
		return nil, fmt.Errorf("%w URL: the scheme %q is none of %s", driver.ErrInvalid, u.Scheme, strings.Join(schemes, ", "))
	}
	own := u.Query()
	for _, shared := range []string{"ttl", "prefix", "label", "identity"} { // they concern locks
		own.Del(shared)
	}
	u.RawQuery = own.Encode()
	s, err := parse(driver.Config{URL: u, Hosts: []string{u.Host}})
	if err != nil {
		return nil, err
	}
	return s.open()
}
