package fence

import (
	"context"
	"database/sql"
)

// mysql is for MySQL and MariaDB.
//
// admit begins with an INSERT, not with an UPDATE: on REPEATABLE READ an UPDATE of a missing row
// locks the gap where the row would be, and two concurrent transactions with new resources would
// deadlock.
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
	// MySQL counts changed rows, so an admitted mark always changes the column writes. Columns are
	// set from left to right, and an expression sees the new values of those already set: token is
	// the last.
	token := int64(m.Token)
	n, err := changed(ctx, tx, `INSERT INTO `+d.table+` (resource, token, owner, writes) VALUES (?, ?, ?, 1)
ON DUPLICATE KEY UPDATE writes = writes + (token < ? OR token = ? AND owner = ?), owner = IF(token < ?, ?, owner), token = GREATEST(token, ?)`,
		resource, token, m.Owner, token, token, m.Owner, token, m.Owner, token)
	if err != nil || n != 1 {
		return n == 2, err // 2: a row was changed; 0: none
	}
	// 1: a row was inserted or, with clientFoundRows, left unchanged
	ok, there, err := ask[bool](ctx, tx, `SELECT token = ? AND owner = ? FROM `+d.table+` WHERE resource = ? FOR UPDATE`, token, m.Owner, resource)
	if err == nil && !there {
		err = errNoRow
	}
	return ok, err
}

func (d mysql) admitShared(ctx context.Context, tx *sql.Tx, resource string, m Mark) (bool, error) {
	// if the row exists, the INSERT takes a shared lock on it, like the SELECT
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
