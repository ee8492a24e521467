package fence

import (
	"context"
	"database/sql"
)

// postgreSQL locks the row even if the condition of DO UPDATE does not hold. On REPEATABLE READ and
// above, a row that changed after the snapshot is a serialization failure, never a refusal.
type postgreSQL struct{ table string }

func (d postgreSQL) schema() string {
	return `CREATE TABLE IF NOT EXISTS ` + d.table + ` (
  resource TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  token BIGINT NOT NULL,
  owner TEXT COLLATE "C" NOT NULL,
  writes BIGINT NOT NULL
)`
}

func (d postgreSQL) admit(ctx context.Context, tx *sql.Tx, resource string, m Mark) (bool, error) {
	n, err := changed(ctx, tx, `INSERT INTO `+d.table+` AS f (resource, token, owner, writes) VALUES ($1, $2, $3, 1)
ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, owner = EXCLUDED.owner, writes = f.writes + 1
WHERE f.token < EXCLUDED.token OR f.token = EXCLUDED.token AND f.owner = EXCLUDED.owner`, resource, int64(m.Token), m.Owner)
	return n == 1, err
}

func (d postgreSQL) admitShared(ctx context.Context, tx *sql.Tx, resource string, m Mark) (bool, error) {
	if _, err := changed(ctx, tx, `INSERT INTO `+d.table+` (resource, token, owner, writes) VALUES ($1, 0, '', 0) ON CONFLICT DO NOTHING`, resource); err != nil {
		return false, err
	}
	ok, there, err := ask[bool](ctx, tx, `SELECT token < $2 OR token = $2 AND owner = $3 FROM `+d.table+` WHERE resource = $1 FOR SHARE`,
		resource, int64(m.Token), m.Owner)
	if err == nil && !there {
		err = errNoRow
	}
	return ok, err
}

func (d postgreSQL) claim(ctx context.Context, tx *sql.Tx, resource, owner string) (int64, error) {
	if _, err := changed(ctx, tx, `INSERT INTO `+d.table+` AS f (resource, token, owner, writes) VALUES ($1, 1, $2, 1)
ON CONFLICT (resource) DO UPDATE SET token = CASE WHEN f.owner = EXCLUDED.owner THEN f.token ELSE f.token + 1 END, owner = EXCLUDED.owner, writes = f.writes + 1`,
		resource, owner); err != nil {
		return 0, err
	}
	token, there, err := ask[int64](ctx, tx, `SELECT token FROM `+d.table+` WHERE resource = $1`, resource)
	if err == nil && !there {
		err = errNoRow
	}
	return token, err
}
