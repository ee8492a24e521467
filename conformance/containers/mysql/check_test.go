package mysql

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

// TestMySQLCheck: "dlock check" finds what is wrong with a database, and names each right that is
// missing.
func TestMySQLCheck(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		check := steps.NewChecker(t)
		check.Wants("an empty database", s.URL, map[string][2]string{"tables": {"wrong", "not have both tables"}, "laws": {"wrong", ""}})
		migrated(t, s)
		check.Wants("a database", s.URL, map[string][2]string{
			"laws": steps.Holds, "tables": {"fine", ""}, "rights": {"fine", ""}, "durability": {"risky", "innodb_flush_log_at_trx_commit 2"}, "version": {"fine", ""},
		})
		root := mysqlOf(t, s).pool(t)
		database := mysqlOf(t, s).DBName
		user := "check_" + database[max(0, len(database)-8):]
		u := strings.Replace(s.URL, "root@", user+":canary@", 1)
		execute(t, root, "DROP USER IF EXISTS "+user, "CREATE USER "+user+" IDENTIFIED BY 'canary'")
		defer execute(t, root, "DROP USER "+user)
		var grants []string
		for _, g := range documentedGrants(t) {
			for _, part := range split(g) {
				part = strings.Replace(strings.Replace(part, " ON app.", " ON "+database+".", 1), " TO dlock", " TO "+user, 1)
				grants = append(grants, part)
				execute(t, root, part)
			}
		}
		check.Wants("a user with the least rights", u, map[string][2]string{"rights": {"fine", ""}, "laws": steps.Holds})
		for _, g := range grants {
			right, rest, _ := strings.Cut(strings.TrimPrefix(g, "GRANT "), " ON ")
			table, _, _ := strings.Cut(strings.TrimPrefix(rest, database+"."), " ")
			missing := right + " ON " + table
			want := map[string][2]string{"rights": {"wrong", "= missing: " + missing}, "tables": {"fine", ""}}
			execute(t, root, strings.Replace(strings.Replace(g, "GRANT ", "REVOKE ", 1), " TO ", " FROM ", 1))
			check.Wants("without "+right+" ON "+table, u, want, "--no-laws")
			execute(t, root, g)
		}
		execute(t, root, "ALTER TABLE dlock_requests ENGINE = MyISAM")
		check.Wants("another engine", u, map[string][2]string{"tables": {"wrong", "dlock_requests has the engine MyISAM"}}, "--no-laws")
		execute(t, root, "ALTER TABLE dlock_requests ENGINE = InnoDB")
	})
}

// TestMySQLMigrateCommand: "dlock migrate" makes the tables that are missing, and removes them only
// while nothing holds or waits.
func TestMySQLMigrateCommand(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		bin := steps.BuildCommand(t)
		run := func(status int, words string, args ...string) {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), bin, append([]string{"migrate"}, args...)...)
			cmd.Env = append(os.Environ(), "DLOCK_URL="+s.URL+"?ttl=5s&prefix=p")
			out, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != status || !bytes.Contains(out, []byte(words)) {
				t.Errorf("dlock migrate %q: exit status %d, want %d with %q\n%s", args, got, status, words, out)
			}
		}
		root := mysqlOf(t, s).pool(t)
		left := func() int {
			return one[int](t, root, "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()")
		}
		run(0, "the tables exist")
		run(0, "the tables exist")
		whole := left()
		if n := one[int](t, root, "SELECT COUNT(*) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE()"); n != 0 || whole != 2 {
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
	})
}
