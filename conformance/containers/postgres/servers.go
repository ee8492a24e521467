// Package postgres has the servers of PostgreSQL for tests.
package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
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

// Standby is a standby of the server, which copies its data when it is started for the first time,
// and what is written from then on. The server does not wait for it.
func Standby(primary *service.Server) service.Kind {
	k := PostgreSQL
	k.Prepare = func(dir string) []string {
		return asPostgres("pg_basebackup", "--no-sync", "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf",
			"--host=127.0.0.1", "--port="+strconv.Itoa(primary.Ports[0]), "--username=postgres", "--pgdata="+dir+"/db")
	}
	return k
}

// PgBouncer is PgBouncer 1 in transaction mode: each transaction of a client may run in another
// session of a server. It knows the users postgres and dlock, both without a password, and no
// prepared statements. [Before] gives it a server; alone it has none.
var PgBouncer = service.Kind{
	Name:    "pgbouncer",
	Image:   "edoburu/pgbouncer:v1.24.1-p1",
	Built:   "dlock-test/pgbouncer:1",
	Package: "pgbouncer",
	Needs:   "pgbouncer",
	Files:   map[string]string{"users": "\"postgres\" \"\"\n\"dlock\" \"\"\n"},
	Command: func(dir string, ports []int) []string {
		// it refuses to run as root
		const script = `{ cat pgbouncer.ini; echo "listen_port = $1"; } >listening.ini; shift
if [ "$(id -u)" = 0 ]; then chmod a+rx . && chmod a+x .. ../.. && set -- -u daemon; fi
exec pgbouncer "$@" listening.ini`
		return []string{"sh", "-c", script, "sh", strconv.Itoa(ports[0])}
	},
	URL: func(addr string) string { return "postgres://postgres@" + addr + "/postgres?sslmode=disable" },
	Ask: askPgBouncer,
}

// Before is a PgBouncer before the server, with further settings.
func Before(s *service.Server, settings ...string) service.Kind {
	k := PgBouncer
	k.Prepare = func(dir string) []string {
		config := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
unix_socket_dir =
auth_type = trust
auth_file = %s/users
admin_users = postgres
pool_mode = transaction
max_prepared_statements = 0
server_login_retry = 1
max_client_conn = 2000
default_pool_size = 40
%s
`, s.Ports[0], dir, strings.Join(settings, "\n"))
		return []string{"sh", "-c", `printf '%s' "$1" >pgbouncer.ini`, "sh", config}
	}
	return k
}

func askPgBouncer(ctx context.Context, text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", fmt.Errorf("not a URL") // the error would show it, with its password
	}
	u.Path = "pgbouncer" // its own console
	c, err := pgx.ParseConfig(u.String())
	if err != nil {
		return "", err
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var version string
	if err := conn.QueryRow(ctx, "SHOW VERSION").Scan(&version); err != nil {
		return "", err
	}
	_, number, _ := strings.Cut(version, " ")
	return "pgbouncer " + number, nil
}
