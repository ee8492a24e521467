package fence

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	goredis "github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/dlock-go/dlock/conformance/containers/mysql"
	"github.com/dlock-go/dlock/conformance/containers/postgres"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/driver/redis/fenceredis"
	"github.com/dlock-go/dlock/fence"
)

// database is a database of the tests, with the tables dlock_fences and counters.
type database struct {
	fences *fence.SQL
	db     *sql.DB
}

// databases opens the databases of the tests, by name.
var databases = map[string]func(t *testing.T) database{
	"mysql": func(t *testing.T) database { return onMySQL(t, mysql.MySQL, "") },
	"mariadb": func(t *testing.T) database {
		return onMySQL(t, mysql.MariaDB, "?clientFoundRows=true&interpolateParams=true")
	},
	"postgres": onPostgreSQL,
	"sqlite":   onSQLite,
}

func onMySQL(t *testing.T, k service.Kind, params string) database {
	u, err := url.Parse(service.Start(t, k).URL)
	if err != nil {
		t.Fatal("not a URL")
	}
	dsn := u.User.Username()
	if password, ok := u.User.Password(); ok {
		dsn += ":" + password
	}
	return newDatabase(t, fence.MySQL, "mysql", dsn+"@tcp("+u.Host+")"+u.Path+params)
}

func onPostgreSQL(t *testing.T) database {
	return newDatabase(t, fence.PostgreSQL, "pgx", service.Start(t, postgres.PostgreSQL).URL)
}

func onSQLite(t *testing.T) database {
	return newDatabase(t, fence.SQLite, "sqlite", "file:"+filepath.Join(t.TempDir(), "db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=busy_timeout(30000)")
}

func newDatabase(t *testing.T, d fence.Dialect, driver, dsn string) database {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s := database{&fence.SQL{Dialect: d}, db}
	for range 2 { // the table may exist
		if err := s.fences.CreateTable(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	s.exec(t, "CREATE TABLE IF NOT EXISTS counters (name VARCHAR(64) NOT NULL PRIMARY KEY, n INTEGER NOT NULL)")
	return s
}

func (s database) exec(t testing.TB, text string, args ...any) {
	t.Helper()
	if _, err := s.db.ExecContext(t.Context(), s.numbered(text), args...); err != nil {
		t.Fatal(err)
	}
}

// numbered replaces the placeholders ? by $1, $2 … for databases that write them so.
func (s database) numbered(text string) string {
	if s.fences.Dialect != fence.PostgreSQL {
		return text
	}
	for n := '1'; strings.Contains(text, "?"); n++ {
		text = strings.Replace(text, "?", "$"+string(n), 1)
	}
	return text
}

func (s database) begin(ctx context.Context, t testing.TB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

// site keeps a counter for the schedules of the race.
type site interface {
	// create makes a counter with the value 0.
	create(ctx context.Context, name string) error
	// read returns the value; unless the mark is zero it has to be admitted.
	read(ctx context.Context, name string, m fence.Mark) (int, error)
	// write sets the counter to from+1; the mark is admitted as in read. It calls stop at places in
	// which its process may be stopped. If from is negative, write reads the value itself.
	write(ctx context.Context, name string, m fence.Mark, from int, stop func(place)) error
	// value returns the final value.
	value(ctx context.Context, name string) (int, error)
}

func (s database) create(ctx context.Context, name string) error {
	_, err := s.db.ExecContext(ctx, s.numbered("INSERT INTO counters (name, n) VALUES (?, 0)"), name)
	return err
}

func (s database) value(ctx context.Context, name string) (n int, err error) {
	err = s.db.QueryRowContext(ctx, s.numbered("SELECT n FROM counters WHERE name = ?"), name).Scan(&n)
	return n, err
}

func (s database) read(ctx context.Context, name string, m fence.Mark) (n int, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	if m.Token != 0 {
		if err := s.fences.Admit(ctx, tx, name, m); err != nil {
			return 0, err
		}
	}
	if err := tx.QueryRowContext(ctx, s.numbered("SELECT n FROM counters WHERE name = ?"), name).Scan(&n); err != nil {
		return 0, err
	}
	return n, tx.Commit()
}

func (s database) write(ctx context.Context, name string, m fence.Mark, from int, stop func(place)) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	stop(begun)
	if m.Token != 0 {
		if err := s.fences.Admit(ctx, tx, name, m); err != nil {
			return err
		}
		stop(admitted)
	}
	if from < 0 {
		if err := tx.QueryRowContext(ctx, s.numbered("SELECT n FROM counters WHERE name = ?"), name).Scan(&from); err != nil {
			return err
		}
	}
	stop(read)
	if _, err := tx.ExecContext(ctx, s.numbered("UPDATE counters SET n = ? WHERE name = ?"), from+1, name); err != nil {
		return err
	}
	stop(written)
	return tx.Commit()
}

// onRedis keeps counters in Redis.
type onRedis struct{ rdb *goredis.Client }

func newRedis(t *testing.T) onRedis {
	o, err := goredis.ParseURL(service.Start(t, redis.Redis).URL)
	if err != nil {
		t.Fatal("not a URL")
	}
	o.MaxRetries = -1
	rdb := goredis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	return onRedis{rdb}
}

const readText, writeText = `return tonumber(redis.call('GET', KEYS[1]))`, `return redis.call('SET', KEYS[1], ARGV[1])`

var fencedRead, fencedWrite = fenceredis.NewScript(readText), fenceredis.NewScript(writeText)

func (s onRedis) create(ctx context.Context, name string) error {
	return s.rdb.Set(ctx, name, 0, 0).Err()
}

func (s onRedis) value(ctx context.Context, name string) (int, error) {
	return s.rdb.Get(ctx, name).Int()
}

func (s onRedis) read(ctx context.Context, name string, m fence.Mark) (int, error) {
	if m.Token == 0 {
		return s.value(ctx, name)
	}
	return fencedRead.Run(ctx, s.rdb, name+":fence", m, []string{name}).Int()
}

func (s onRedis) write(ctx context.Context, name string, m fence.Mark, from int, stop func(place)) (err error) {
	if from < 0 {
		if from, err = s.read(ctx, name, m); err != nil {
			return err
		}
	}
	stop(begun)
	stop(read)
	if m.Token == 0 {
		return s.rdb.Set(ctx, name, from+1, 0).Err()
	}
	return fencedWrite.Run(ctx, s.rdb, name+":fence", m, []string{name}, from+1).Err()
}

// refused reports whether an error is a refusal of this library, and not an error of the database.
func refused(err error) bool { return errors.Is(err, fence.ErrStale) }
