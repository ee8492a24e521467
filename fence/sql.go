package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"regexp"

	"github.com/dlock-go/dlock"
)

// SQL admits to resources of a database, within the transactions that write to them. It keeps a row
// for each resource in a table of that database, see [SQL.Schema]. It has no state of its own, and
// is safe for concurrent use.
//
// Call Admit first in a transaction, for all of its resources, before it reads anything. Then what
// it reads is what others have committed before, on every level of isolation. On MySQL's REPEATABLE
// READ, the default there, a transaction that read before is admitted and goes on reading the past:
// a write based on that is lost, and nothing says so.
//
// A transaction can fail for reasons that have nothing to do with the mark: a deadlock, a failure
// to serialize, a busy database. Such an error is the driver's own, in an [*dlock.Error]. It never
// matches [ErrStale], and the transaction may be tried again.
type SQL struct {
	Dialect Dialect // which database it is; there is no default
	Table   string  // the name of the table, perhaps behind that of a schema; empty: dlock_fences
}

// Admit goes on only if m is not older than any mark that the resource has seen, and keeps others
// out of the resource until tx ends. One that comes meanwhile waits, for as long as the database
// lets it wait for a row.
//
// It takes one statement; on MySQL and MariaDB two when a resource is met for the first time. It
// writes, and so does AdmitShared: a transaction that is only for reading cannot be admitted.
// Errors: [ErrStale]; [dlock.ErrInvalid] for what is wrong with the call (a token over 2^63-1,
// too); the database's own. After an error roll tx back.
func (s *SQL) Admit(ctx context.Context, tx *sql.Tx, resource string, m Mark) error {
	return wrap("admit", resource, s.admit(ctx, tx, resource, m, func(d dialect) (bool, error) {
		return d.admit(ctx, tx, resource, m)
	}))
}

// AdmitShared is Admit for a holder of a shared lock: m is compared and not remembered, so that
// other shared holders are admitted with smaller tokens. Those with Admit are kept out until tx
// ends; other shared ones are not, but on SQLite, where one transaction writes at a time. It takes
// two statements, on SQLite one.
func (s *SQL) AdmitShared(ctx context.Context, tx *sql.Tx, resource string, m Mark) error {
	return wrap("admit", resource, s.admit(ctx, tx, resource, m, func(d dialect) (bool, error) {
		return d.admitShared(ctx, tx, resource, m)
	}))
}

func (s *SQL) admit(ctx context.Context, tx *sql.Tx, resource string, m Mark, admit func(dialect) (bool, error)) error {
	d, err := s.dialect(tx, resource)
	if err == nil {
		err = m.check()
	}
	if err == nil && m.Token > math.MaxInt64 {
		err = fmt.Errorf("%w: a token over 2^63-1, which a BIGINT cannot keep", dlock.ErrInvalid)
	}
	if err != nil {
		return err
	}
	ok, err := admit(d)
	if err == nil && !ok {
		err = ErrStale
	}
	return err
}

// Claim makes l the last holder that the resource knows, and returns its mark: the resource counts
// by itself. It is for locks without tokens (Redlock). Claim in a transaction of its own, before
// anything of the resource is read, and show the mark to Admit from then on. Again from the same
// hold it returns the same mark, unless another one claimed meanwhile.
//
// Whoever claims last, writes. A holder that is stopped right before its Claim still gets in when
// it wakes up; then those who claimed before are refused, and it reads what they committed. So
// nothing is lost, whichever of them goes on. A resource has marks of Claim or those of [Of], not
// both.
//
// Errors: why the lease is over; [dlock.ErrInvalid]; the database's own. The mark counts once tx is
// committed.
func (s *SQL) Claim(ctx context.Context, tx *sql.Tx, resource string, l *dlock.Lease) (Mark, error) {
	m, err := s.claim(ctx, tx, resource, l)
	return m, wrap("claim", resource, err)
}

func (s *SQL) claim(ctx context.Context, tx *sql.Tx, resource string, l *dlock.Lease) (Mark, error) {
	d, err := s.dialect(tx, resource)
	if err != nil {
		return Mark{}, err
	}
	owner, err := ownerOf(l)
	if err != nil {
		return Mark{}, err
	}
	token, err := d.claim(ctx, tx, resource, owner)
	if err == nil {
		err = l.Err() // the row may have been waited for
	}
	if err != nil {
		return Mark{}, err
	}
	return Mark{dlock.Token(token), owner}, nil
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func (s *SQL) dialect(tx *sql.Tx, resource string) (dialect, error) {
	if tx == nil {
		return nil, fmt.Errorf("%w: the transaction is nil", dlock.ErrInvalid)
	}
	if err := checkResource(resource); err != nil {
		return nil, err
	}
	return s.statements()
}

func (s *SQL) statements() (dialect, error) {
	if s == nil {
		return nil, fmt.Errorf("%w: the SQL is nil", dlock.ErrInvalid)
	}
	table := s.Table
	if table == "" {
		table = "dlock_fences"
	}
	if !tableName.MatchString(table) {
		return nil, fmt.Errorf("%w: the name of the table has letters, digits and _ only, and perhaps a schema before it", dlock.ErrInvalid)
	}
	switch s.Dialect {
	case MySQL:
		return mysql{table}, nil
	case PostgreSQL:
		return postgreSQL{table}, nil
	case SQLite:
		return sqlite{table}, nil
	}
	return nil, fmt.Errorf("%w: the dialect is not set", dlock.ErrInvalid)
}

// Schema returns the statement that creates the table if it is missing, for a tool that migrates
// databases. Errors: [dlock.ErrInvalid], for a dialect or a table's name that is not valid.
func (s *SQL) Schema() (string, error) {
	d, err := s.statements()
	if err != nil {
		return "", wrap("schema", "", err)
	}
	return d.schema(), nil
}

// CreateTable creates the table if it is missing. Errors: as of Schema, or the database's own.
func (s *SQL) CreateTable(ctx context.Context, db *sql.DB) error {
	text, err := s.Schema()
	if err == nil && db == nil {
		err = wrap("schema", "", fmt.Errorf("%w: the database is nil", dlock.ErrInvalid))
	}
	if err == nil {
		_, err = db.ExecContext(ctx, text)
		err = wrap("schema", "", err)
	}
	return err
}

// changed runs a statement and returns how many rows it changed, as the database counts.
func changed(ctx context.Context, tx *sql.Tx, text string, args ...any) (int64, error) {
	res, err := tx.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// ask reads the one value of a row. It reports whether there is the row.
func ask[T any](ctx context.Context, tx *sql.Tx, text string, args ...any) (v T, there bool, err error) {
	err = tx.QueryRowContext(ctx, text, args...).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return v, false, nil
	}
	return v, err == nil, err
}
