package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// The faults of databases: what another user of the server does.
var (
	connectionsKilled = fault{"connections killed", "half of all connections are killed (KILL, pg_terminate_backend)", true, 0, 0, func(s *storm, _ *member, _ time.Duration) {
		d := s.dialect()
		s.query(d, func(ctx context.Context, db *sql.DB) error { return d.killConnections(ctx, db) })
	}}
	statementsKilled = fault{"statements killed", "a third of the statements that run are killed (KILL QUERY, pg_cancel_backend), again and again", true, 0.2, 2, func(s *storm, _ *member, lasts time.Duration) {
		d := s.dialect()
		s.query(d, func(ctx context.Context, db *sql.DB) (err error) {
			for end := time.Now().Add(lasts); err == nil && time.Now().Before(end); s.sleep(4 * time.Millisecond) {
				err = d.killStatements(ctx, db)
			}
			return err
		})
	}}
	tablesLocked = fault{"tables locked", "another user locks tables, or all rows of one", true, 0.2, 2, func(s *storm, _ *member, lasts time.Duration) {
		d := s.dialect()
		how := d.locked[int(lasts/time.Microsecond)%len(d.locked)] // lasts is drawn from the seed
		s.query(d, func(ctx context.Context, db *sql.DB) error {
			c, err := db.Conn(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			err = execute(ctx, c, how[:2]...)
			if err == nil {
				s.sleep(lasts)
			} else if !strings.Contains(strings.ToLower(err.Error()), "deadlock") {
				return err // after a deadlock the fault is left out
			}
			return execute(ctx, c, how[2])
		})
	}}
	tableRebuilt = fault{"table rebuilt", "a change of a table (ALTER TABLE, VACUUM FULL) waits for a transaction, and all statements wait for the change", true, 0.2, 2, func(s *storm, _ *member, lasts time.Duration) {
		table, d := []string{"dlock_locks", "dlock_requests"}[lasts/time.Microsecond%2], s.dialect()
		s.query(d, func(ctx context.Context, db *sql.DB) error {
			c, err := db.Conn(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := execute(ctx, c, "BEGIN", "SELECT COUNT(*) FROM "+table); err != nil {
				return err
			}
			rebuilt := make(chan error, 1)
			go func() {
				_, err := db.ExecContext(ctx, fmt.Sprintf(d.rebuild, table))
				rebuilt <- err
			}()
			s.sleep(lasts)
			if err := execute(ctx, c, "ROLLBACK"); err != nil {
				return err
			}
			return <-rebuilt
		})
	}}
	readOnly = fault{"read-only", "the server takes no writes of ordinary users (read_only, default_transaction_read_only)", true, 0.2, 2, func(s *storm, _ *member, lasts time.Duration) {
		s.between(lasts, s.dialect().readOnly)
	}}
	diskFull = fault{"disk full", "no row can be added to the table of requests, as on a disk that is full", true, 0.2, 2, func(s *storm, _ *member, lasts time.Duration) {
		s.between(lasts, s.dialect().full)
	}}
)

// database are the faults of databases.
var database = []fault{stoppedLonger, connectionsKilled, statementsKilled, tablesLocked, tableRebuilt, readOnly, diskFull, rightsTaken}

// dialect is how faults are caused at a database.
type dialect struct {
	open                            func(url string) (*sql.DB, error)
	killConnections, killStatements func(context.Context, *sql.DB) error
	// ways to lock: two statements that lock, and one that unlocks
	locked  [][]string
	rebuild string

	newUser        string      // for the clients
	readOnly, full [2][]string // how that begins, and how it ends
}

var mysqlDialect = dialect{
	open:            mysql.Open,
	killConnections: func(ctx context.Context, db *sql.DB) error { return kill(ctx, db, "KILL ", "RAND() < 0.5") },
	killStatements: func(ctx context.Context, db *sql.DB) error {
		return kill(ctx, db, "KILL QUERY ", "command = 'Query' AND info LIKE '%dlock%' AND RAND() < 0.3")
	},
	locked: [][]string{
		{"DO 0", "LOCK TABLES dlock_locks READ, dlock_requests READ", "UNLOCK TABLES"},
		{"DO 0", "LOCK TABLES dlock_locks WRITE", "UNLOCK TABLES"},
		{"DO 0", "LOCK TABLES dlock_requests WRITE", "UNLOCK TABLES"},
		{"DO 0", "FLUSH TABLES WITH READ LOCK", "UNLOCK TABLES"},
		{"BEGIN", "SELECT COUNT(*) FROM dlock_locks FOR UPDATE", "ROLLBACK"},
		{"BEGIN", "SELECT COUNT(*) FROM dlock_requests LOCK IN SHARE MODE", "ROLLBACK"},
	},
	rebuild:  "ALTER TABLE %s FORCE",
	newUser:  "CREATE USER " + user,
	readOnly: [2][]string{{"SET GLOBAL read_only = 1"}, {"SET GLOBAL read_only = 0"}},
	full: [2][]string{
		{"CREATE TRIGGER full_disk BEFORE INSERT ON dlock_requests FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'"},
		{"DROP TRIGGER full_disk"},
	},
}

var postgresDialect = dialect{
	open: func(url string) (*sql.DB, error) { return sql.Open("pgx", url) },
	killConnections: func(ctx context.Context, db *sql.DB) error {
		_, err := db.ExecContext(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5")
		return err
	},
	killStatements: func(ctx context.Context, db *sql.DB) error {
		_, err := db.ExecContext(ctx, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state = 'active' AND random() < 0.3")
		return err
	},
	locked: [][]string{
		{"BEGIN", "LOCK TABLE dlock_locks, dlock_requests IN SHARE MODE", "ROLLBACK"},
		{"BEGIN", "LOCK TABLE dlock_locks IN ACCESS EXCLUSIVE MODE", "ROLLBACK"},
		{"BEGIN", "LOCK TABLE dlock_requests IN ACCESS EXCLUSIVE MODE", "ROLLBACK"},
		{"BEGIN", "SELECT 1 FROM dlock_locks FOR UPDATE", "ROLLBACK"},
		{"BEGIN", "SELECT 1 FROM dlock_requests FOR UPDATE", "ROLLBACK"},
		{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM dlock_locks, dlock_requests", "ROLLBACK"},
	},
	rebuild: "VACUUM FULL %s",
	newUser: "CREATE ROLE " + user + " LOGIN",
	readOnly: [2][]string{
		{"ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"},
		{"ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"},
	},
	full: [2][]string{
		{
			"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'No space left on device' USING ERRCODE = '53100'; END $$",
			"CREATE TRIGGER full_disk BEFORE INSERT ON dlock_requests FOR EACH ROW EXECUTE FUNCTION full_disk()",
		},
		{"DROP FUNCTION full_disk CASCADE"},
	},
}

// dialect returns how faults are caused at the database of the storm.
func (s *storm) dialect() *dialect { return dialectOf(s.servers[0]) }

func dialectOf(v *service.Server) *dialect {
	if strings.HasPrefix(v.URL, "postgres:") {
		return &postgresDialect
	}
	return &mysqlDialect
}

// query does something at the database, whose server no other fault concerns.
func (s *storm) query(d *dialect, f func(context.Context, *sql.DB) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := d.open(s.servers[0].URL)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	defer db.Close()
	if err := f(ctx, db); err != nil {
		s.t.Fatalf("at the database: %v", err)
	}
}

// kill kills the connections of others of which the condition is true, or their statements.
func kill(ctx context.Context, db *sql.DB, what, which string) error {
	var ids string
	err := db.QueryRowContext(ctx, "SELECT COALESCE(GROUP_CONCAT(id), '') FROM information_schema.processlist WHERE user = '"+user+"' AND "+which).Scan(&ids)
	if ids != "" {
		for id := range strings.SplitSeq(ids, ",") {
			db.ExecContext(ctx, what+id) // it may have ended
		}
	}
	return err
}

// between executes statements, and others after a time.
func (s *storm) between(lasts time.Duration, statements [2][]string) {
	s.query(s.dialect(), func(ctx context.Context, db *sql.DB) error {
		if err := execute(ctx, db, statements[0]...); err != nil {
			return err
		}
		s.sleep(lasts)
		return execute(ctx, db, statements[1]...)
	})
}

// executor is a connection to a database, or a pool of them.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// execute executes statements.
func execute(ctx context.Context, c executor, statements ...string) error {
	for _, q := range statements {
		if _, err := c.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return nil
}
