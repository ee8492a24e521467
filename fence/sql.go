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

// SQL admits holders to resources of a database, within the transactions that write to them. It
// keeps a row for each resource in a table of that database, which [SQL.CreateTable] creates. It
// has no state of its own, and is safe for concurrent use.
//
// In a transaction, call Admit first, for all its resources, before anything is read. Then the
// transaction reads what others committed before, on every isolation level. On REPEATABLE READ, the
// default of MySQL, a transaction that read something first is admitted all the same and goes on
// reading old data: what it writes from that overwrites the other transaction, without an error.
//
// A transaction can fail for reasons that have nothing to do with the mark: a deadlock, a
// serialization failure, a busy database. Such an error is that of the database driver, in an
// [*dlock.Error]. It never matches [ErrStale], and the transaction may be retried.
type SQL struct {
	Dialect Dialect // the database; there is no default
	Table   string  // name of the table, or schema.table; empty: dlock_fences
}

// Admit succeeds only if m is not older than any mark that the resource has seen, and keeps others
// out of the resource until tx ends. An Admit that comes meanwhile waits for as long as the
// database lets it wait for a row.
//
// Admit takes one statement; on MySQL and MariaDB two at the first use of a resource. Both Admit
// and AdmitShared write, so a read-only transaction cannot be admitted. Errors: [ErrStale];
// [dlock.ErrInvalid] for a mistake in the call, such as a token over 2^63-1; the database's own. If
// the table does not exist the error says so. After an error roll tx back.
func (s *SQL) Admit(ctx context.Context, tx *sql.Tx, resource string, m Mark) error {
	return wrap("admit", resource, s.admit(ctx, tx, resource, m, func(d dialect) (bool, error) {
		return d.admit(ctx, tx, resource, m)
	}))
}

// AdmitShared is Admit for a holder of a shared lock: m is compared and not remembered, so that
// other shared holders are admitted with smaller tokens. It keeps out callers of Admit until tx
// ends, and other shared holders only on SQLite, where one transaction writes at a time. It takes
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
		err = fmt.Errorf("%w: the token is over 2^63-1, which a BIGINT cannot store", dlock.ErrInvalid)
	}
	if err != nil {
		return err
	}
	ok, err := admit(d)
	if err == nil && !ok {
		err = ErrStale
	}
	return s.explain(err)
}

// Claim makes l the last holder that the resource knows, and returns its mark. It is for locks
// without tokens (Redlock): the token comes from a counter that the resource's row keeps. Call
// Claim in a transaction of its own, before anything of the resource is read, and pass the mark to
// Admit from then on. A further Claim from the same hold returns the same mark, unless another hold
// claimed in between.
//
// The last hold to claim may write. A holder that is stopped right before its Claim still claims
// when it resumes. Then holders that claimed earlier are refused, and it reads what they committed.
// So nothing is lost, whichever of them goes on. A resource uses marks from Claim or marks from
// [Of], not both.
//
// Errors: that of [dlock.Lease.Err] if the lease has ended; [dlock.ErrInvalid]; the database's own,
// as for Admit. The mark is valid once tx is committed.
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
		err = l.Err() // the statement may have waited for the row
	}
	if err != nil {
		return Mark{}, s.explain(err)
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
	table := s.table()
	if !tableName.MatchString(table) {
		return nil, fmt.Errorf("%w: the name of the table must have letters, digits and _ only; schema.table is allowed", dlock.ErrInvalid)
	}
	switch s.Dialect {
	case MySQL:
		return mysql{table}, nil
	case PostgreSQL:
		return postgreSQL{table}, nil
	case SQLite:
		return sqlite{table}, nil
	}
	return nil, fmt.Errorf("%w: the Dialect is not set, or is not one of this package", dlock.ErrInvalid)
}

func (s *SQL) table() string {
	if s.Table == "" {
		return "dlock_fences"
	}
	return s.Table
}

// Schema returns the statement that creates the table if it is missing, for a migration tool. It
// fails with [dlock.ErrInvalid] for a dialect or a table name that is not valid.
func (s *SQL) Schema() (string, error) {
	d, err := s.statements()
	if err != nil {
		return "", wrap("schema", "", err)
	}
	return d.schema(), nil
}

// CreateTable creates the table if it is missing. Errors: those of Schema, and the database's own.
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

// changed runs a statement and returns how many rows it changed, as the database counts them.
func changed(ctx context.Context, tx *sql.Tx, text string, args ...any) (int64, error) {
	res, err := tx.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// ask reads the one value of a row, and reports whether the row exists.
func ask[T any](ctx context.Context, tx *sql.Tx, text string, args ...any) (v T, there bool, err error) {
	err = tx.QueryRowContext(ctx, text, args...).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return v, false, nil
	}
	return v, err == nil, err
}
