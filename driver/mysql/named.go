package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql/internal/getlock"
)

// readFormat reads the parameters format and key.
func (s *settings) readFormat(format string) error {
	switch {
	case format == "" && s.key != "":
		return fmt.Errorf("%w URL: key belongs to format=get_lock; the parameter of dlock's own locks is prefix", driver.ErrInvalid)
	case format == "":
		return nil
	case format != "get_lock":
		return fmt.Errorf("%w URL: format is %q; get_lock is allowed, and none for dlock's own locks", driver.ErrInvalid, format)
	case s.migrate:
		return fmt.Errorf("%w URL: format=get_lock has no tables, so migrate does not belong to it", driver.ErrInvalid)
	case s.poolSize < 4:
		return fmt.Errorf("%w URL: pool_size is %d; format=get_lock has a connection for each lock, and needs at least 4", driver.ErrInvalid, s.poolSize)
	}
	s.named, s.key = true, cmp.Or(s.key, "{name}")
	return s.namedOptions("", "").Check()
}

func (s *settings) namedOptions(scheme, version string) getlock.Options {
	return getlock.Options{
		Backend: scheme, Key: s.key, Prefix: s.o.Prefix, MariaDB: strings.Contains(strings.ToLower(version), "mariadb"), Most: s.poolSize,
	}
}

// openNamed opens the backend of format=get_lock over the pool, which it closes.
func (s *settings) openNamed(ctx context.Context, db *sql.DB, scheme string) (driver.Backend, error) {
	var version string
	err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
	if err == nil {
		var b driver.Backend
		if b, err = getlock.New(db, s.namedOptions(scheme, version)); err == nil {
			return b, nil
		}
	}
	db.Close()
	return nil, fmt.Errorf("reach %s: %w", s.config.Addr, explain(err))
}

// nodes reports whether each node has named locks of its own.
func nodes(is map[string]string) driver.Finding {
	if is["wsrep_on"] == "ON" {
		return driver.Finding{About: "nodes", State: driver.Risky, Found: "a Galera cluster",
			Advice: "send all programs that take these locks to the same node: each node has named locks of its own"}
	}
	return driver.Finding{About: "nodes", Found: "no Galera cluster"}
}

// namedLocks tries one.
func (p *pool) namedLocks(ctx context.Context) driver.Finding {
	f := driver.Finding{About: "functions", Found: "named locks"}
	a, err := p.ask(ctx, callTimeout, "SELECT GET_LOCK('dlock.check', 0), RELEASE_LOCK('dlock.check') LIMIT 1", false)
	if row, err2 := a.single(2); err != nil || err2 != nil || row[0] == "" {
		f.State, f.Found, f.Advice = driver.Wrong, "no named locks (GET_LOCK)", "use a server that has them, or leave out format=get_lock"
	}
	return f
}

// processes reports whether the user can see the connections of others, which hold locks.
func (p *pool) processes(ctx context.Context) driver.Finding {
	f := driver.Finding{About: "holders", Found: "the user and host of each holder are shown"}
	a, err := p.ask(ctx, callTimeout, "SHOW GRANTS", false)
	if err != nil {
		f.State, f.Found, f.Advice = driver.Unseen, "the user may not see its rights", "make sure that it has PROCESS"
		return f
	}
	for _, row := range a.rows {
		if rights, _, _ := strings.Cut(row[0], " ON "); strings.Contains(rights, "PROCESS") || strings.Contains(rights, "ALL PRIVILEGES") {
			return f
		}
	}
	f.State, f.Found = driver.Risky, "the right PROCESS is missing"
	f.Advice = "GRANT PROCESS ON *.* to the user, to see which user and host holds a lock; without it, the number of the connection is shown"
	return f
}
