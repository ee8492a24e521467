package postgres

import (
	"errors"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/migrations"
)

// TestColumnsAreTheMigrations compares the columns that the driver asks for with those that the
// migrations make.
func TestColumnsAreTheMigrations(t *testing.T) {
	files, err := fs.Glob(migrations.Files, "postgres/*.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string][]string{}
	table, column := regexp.MustCompile(`(?m)^CREATE TABLE IF NOT EXISTS (\w+) \($`), regexp.MustCompile(`(?m)^  ([a-z_]+) `)
	for _, f := range files {
		text, err := migrations.Files.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := table.FindSubmatch(text)
		if name == nil {
			continue // an index
		}
		for _, m := range column.FindAllSubmatch(text, -1) {
			made[string(name[1])] = append(made[string(name[1])], string(m[1]))
		}
	}
	s := fit()
	for name, columns := range made {
		s.found[name].columns = columns
	}
	if err := s.mismatch(); err != nil || len(made) != len(tables) {
		t.Errorf("%v; the tables are %q", err, slices.Sorted(maps.Keys(made)))
	}
}

// fit is a server as the driver needs it.
func fit() *site {
	s := &site{pid: 1, connected: 1, number: 170002, version: "PostgreSQL 17.2 (Debian) on x86_64", commit: "on", path: "public", found: map[string]*found{}}
	for table := range tables {
		s.found[table] = &found{columns: slices.Clone(tables[table]), keys: slices.Clone(keys[table]), kind: "r", kept: "p"}
	}
	return s
}

// TestUnfitSaysWhatToDo: the error about a server where dlock cannot work has advice.
func TestUnfitSaysWhatToDo(t *testing.T) {
	for what, c := range map[string]struct {
		change func(s *site, locks, requests *found)
		want   error
		words  []string
	}{
		"fit":      {func(*site, *found, *found) {}, nil, nil},
		"old":      {func(s *site, _, _ *found) { s.number, s.version = 130004, "PostgreSQL 13.4 on x" }, driver.ErrUnsupported, []string{"PostgreSQL 13.4,", "PostgreSQL 14"}},
		"standby":  {func(s *site, _, _ *found) { s.standby = true }, errStandby, []string{"primary"}},
		"volatile": {func(s *site, _, _ *found) { s.commit = "off" }, errVolatile, []string{"crash", "ALTER ROLE", "synchronous_commit = on"}},
		"local":    {func(s *site, _, _ *found) { s.commit = "local" }, nil, nil},
		"readonly": {func(s *site, _, _ *found) { s.readOnly = true }, errReadOnly, []string{"ALTER ROLE", "default_transaction_read_only = off"}},
		"in another order": {func(_ *site, l, r *found) {
			slices.Sort(l.columns)
			slices.Reverse(r.keys)
		}, nil, nil},
		"no tables": {func(_ *site, l, r *found) { *l, *r = found{}, found{} }, errSchema,
			[]string{"missing: dlock_locks, dlock_requests)", "?migrate=true", "postgres.Migrate", "dlock migrate"}},
		"no dlock_locks":    {func(_ *site, l, _ *found) { *l = found{} }, errSchema, []string{"missing: dlock_locks)"}},
		"no dlock_requests": {func(_ *site, _, r *found) { *r = found{} }, errSchema, []string{"missing: dlock_requests)"}},
		"elsewhere": {func(_ *site, l, r *found) {
			*l, *r = found{elsewhere: []string{"b", "a"}}, found{elsewhere: []string{"a"}}
		}, errSchema, []string{"missing: dlock_locks, dlock_requests)", "search_path is public", "schema a, b", "?search_path=a", "ALTER ROLE"}},
		"without USAGE": {func(s *site, l, r *found) {
			*l, *r, s.inaccessible = found{}, found{}, []string{"a", "a"}
		}, errSchema, []string{"lacks a right", "USAGE ON SCHEMA a"}},
		"a column too many": {func(_ *site, _, r *found) { r.columns = append(r.columns, "zone") }, errOtherSchema,
			[]string{"dlock_requests has the columns", "zone", "drop", "one version"}},
		"a column too few": {func(_ *site, l, _ *found) { l.columns = l.columns[1:] }, errOtherSchema, []string{"dlock_locks has the columns", "drop"}},
		"other columns":    {func(_ *site, l, _ *found) { l.columns = []string{"id"} }, errOtherSchema, []string{"dlock_locks has the columns id,"}},
		"other and missing": {func(_ *site, l, r *found) {
			*l = found{}
			r.columns = []string{"id"}
		}, errOtherSchema, []string{"dlock_requests has the columns id,"}},
		"no key":      {func(_ *site, l, _ *found) { l.keys = nil }, errOtherSchema, []string{"dlock_locks has primary and unique keys", `["name prefix"]`}},
		"another key": {func(_ *site, _, r *found) { r.keys = append(r.keys, "client") }, errOtherSchema, []string{"dlock_requests has primary and unique keys"}},
		"a view":      {func(_ *site, l, _ *found) { l.kind = "v" }, errUnfit, []string{"dlock_locks is not an ordinary table"}},
		"unlogged":    {func(_ *site, _, r *found) { r.kept = "u" }, errUnfit, []string{"ALTER TABLE dlock_requests SET LOGGED"}},
		"filtered":    {func(_ *site, l, _ *found) { l.filtered = true }, errUnfit, []string{"dlock_locks DISABLE ROW LEVEL SECURITY"}},
		"without rights": {func(_ *site, l, r *found) {
			l.rights, r.rights = []string{"SELECT", "INSERT", "UPDATE", "DELETE"}, []string{"DELETE"}
		}, errRights, []string{"missing: SELECT ON dlock_locks, INSERT ON dlock_locks, UPDATE ON dlock_locks, DELETE ON dlock_requests"}},
		"without what only Cleanup needs": {func(_ *site, l, _ *found) { l.rights = []string{"DELETE"} }, nil, nil},
	} {
		s := fit()
		c.change(s, s.found["dlock_locks"], s.found["dlock_requests"])
		err := s.unfit()
		unsupported := c.want == errOtherSchema || c.want == errUnfit || c.want == driver.ErrUnsupported
		if !errors.Is(err, c.want) || errors.Is(err, driver.ErrUnsupported) != unsupported {
			t.Errorf("%s: %v; want %v", what, err, c.want)
		}
		for _, w := range c.words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want it to say %q", what, err, w)
			}
		}
	}
}

// TestFindings: what dlock check reports of a server, by what is wrong there.
func TestFindings(t *testing.T) {
	usual := func() *habits {
		return &habits{index: true, settings: map[string]string{"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
			"default_transaction_isolation": "read committed", "statement_timeout": "0", "autovacuum": "on"}}
	}
	for what, c := range map[string]struct {
		change func(*site, *habits)
		about  string
		want   driver.State
		words  string
	}{
		"fit":               {func(*site, *habits) {}, "", driver.Fine, ""},
		"old":               {func(s *site, _ *habits) { s.number = 130004 }, "version", driver.Wrong, "14"},
		"another server":    {func(s *site, _ *habits) { s.version = "CockroachDB CCL v26" }, "version", driver.Wrong, "protocol"},
		"standby":           {func(s *site, _ *habits) { s.standby = true }, "role", driver.Wrong, "primary"},
		"read-only":         {func(s *site, _ *habits) { s.readOnly = true }, "role", driver.Wrong, "default_transaction_read_only"},
		"pooler":            {func(s *site, _ *habits) { s.pid = 2 }, "pooler", driver.Risky, "polling"},
		"volatile":          {func(s *site, _ *habits) { s.commit = "off" }, "durability", driver.Wrong, "synchronous_commit = on"},
		"no fsync":          {func(_ *site, h *habits) { h.settings["fsync"] = "off" }, "durability", driver.Risky, "fsync"},
		"torn pages":        {func(_ *site, h *habits) { h.settings["full_page_writes"] = "off" }, "durability", driver.Risky, "full_page_writes"},
		"an async standby":  {func(_ *site, h *habits) { h.followers = 1 }, "standbys", driver.Risky, "synchronous_standby_names"},
		"a sync standby":    {func(_ *site, h *habits) { h.followers, h.settings["synchronous_standby_names"] = 1, "*" }, "", driver.Fine, ""},
		"commits locally":   {func(s *site, h *habits) { s.commit, h.settings["synchronous_standby_names"] = "local", "*" }, "standbys", driver.Risky, "synchronous_commit = on"},
		"short timeout":     {func(_ *site, h *habits) { h.settings["statement_timeout"] = "999" }, "timeouts", driver.Risky, "ALTER ROLE"},
		"long timeout":      {func(_ *site, h *habits) { h.settings["statement_timeout"] = "1000" }, "", driver.Fine, ""},
		"short idle time":   {func(_ *site, h *habits) { h.settings["idle_session_timeout"] = "10" }, "timeouts", driver.Risky, "ALTER ROLE"},
		"a long operation":  {func(_ *site, h *habits) { h.oldest = 3601 }, "vacuum", driver.Risky, "end it"},
		"no autovacuum":     {func(_ *site, h *habits) { h.settings["autovacuum"] = "off" }, "vacuum", driver.Risky, "autovacuum"},
		"no monitoring":     {func(_ *site, h *habits) { h.hidden = true }, "vacuum", driver.Unseen, "pg_read_all_stats"},
		"no index":          {func(_ *site, h *habits) { h.index = false }, "tables", driver.Risky, "migrations/postgres"},
		"no tables":         {func(s *site, _ *habits) { *s.found["dlock_locks"] = found{} }, "tables", driver.Wrong, "dlock migrate"},
		"another's tables":  {func(s *site, _ *habits) { s.found["dlock_locks"].columns = []string{"id"} }, "tables", driver.Wrong, "one version"},
		"an unlogged table": {func(s *site, _ *habits) { s.found["dlock_locks"].kept = "u" }, "tables", driver.Wrong, "docs/postgres.md"},
		"no right":          {func(s *site, _ *habits) { s.found["dlock_locks"].rights = []string{"UPDATE"} }, "rights", driver.Wrong, "GRANT"},
	} {
		s, h := fit(), usual()
		c.change(s, h)
		for _, f := range []driver.Finding{s.serverVersion(), s.role(), s.pooler(), h.durability(s), h.replication(s), s.setUp(h), s.rights(), h.levels(),
			h.timeouts(), h.vacuum()} {
			want := driver.Fine
			if f.About == c.about {
				want = c.want
				if !strings.Contains(f.Advice, c.words) {
					t.Errorf("%s: %+v; want the advice to say %q", what, f, c.words)
				}
			}
			if f.State != want || f.Found == "" || (f.State == driver.Fine) != (f.Advice == "") {
				t.Errorf("%s: %+v; want it to be %s", what, f, want)
			}
		}
	}
}
