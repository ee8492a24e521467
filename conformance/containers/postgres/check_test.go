package postgres

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestPostgresCheck: "dlock check" finds what is wrong with a database, and names each right that
// is missing.
func TestPostgresCheck(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, PostgreSQL)
	check := steps.NewChecker(t)
	check.Wants("an empty database", s.URL, map[string][2]string{"tables": {"wrong", "not have both tables"}, "laws": {"wrong", ""}})
	migrated(t, s)
	fine := [2]string{"fine", ""}
	check.Wants("a database", s.URL, map[string][2]string{
		"laws": steps.Holds, "tables": fine, "rights": fine, "durability": {"risky", "fsync off"}, "version": {"fine", strings.Replace(s.Version, "postgres", "PostgreSQL", 1)}, "role": fine, "pooler": fine,
		"standbys": fine, "timeouts": fine, "notifications": fine,
	})
	root := poolOf(t, s.URL)
	u := leastRights(t, s, "checked", "canary")
	check.Wants("a user with the least rights", u, map[string][2]string{"rights": fine, "laws": steps.Holds})
	for _, all := range neededGrants {
		for _, g := range split(all) {
			right := strings.TrimPrefix(g, "GRANT ")
			execute(t, root, "REVOKE "+right+" FROM checked")
			check.Wants("without "+right, u, map[string][2]string{"rights": {"wrong", "= missing: " + right}, "tables": fine}, "--no-laws")
			execute(t, root, g+" TO checked")
		}
	}
	for what, c := range map[string]struct {
		do, undo string
		want     map[string][2]string
	}{
		"no durability":    {"ALTER ROLE checked SET synchronous_commit = off", "ALTER ROLE checked RESET synchronous_commit", map[string][2]string{"durability": {"wrong", "synchronous_commit off"}}},
		"read-only":        {"ALTER ROLE checked SET default_transaction_read_only = on", "ALTER ROLE checked RESET default_transaction_read_only", map[string][2]string{"role": {"wrong", "default_transaction_read_only"}}},
		"short statements": {"ALTER ROLE checked SET statement_timeout = '500ms'", "ALTER ROLE checked RESET statement_timeout", map[string][2]string{"timeouts": {"risky", "statement_timeout"}}},
		"unlogged tables":  {"ALTER TABLE dlock_requests SET UNLOGGED", "ALTER TABLE dlock_requests SET LOGGED", map[string][2]string{"tables": {"wrong", "UNLOGGED"}}},
		"no index":         {"DROP INDEX dlock_requests_ended", "CREATE INDEX dlock_requests_ended ON dlock_requests (client) WHERE broken", map[string][2]string{"tables": {"risky", "dlock_requests_ended"}}},
	} {
		execute(t, root, c.do)
		check.Wants(what, u, c.want, "--no-laws")
		execute(t, root, c.undo)
	}
	standby := service.StartOwn(t, Standby(s))
	check.Wants("a standby", standby.URL, map[string][2]string{"role": {"wrong", "standby"}}, "--no-laws")
	check.Wants("with a standby", u, map[string][2]string{"standbys": {"risky", "none synchronously"}}, "--no-laws")
	execute(t, root, "DO $$ BEGIN CREATE ROLE dlock LOGIN; END $$", neededGrants[0]+" TO dlock", neededGrants[1]+" TO dlock")
	bouncer := service.StartOwn(t, Before(s))
	check.Wants("behind a pooler", as(t, bouncer.URL, "dlock", ""), map[string][2]string{"pooler": {"risky", ""}, "laws": steps.Holds, "notifications": {"unseen", "pooler"}})
}

// TestPostgresMigrateCommand: "dlock migrate" makes the tables that are missing, and removes them
// only while nothing holds or waits.
func TestPostgresMigrateCommand(t *testing.T) {
	t.Parallel()
	s := shared(t)
	bin := steps.BuildCommand(t)
	run := func(status int, words string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, append([]string{"migrate"}, args...)...)
		cmd.Env = append(os.Environ(), "DLOCK_URL="+params(t, s.URL, "ttl", "5s", "prefix", "p"))
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != status || !bytes.Contains(out, []byte(words)) {
			t.Errorf("dlock migrate %q: exit status %d, want %d with %q\n%s", args, got, status, words, out)
		}
	}
	root := poolOf(t, s.URL)
	left := func() int {
		return one[int](t, root, "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
	}
	run(0, "the tables exist")
	run(0, "the tables exist")
	whole := left()
	if n := one[int](t, root, "SELECT count(*) FROM information_schema.routines WHERE routine_schema = 'public'"); n != 0 || whole != 2 {
		t.Errorf("%d tables and %d routines are there", whole, n)
	}
	run(2, "--yes", "--down")
	c, err := dlock.Open(t.Context(), s.URL, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l := steps.MustLock(t, c.Mutex("held"))
	run(1, "1 requests hold or wait", "--down", "--yes")
	if n := left(); n != whole || l.Renew(t.Context()) != nil {
		t.Errorf("%d of %d tables are left of a refused --down; %v", n, whole, l.Err())
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(0, "the tables are removed", "--down", "--yes")
	if n := left(); n != 0 {
		t.Errorf("%d tables are left", n)
	}
	run(0, "the tables are removed", "--down", "--yes")
	run(0, "the tables exist")
	steps.MustLock(t, c.Mutex("held"))
	run(0, "the tables are removed", "--down", "--yes", "--force")
	if n := left(); n != 0 {
		t.Errorf("%d tables are left by --force", n)
	}
}
