// Package postgres has the servers of PostgreSQL for tests.
package postgres

import (
	"context"
	"database/sql"
	"strconv"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // pgx

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// PostgreSQL is PostgreSQL 17. Its user postgres has no password. It does not run as root. Its
// programs are found where Debian and the published image install them.
var PostgreSQL = service.Kind{
	Name:    "postgres",
	Image:   "postgres:17",
	Built:   "dlock-test/postgres:17",
	Package: "postgresql",
	Needs:   "pg_ctlcluster",
	Prepare: func(dir string) []string {
		return asPostgres("initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--pgdata="+dir+"/db")
	},
	Command: func(dir string, ports []int) []string {
		return asPostgres("postgres", "-D", dir+"/db", "-p", strconv.Itoa(ports[0]), "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=200")
	},
	URL: func(addr string) string { return "postgres://postgres@" + addr + "/postgres?sslmode=disable" },
	Ask: askPostgreSQL,
}

// asPostgres runs a program in the folder of the data. If the current user is root, it runs as the
// user postgres, to whom root gives access to the folder.
func asPostgres(argv ...string) []string {
	const script = `PATH="$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"
if [ "$(id -u)" = 0 ]; then
  chmod a+x .. ../.. && chown postgres . && set -- setpriv --reuid=postgres --regid=postgres --clear-groups "$@"
fi
exec "$@"`
	return append([]string{"sh", "-c", script, "sh"}, argv...)
}

func askPostgreSQL(ctx context.Context, url string) (string, error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return "", err
	}
	defer db.Close()
	var version string
	if err := db.QueryRowContext(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", err
	}
	number, _, _ := strings.Cut(version, " ")
	return "postgres " + number, nil
}
