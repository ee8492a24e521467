package mysql

import (
	"strings"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver/mysql"
)

// TestMySQLMistakes makes the mistakes of docs/mistakes.md that need a MySQL.
func TestMySQLMistakes(t *testing.T) {
	t.Parallel()
	onShared(t, func(t *testing.T, s *service.Server) {
		d := mysqlOf(t, s)
		root := d.pool(t)
		user := "mistakes_" + d.DBName
		execute(t, root, "DROP USER IF EXISTS "+user, "CREATE USER "+user+" IDENTIFIED BY 'canary'", "CREATE TABLE another (k INT PRIMARY KEY)", "GRANT SELECT ON "+d.DBName+".another TO "+user)
		defer execute(t, root, "DROP USER IF EXISTS "+user)
		made := map[string]error{
			"no MySQL at the address":        steps.FirstLock(t, "mysql://root@127.0.0.1:1/test"),
			"a wrong password of MySQL":      steps.FirstLock(t, strings.Replace(s.URL, "root@", user+":wrong@", 1)),
			"a database that does not exist": steps.FirstLock(t, strings.Replace(s.URL, "/"+d.DBName, "/nosuch", 1)),
			"no tables yet":                  steps.FirstLock(t, s.URL),
		}
		migrated(t, s)
		made["a user without rights on MySQL"] = steps.FirstLock(t, strings.Replace(s.URL, "root@", user+":canary@", 1))

		pool := d.open()
		defer pool.Close()
		pool.SetMaxOpenConns(2)
		b, err := mysql.New(pool, mysql.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := dlock.New(b)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 2 {
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
		}
		_, made["locks in transactions that have taken the whole pool"] = c.Mutex("orders/42").TryLock(t.Context())
		steps.Mistakes(t, made)
	})
}
