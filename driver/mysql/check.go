package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
)

// check implements [driver.Checker].
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	db, err := s.open()
	if err != nil {
		return nil, err
	}
	defer db.Close()
	p := &pool{db: db, owned: true, openings: &s.openings}
	variables, err := p.variables(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", s.config.Addr, explain(err))
	}
	if s.named {
		return []driver.Finding{serverVersion(variables), nodes(variables), p.namedLocks(ctx), p.processes(ctx)}, nil
	}
	found := []driver.Finding{serverVersion(variables), writable(variables), binlog(variables), flushing(variables), writers(variables), isolation(variables)}
	set, err := p.setUp(ctx)
	if err != nil {
		return found, err
	}
	found = append(found, set)
	if set.State == driver.Fine || set.State == driver.Unseen {
		rights, err := p.rights(ctx)
		if err != nil {
			return found, err
		}
		found = append(found, rights)
	}
	return append(found, p.functions(ctx)), nil
}

// variables returns the server's variables that matter here, with values in capital letters.
func (p *pool) variables(ctx context.Context) (map[string]string, error) {
	a, err := p.ask(ctx, callTimeout, "SHOW VARIABLES WHERE Variable_name IN ('version', 'log_bin', 'binlog_format', 'read_only', 'super_read_only', "+
		"'innodb_flush_log_at_trx_commit', 'sync_binlog', 'wsrep_on', 'transaction_isolation', 'tx_isolation')", false)
	if err != nil {
		return nil, err
	}
	is := map[string]string{}
	for _, row := range a.rows {
		is[strings.ToLower(row[0])] = strings.ToUpper(row[1])
	}
	return is, nil
}

// serverVersion reports which server it is. MariaDB may put the version of MySQL that its
// replication speaks before its own. Other servers that speak MySQL's protocol append their names
// to the version.
func serverVersion(is map[string]string) driver.Finding {
	f := driver.Finding{About: "version"}
	least, name, version := [3]int{8, 0, 29}, "MySQL", is["version"]
	if strings.Contains(version, "MARIADB") {
		least, name, version = [3]int{10, 6, 0}, "MariaDB", strings.TrimPrefix(version, "5.5.5-")
	}
	var have [3]int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &have[0], &have[1], &have[2]); n < 3 {
		f.State, f.Found = driver.Unseen, "the server does not report its version"
		f.Advice = fmt.Sprintf("make sure that it is MySQL %d.%d.%d, MariaDB 10.6, or newer", least[0], least[1], least[2])
		return f
	}
	f.Found = fmt.Sprintf("%s %d.%d.%d", name, have[0], have[1], have[2])
	if slices.Compare(have[:], least[:]) < 0 {
		f.State, f.Advice = driver.Wrong, fmt.Sprintf("%s has to be %d.%d.%d or newer", name, least[0], least[1], least[2])
	}
	for _, other := range []string{"TIDB", "VITESS", "OCEANBASE", "POLARDB-X"} {
		if strings.Contains(version, other) {
			f.State, f.Found = driver.Wrong, strings.ToLower(version)
			f.Advice = "use MySQL or MariaDB: this server only speaks their protocol; docs/mysql.md says what is known of it"
		}
	}
	return f
}

func writable(is map[string]string) driver.Finding {
	if is["read_only"] == "ON" || is["super_read_only"] == "ON" {
		return driver.Finding{About: "role", State: driver.Wrong, Found: "the server is read-only", Advice: "use the address of the primary: locks need writes"}
	}
	return driver.Finding{About: "role", Found: "the server takes writes"}
}

func binlog(is map[string]string) driver.Finding {
	f := driver.Finding{About: "binary log", Found: "off"}
	if is["log_bin"] == "ON" {
		f.Found = "binlog_format " + is["binlog_format"]
		if is["binlog_format"] == "STATEMENT" {
			f.State, f.Advice = driver.Wrong, "set binlog_format to ROW or MIXED: with STATEMENT, READ COMMITTED transactions cannot write"
		}
	}
	return f
}

func flushing(is map[string]string) driver.Finding {
	flush, sync := is["innodb_flush_log_at_trx_commit"], is["sync_binlog"]
	f := driver.Finding{About: "durability", Found: "innodb_flush_log_at_trx_commit " + flush}
	if is["log_bin"] == "ON" {
		f.Found += ", sync_binlog " + sync
	}
	switch {
	case flush != "1":
		f.State, f.Advice = driver.Risky, "set innodb_flush_log_at_trx_commit to 1: a crash of the machine may lose the grants of the last second, and a second holder may then get the lock"
	case is["log_bin"] == "ON" && sync != "1":
		f.State, f.Advice = driver.Risky, "set sync_binlog to 1 if replicas follow: after a crash they may lack the last grants"
	}
	return f
}

// writers reports whether several nodes may take writes.
func writers(is map[string]string) driver.Finding {
	if is["wsrep_on"] == "ON" {
		return driver.Finding{About: "writers", State: driver.Risky, Found: "a Galera cluster",
			Advice: "send all clients of dlock to the same node: two nodes can grant one lock to two holders"}
	}
	return driver.Finding{About: "writers", Found: "no Galera cluster"}
}

// isolation is reported because operators ask for it: nothing depends on it.
func isolation(is map[string]string) driver.Finding {
	level := is["transaction_isolation"]
	if level == "" {
		level = is["tx_isolation"]
	}
	return driver.Finding{About: "isolation", Found: strings.ReplaceAll(level, "-", " ") + "; dlock uses READ COMMITTED on connections of its own, and works with it and with stricter levels"}
}

// setUp reports whether the tables are there, with the engine that undoes a statement that was cut
// short.
func (p *pool) setUp(ctx context.Context) (driver.Finding, error) {
	f := driver.Finding{About: "tables", Found: "both, of format 1"}
	_, err := p.readSchema(ctx, patience)
	var e *mysql.MySQLError
	switch {
	case err == nil:
		a, err := p.ask(ctx, callTimeout, "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "+
			"AND TABLE_NAME IN ('dlock_locks', 'dlock_requests') AND ENGINE <> 'InnoDB' LIMIT 2", false)
		if err != nil {
			return f, err
		}
		for _, row := range a.rows {
			f.State, f.Found = driver.Wrong, row[0]+" has the engine "+row[1]
			f.Advice = "ALTER TABLE " + row[0] + " ENGINE = InnoDB: other engines do not undo a statement that was cut short"
		}
	case errors.Is(err, errSchema):
		f.State, f.Found, f.Advice = driver.Wrong, err.Error(), `run "dlock migrate" with this URL`
	case errors.Is(err, errOtherSchema):
		f.State, f.Found, f.Advice = driver.Wrong, err.Error(), "run programs of one version of dlock on a database"
	case lacksRight(err):
		f.State, f.Found, f.Advice = driver.Unseen, "the user may not read them", "GRANT the rights that are reported as missing"
	case errors.As(err, &e):
		f.State, f.Found, f.Advice = driver.Wrong, err.Error(), "docs/mysql.md says what dlock needs in the database"
	default:
		return f, err
	}
	return f, nil
}

// rights tries the statements of the driver without touching a row.
func (p *pool) rights(ctx context.Context) (driver.Finding, error) {
	f := driver.Finding{About: "rights", Found: "the user may read and write both tables"}
	missing, err := p.lacking(ctx, needed)
	if len(missing) > 0 {
		f.State, f.Found = driver.Wrong, "missing: "+strings.Join(missing, ", ")
		f.Advice = "GRANT them to the user; docs/mysql.md has the statements"
		err = nil
	}
	return f, err
}

// functions tries functions that not every server with MySQL's protocol has.
func (p *pool) functions(ctx context.Context) driver.Finding {
	f := driver.Finding{About: "functions", Found: "LAST_INSERT_ID, named locks, and time in microseconds"}
	if a, err := p.ask(ctx, callTimeout, "SELECT LAST_INSERT_ID(7) LIMIT 1", false); err != nil || fmt.Sprint(a.rows) != "[[7]]" {
		f.State, f.Found = driver.Wrong, "no LAST_INSERT_ID with an argument"
		f.Advice = "use a server that has it: dlock learns from its answers whether it got a lock"
		return f
	}
	a, err := p.ask(ctx, callTimeout, "SELECT GET_LOCK('dlock.check', 0), RELEASE_LOCK('dlock.check'), MICROSECOND(UTC_TIMESTAMP(6)) + MICROSECOND(SYSDATE(6)) LIMIT 1", false)
	row, err2 := a.single(3)
	switch {
	case err != nil || err2 != nil || row[0] == "" || row[1] != "1":
		f.State, f.Found = driver.Risky, "no named locks (GET_LOCK)"
		f.Advice = "no action is needed: waiters of other clients find their grants by polling, some milliseconds later"
	case row[2] == "0":
		f.State, f.Found = driver.Wrong, "the server has no time in microseconds"
		f.Advice = "use a server with UTC_TIMESTAMP(6): leases would end a second early or late"
	}
	return f
}
