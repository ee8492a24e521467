// Package mysql runs the driver on MySQL and MariaDB.
package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// MySQL is MySQL 9. Its user root has no password, its database is called test. A server that is
// killed leaves all that it ever acknowledged. (In tests no machine crashes: nothing has to reach
// the disk.)
var MySQL = service.Kind{
	Name:    "mysql",
	Image:   "mysql:9",
	Built:   "dlock-test/mysql:9-ready",
	Ready:   "/ready",
	Package: "mysql-server-core",
	Files:   mysqlFiles,
	Prepare: func(dir string) []string {
		return []string{"mysqld", "--no-defaults", "--user=root", "--secure-file-priv=NULL", "--initialize-insecure", "--datadir=" + dir + "/db"}
	},
	Command: mysqlCommand("mysqld", "--secure-file-priv=NULL", "--mysqlx=OFF", "--performance-schema=OFF", "--sync-binlog=0", "--innodb-flush-method=nosync"),
	URL:     mysqlURL,
	Ask:     askMySQL,
}

// MariaDB is MariaDB 11, set up like [MySQL]. (What is loose here MariaDB 10 does not have.)
var MariaDB = service.Kind{
	Name:    "mariadb",
	Image:   "mariadb:11",
	Built:   "dlock-test/mariadb:11-ready",
	Ready:   "/ready",
	Package: "mariadb-server",
	Files:   mysqlFiles,
	Prepare: func(dir string) []string {
		return []string{"mariadb-install-db", "--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db", "--datadir=" + dir + "/db"}
	},
	Command: mysqlCommand("mariadbd", "--debug-no-sync", "--loose-innodb-data-file-buffering=ON", "--loose-innodb-log-file-buffering=ON"),
	URL:     mysqlURL,
	Ask:     askMySQL,
}

// mysqlFiles has what a server executes whenever it starts.
var mysqlFiles = map[string]string{"init.sql": "CREATE DATABASE IF NOT EXISTS test;\n"}

func mysqlCommand(program string, more ...string) func(string, []int) []string {
	return func(dir string, ports []int) []string {
		return append([]string{program, "--no-defaults", "--user=root", "--bind-address=127.0.0.1", "--port=" + strconv.Itoa(ports[0]),
			"--datadir=" + dir + "/db", "--socket=" + dir + "/socket", "--pid-file=" + dir + "/pid", "--init-file=" + dir + "/init.sql",
			"--max-connections=1000", "--innodb-flush-log-at-trx-commit=2"}, more...)
	}
}

func mysqlURL(addr string) string { return "mysql://root@" + addr + "/test" }

func askMySQL(ctx context.Context, url string) (string, error) {
	c, err := mysqlConfig(url)
	if err != nil {
		return "", err
	}
	db := c.open()
	defer db.Close()
	var version string
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return "", err
	}
	number, _, _ := strings.Cut(version, "-")
	if strings.Contains(version, "MariaDB") {
		return "mariadb " + number, nil
	}
	return "mysql " + number, nil
}

// statementTime is for how long a test waits for a statement of its own. A server may keep one
// waiting that changes a table, a procedure or a global setting: by default for a day or a year.
const statementTime = 3 * time.Minute

// dsn is the configuration of connections of the client library.
type dsn struct{ *mysql.Config }

// mysqlConfig reads the URL of a server, which has a user, perhaps a password, and a database.
func mysqlConfig(text string) (dsn, error) {
	u, err := url.Parse(text)
	if err != nil {
		return dsn{}, fmt.Errorf("not a URL") // the error would show it, with its password
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Timeout = 15 * time.Second
	c.ReadTimeout = statementTime + 10*time.Second // of those that have no context
	c.Logger = &mysql.NopLogger{}                  // it would report every connection that ends
	return dsn{c}, nil
}

// through makes all connections go through the proxy.
func (d dsn) through(p *netfault.Proxy) dsn {
	c := d.Clone()
	dialBy(c, p.Dial)
	return dsn{c}
}

// networks counts those that dialBy registered.
var networks atomic.Int64

// dialBy makes connections of a configuration be dialled by a function. All versions of the client
// library know networks that are registered; a field for it only newer ones.
func dialBy(c *mysql.Config, dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	c.Net = fmt.Sprintf("test-%d", networks.Add(1))
	mysql.RegisterDialContext(c.Net, func(ctx context.Context, addr string) (net.Conn, error) {
		return dial(ctx, "tcp", addr)
	})
}

// open returns a pool, which the caller closes.
func (d dsn) open() *sql.DB {
	c, err := mysql.NewConnector(d.Config)
	if err != nil {
		panic(err) // none of its errors can occur here
	}
	return sql.OpenDB(c)
}

// Open returns a pool for the URL of a server, which the caller closes.
func Open(url string) (*sql.DB, error) {
	d, err := mysqlConfig(url)
	if err != nil {
		return nil, err
	}
	return d.open(), nil
}

// mysqlOf returns the configuration of connections to the server.
func mysqlOf(t service.T, s *service.Server) dsn {
	t.Helper()
	d, err := mysqlConfig(s.URL)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return d
}
