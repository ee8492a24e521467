package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// sideOf opens the driver over a pool of the test's.
func sideOf(t service.T, s *service.Server) *poolSide {
	t.Helper()
	return mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{})
}

// exercise does everything that the driver can do, and is strict about time.
func exercise(t testing.TB, b driver.Backend, name string) {
	t.Helper()
	const ttl = time.Minute
	a := steps.Asked(b, name, ttl)
	start := time.Now()
	g := steps.Acquired(t, b, a)
	if g.Token == 0 || g.TTL != ttl || g.SentAt.Before(start) {
		t.Fatalf("granted %+v", g)
	}
	if again := steps.Acquired(t, b, a); again.Token != g.Token {
		t.Fatalf("sent again it has token %d, before %d", again.Token, g.Token)
	}
	q := steps.Queue(t, b, name)
	took := time.Since(start)
	if e := q.Holders(); len(e) != 1 || e[0].ID != a.ID || e[0].Left > ttl || e[0].Left < ttl-took || e[0].Age < 0 || e[0].Age > took {
		t.Fatalf("after %s there is %+v", took, e)
	}
	steps.Refused(t, b, steps.Asked(b, name, ttl), g.SentAt.Add(ttl))
	for range 2 { // the second one may write what is due
		if r := b.Renew(context.Background(), []driver.Request{a, steps.Asked(b, name, ttl)}); r[0].Err != nil || !errors.Is(r[1].Err, driver.ErrLost) {
			t.Fatalf("Renew: %v, %v", r[0].Err, r[1].Err)
		}
	}
	next := steps.Waiting(b, name, ttl)
	granted := make(chan driver.Grant, 1)
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() {
		var n driver.Grant
		if n, failed = steps.Acquire(context.Background(), b, next); failed == nil {
			granted <- n
		}
	})
	await.That(t, "the next one waits", func() bool { return len(steps.Queue(t, b, name).Waiters()) == 1 })
	steps.Released(t, b, a)
	wg.Wait()
	if failed != nil {
		t.Fatalf("Acquire of the next: %v", failed)
	}
	if n := <-granted; n.Token <= g.Token {
		service.Strict(t).Fatalf("token %d after %d", n.Token, g.Token)
	}
	if err := b.Release(context.Background(), a); !errors.Is(err, driver.ErrLost) {
		t.Fatalf("a second Release: %v", err)
	}
	if names, err := b.(driver.Lister).List(context.Background()); err != nil || !slices.Contains(names, name) {
		t.Fatalf("List: %q, %v", names, err)
	}
	steps.Released(t, b, next)

	const short = 200 * time.Millisecond
	start = time.Now()
	steps.Acquired(t, b, steps.Asked(b, name, short))
	after := steps.Waiting(b, name, ttl)
	steps.Acquired(t, b, after)
	if took := time.Since(start); took < short {
		service.Strict(t).Fatalf("a hold of %s blocked others for %s", short, took)
	} else if took > short+10*time.Second {
		t.Fatalf("a hold of %s blocked others for %s", short, took)
	}
	if err := b.(driver.Breaker).Break(context.Background(), name, steps.Queue(t, b, name).Holders()[0].Token, true); err != nil {
		t.Fatalf("Break: %v", err)
	}
	if r := b.Renew(context.Background(), []driver.Request{after}); !errors.Is(r[0].Err, driver.ErrLost) {
		t.Fatalf("Renew of a broken hold: %v", r[0].Err)
	}
	if n := steps.Queue(t, b, name).Len(); n != 0 {
		t.Fatalf("%d requests are left", n)
	}
}

// sessionState is what the driver may have changed of the session of the pool's only connection.
func sessionState(t service.T, db rower) (conn int64, state string) {
	t.Helper()
	text := one[string](t, db, `SELECT CONCAT_WS('; ', CONNECTION_ID(), @@session.autocommit, @@session.sql_mode, @@session.time_zone, @@session.innodb_lock_wait_timeout, @@session.lock_wait_timeout,
		@@session.character_set_client, @@session.collation_connection, @@session.sql_select_limit, @@session.sql_safe_updates, @@session.sql_big_selects, @@session.max_join_size, @@session.completion_type, DATABASE())`)
	id, state, _ := strings.Cut(text, "; ")
	conn, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return conn, state
}

// killMySQL kills connections of the server, except its own, until stop, and returns how many.
func killMySQL(t testing.TB, s *service.Server) (killed *atomic.Int64, stop func()) {
	t.Helper()
	db, killed := mysqlOf(t, s).pool(t), new(atomic.Int64)
	db.SetMaxOpenConns(1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		// on a slow server calls need longer too, and each has to get through now and then
		var took time.Duration
		for ; ctx.Err() == nil; <-time.After(time.Duration(1+rand.IntN(20))*time.Millisecond + 2*took) {
			var ids []int64
			start := time.Now()
			rows, err := db.Query("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'")
			for err == nil && rows.Next() {
				var id int64
				if err = rows.Scan(&id); err == nil {
					ids = append(ids, id)
				}
			}
			if err != nil || len(ids) == 0 {
				continue // the test has restarted the server
			}
			if _, err := db.Exec(fmt.Sprint("KILL ", ids[rand.IntN(len(ids))])); err == nil {
				killed.Add(1)
			}
			took = min(time.Since(start), 50*time.Millisecond)
		}
	})
	return killed, sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// transactions returns how many transactions the connections of a pool's user have open at the
// server, and how many of those wait for a row.
func transactions(t service.T, db *sql.DB, user string) (open, wait int) {
	t.Helper()
	n := shown[int](t, db, `SELECT COALESCE(SUM(IF(x.trx_state = 'LOCK WAIT', 1000001, 1)), 0) FROM information_schema.innodb_trx x
		JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id WHERE p.user = ?`, user)
	return n % 1000000, n / 1000000
}

// shown is held for a query about the transactions of a server. The server shows a copy of them,
// which it refreshes only if it was not read for a tenth of a second: so the tests take turns. The
// copy has the statements of all sessions, and MySQL was seen to refuse a query of it since one was
// not UTF-8 (3854), for a moment on a busy machine.
func shown[V any](t service.T, db rower, query string, args ...any) (v V) {
	t.Helper()
	copies.Lock()
	defer copies.Unlock()
	for try := 1; ; try++ {
		<-time.After(120 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), statementTime)
		err := db.QueryRowContext(ctx, query, args...).Scan(&v)
		cancel()
		if e := (*gomysql.MySQLError)(nil); errors.As(err, &e) && e.Number == 3854 && try < 10 {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return v
	}
}

var copies sync.Mutex

// userOf is d as another user, with all rights.
func userOf(t service.T, s *service.Server, name string) dsn {
	t.Helper()
	execute(t, mysqlOf(t, s).pool(t), "CREATE USER IF NOT EXISTS '"+name+"'@'%' IDENTIFIED BY ''", "GRANT ALL ON *.* TO '"+name+"'@'%'")
	d := mysqlOf(t, s)
	d.User = name
	return d
}
