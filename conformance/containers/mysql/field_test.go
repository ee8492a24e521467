package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/migrations"
)

// TestMySQLField does, on one server of each kind, what operators and real programs do.
func TestMySQLField(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) {
		abreast(t, s,
			part{"a clock that a session stopped", mysqlStoppedClock},
			part{"modes of sessions that migrate", mysqlModes},
			part{"clean-up", mysqlCleanup},
			part{"the dead", mysqlDead},
			part{"a queue full of the dead", mysqlManyDead},
			part{"a busy pool", mysqlBusyPool},
			part{"an emptied table", mysqlEmptied},
			part{"the first shared lock of a name", mysqlFirstShared},
			part{"rights to migrate", mysqlRightsToMigrate},
		)
		// parts that lock all tables, or kill, or compare times
		inTurn(t, migrated(t, s),
			part{"queries are killed beside the user's work", mysqlKilledQueries},
			part{"a backup", mysqlBackup},
			part{"a permit for another client", mysqlPermits},
		)
	})
}

// mysqlKilledQueries: whatever is killed of ours, what others do on connections of the same pool
// stays done, and the connections are as they were.
func mysqlKilledQueries(t *service.Trial, s *service.Server) {
	const user, conns = "traffic", 8
	db := userOf(t, s, user).pool(t)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	execute(t, db, "CREATE TABLE traffic (n BIGINT PRIMARY KEY)")
	_, usual := sessionState(t, db)
	b, err := mysql.New(db, mysql.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	root := mysqlOf(t, s).pool(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var number, turns, killed atomic.Int64
	var mu sync.Mutex
	var written []int64 // without an error
	for range 3 {
		wg.Go(func() { // the user's own work
			for ctx.Err() == nil {
				n := number.Add(1)
				if _, err := db.Exec("INSERT INTO traffic VALUES (?)", n); err == nil {
					mu.Lock()
					written = append(written, n)
					mu.Unlock()
				}
				<-time.After(time.Millisecond)
			}
		})
	}
	for i := range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				r := steps.Waiting(b, fmt.Sprint("traffic/", i%2), time.Minute)
				if _, err := steps.AcquireOrRelease(ctx, b, r); err != nil {
					continue
				}
				b.Renew(ctx, []driver.Request{r})
				_, _ = b.Inspect(ctx, r.Name)
				if err := b.Release(context.Background(), r); err != nil {
					t.Errorf("Release: %v", err)
				}
				turns.Add(1)
			}
		})
	}
	// now and then a row is not free, so that a kill finds statements that wait
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if tx, err := root.Begin(); err == nil {
				table := []string{"dlock_locks", "dlock_requests"}[i%2]
				_, _ = tx.Exec("SELECT COUNT(*) FROM (SELECT 1 FROM " + table + " WHERE name LIKE 'traffic/%' FOR UPDATE) x")
				<-time.After(4 * time.Millisecond)
				tx.Rollback()
			}
			<-time.After(4 * time.Millisecond)
		}
	})
	await.That(t, "queries were killed, and work went on", func() bool {
		if killed.Load() >= 150 { // enough: a slow machine may kill faster than it works
			return turns.Load() >= 30
		}
		rows, err := root.Query("SELECT id FROM information_schema.processlist WHERE user = '" + user + "' AND command = 'Query' AND info NOT LIKE 'INSERT INTO traffic%'")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			if _, err := root.Exec(fmt.Sprint("KILL QUERY ", id)); err == nil {
				killed.Add(1)
			}
		}
		return false
	})
	cancel()
	await.All(t, &wg)
	t.Logf("%d kills, %d turns, %d rows written", killed.Load(), turns.Load(), len(written))
	there := map[int64]bool{}
	rows, err := root.Query("SELECT n FROM traffic")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		there[n] = true
	}
	written = slices.DeleteFunc(written, func(n int64) bool { return there[n] })
	if len(written) > 0 {
		service.Strict(t).Errorf("%d rows that the user wrote are gone", len(written))
	}
	if open, _ := transactions(t, root, user); open > 0 {
		t.Errorf("%d transactions are open", open)
	}
	var taken []*sql.Conn
	for range conns {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		taken = append(taken, c)
	}
	for _, c := range taken {
		if _, now := sessionState(t, c); now != usual {
			t.Errorf("a connection of the user's is now\n%s, it was\n%s", now, usual)
		}
	}
}

// mysqlBackup: while all tables are locked, a client keeps to few connections, and goes on
// afterwards.
func mysqlBackup(t *service.Trial, s *service.Server) {
	const names = 80
	const ttl = 10 * time.Minute // nothing is removed because it expired
	root := mysqlOf(t, s).pool(t)
	sides := map[string]*poolSide{"backup1": nil, "backup2": nil}
	for u := range sides {
		// the pool has no limit
		sides[u] = userOf(t, s, u).side(t, netfault.NewProxy(), mysql.Options{})
		r := steps.Asked(sides[u], "backup/warm/"+u, time.Minute)
		steps.Acquired(t, sides[u], r)
		steps.Released(t, sides[u], r)
	}
	conn, err := root.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "FLUSH TABLES WITH READ LOCK"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	free := make(chan struct{})
	for u, b := range sides {
		for i := range names {
			wg.Go(func() {
				r := steps.Asked(b, fmt.Sprint("backup/", u, "/", i), ttl)
				_, err := steps.Acquire(t.Context(), b, r)
				var e *gomysql.MySQLError // the tables were locked until its time was over
				locked := errors.As(err, &e) && e.Number == 1205
				if locked || err != nil && strings.Contains(err.Error(), "did not answer") {
					// half of its time had passed when the tables were free; the driver removes the
					// request that it abandoned, which the server may have granted by then; so this
					// is another request, and waits for that
					<-free
					r = steps.Waiting(b, r.Name, ttl)
					_, err = steps.Acquire(await.Bounded(t, await.Patience), b, r)
				}
				if err != nil {
					t.Errorf("Acquire: %v", err)
				} else if err := b.Release(t.Context(), r); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
	}
	most := 0
	// statements were abandoned once by then, and calls have half of their time left for a busy
	// machine
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		most = max(most, one[int](t, root, "SELECT COUNT(*) FROM information_schema.processlist WHERE user LIKE 'backup_'"))
	}
	if _, err := conn.ExecContext(t.Context(), "UNLOCK TABLES"); err != nil {
		t.Fatal(err)
	}
	close(free)
	await.All(t, &wg)
	t.Logf("%d clients with %d calls each had %d connections", len(sides), names, most)
	// 30 calls, those that renew or look, and, at a server that is slow to end them, the 30 that
	// were abandoned before: fewer than the calls that were made
	if want := len(sides) * 64; most > want {
		t.Errorf("%d clients have %d connections at a server that does not go on; want %d at most", len(sides), most, want)
	}
}

// mysqlStoppedClock: SET timestamp on a connection moves nothing of ours, and stays as it was.
func mysqlStoppedClock(t *service.Trial, s *service.Server) {
	other := sideOf(t, s)
	for what, at := range map[string]string{"ahead": "UNIX_TIMESTAMP() + 3600.25", "back": "UNIX_TIMESTAMP() - 3600.25", "now": "UNIX_TIMESTAMP(SYSDATE(6))"} {
		name := "clock/" + what
		b := sideOf(t, s)
		b.db.SetMaxOpenConns(1)
		execute(t, b.db, "SET timestamp = "+at)
		stopped := one[string](t, b.db, "SELECT @@timestamp")
		held := steps.Asked(other, name, time.Minute)
		g := steps.Acquired(t, other, held)
		steps.Refused(t, b, steps.Asked(b, name, time.Minute), g.SentAt.Add(g.TTL))
		steps.Released(t, other, held)
		r := steps.Asked(b, name, time.Minute)
		next := steps.Acquired(t, b, r)
		if next.Token <= g.Token || next.Token > g.Token+driver.Token(time.Minute.Microseconds()) {
			t.Errorf("%s: token %d after %d", what, next.Token, g.Token)
		}
		if p := b.Renew(t.Context(), []driver.Request{r}); p[0].Err != nil {
			t.Errorf("%s: Renew: %v", what, p[0].Err)
		}
		if e := steps.Queue(t, other, name).Holders(); len(e) != 1 || e[0].Left < 30*time.Second || e[0].Left > time.Minute {
			t.Errorf("%s: there is %+v", what, e)
		}
		steps.Released(t, b, r)
		exercise(t, b, name+"/all")
		if now := one[string](t, b.db, "SELECT @@timestamp"); now != stopped {
			t.Errorf("%s: the connection came back with the timestamp %s, it was %s", what, now, stopped)
		}
	}
}

// mysqlModes: nothing depends on the sql_mode of the sessions that apply the schema, or of those
// that use it.
func mysqlModes(t *service.Trial, s *service.Server) {
	modes := []string{"", "ANSI,PAD_CHAR_TO_FULL_LENGTH", "TRADITIONAL,NO_UNSIGNED_SUBTRACTION"}
	if s.Kind.Name == "mariadb" {
		modes = []string{"", "EMPTY_STRING_IS_NULL", "EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT,TIME_ROUND_FRACTIONAL"}
	}
	ups, err := fs.Glob(migrations.Files, "mysql/*.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	root := mysqlOf(t, s).pool(t)
	for _, mode := range modes {
		d := mysqlOf(t, s)
		d.Params = map[string]string{"sql_mode": "'" + mode + "'"}
		db := d.in(t, root, fmt.Sprint("mode", databases.Add(1)))
		for _, up := range ups {
			text, err := migrations.Files.ReadFile(up)
			if err != nil {
				t.Fatal(err)
			}
			execute(t, db, string(text))
		}
		b, err := mysql.New(db, mysql.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		t.Run("mode "+mode, func(t *service.Trial) {
			exercise(t, b, "a")
			other, err := mysql.New(db, mysql.Options{Identity: "another client"})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			first, next := steps.Asked(b, "b", time.Minute), steps.Waiting(other, "b", time.Minute)
			steps.Acquired(t, b, first)
			got := steps.Acquiring(other, next)
			await.That(t, "one waits", func() bool { return len(steps.Queue(t, b, "b").Waiters()) == 1 })
			steps.Released(t, b, first)
			if err := await.From(t, got); err != nil {
				t.Fatal(err)
			}
			g := steps.Acquired(t, other, next)
			if last := one[int64](t, db, "SELECT token FROM dlock_locks WHERE name = 'b'"); last != int64(g.Token) {
				t.Errorf("the last token of the name is %d, and token %d was given out", last, g.Token)
			}
			steps.Released(t, other, next)
		})
	}
}

// mysqlCleanup: what is removed is judged by the last token, and what is held or waited for stays.
func mysqlCleanup(t *service.Trial, s *service.Server) {
	b, db := sideOf(t, s), mysqlOf(t, s).pool(t)
	first, next := steps.Asked(b, "cleanup/fresh", time.Minute), steps.Waiting(b, "cleanup/fresh", time.Minute)
	steps.Acquired(t, b, first)
	got := steps.Acquiring(b, next)
	await.That(t, "one waits", func() bool { return len(steps.Queue(t, b, "cleanup/fresh").Waiters()) == 1 })
	// both came long ago
	execute(t, db, "UPDATE dlock_locks SET held_since = held_since - INTERVAL 2 HOUR WHERE name = 'cleanup/fresh'")
	steps.Released(t, b, first)
	if err := await.From(t, got); err != nil {
		t.Fatal(err)
	}
	steps.Released(t, b, next)
	cleaned := func(want int) {
		t.Helper()
		if n, err := mysql.Cleanup(t.Context(), db, time.Hour); n != want || err != nil {
			t.Errorf("Cleanup removed %d names; want %d: %v", n, want, err)
		}
	}
	cleaned(0)
	if n := one[int](t, db, "SELECT COUNT(*) FROM dlock_locks WHERE name = 'cleanup/fresh'"); n != 1 {
		t.Error("a name whose last token is a moment old is gone")
	}

	const unused, held, waited = 2500, 300, 400
	insertLocks(t, db, "CONCAT('cleanup/unused/', n)", unused, false, 1)
	insertLocks(t, db, "CONCAT('cleanup/held/', n)", held, true, 0)
	insertLocks(t, db, "CONCAT('cleanup/waited/', n)", waited, false, 1)
	insertRequests(t, db, "CONCAT('cleanup/waited/', n)", waited, 3600)
	cleaned(0)
	execute(t, db, "UPDATE dlock_locks SET held_since = held_since - INTERVAL 2 HOUR WHERE name <> 'cleanup/fresh'")
	cleaned(unused)
	if n := one[int](t, db, "SELECT COUNT(*) FROM dlock_locks"); n != 1+held+waited {
		t.Errorf("%d names are left; want %d", n, 1+held+waited)
	}
	execute(t, db, "DELETE FROM dlock_requests", "DELETE FROM dlock_locks")
	mysqlCleanupBeside(t, s)
}

// mysqlCleanupBeside: a name that is taken while Cleanup is on its way to it stays.
func mysqlCleanupBeside(t testing.TB, s *service.Server) {
	b, other, db, blocker := sideOf(t, s), sideOf(t, s), mysqlOf(t, s).pool(t), mysqlOf(t, s).pool(t)
	for _, name := range []string{"'beside/first'", "'beside/second'"} {
		insertLocks(t, db, name, 1, false, 0)
	}
	execute(t, db, "UPDATE dlock_locks SET held_since = held_since - INTERVAL 2 HOUR")
	tx, err := blocker.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(t.Context(), "SELECT 1 FROM dlock_locks WHERE prefix = X'' AND name = 'beside/first' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	type result struct {
		n   int
		err error
	}
	cleaned := make(chan result, 1)
	go func() {
		n, err := mysql.Cleanup(t.Context(), db, time.Hour)
		cleaned <- result{n, err}
	}()
	await.That(t, "Cleanup waits for the first", func() bool {
		select {
		case res := <-cleaned:
			t.Fatalf("Cleanup did not wait: %d, %v", res.n, res.err)
		default:
		}
		return one[int](t, blocker, "SELECT COUNT(*) FROM information_schema.processlist"+
			" WHERE info LIKE 'DELETE FROM dlock_locks%' AND id <> CONNECTION_ID()") > 0
	})
	r := steps.Asked(b, "beside/second", time.Minute)
	steps.Acquired(t, b, r)
	tx.Rollback()
	if res := await.From(t, cleaned); res.err != nil || res.n != 1 {
		t.Errorf("Cleanup of one that is unused and one that was taken meanwhile: %d, %v", res.n, res.err)
	}
	if res := b.Renew(t.Context(), []driver.Request{r})[0]; res.Err != nil {
		t.Errorf("the hold that was taken beside Cleanup: %v", res.Err)
	}
	if _, err := steps.Acquire(t.Context(), other, steps.Asked(other, "beside/second", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("another client beside it: %v; want ErrHeld", err)
	}
	steps.Released(t, b, r)
}

// mysqlDead: requests of clients that died, behind a living waiter or alone in a queue, do not
// stay, and a release that finds them takes no more statements.
func mysqlDead(t *service.Trial, s *service.Server) {
	const many = 250
	db := mysqlOf(t, s).pool(t)
	stored := func(name string) int {
		return one[int](t, db, "SELECT COUNT(*) FROM dlock_requests WHERE name = ?", name)
	}
	b := sideOf(t, s)
	dies := func(name string, others int) {
		gone := sideOf(t, s)
		for range many {
			go steps.Acquire(t.Context(), gone, steps.Waiting(gone, name, time.Minute))
		}
		await.That(t, "they wait", func() bool { return len(steps.Queue(t, b, name).Waiters()) == many+others })
		t.Cleanup(gone.line.Isolate())
		// the server may be at what they sent before, and would have them live on
		await.That(t, "what they sent is done", func() bool {
			return one[int](t, db, "SELECT COUNT(*) FROM information_schema.processlist"+
				" WHERE db = DATABASE() AND info LIKE '%dlock_requests%' AND id <> CONNECTION_ID()") == 0
		})
		execute(t, db, "UPDATE dlock_requests SET expires_at = expires_at - INTERVAL 1 MINUTE WHERE kind = 'request' AND name = '"+name+"' ORDER BY place DESC LIMIT "+fmt.Sprint(many))
	}

	const name = "dead/behind"
	held := steps.Asked(b, name, time.Minute)
	steps.Acquired(t, b, held)
	lives := steps.Waiting(b, name, time.Minute)
	got := steps.Acquiring(b, lives)
	await.That(t, "one that will live waits", func() bool { return stored(name) == 1 })
	dies(name, 1)
	await.That(t, "the dead behind it are gone", func() bool { return stored(name) == 1 })
	steps.Released(t, b, held)
	if err := await.From(t, got); err != nil {
		t.Fatal(err)
	}
	steps.Released(t, b, lives)

	const queued = "dead/before"
	held = steps.Asked(b, queued, time.Minute)
	steps.Acquired(t, b, held)
	dies(queued, 0)
	n := spoken(t, b.line, func() { steps.Released(t, b, held) })
	if n["give"] > 1 || n["pass"] > 1 || total(n)-n["sweep"] > 2 {
		t.Errorf("%d dead at the head of a queue: the release made %v; want one to give and one to pass", many, n)
	}
	steps.Acquired(t, b, steps.Asked(b, queued, time.Minute)) // at once
	await.That(t, "the dead are gone", func() bool {
		r := steps.Asked(b, "dead/other", time.Minute) // a client that makes calls sweeps
		steps.Acquired(t, b, r)
		steps.Released(t, b, r)
		return stored(queued) == 0
	})
}

// mysqlManyDead: however many died, one statement removes only some of them, and the release that
// finds them grants the next in line.
func mysqlManyDead(t *service.Trial, s *service.Server) {
	const many, most = 1700, 500
	b, db := sideOf(t, s), mysqlOf(t, s).pool(t)
	for i, c := range []struct {
		what string
		mode string
		head string // the place of the last request that was granted
	}{
		{"waiters", "exclusive", "0"},
		{"granted", "exclusive", "(SELECT MAX(place) FROM dlock_requests WHERE name = '%s')"},
		{"readers", "shared", "(SELECT MAX(place) FROM dlock_requests WHERE name = '%s')"},
		{"waiting readers", "shared", "0"},
	} {
		name := "dead/many " + c.what
		held := steps.Asked(b, name, time.Minute)
		steps.Acquired(t, b, held)
		insertRequests(t, db, "'"+name+"'", many, -60)
		execute(t, db, fmt.Sprintf("UPDATE dlock_requests SET mode = '%s', id = UNHEX(LEFT(SHA2(CONCAT(%d, HEX(id)), 256), 32)) WHERE name = '%s'", c.mode, i, name),
			fmt.Sprintf("UPDATE dlock_locks SET others = %d, head = %s WHERE name = '%s'", 1+i/2, strings.ReplaceAll(c.head, "%s", name), name))
		execute(t, db, fmt.Sprintf("INSERT INTO dlock_requests (prefix, name, kind, id, owner, client, mode, permits, fixed, broken, token, ttl_us, label, arrived_at, expires_at) VALUES "+
			"(X'', '%[1]s', 'request', X'%[2]s', X'%[2]s', REPEAT(X'02', 16), 'exclusive', 0, FALSE, FALSE, 0, 60000000, '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 60 SECOND)", name, driver.NewID()))
		n := spoken(t, b.line, func() { steps.Released(t, b, held) })
		t.Logf("%d dead, %s: the release made %v", many, c.what, n)
		if c.mode == "shared" && n["sweep"] == 0 && n["bury"] < many/most {
			t.Errorf("%d dead, %s, go in %d statements; want no more than %d in each", many, c.what, n["bury"], most)
		}
		if e := steps.Queue(t, b, name); len(e.Holders()) != 1 || len(e.Waiters()) != 0 || e.Holders()[0].Client == held.Client {
			t.Errorf("%s: %d hold and %d wait; want the living one to hold", c.what, len(e.Holders()), len(e.Waiters()))
		}
	}
}

// mysqlBusyPool: an error says that other users of the pool have all connections.
func mysqlBusyPool(t *service.Trial, s *service.Server) {
	const conns, says = 5, "all 5 connections of the pool are in use"
	b := sideOf(t, s)
	b.db.SetMaxOpenConns(conns)
	held := steps.Asked(b, "busy/held", time.Minute)
	steps.Acquired(t, b, held)
	for range conns {
		tx, err := b.db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, acquire := steps.Acquire(ctx, b, steps.Asked(b, "busy/asked", time.Minute))
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for what, err := range map[string]error{"Acquire": acquire, "Renew": b.Renew(short, []driver.Request{held})[0].Err} {
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want it to say %q", what, err, says)
		}
	}
	// these have no end of their own
	for what, call := range map[string]func(context.Context) error{
		"Inspect": func(ctx context.Context) error { _, err := b.Inspect(ctx, "busy/held"); return err },
		"Acquire": func(ctx context.Context) error {
			_, err := steps.Acquire(ctx, b, steps.Asked(b, "busy/asked", time.Minute))
			return err
		},
	} {
		begun, still := time.Now(), steps.MeasureStalls()
		err := call(context.Background())
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want it to say %q", what, err, says)
		}
		// 10 s, and what the last copy takes
		if took := time.Since(begun) - still(); took > 15*time.Second {
			t.Errorf("%s ended after %s", what, took)
		}
	}
}

// mysqlEmptied: places that begin at one again, since the table of requests was emptied or made
// again while it was not used, grant nothing beside others, and block nothing.
func mysqlEmptied(t *service.Trial, s *service.Server) {
	a, b := sideOf(t, s), sideOf(t, s)
	for i, how := range []string{"TRUNCATE TABLE dlock_requests", "ALTER TABLE dlock_requests AUTO_INCREMENT = 1", "DROP TABLE dlock_requests"} {
		for what, of := range map[string]func(*driver.Request){
			"exclusive": func(*driver.Request) {},
			"shared":    func(r *driver.Request) { r.Mode = driver.Shared },
			"a permit":  func(r *driver.Request) { r.Mode, r.Limit = driver.Shared, 1 },
		} {
			name := fmt.Sprint("emptied/", i, "/", what)
			ask := func(b driver.Backend, wait bool) driver.Request {
				r := steps.Asked(b, name, time.Minute)
				r.Wait = wait
				of(&r)
				return r
			}
			held := steps.Asked(a, name, time.Minute)
			if what == "a permit" { // it is of another kind than an exclusive lock
				of(&held)
			}
			steps.Acquired(t, a, held)
			steps.Released(t, a, held)
			execute(t, a.db, "UPDATE dlock_locks SET head = 1000000 WHERE name = CAST('"+name+"' AS BINARY)", "DELETE FROM dlock_requests", how)
			if err := mysql.Migrate(t.Context(), a.db); err != nil {
				t.Fatal(err)
			}
			held.ID = driver.NewID()
			held.Owner = held.ID
			g := steps.Acquired(t, a, held)
			steps.Refused(t, b, ask(b, false), g.SentAt.Add(g.TTL))
			next := ask(b, true)
			ended := steps.Acquiring(b, next)
			await.That(t, "one waits", func() bool { return len(steps.Queue(t, a, name).Waiters()) == 1 })
			select {
			case err := <-ended:
				t.Fatalf("%s, %s: it does not wait: %v", how, what, err)
			case <-time.After(await.Quiet):
			}
			steps.Released(t, a, held)
			if err := await.From(t, ended); err != nil {
				t.Errorf("%s, %s: %v", how, what, err)
			}
			if h := steps.Queue(t, a, name).Holders(); len(h) != 1 || h[0].ID != next.ID || h[0].Token <= g.Token {
				t.Errorf("%s, %s: token %d, then %+v", how, what, g.Token, h)
			}
			steps.Released(t, b, next)
		}
	}
}

// mysqlFirstShared: the first shared lock of a name has no row to decide by, and takes no more
// statements for that than the page says.
func mysqlFirstShared(t *service.Trial, s *service.Server) {
	b := sideOf(t, s)
	// this asks for the tables
	steps.Released(t, b, acquired(t, b, steps.Asked(b, "first", time.Minute)))
	for i, limit := range []int{0, 3} {
		n := spoken(t, b.line, func() {
			r := steps.Asked(b, fmt.Sprint("first/", i), time.Minute)
			r.Mode, r.Limit = driver.Shared, limit
			steps.Acquired(t, b, r)
		})
		delete(n, "endings")
		delete(n, "sweep")
		delete(n, "session")
		if total(n) > 4 {
			t.Errorf("it takes %v", n)
		}
	}
}

// acquired is a request that holds.
func acquired(t service.T, b driver.Backend, r driver.Request) driver.Request {
	t.Helper()
	steps.Acquired(t, b, r)
	return r
}

// mysqlPermits: a waiter for a permit learns of another client's release as soon if its own client
// has a permit too.
func mysqlPermits(t *service.Trial, s *service.Server) {
	b, other := sideOf(t, s), sideOf(t, s)
	permit := func(b driver.Backend, name string) driver.Request {
		r := steps.Waiting(b, name, time.Minute)
		r.Mode, r.Limit = driver.Shared, 2
		return r
	}
	took := map[bool][]time.Duration{}
	for i := range 24 {
		name, own := fmt.Sprint("permits/", i), i%2 == 0
		mine := permit(other, name)
		if own {
			mine = permit(b, name)
		}
		side := map[bool]driver.Backend{true: b, false: other}[own]
		steps.Acquired(t, side, mine)
		theirs := permit(other, name)
		steps.Acquired(t, other, theirs)
		next := permit(b, name)
		got := steps.Acquiring(b, next)
		await.That(t, "it waits", func() bool { return len(steps.Queue(t, other, name).Waiters()) == 1 })
		<-time.After(time.Duration(i) * time.Millisecond)
		start := time.Now()
		steps.Released(t, other, theirs)
		if err := await.From(t, got); err != nil {
			t.Fatal(err)
		}
		took[own] = append(took[own], time.Since(start))
		steps.Released(t, b, next)
		steps.Released(t, side, mine)
	}
	with, without := steps.Median(took[true]), steps.Median(took[false])
	t.Logf("a permit is passed to another client in %s, to one that has another permit in %s", without, with)
	// it was the longest poll, of 100 ms, before both were treated alike
	if with > 3*without+50*time.Millisecond {
		t.Errorf("a permit is passed to another client in %s, and to one that has another permit in %s", without, with)
	}
}

// mysqlRightsToMigrate: the error says what is missing, and what it says suffices.
func mysqlRightsToMigrate(t *service.Trial, s *service.Server) {
	root := mysqlOf(t, s).pool(t)
	poor := fmt.Sprint("poor", databases.Add(1))
	execute(t, root, "CREATE DATABASE "+poor, "CREATE USER "+poor+" IDENTIFIED BY ''", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+poor+".* TO "+poor)
	url := "mysql://" + poor + "@" + s.Addr + "/" + poor + "?migrate=true"
	open := func() error {
		c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
		if err == nil {
			c.Close()
		}
		return err
	}
	err := open()
	var e *gomysql.MySQLError
	if err == nil || !errors.As(err, &e) || !strings.Contains(err.Error(), "give it CREATE and SELECT on the database") || !strings.Contains(err.Error(), "without migrate=true") {
		t.Errorf("Open: %v; want it to say which rights are missing", err)
	}
	execute(t, root, "GRANT CREATE ON "+poor+".* TO "+poor)
	if err := open(); err != nil {
		t.Errorf("with those rights: %v", err)
	}
}

// TestMySQLOutage: the error of an outage that is longer than the patience of a call has its cause.
// An outage ends no wait whose TTL is longer.
func TestMySQLOutage(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, k service.Kind) {
		abreast(t, shared(t, k), part{"a wait", mysqlCutOff}, part{"a silent server", mysqlSilence})
	})
}

// mysqlCutOff: a wait goes on over an outage that is shorter than its TTL.
func mysqlCutOff(t *service.Trial, s *service.Server) {
	name := "outage/" + driver.NewID().String()
	b, other := sideOf(t, s), sideOf(t, s)
	held := steps.Asked(other, name, time.Hour)
	steps.Acquired(t, other, held)
	ended := steps.Acquiring(b, steps.Waiting(b, name, time.Minute))
	await.That(t, "it waits", func() bool { return len(steps.Queue(t, other, name).Waiters()) == 1 })
	// An Acquire that was never answered ends after 10 s. So the outage begins when the client
	// knows that it waits: replies to what makes it wait may come, the next one is to a poll.
	before := b.line.Counts().RoundTrips
	await.That(t, "its client knows", func() bool { return b.line.Counts().RoundTrips >= before+4 })
	heal := b.line.Refuse()
	defer heal()
	b.line.Cut()
	select {
	case err := <-ended:
		t.Fatalf("the wait ended in an outage that is shorter than its TTL: %v", err)
	case <-time.After(12 * time.Second): // 10 s of patience, and the pause between two copies
	}
	heal()
	if err := other.Release(t.Context(), held); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := await.From(t, ended); err != nil {
		t.Errorf("Acquire: %v", err)
	}
}

// mysqlSilence: with a server that accepts connections and never answers, every call ends, and no
// error is the context's.
func mysqlSilence(t *service.Trial, s *service.Server) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := strings.Replace(s.URL, s.Addr, l.Addr().String(), 1)
	b := sideOf(t, s)
	heal := b.line.Hold(netfault.ToClient)
	defer heal()
	var wg sync.WaitGroup
	ends := func(what string, f func() error) {
		wg.Go(func() {
			done := make(chan error, 1)
			go func() { done <- f() }()
			select {
			case err := <-done:
				if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "did not answer") {
					t.Errorf("%s: %v; want it to say that the server did not answer", what, err)
				}
			case <-time.After(25 * time.Second):
				t.Errorf("%s does not end", what)
			}
		})
	}
	opens := func(url string) func() error {
		return func() error {
			c, err := dlock.Open(context.Background(), url, dlock.Logger(nil))
			if err == nil {
				c.Close()
			}
			return err
		}
	}
	ends("Open", opens(url))
	ends("Open that migrates", opens(url+"?migrate=true"))
	ends("Acquire", func() error {
		_, err := steps.Acquire(context.Background(), b, steps.Asked(b, "silence", time.Minute))
		return err
	})
	ends("Inspect", func() error { _, err := b.Inspect(context.Background(), "silence"); return err })
	ends("Renew", func() error {
		return b.Renew(context.Background(), []driver.Request{steps.Asked(b, "silence", time.Minute)})[0].Err
	})
	await.All(t, &wg)
}
