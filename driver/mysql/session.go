package mysql

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"

	mysql "github.com/go-sql-driver/mysql"
)

// sessions are what is known of the sessions of a pool: each is asked for its settings once.
type sessions struct {
	mu    sync.Mutex
	known map[any]session
}

// session is what has to be set in a session. The zero value is nothing: each statement is a
// transaction of its own, which sees everything that was committed. Any other is set before each
// statement and set back after it.
type session struct {
	set, back string
	wait      string // innodb_lock_wait_timeout (s), if it is longer than the driver's own
}

// lockWait is how long (s) a statement waits for a row that another transaction has locked, in
// sessions of the client's own pool. In a caller's pool it waits as long as the session says,
// unless the statement is for many rows, or another one was not answered in time: a statement that
// is left waiting would keep those rows, and its connection, until the end of its wait.
const lockWait = 2

// short is the session with a wait of lockWait.
func (s session) short() session {
	if s.wait == "" {
		return s
	}
	with := func(what, wait string) string {
		if what == "" {
			return "SET SESSION innodb_lock_wait_timeout = " + wait
		}
		return what + ", SESSION innodb_lock_wait_timeout = " + wait
	}
	return session{set: with(s.set, strconv.Itoa(lockWait)), back: with(s.back, s.wait)}
}

// maxSessions is how many connections are remembered at most; beyond that all are asked again.
const maxSessions = 1000

// wanted are the variables that matter, and the values that they have to have.
var wanted = []struct{ name, value string }{
	{"autocommit", "1"},
	{"sql_safe_updates", "0"},
	{"sql_big_selects", "1"},
	{"completion_type", "NO_CHAIN"},
}

// literal is a value of a variable for SET, which refuses a Boolean as a string.
func literal(value string) string {
	if value == "0" || value == "1" {
		return value
	}
	return "'" + value + "'"
}

// of returns what has to be set in the session of a connection.
func (s *sessions) of(ctx context.Context, conn *sql.Conn) (session, error) {
	var key any
	if err := conn.Raw(func(c any) error { key = c; return nil }); err != nil {
		return session{}, err
	}
	remember := reflect.ValueOf(key).Comparable()
	if remember {
		s.mu.Lock()
		is, known := s.known[key]
		s.mu.Unlock()
		if known {
			return is, nil
		}
	}
	is, err := s.read(ctx, conn)
	if err == nil && remember {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.known == nil || len(s.known) >= maxSessions {
			s.known = map[any]session{}
		}
		s.known[key] = is
	}
	return is, err
}

// read asks a session for its settings.
func (s *sessions) read(ctx context.Context, conn *sql.Conn) (session, error) {
	for _, isolation := range []string{"transaction_isolation", "tx_isolation"} {
		readOnly := strings.Replace(isolation, "isolation", "read_only", 1)
		stmt := "SELECT @@" + isolation + ", @@" + readOnly + ", TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) NOT BETWEEN 0 AND 300, @@timestamp"
		for _, w := range wanted {
			stmt += ", @@" + w.name
		}
		stmt += ", @@sql_mode, @@innodb_lock_wait_timeout"
		rows, err := query(ctx, conn, stmt+" LIMIT 1")
		var e *mysql.MySQLError
		if errors.As(err, &e) && e.Number == 1193 { // MariaDB renamed it in 11.1
			continue
		}
		if err != nil {
			return session{}, err
		}
		row, err := answer{rows: rows}.single(6 + len(wanted))
		if err != nil {
			return session{}, err
		}
		var set, back []string
		change := func(name, to, from string) {
			set, back = append(set, "SESSION "+name+" = "+to), append(back, "SESSION "+name+" = "+from)
		}
		for i, w := range wanted {
			if is := row[4+i]; is != w.value {
				change(w.name, literal(w.value), literal(is))
			}
		}
		if row[0] == "READ-UNCOMMITTED" {
			change(isolation, "'READ-COMMITTED'", "'READ-UNCOMMITTED'")
		}
		if row[1] != "0" {
			change(readOnly, "0", "1")
		}
		// take assigns one column after the other
		if mode := row[4+len(wanted)]; strings.Contains(mode, "SIMULTANEOUS_ASSIGNMENT") {
			change("sql_mode", "''", "'"+mode+"'")
		}
		if row[2] != "0" { // its clock seems to be stopped
			later, err := query(ctx, conn, "SELECT @@timestamp LIMIT 1")
			if err != nil {
				return session{}, err
			}
			if len(later) == 1 && later[0][0] == row[3] {
				set, back = append(set, "timestamp = DEFAULT"), append(back, "timestamp = "+row[3])
			}
		}
		var s session
		if len(set) > 0 {
			s.set, s.back = "SET "+strings.Join(set, ", "), "SET "+strings.Join(back, ", ")
		}
		if wait, err := strconv.ParseInt(row[5+len(wanted)], 10, 64); err != nil || wait > lockWait {
			s.wait = row[5+len(wanted)]
		}
		return s, nil
	}
	return session{}, errors.New("the server does not report the isolation level of a session")
}

// enter prepares the session for a statement. It ends a transaction that was left open.
func (s session) enter(ctx context.Context, conn *sql.Conn) error {
	if s.set == "" {
		return nil
	}
	if _, err := conn.ExecContext(ctx, "ROLLBACK AND NO CHAIN NO RELEASE"); err != nil {
		return err
	}
	_, err := conn.ExecContext(ctx, s.set)
	return err
}

// leave sets back what enter set.
func (s session) leave(ctx context.Context, conn *sql.Conn) error {
	if s.back == "" {
		return nil
	}
	_, err := conn.ExecContext(ctx, s.back)
	return err
}
