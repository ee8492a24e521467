package postgres

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/postgres/internal/advisory"
)

// readFormat reads the parameter format, and those that belong to a format.
func (s *settings) readFormat(format string, o advisory.Options) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w URL: "+format, append([]any{driver.ErrInvalid}, args...)...)
	}
	switch {
	case format == "" && cmp.Or(o.Key, o.Hash, o.Class) != "":
		return bad("key, hash and class belong to format=advisory; the parameter of dlock's own locks is prefix")
	case format == "":
		return nil
	case format != "advisory":
		return bad("format is %q; advisory is allowed, and none for dlock's own locks", format)
	case s.migrate:
		return bad("format=advisory has no tables, so migrate does not belong to it")
	case s.poolSize < 4:
		return bad("pool_size is %d; format=advisory has a connection for each lock, and needs at least 4", s.poolSize)
	}
	o.Key, o.Connect = cmp.Or(o.Key, "{name}"), s.connect
	s.advisory = &o
	return o.Check()
}

// connect opens a connection that is not one of a pool.
func (s *settings) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	end, err := s.openings.Begin(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	end(err)
	if err != nil {
		return nil, explainOpen(err)
	}
	return conn, nil
}

// openAdvisory opens the backend of format=advisory.
func (s *settings) openAdvisory(ctx context.Context) (driver.Backend, error) {
	b, err := advisory.New(ctx, *s.advisory)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", s.addrs, kit.Hide(ctx, err))
	}
	return b, nil
}

// primary reports whether the server is the one whose advisory locks all programs take.
func (s *site) primary() driver.Finding {
	if s.standby {
		return driver.Finding{About: "role", State: driver.Wrong, Found: "the server is a standby",
			Advice: "use the address of the primary, or name all servers in the URL: each server has advisory locks of its own"}
	}
	return driver.Finding{About: "role", Found: "the server is no standby"}
}

// direct reports whether a session of the server is one of the client.
func (s *site) direct() driver.Finding {
	f := s.pooler()
	if f.State != driver.Fine {
		f.State, f.Advice = driver.Wrong, "use the server's own address: an advisory lock belongs to a session, which a pooler may give to another client"
	}
	return f
}

// advisoryLocks tries whether two sessions exclude each other, and what waiters need.
func (p *pool) advisoryLocks(ctx context.Context, at *site) driver.Finding {
	f := driver.Finding{About: "functions", Found: "advisory locks, and PL/pgSQL for waiters"}
	if at.pid != at.connected {
		f.State, f.Found, f.Advice = driver.Unseen, "a pooler is in between", "check with the server's own address"
		return f
	}
	// no other program has a lock of that text
	key := fmt.Sprintf("hashtextextended('dlock.check %d', 0)", at.pid)
	var first, second, freed bool
	var waits error
	within, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := p.with(within, func(a *pgx.Conn) error {
		if err := a.QueryRow(within, "SELECT pg_try_advisory_lock("+key+")").Scan(&first); err != nil {
			return err
		}
		_, err := p.with(within, func(b *pgx.Conn) error {
			_, waits = b.Exec(within, "DO $$ BEGIN PERFORM 1; END $$")
			return b.QueryRow(within, "SELECT pg_try_advisory_lock("+key+")").Scan(&second)
		})
		return cmp.Or(err, a.QueryRow(within, "SELECT pg_advisory_unlock("+key+")").Scan(&freed))
	})
	switch {
	case err != nil:
		f.State, f.Found, f.Advice = driver.Wrong, "no advisory locks: "+err.Error(), "use a server that has them, or leave out format=advisory"
	case !first || second || !freed:
		f.State, f.Found, f.Advice = driver.Wrong, "advisory locks do not exclude", "use PostgreSQL: this server only accepts the functions"
	case waits != nil:
		f.State, f.Found = driver.Risky, "advisory locks, but no PL/pgSQL: "+waits.Error()
		f.Advice = "GRANT USAGE ON LANGUAGE plpgsql to the user: without it waiters do not stand in the server's queue, and try every five seconds"
	}
	return f
}

// activity reports whether the user can see the sessions of others, which hold locks.
func (p *pool) activity(ctx context.Context) driver.Finding {
	f := driver.Finding{About: "holders", Found: "the user, address and application of each holder are shown"}
	var may bool
	_, err := p.exchange(ctx, callTimeout, &op{sql: "SELECT pg_has_role('pg_read_all_stats', 'USAGE')", args: []any{pgx.QueryExecModeExec},
		each: func(row pgx.Rows) error { return row.Scan(&may) }})
	switch {
	case err != nil:
		f.State, f.Found, f.Advice = driver.Unseen, "the user may not see its rights", "GRANT pg_read_all_stats to the user"
	case !may:
		f.State, f.Found = driver.Risky, "the user is no member of pg_read_all_stats"
		f.Advice = "GRANT pg_read_all_stats to the user, to see the address of the holder of a lock; without it, only what the server shows to all is shown"
	}
	return f
}
