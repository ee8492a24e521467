package postgres

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

var (
	errSchema = errors.New("the database does not have both tables of this version of dlock in its search_path: " +
		"run dlock migrate, open it once with ?migrate=true, call postgres.Migrate, or apply the files of package migrations")
	errNoPool      = fmt.Errorf("%w pool: it is nil; pass a pool of github.com/jackc/pgx/v5", driver.ErrInvalid)
	errOtherDriver = fmt.Errorf("%w pool: its driver is not that of github.com/jackc/pgx/v5/stdlib", driver.ErrInvalid)
	errStandby     = errors.New("the server is a standby, and read-only: use the address of the primary, or name all servers in the URL")
	errReadOnly    = errors.New("the user's transactions are read-only: ALTER ROLE the user SET default_transaction_read_only = off " +
		"(the database or the server may set it too)")
	errVolatile = errors.New("synchronous_commit is off for the user: after a crash the server may not know the last grants, and may let a second holder in; " +
		"ALTER ROLE the user SET synchronous_commit = on")
	errPath = errors.New("the search_path of the session at the server was changed: another program set it in a session that a pooler shares with dlock; " +
		"give dlock a user or a pool of its own there")
	errRights = errors.New("the server's user lacks a right (docs/postgres.md lists those that suffice)")
)

// final are errors of this package that would come again.
var final = []error{errSchema, errOtherSchema, errNoPool, errOtherDriver, errVolatile, errRights, driver.ErrUnsupported}

// These match [driver.ErrUnsupported].
var (
	errOtherSchema error = unsupported("the database has tables of another version of dlock")
	errUnfit       error = unsupported("the tables are not as dlock needs them")
)

// unsupported is an error that matches [driver.ErrUnsupported].
type unsupported string

// Error returns the text.
func (u unsupported) Error() string { return string(u) }

// Is matches [driver.ErrUnsupported].
func (unsupported) Is(target error) bool { return target == driver.ErrUnsupported }

// kind is what an error says about the statements that failed with it. Several statements are one
// transaction, so the same is true of all.
type kind int

const (
	// unknown: they may have been executed. The same exchange is sent again, which is safe.
	unknown kind = iota
	// collided: another transaction was in the way, and they were rolled back. They may succeed if
	// they are sent again soon.
	collided
	// later: they were refused for a time, before they did anything. They are sent again on a
	// connection of their own, which may lead to another server.
	later
	// never: they were refused, and would be refused again.
	never
)

// String names the kind.
func (k kind) String() string { return [...]string{"unknown", "collided", "later", "never"}[k] }

// kinds are the kinds of the errors of servers and of poolers, by SQLSTATE. Others are sorted by
// the class, its first two characters. An error that comes instead of a connection is later, unless
// it is never.
var kinds = map[string]kind{
	"40001": collided, // serialization failure
	"40P01": collided, // deadlock
	"55P03": collided, // lock_timeout
	"55006": collided, // the object is in use

	"25006": later, // read-only: a standby, or default_transaction_read_only
	"26000": later, // no such prepared statement: another session answers than the one that made it
	"42P05": later, // there is one of that name
	"57014": later, // canceled by a user or by statement_timeout
	"57P03": later, // the server starts, stops or recovers

	"40003": unknown, // the outcome is not known
	"25P02": unknown, // the transaction has failed
	"25P03": unknown, // idle_in_transaction_session_timeout
	"25P04": unknown, // transaction_timeout
	"57P01": unknown, // pg_terminate_backend, or a fast shutdown
	"57P02": unknown, // crash of another session
	"57P05": unknown, // idle_session_timeout
	"08P01": unknown, // PgBouncer: query_wait_timeout and others
}

// classes are the kinds of all other errors of servers. Those of classes that are not here are
// unknown.
var classes = map[string]kind{
	"0A": never, // not supported
	"22": never, // bad data
	"23": never, // constraints
	"28": never, // authorization
	"3D": never, // no such database
	"3F": never, // no such schema
	"42": never, // syntax, rights, no such table or column
	"53": later, // no resources: disk, memory, connections
	"54": never, // limits of the program
	"58": later, // errors of the operating system
}

// serverError returns the error of a server or a pooler in err; nil: there is none.
func serverError(err error) *pgconn.PgError {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// kindOf returns the kind of an error. reached says that the server was reached before: then a
// certificate that is not accepted is a refusal for a time, as it happens while certificates are
// replaced.
func kindOf(err error, reached bool) kind {
	e, notSent := serverError(err), kit.WasNotSent(err)
	switch {
	case e != nil:
		k, known := kinds[e.Code]
		if !known && len(e.Code) == 5 {
			k = classes[e.Code[:2]]
		}
		// after ALTER TABLE; pgx prepares it anew
		if strings.Contains(e.Message, "cached plan must not change") || readWriteRefused(e) {
			k = later
		}
		if notSent && k != never {
			k = later
		}
		return k
	case slices.ContainsFunc(final, func(no error) bool { return errors.Is(err, no) }):
		return never
	case badCertificate(err) && !reached:
		return never
	case notSent && (strings.Contains(err.Error(), "closed pool") || err.Error() == "sql: database is closed"): // neither has a name for it
		return never
	case notSent:
		return later
	}
	return unknown
}

// readWriteRefused reports whether a standby refused to begin a transaction for writing. The
// SQLSTATE of that is the same as for what a server never supports.
func readWriteRefused(e *pgconn.PgError) bool {
	return e.Code == "0A000" && strings.Contains(e.Message, "read-write mode during recovery")
}

func badCertificate(err error) bool {
	var verify *tls.CertificateVerificationError
	var host x509.HostnameError
	return errors.As(err, &verify) || errors.As(err, &host)
}

// refused reports whether an error is the server's own, and not final: the server answers, and will
// accept again what it refuses now.
func refused(err error) bool { return serverError(err) != nil && kindOf(err, true) != never }

// outcomeOf returns what an error says about the outcome of an exchange.
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

// oneLine is an error with its text in one line. pgx writes a line for each address that it tried,
// with and without TLS.
type oneLine struct{ error }

// Error returns each line of the text once.
func (o oneLine) Error() string {
	var lines []string
	for line := range strings.Lines(o.error.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

// Unwrap returns the error.
func (o oneLine) Unwrap() error { return o.error }

// explain adds to an error of the server what a user can do about it.
func explain(err error) error {
	if err != nil && strings.Contains(err.Error(), "\n") {
		err = oneLine{err}
	}
	e := serverError(err)
	if e == nil {
		return err
	}
	switch {
	case lacksRight(err):
		return fmt.Errorf("%w: %w", errRights, err)
	case lacksSchema(err):
		return fmt.Errorf("%w: %w", errSchema, err)
	}
	switch e.Code {
	case "0A000":
		if readWriteRefused(e) {
			return fmt.Errorf("%w: %w", errStandby, err)
		}
	case "25006":
		return fmt.Errorf("%w: %w", errStandby, err)
	case "28P01", "28000":
		return fmt.Errorf("the server does not accept the user or the password: %w", err)
	case "3D000":
		return fmt.Errorf("create the database first, and let the user use it (docs/postgres.md): %w", err)
	case "53300":
		return fmt.Errorf("the server accepts no more connections at the moment: %w", err)
	case "08P01":
		if strings.Contains(e.Message, "startup parameter") {
			return fmt.Errorf("a pooler between here and the server does not pass this parameter on: leave it out of the URL, "+
				"and set it with ALTER ROLE (docs/postgres.md): %w", err)
		}
	case "26000", "42P05":
		return fmt.Errorf("a pooler between here and the server gives each transaction another session: "+
			"set default_query_exec_mode=exec in the pool's URL (docs/postgres.md): %w", err)
	}
	return err
}

// lacksRight reports whether the server refused the user something.
func lacksRight(err error) bool { e := serverError(err); return e != nil && e.Code == "42501" }

// lacksSchema reports whether the server has no such table or column.
func lacksSchema(err error) bool {
	e := serverError(err)
	return e != nil && slices.Contains([]string{"42P01", "42703"}, e.Code)
}
