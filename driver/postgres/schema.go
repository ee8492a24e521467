package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// tables are the columns of this driver's tables. A table with others belongs to another version,
// whose clients may follow another protocol: the two must not share a queue.
var tables = map[string][]string{
	"dlock_locks": {"prefix", "name", "token", "head", "floor", "last", "beside", "holder", "client", "label", "ttl_us", "fixed", "broken",
		"held_since", "held_until"},
	"dlock_requests": {"id", "prefix", "name", "kind", "place", "owner", "client", "exclusive", "permits", "fixed", "broken", "token", "ttl_us",
		"label", "arrived_at", "expires_at"},
}

// keys are their primary and unique keys, each with its columns in alphabetical order. Without
// those a lock could have two rows.
var keys = map[string][]string{
	"dlock_locks":    {"name prefix"},
	"dlock_requests": {"id", "kind name place prefix"},
}

// needed are the rights that the driver needs. (DELETE ON dlock_locks is for [Cleanup] alone.)
var needed = []string{
	"SELECT ON dlock_locks", "INSERT ON dlock_locks", "UPDATE ON dlock_locks",
	"SELECT ON dlock_requests", "INSERT ON dlock_requests", "UPDATE ON dlock_requests", "DELETE ON dlock_requests",
}

// leastVersion is the least server_version_num that the driver works with: PostgreSQL 14.
const leastVersion = 140000

// site is what the driver asks a server about itself and the tables.
type site struct {
	pid uint32 // of the process that serves the session
	// that was reported when the connection was opened; if it is another one there is a pooler
	connected uint32
	number    int    // the version: 170002
	version   string // the version as text, with the name of the server
	standby   bool
	commit    string // synchronous_commit
	readOnly  bool   // default_transaction_read_only
	path      string // search_path
	start     string // … as it was when the session began
	found     map[string]*found

	inaccessible []string // schemas with tables of these names that the user may not use
}

// found is a table as the search_path finds it.
type found struct {
	columns   []string // nil: the search_path finds no such table
	schema    string   // where it is, quoted as an identifier
	keys      []string
	kind      string   // of relation: r is an ordinary table
	kept      string   // u: its content is lost in a crash; t: it ends with the session
	filtered  bool     // row-level security hides rows from the user
	rights    []string // that the user lacks
	elsewhere []string // other schemas that have a table of that name
}

// siteQuery returns a row for each of the two tables. to_regclass finds what a statement would
// find; the search_path has no effect on schemas that the user may not use.
const siteQuery = `SELECT pg_backend_pid()::int8, current_setting('server_version_num')::int4, version(), pg_is_in_recovery(),
	current_setting('synchronous_commit'), current_setting('default_transaction_read_only') = 'on', current_setting('search_path'),
	coalesce((SELECT reset_val FROM pg_settings WHERE name = 'search_path'), current_setting('search_path')),
	t.name, coalesce((SELECT quote_ident(n.nspname) FROM pg_namespace n WHERE n.oid = c.relnamespace), ''), coalesce(c.relkind::text, ''), coalesce(c.relpersistence::text, ''), coalesce(row_security_active(c.oid), false),
	ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
	ARRAY(SELECT (SELECT string_agg(a.attname::text, ' ' ORDER BY a.attname::text COLLATE "C")
			FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]))
		FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL),
	ARRAY(SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r WHERE NOT has_table_privilege(c.oid, r)),
	ARRAY(SELECT n.nspname::text FROM pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace
		WHERE o.relname = t.name AND o.relkind = 'r' AND o.oid IS DISTINCT FROM c.oid AND has_schema_privilege(n.oid, 'USAGE') LIMIT 20),
	ARRAY(SELECT n.nspname::text FROM pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace
		WHERE o.relname = t.name AND o.relkind = 'r' AND NOT has_schema_privilege(n.oid, 'USAGE') LIMIT 20)
	FROM (VALUES ('dlock_locks'), ('dlock_requests')) t (name) LEFT JOIN pg_class c ON c.oid = to_regclass(t.name)`

// look reads what the driver has to know about the server. It prepares no statement, so it works
// through a pooler too.
func (p *pool) look(ctx context.Context, limit time.Duration) (*site, error) {
	s := &site{found: map[string]*found{}}
	_, err := p.exchange(ctx, limit, &op{sql: siteQuery, args: []any{pgx.QueryExecModeExec}, each: func(row pgx.Rows) error {
		var pid int64
		var name string
		var inaccessible []string
		f := &found{}
		err := row.Scan(&pid, &s.number, &s.version, &s.standby, &s.commit, &s.readOnly, &s.path, &s.start,
			&name, &f.schema, &f.kind, &f.kept, &f.filtered, &f.columns, &f.keys, &f.rights, &f.elsewhere, &inaccessible)
		if err != nil {
			return err
		}
		s.pid, s.connected = uint32(pid), row.Conn().PgConn().PID()
		s.found[name] = f
		s.inaccessible = append(s.inaccessible, inaccessible...)
		return nil
	}})
	if err == nil && len(s.found) != len(tables) {
		err = fmt.Errorf("the server answered a question about %d tables with %d rows", len(tables), len(s.found))
	}
	if err != nil {
		return nil, &kit.NotSent{Err: err} // nothing was written
	}
	return s, nil
}

// checkServer reaches the server, and returns an error if dlock cannot work there: for its version,
// its role, its settings, its tables or the rights of the user. Once it has succeeded it asks the
// server no more.
func (p *pool) checkServer(ctx context.Context) error {
	if p.checked.Load() {
		return nil
	}
	s, err := p.look(ctx, callTimeout)
	if err != nil {
		return err
	}
	if s.pid != s.connected {
		p.pooled.Store(true)
	}
	err = s.unfit()
	if err == nil && p.owned && s.path != s.start {
		err = errPath
	}
	if err != nil {
		return &kit.NotSent{Err: err}
	}
	p.names.Store(s.names())
	p.checked.Store(true)
	return nil
}

// unfit returns an error if dlock cannot work there.
func (s *site) unfit() error {
	switch {
	case s.number < leastVersion:
		return unsupported(fmt.Sprintf("the server is %s, and dlock needs PostgreSQL %d or newer", s.name(), leastVersion/10000))
	case s.standby:
		return errStandby
	case s.commit == "off":
		return errVolatile
	case s.readOnly:
		return errReadOnly
	}
	if err := s.mismatch(); err != nil {
		return err
	}
	if missing := s.lacking(); len(missing) > 0 {
		return fmt.Errorf("%w: missing: %s", errRights, strings.Join(missing, ", "))
	}
	return nil
}

// names are the tables with the schemas in which they were found, for statements that may be
// executed in a session with another search_path, or with temporary tables of these names.
func (s *site) names() *tableNames {
	var pairs []string
	for table, f := range s.found {
		if f.schema != "" {
			pairs = append(pairs, table, f.schema+"."+table)
		}
	}
	return &tableNames{names: strings.NewReplacer(pairs...)}
}

// tableNames puts the schemas of the tables into statements.
type tableNames struct {
	names *strings.Replacer
	made  sync.Map // what a statement becomes
}

func (n *tableNames) in(stmt string) string {
	if made, is := n.made.Load(stmt); is {
		return made.(string)
	}
	made := n.names.Replace(stmt)
	n.made.Store(stmt, made)
	return made
}

// name is the server's name and version: "PostgreSQL 17.2".
func (s *site) name() string {
	if words := strings.Fields(s.version); len(words) > 1 {
		return words[0] + " " + words[1]
	}
	return s.version
}

// lacking returns the rights that the user lacks, as in a GRANT.
func (s *site) lacking() (missing []string) {
	for _, right := range needed {
		name, table, _ := strings.Cut(right, " ON ")
		if slices.Contains(s.found[table].rights, name) {
			missing = append(missing, right)
		}
	}
	return missing
}

// mismatch returns an error that says what to do if the server has other tables than the driver
// needs. It matches errSchema if one is missing, errOtherSchema if one is another version's, and
// errUnfit if the server does not treat it as dlock needs.
func (s *site) mismatch() error {
	const remedy = "run programs of one version of dlock on a database, or, while none runs, drop the tables dlock_locks and dlock_requests, and migrate"
	var missing []string
	for _, table := range []string{"dlock_locks", "dlock_requests"} {
		f := s.found[table]
		is, want := slices.Sorted(slices.Values(f.columns)), slices.Sorted(slices.Values(tables[table]))
		switch {
		case len(is) == 0:
			missing = append(missing, table)
		case f.kind != "r":
			return fmt.Errorf("%w: %s is not an ordinary table: rename it, or put a schema of dlock's own first in the search_path", errUnfit, table)
		case !slices.Equal(is, want):
			return fmt.Errorf("%w: %s has the columns %s, and this version needs %s: %s", errOtherSchema, table,
				strings.Join(is, ", "), strings.Join(want, ", "), remedy)
		case !slices.Equal(slices.Sorted(slices.Values(f.keys)), keys[table]):
			return fmt.Errorf("%w: %s has primary and unique keys on the columns %q, and needs them on %q: make them as the files of package migrations do, or %s",
				errOtherSchema, table, f.keys, keys[table], strings.TrimPrefix(remedy, "run programs of one version of dlock on a database, or, "))
		case f.kept != "p":
			return fmt.Errorf("%w: %s is UNLOGGED or temporary, and a crash would empty it: ALTER TABLE %s SET LOGGED", errUnfit, table, table)
		case f.filtered:
			return fmt.Errorf("%w: row-level security hides rows of %s from the user: ALTER TABLE %s DISABLE ROW LEVEL SECURITY", errUnfit, table, table)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return s.absent(missing)
}

// absent is the error about tables that the search_path does not find. It names the schemas that
// have them.
func (s *site) absent(missing []string) error {
	if schemas := unique(s.inaccessible); len(schemas) > 0 {
		for i, schema := range schemas {
			schemas[i] = "USAGE ON SCHEMA " + schema
		}
		return fmt.Errorf("%w (missing: %s); or, if these tables are the ones, the user lacks a right to find them: %s",
			errSchema, strings.Join(missing, ", "), strings.Join(schemas, " or "))
	}
	var elsewhere []string
	for _, table := range missing {
		elsewhere = append(elsewhere, s.found[table].elsewhere...)
	}
	if schemas := unique(elsewhere); len(schemas) > 0 {
		return fmt.Errorf("%w (missing: %s); the search_path is %s, and tables of that name are in the schema %s: if they are the ones, "+
			"add ?search_path=%s to the URL, or ALTER ROLE the user SET search_path = %[4]s", errSchema, strings.Join(missing, ", "), s.path,
			strings.Join(schemas, ", "), schemas[0])
	}
	return fmt.Errorf("%w (missing: %s)", errSchema, strings.Join(missing, ", "))
}

// unique returns the values in alphabetical order, each once.
func unique(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }
