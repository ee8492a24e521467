package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
)

// check implements [driver.Checker].
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	p, err := s.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", s.addrs, explainOpen(err))
	}
	defer p.close()
	at, err := p.look(ctx, patience)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", s.addrs, explainOpen(err))
	}
	if s.advisory != nil {
		return []driver.Finding{at.serverVersion(), at.primary(), at.direct(), p.advisoryLocks(ctx, at), p.activity(ctx)}, nil
	}
	found := []driver.Finding{at.serverVersion(), at.role(), at.pooler()}
	if at.number < leastVersion {
		return found, nil // it may not have what the others ask for
	}
	is, err := p.habits(ctx)
	if err != nil {
		return found, explain(err)
	}
	found = append(found, is.durability(at), is.replication(at), at.setUp(is))
	if at.mismatch() == nil {
		found = append(found, at.rights())
	}
	return append(found, is.levels(), is.timeouts(), p.notifications(ctx, at), is.vacuum()), nil
}

// habits are settings of a server, and what else happens there, that matter to a check only.
type habits struct {
	settings  map[string]string // of pg_settings, in its units
	followers int               // sessions of standbys
	// seconds since the begin of the oldest transaction that vacuum has to respect
	oldest float64
	hidden bool // the user may not see the transactions of others
	index  bool // the index of the migrations is there
}

// habits reads them.
func (p *pool) habits(ctx context.Context) (*habits, error) {
	h := &habits{}
	var names, values []string
	_, err := p.exchange(ctx, callTimeout, &op{sql: `SELECT
		ARRAY(SELECT name FROM pg_settings WHERE name = ANY ($1::text[]) ORDER BY name),
		ARRAY(SELECT setting FROM pg_settings WHERE name = ANY ($1::text[]) ORDER BY name),
		(SELECT count(*)::int4 FROM pg_stat_replication),
		coalesce(extract(epoch FROM clock_timestamp() - least(
			(SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()),
			(SELECT min(prepared) FROM pg_prepared_xacts))), 0)::float8,
		NOT pg_has_role('pg_read_all_stats', 'USAGE'), to_regclass('dlock_requests_ended') IS NOT NULL`,
		args: []any{pgx.QueryExecModeExec, []string{"fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names",
			"default_transaction_isolation", "statement_timeout", "transaction_timeout", "idle_session_timeout", "autovacuum"}},
		each: func(row pgx.Rows) error {
			return row.Scan(&names, &values, &h.followers, &h.oldest, &h.hidden, &h.index)
		}})
	if err != nil {
		return nil, err
	}
	h.settings = map[string]string{}
	for i, name := range names {
		h.settings[name] = values[i]
	}
	return h, nil
}

// serverVersion reports which server it is. Others that speak PostgreSQL's protocol have their
// names in the version.
func (s *site) serverVersion() driver.Finding {
	f := driver.Finding{About: "version", Found: s.name()}
	if s.number < leastVersion {
		f.State, f.Advice = driver.Wrong, fmt.Sprintf("PostgreSQL has to be %d or newer", leastVersion/10000)
	}
	for _, other := range []string{"CockroachDB", "-YB-", "Redshift", "Materialize", "RisingWave", "CrateDB", "Spanner"} {
		if strings.Contains(s.version, other) {
			f.State, f.Found = driver.Wrong, s.version
			f.Advice = "use PostgreSQL: this server only speaks its protocol"
		}
	}
	return f
}

func (s *site) role() driver.Finding {
	switch {
	case s.standby:
		return driver.Finding{About: "role", State: driver.Wrong, Found: "the server is a standby",
			Advice: "use the address of the primary, or name all servers in the URL: locks need writes"}
	case s.readOnly:
		return driver.Finding{About: "role", State: driver.Wrong, Found: "default_transaction_read_only is on",
			Advice: "ALTER ROLE the user SET default_transaction_read_only = off (the database or the server may set it too): locks need writes"}
	}
	return driver.Finding{About: "role", Found: "the server takes writes"}
}

func (s *site) pooler() driver.Finding {
	if s.pid == s.connected {
		return driver.Finding{About: "pooler", Found: "none is in between"}
	}
	return driver.Finding{About: "pooler", State: driver.Risky, Found: "a pooler is between here and the server",
		Advice: "no action is needed: waiters of other clients find their grants by polling, some milliseconds later, and statements are not prepared. " +
			"With the server's own address they are notified"}
}

func (h *habits) durability(s *site) driver.Finding {
	f := driver.Finding{About: "durability", Found: fmt.Sprintf("fsync %s, full_page_writes %s, synchronous_commit %s",
		h.settings["fsync"], h.settings["full_page_writes"], s.commit)}
	switch {
	case s.commit == "off":
		f.State, f.Advice = driver.Wrong, "ALTER ROLE the user SET synchronous_commit = on: after a crash the server may not know the last grants, "+
			"and a second holder may then get the lock"
	case h.settings["fsync"] != "on":
		f.State, f.Advice = driver.Risky, "set fsync to on: a crash of the machine may lose grants or damage the tables, and a second holder may then get the lock"
	case h.settings["full_page_writes"] != "on":
		f.State, f.Advice = driver.Risky, "set full_page_writes to on, unless the file system writes pages completely or not at all: "+
			"a crash of the machine may damage the tables"
	}
	return f
}

// replication reports what a failover to a standby may forget.
func (h *habits) replication(s *site) driver.Finding {
	f := driver.Finding{About: "standbys", Found: "none follows now"}
	names := h.settings["synchronous_standby_names"]
	switch {
	case names != "" && s.commit != "local" && s.commit != "off":
		f.Found = fmt.Sprintf("synchronous_standby_names %q, synchronous_commit %s", names, s.commit)
	case names != "":
		f.State, f.Found = driver.Risky, fmt.Sprintf("synchronous_standby_names %q, but synchronous_commit %s", names, s.commit)
		f.Advice = "ALTER ROLE the user SET synchronous_commit = on: a standby that takes over may not know the last grants, and may let a second holder in"
	case h.followers > 0:
		f.State, f.Found = driver.Risky, fmt.Sprintf("%d standbys or backups follow, none synchronously", h.followers)
		f.Advice = "set synchronous_standby_names if one of them may take over: it may not know the last grants, and may let a second holder in"
	}
	return f
}

// levels is reported because operators ask for it: nothing depends on it.
func (h *habits) levels() driver.Finding {
	return driver.Finding{About: "isolation", Found: strings.ToUpper(h.settings["default_transaction_isolation"]) +
		"; dlock begins its transactions with READ COMMITTED"}
}

// setUp reports whether the tables are there.
func (s *site) setUp(h *habits) driver.Finding {
	f := driver.Finding{About: "tables", Found: "both, of format 1"}
	err := s.mismatch()
	switch {
	case errors.Is(err, errSchema):
		f.State, f.Found, f.Advice = driver.Wrong, err.Error(), `run "dlock migrate" with this URL`
	case err != nil:
		f.State, f.Found, f.Advice = driver.Wrong, err.Error(), "run programs of one version of dlock on a database; docs/postgres.md says what it needs there"
	case !h.index:
		f.State, f.Found = driver.Risky, "both, of format 1, without the index dlock_requests_ended"
		f.Advice = "run the last file of migrations/postgres: clients ask for it twice a second while they hold locks"
	}
	return f
}

func (s *site) rights() driver.Finding {
	f := driver.Finding{About: "rights", Found: "the user may read and write both tables"}
	if missing := s.lacking(); len(missing) > 0 {
		f.State, f.Found = driver.Wrong, "missing: "+strings.Join(missing, ", ")
		f.Advice = "GRANT them to the user; docs/postgres.md has the statements"
	}
	return f
}

// timeouts reports settings that end the driver's statements, or its sessions, too early.
func (h *habits) timeouts() driver.Finding {
	f := driver.Finding{About: "timeouts", Found: "none that ends statements of dlock"}
	var short []string
	for name, least := range map[string]int{"statement_timeout": 1000, "transaction_timeout": 1000,
		"idle_session_timeout": 10000} {
		ms := 0
		if fmt.Sscan(h.settings[name], &ms); ms > 0 && ms < least {
			short = append(short, fmt.Sprintf("%s %dms", name, ms))
		}
	}
	if len(short) > 0 {
		slices.Sort(short)
		f.State, f.Found = driver.Risky, strings.Join(short, ", ")
		f.Advice = "ALTER ROLE the user SET them to 0, or to 10s and more: they end statements that wait for a row for a moment, and connections that are used again soon"
	}
	return f
}

// notifications tries LISTEN.
func (p *pool) notifications(ctx context.Context, s *site) driver.Finding {
	f := driver.Finding{About: "notifications", Found: "LISTEN works"}
	switch {
	case s.pid != s.connected:
		f.State, f.Found, f.Advice = driver.Unseen, "a pooler does not pass them on", "no action is needed: clients poll"
		return f
	case s.standby:
		f.State, f.Found, f.Advice = driver.Unseen, "a standby has none", "check the primary"
		return f
	}
	if _, err := p.exchange(ctx, callTimeout, &op{sql: "LISTEN dlock_check", args: []any{pgx.QueryExecModeExec}}); err != nil {
		f.State, f.Found = driver.Risky, "no LISTEN: "+err.Error()
		f.Advice = "no action is needed: waiters of other clients find their grants by polling, some milliseconds later"
	}
	return f
}

// vacuum reports what keeps the server from removing old versions of rows. Each change of a lock
// leaves one.
func (h *habits) vacuum() driver.Finding {
	f := driver.Finding{About: "vacuum", Found: "no transaction is older than an hour"}
	switch age := time.Duration(h.oldest) * time.Second; {
	case h.settings["autovacuum"] != "on":
		f.State, f.Found, f.Advice = driver.Risky, "autovacuum is off", "set autovacuum to on: each change of a lock leaves an old row, and the tables grow"
	case age > time.Hour:
		f.State, f.Found = driver.Risky, fmt.Sprintf("a transaction began %s ago", age)
		f.Advice = "end it: until then old rows stay, and every call that reads them gets slower"
	case h.hidden:
		f.State, f.Found = driver.Unseen, "the user may not see the transactions of others"
		f.Advice = "GRANT pg_read_all_stats to the user of this check"
	}
	return f
}
