package fence

import (
	"context"
	"database/sql"
)

// sqlite locks the whole database with the first write of a transaction, so all its statements
// write. A write after a read fails as busy if another transaction wrote in between.
type sqlite struct{ table string }

func (d sqlite) schema() string {
	return `CREATE TABLE IF NOT EXISTS ` + d.table + ` (
  resource TEXT NOT NULL PRIMARY KEY,
  token INTEGER NOT NULL,
  owner TEXT NOT NULL,
  writes INTEGER NOT NULL
)`
}

func (d sqlite) admit(ctx context.Context, tx *sql.Tx, resource string, m Mark) (bool, error) {
	n, err := changed(ctx, tx, `INSERT INTO `+d.table+` AS f (resource, token, owner, writes) VALUES (?, ?, ?, 1)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner, writes = f.writes + 1
WHERE f.token < excluded.token OR f.token = excluded.token AND f.owner = excluded.owner`, resource, int64(m.Token), m.Owner)
	return n == 1, err
}

func (d sqlite) admitShared(ctx context.Context, tx *sql.Tx, resource string, m Mark) (bool, error) {
	n, err := changed(ctx, tx, `INSERT INTO `+d.table+` AS f (resource, token, owner, writes) VALUES (?, 0, '', 0)
ON CONFLICT (resource) DO UPDATE SET writes = f.writes WHERE f.token < ? OR f.token = ? AND f.owner = ?`,
		resource, int64(m.Token), int64(m.Token), m.Owner)
	return n == 1, err
}

func (d sqlite) claim(ctx context.Context, tx *sql.Tx, resource, owner string) (int64, error) {
	if _, err := changed(ctx, tx, `INSERT INTO `+d.table+` AS f (resource, token, owner, writes) VALUES (?, 1, ?, 1)
ON CONFLICT (resource) DO UPDATE SET token = CASE WHEN f.owner = excluded.owner THEN f.token ELSE f.token + 1 END, owner = excluded.owner, writes = f.writes + 1`,
		resource, owner); err != nil {
		return 0, err
	}
	token, there, err := ask[int64](ctx, tx, `SELECT token FROM `+d.table+` WHERE resource = ?`, resource)
	if err == nil && !there {
		err = errNoRow
	}
	return token, err
}
