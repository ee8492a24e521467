package fence

import (
	"context"
	"database/sql"
)

// mysql is for MySQL and MariaDB.
//
// It begins with an INSERT, not with an UPDATE: on REPEATABLE READ an UPDATE of a row that is
// missing locks the gap in which it would stand, and two transactions that meet new resources side
// by side would be a deadlock.
type mysql struct{ table string }

func (d mysql) schema() string {
	return `CREATE TABLE IF NOT EXISTS ` + d.table + ` (
  resource VARBINARY(255) NOT NULL PRIMARY KEY,
  token BIGINT NOT NULL COMMENT 'the greatest that was admitted',
  owner VARBINARY(64) NOT NULL COMMENT 'the hold that had it',
  writes BIGINT NOT NULL COMMENT 'how often a holder was admitted'
) ENGINE = InnoDB COMMENT = 'dlock: one row for each fenced resource'`
}

func (d mysql) admit(ctx context.Context, tx *sql.Tx, resource string, m Mark) (bool, error) {
	// MySQL counts rows that it changes, so an admitted mark always changes writes. The columns are
	// set from left to right, each with the values that those before it have got: token is the
	// last.
	token := int64(m.Token)
	n, err := changed(ctx, tx, `INSERT INTO `+d.table+` (resource, token, owner, writes) VALUES (?, ?, ?, 1)
ON DUPLICATE KEY UPDATE writes = writes + (token < ? OR token = ? AND owner = ?), owner = IF(token < ?, ?, owner), token = GREATEST(token, ?)`,
		resource, token, m.Owner, token, token, m.Owner, token, m.Owner, token)
	if err != nil || n != 1 {
		return n == 2, err // 2: a row was changed; 0: none
	}
	// 1: a row was inserted, or, with clientFoundRows, left as it was.
	ok, there, err := ask[bool](ctx, tx, `SELECT token = ? AND owner = ? FROM `+d.table+` WHERE resource = ? FOR UPDATE`, token, m.Owner, resource)
	if err == nil && !there {
		err = errNoRow
	}
	return ok, err
}

func (d mysql) admitShared(ctx context.Context, tx *sql.Tx, resource string, m Mark) (bool, error) {
	// If the row is there the INSERT locks it as a shared one, like the SELECT.
	if _, err := changed(ctx, tx, `INSERT IGNORE INTO `+d.table+` (resource, token, owner, writes) VALUES (?, 0, '', 0)`, resource); err != nil {
		return false, err
	}
	ok, there, err := ask[bool](ctx, tx, `SELECT token < ? OR token = ? AND owner = ? FROM `+d.table+` WHERE resource = ? LOCK IN SHARE MODE`,
		int64(m.Token), int64(m.Token), m.Owner, resource)
	if err == nil && !there {
		err = errNoRow
	}
	return ok, err
}

func (d mysql) claim(ctx context.Context, tx *sql.Tx, resource, owner string) (int64, error) {
	if _, err := changed(ctx, tx, `INSERT INTO `+d.table+` (resource, token, owner, writes) VALUES (?, 1, ?, 1)
ON DUPLICATE KEY UPDATE writes = writes + 1, token = token + (owner <> ?), owner = ?`, resource, owner, owner, owner); err != nil {
		return 0, err
	}
	token, there, err := ask[int64](ctx, tx, `SELECT token FROM `+d.table+` WHERE resource = ? FOR UPDATE`, resource)
	if err == nil && !there {
		err = errNoRow
	}
	return token, err
}
