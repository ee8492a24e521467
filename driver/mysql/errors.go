package mysql

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"

	mysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

var (
	errSchema = errors.New("the database does not have both tables of this version of dlock: " +
		"run dlock migrate, open it once with ?migrate=true, call mysql.Migrate, or apply the files of package migrations")
	errBinlog = errors.New("the server's binlog_format is STATEMENT, with which READ COMMITTED " +
		"transactions cannot write: set it to ROW or MIXED")
	errNoPool = fmt.Errorf("%w pool: it is nil; pass a pool of github.com/go-sql-driver/mysql", driver.ErrInvalid)
	errPacket = fmt.Errorf("%w: max_allowed_packet is less than the %d bytes that dlock needs: "+
		"set it to at least that, on the server or in the pool's DSN", driver.ErrUnsupported, leastPacket)
)

// errOtherSchema matches [driver.ErrUnsupported].
var errOtherSchema error = &otherSchema{}

type otherSchema struct{}

// Error says what is wrong.
func (*otherSchema) Error() string { return "the database has tables of another version of dlock" }

// Is matches [driver.ErrUnsupported].
func (*otherSchema) Is(target error) bool { return target == driver.ErrUnsupported }

// kind is what an error says about the statement that failed with it.
type kind int

const (
	// unknown: it may have been executed. The same call is sent again, which is safe.
	unknown kind = iota
	// collided: another transaction was in the way, and the statement was rolled back. It may
	// succeed if it is sent again soon.
	collided
	// later: it was refused for a time, before it did anything. It is sent again on a connection of
	// its own, which may lead to another member: there may be several behind one address.
	later
	// never: it was refused, and would be refused again.
	never
)

// String names the kind.
func (k kind) String() string { return [...]string{"unknown", "collided", "later", "never"}[k] }

// kinds are the kinds of the errors of servers, and of proxies before them, by number. Others are
// sorted by their SQL state. An error that comes instead of a connection is later, unless it is
// never.
var kinds = map[uint16]kind{
	1020: collided, // the record has changed since it was read
	1205: collided, // the wait for a row took too long
	1213: collided, // deadlock; Galera: another node's transaction came first
	3101: collided, // group replication: the same, at COMMIT
	3572: collided, // a row is locked, and the statement must not wait

	1040: later, // too many connections
	1203: later, // … of this user
	1226: later, // … or statements of this user
	1461: later, // too many prepared statements, of other users of the server
	1129: later, // the host is blocked, until its errors are flushed
	1290: later, // read-only, as before and after a failover, and when super_read_only is set
	1836: later, // read-only
	1874: later, // InnoDB is read-only: a reader of Aurora
	1792: later, // the transaction is read-only: a proxy that splits reads and writes
	1223: later, // a read lock is in the way, in this session
	1099: later, // a table is locked for reading, in this session
	1100: later, // a table was not locked, and others are, in this session
	3032: later, // offline mode
	3168: later, // the server is not available
	1047: later, // Galera: the node is not ready for applications

	1053: unknown, // shutdown is in progress
	1317: unknown, // the query was killed
	1927: unknown, // the connection was killed (MariaDB)
	3169: unknown, // the session was killed
	1969: unknown, // its time was over (MariaDB: max_statement_time)
	3024: unknown, // its time was over (MySQL: max_execution_time)
	4031: unknown, // the server closed a connection that was idle
	1158: unknown, // the network, four ways: error and timeout of reading and of writing
	1159: unknown,
	1160: unknown,
	1161: unknown,
	1021: unknown, // the disk is full
	1114: unknown, // the table is full
	1026: unknown, // a file cannot be written
	1030: unknown, // an error of the engine
	1037: unknown, // out of memory, four ways
	1038: unknown,
	1041: unknown,
	1135: unknown, // … for a thread
	1206: unknown, // too many row locks for the buffer pool
	1637: unknown, // too many transactions at a time
	1180: unknown, // COMMIT failed
	3100: unknown, // a hook of group replication failed, at COMMIT
	1105: unknown, // any (Vitess and others: a member is not available)
	9001: unknown, // ProxySQL: no connection to a server in time; TiDB: no placement driver

	1153: never, // a packet is too large
	1665: never, // a binary log of statements
	1044: never, // a right is missing: on the database, a table, a column, anywhere
	1142: never,
	1143: never,
	1227: never,
	1370: never,
	1045: never, // user or password
	1698: never,
	1130: never, // the host may not connect
	1251: never, // the way to authenticate, two ways
	1524: never,
	1820: never, // the password has expired, two ways
	1862: never,
	3118: never, // the account is locked, three ways
	3955: never,
	4151: never,
	3159: never, // TLS is required
	1049: never, // there is no such database
	1146: never, // … table
	1054: never, // … column
	1193: never, // … variable
}

// states are the kinds of all other errors of servers, by the class of their SQL state: not
// supported, bad data, constraints, authorization, syntax and access. Errors of other classes are
// unknown.
var states = map[string]kind{"0A": never, "22": never, "23": never, "28": never, "42": never}

// library are the errors of the client library, and of this driver, that are final.
var library = []error{
	mysql.ErrNoTLS, mysql.ErrOldPassword, mysql.ErrNativePassword, mysql.ErrCleartextPassword, mysql.ErrUnknownPlugin,
	mysql.ErrOldProtocol, mysql.ErrPktTooLarge, errSchema, errOtherSchema, errPacket,
}

// kindOf returns the kind of an error. reached says that the server was reached before: then a
// certificate that is not accepted, or a server without TLS, is a refusal for a time, as it happens
// while certificates are replaced.
func kindOf(err error, reached bool) kind {
	var e *mysql.MySQLError
	var verify *tls.CertificateVerificationError
	k, notSent := unknown, kit.WasNotSent(err)
	switch {
	case errors.As(err, &e):
		known := false
		if k, known = kinds[e.Number]; !known {
			k = states[string(e.SQLState[:2])]
		}
		if notSent && k != never {
			k = later
		}
		return k
	case errors.As(err, &verify), errors.Is(err, mysql.ErrNoTLS):
		if reached {
			return later
		}
		return never
	case slices.ContainsFunc(library, func(no error) bool { return errors.Is(err, no) }):
		return never
	case notSent && err.Error() == "sql: database is closed": // package sql has no name for it
		return never
	case notSent:
		return later
	}
	return unknown
}

// refused reports whether an error is the server's own, and not final: the server answers, and will
// accept again what it refuses now.
func refused(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && kindOf(err, true) != never
}

// outcomeOf returns what an error says about the outcome of a statement.
func outcomeOf(err error, reached bool) kit.Outcome {
	if err == nil {
		return kit.Answered
	}
	switch kindOf(err, reached) {
	case never:
		return kit.Answered
	case later, collided:
		return kit.NotDone
	}
	return kit.Unknown
}

// reached reports whether the server was reached before, and had dlock's schema.
func (p *pool) reached() bool { return p.packet.Load() > 0 }

// explain adds to an error of the server what a user can do about it.
func explain(err error) error {
	var e *mysql.MySQLError
	if errors.Is(err, mysql.ErrPktTooLarge) {
		return fmt.Errorf("%w: %w", errPacket, err)
	}
	if !errors.As(err, &e) {
		return err
	}
	if lacksRight(err) {
		return fmt.Errorf("the server's user lacks a right (docs/mysql.md lists those that suffice): %w", err)
	}
	if lacksSchema(err) {
		return fmt.Errorf("%w: %w", errSchema, err)
	}
	switch e.Number {
	case 1665:
		return fmt.Errorf("%w: %w", errBinlog, err)
	case 1153:
		return fmt.Errorf("%w: %w", errPacket, err)
	case 1290, 1836, 1874, 1792:
		return fmt.Errorf("the server is read-only: %w", err)
	case 1047:
		return fmt.Errorf("the node is not part of its Galera cluster at the moment: %w", err)
	case 1045:
		return fmt.Errorf("the server does not accept the user or the password: %w", err)
	case 1049:
		return fmt.Errorf("create the database first, and let the user use it (docs/mysql.md): %w", err)
	case 1040, 1203, 1226:
		return fmt.Errorf("the server accepts no more connections or statements at the moment: %w", err)
	}
	return err
}

// tooLarge reports whether a statement is longer than a packet may be.
func tooLarge(err error) bool {
	var e *mysql.MySQLError
	return errors.Is(err, mysql.ErrPktTooLarge) || errors.Is(err, errPacket) || errors.As(err, &e) && e.Number == 1153
}

// lacksRight reports whether the server refused the user something.
func lacksRight(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains([]uint16{1044, 1142, 1143, 1227, 1370}, e.Number)
}

// lacksSchema reports whether the server has no such table or column.
func lacksSchema(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains([]uint16{1146, 1054}, e.Number)
}

// isDuplicate reports whether the statement failed because there is a row with that id.
func isDuplicate(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && e.Number == 1062
}
