package mysql

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
)

// TestMySQLFaults provokes, on one server of each kind, the faults of locks in tables.
func TestMySQLFaults(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) {
		abreast(t, s,
			part{"settings of connections", mysqlSettings},
			part{"one connection", mysqlOneConnection},
			part{"names", mysqlNames},
			part{"racers on fresh names", mysqlRacers},
			part{"lost replies", mysqlLostReplies},
			part{"a late copy of what was sent twice", mysqlLateCopy},
			part{"answers that nothing waits for", mysqlUnreadAnswers},
			part{"expired rows are stolen", mysqlSteals},
			part{"how long a grant lasts", mysqlGrantLasts},
			part{"a row that is blocked", mysqlBlockedRow},
			part{"a ghost waiter", mysqlGhost},
			part{"a stopped client", mysqlStoppedClient},
			part{"renewals beside releases", mysqlRenewsBeside},
			part{"renewals around a row that another has", mysqlRenewsAround},
			part{"a wait behind a row that another has", mysqlWaitsBehindRow},
			part{"a grant that was found", mysqlFound},
			part{"wake-up locks", mysqlWakeUps},
			part{"calls that travel together", mysqlTogether},
		)
		// those that concern the whole server
		inTurn(t, migrated(t, s),
			part{"isolation of the server", mysqlIsolation},
			part{"killed connections", mysqlKills},
			part{"deadlocks with others", mysqlDeadlocks},
			part{"tables that others lock", mysqlLockedTables},
			part{"a frozen server", disturbed(mysqlFrozenServer)},
			part{"a restart in the middle", disturbed(mysqlRestart)},
		)
	})
}

// mysqlSettings: nothing depends on how the user's pool connects, and a connection returns with the
// settings that it had.
func mysqlSettings(t *service.Trial, s *service.Server) {
	set := func(name, value string) func(*gomysql.Config) {
		return func(c *gomysql.Config) { c.Params = map[string]string{name: value} }
	}
	for name, with := range map[string]func(*gomysql.Config){
		"the library's own": func(*gomysql.Config) {},
		"found rows":        func(c *gomysql.Config) { c.ClientFoundRows = true },
		"parse time":        func(c *gomysql.Config) { c.ParseTime = true },
		"parse time elsewhere": func(c *gomysql.Config) {
			c.ParseTime, c.Loc = true, time.FixedZone("elsewhere", 9*3600+1800)
		},
		"location alone":       func(c *gomysql.Config) { c.Loc = time.FixedZone("elsewhere", -5*3600) },
		"interpolation":        func(c *gomysql.Config) { c.InterpolateParams = true },
		"several at once":      func(c *gomysql.Config) { c.MultiStatements = true },
		"collation":            func(c *gomysql.Config) { c.Collation = "latin1_general_ci" },
		"utf16":                set("character_set_connection", "utf16"),
		"utf32":                set("collation_connection", "'utf32_bin'"),
		"east":                 set("time_zone", "'+13:00'"),
		"west":                 set("time_zone", "'-12:00'"),
		"no mode":              set("sql_mode", "''"),
		"ANSI":                 set("sql_mode", "'ANSI,NO_BACKSLASH_ESCAPES'"),
		"traditional":          set("sql_mode", "'TRADITIONAL,PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION'"),
		"autocommit off":       set("autocommit", "0"),
		"chained":              set("completion_type", "'CHAIN'"),
		"impatient":            set("innodb_lock_wait_timeout", "1"),
		"impatient for tables": set("lock_wait_timeout", "1"),
		"one row":              set("sql_select_limit", "1"),
		"safe updates":         set("sql_safe_updates", "1"),
		"small joins":          set("max_join_size", "1"),
		"short concat":         set("group_concat_max_len", "4"),
		"read only":            set("transaction_read_only", "1"),
		"everything at one":    func(c *gomysql.Config) { *c = *hostile(dsn{c}).Config },
	} {
		t.Run(name, func(t *service.Trial) {
			d := mysqlOf(t, s)
			with(d.Config)
			if name == "read only" && s.Kind.Name == "mariadb" {
				d.Params = map[string]string{"tx_read_only": "1"}
			}
			b := d.side(t, netfault.NewProxy(), mysql.Options{})
			b.db.SetMaxOpenConns(1)
			for try := range 3 {
				conn, before := sessionState(t, b.db)
				exercise(t, b, fmt.Sprint("settings/", name, "/", try))
				again, after := sessionState(t, b.db)
				if after != before {
					t.Errorf("a connection of the user's came back as\n%s, it was\n%s", after, before)
				}
				if again == conn {
					return
				}
			}
			// now and then a statement takes too long, and its connection is closed
			t.Error("it is another connection each time")
		})
	}
}

// mysqlIsolation: the server's default isolation level.
func mysqlIsolation(t *service.Trial, s *service.Server) {
	root := mysqlOf(t, s).pool(t)
	defer execute(t, root, "SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	for _, level := range []string{"READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		t.Run(level, func(t *service.Trial) {
			execute(t, root, "SET GLOBAL TRANSACTION ISOLATION LEVEL "+level)
			exercise(t, sideOf(t, s), "isolation/"+level)
			race(t, s, "isolation/"+level, 5)
		})
	}
}

// mysqlOneConnection: a client with one connection renews what it holds while it waits for others.
func mysqlOneConnection(t *service.Trial, s *service.Server) {
	b := sideOf(t, s)
	b.db.SetMaxOpenConns(1)
	const ttl = 10 * time.Second
	c, other := steps.ClientOf(t, b, dlock.TTL(ttl)), steps.ClientOf(t, sideOf(t, s), dlock.TTL(ttl))
	mine, err := c.Mutex("one/mine").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.Mutex("one/theirs").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			l, err := c.Mutex("one/theirs").Lock(t.Context())
			if err != nil {
				t.Errorf("Lock: %v", err)
				return
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		})
	}
	await.That(t, "all wait", func() bool { return len(steps.Queue(t, b, "one/theirs").Waiters()) == 8 })
	for range 2 {
		until := mine.Until()
		await.That(t, "its hold is renewed, or lost", func() bool { return mine.Until().After(until) || mine.Err() != nil })
	}
	if err := mine.Err(); err != nil {
		t.Errorf("its hold: %v", err)
	}
	if err := theirs.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := mine.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// mysqlNames: names are bytes, whatever the collations of server and connection take for equal.
func mysqlNames(t *service.Trial, s *service.Server) {
	names := []string{
		"a", "A", "a ", "a  ", " a", "á", "a\u0301", "ä", "a\u0308", "ß", "ss", "SS", "ｓｓ", "a/b", "a/", "a/B", "ı", "i", "I", "İ", "\u212b", "\u00c5", "A\u030a",
		`'; DROP TABLE dlock_locks; -- `, `\`, `\\`, `"`, "`", `'`, `''`, "%", "_", "?", ":a", "X'61'", "0x61", "61", "NULL", "🔒", "🔓", "日本", "\u00a0a", "a\u200d", "a\u200b",
		strings.Repeat("x", 254), strings.Repeat("x", 255), strings.Repeat("x", 254) + " ", strings.Repeat("é", 127),
	}
	d := mysqlOf(t, s)
	d.Collation = "latin1_swedish_ci"
	d.Params = map[string]string{"sql_mode": "'NO_BACKSLASH_ESCAPES'"}
	b, other := d.side(t, netfault.NewProxy(), mysql.Options{Prefix: "names/"}), mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{Prefix: "names/"})
	apart := mysqlOf(t, s).side(t, netfault.NewProxy(), mysql.Options{Prefix: "names"})
	steps.NamesApart(t, b, other, apart, names)
}

// race lets 32 racers of four clients run for names that were never used before: one holds each,
// and none fails.
func race(t testing.TB, s *service.Server, prefix string, rounds int) {
	t.Helper()
	var sides []*poolSide
	for range 4 {
		sides = append(sides, sideOf(t, s))
	}
	for i := range rounds {
		name := fmt.Sprint(prefix, "/race/", i)
		var wg sync.WaitGroup
		var won atomic.Int64
		start := make(chan struct{})
		for j := range 32 {
			wg.Go(func() {
				<-start
				switch _, err := steps.Acquire(t.Context(), sides[j%len(sides)], steps.Asked(sides[j%len(sides)], name, time.Minute)); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, driver.ErrHeld):
					t.Errorf("a racer: %v", err)
				}
			})
		}
		close(start)
		wg.Wait()
		if n := won.Load(); n > 1 {
			service.Strict(t).Fatalf("%d of 32 hold %s", n, name)
		} else if n == 0 {
			t.Fatalf("none of 32 holds %s", name)
		}
		switch q := steps.Queue(t, sides[0], name); {
		case len(q.Holders()) > 1:
			service.Strict(t).Fatalf("%d hold %s", len(q.Holders()), name)
		case q.Len() != 1:
			t.Fatalf("%d requests stand under %s", q.Len(), name)
		}
	}
}

func mysqlRacers(t *service.Trial, s *service.Server) {
	race(t, s, "fresh", 10)
	// The same with waiters: all have their turn.
	var sides []*poolSide
	for range 4 {
		sides = append(sides, sideOf(t, s))
	}
	for i := range 5 {
		name := fmt.Sprint("fresh/turns/", i)
		var wg sync.WaitGroup
		var in, turns atomic.Int64
		for j := range 32 {
			wg.Go(func() {
				b := sides[j%len(sides)]
				r := steps.Waiting(b, name, time.Minute)
				if _, err := steps.Acquire(t.Context(), b, r); err != nil {
					t.Errorf("a racer: %v", err)
					return
				}
				if in.Add(1) != 1 {
					service.Strict(t).Errorf("two hold %s", name)
				}
				turns.Add(1)
				in.Add(-1)
				if err := b.Release(t.Context(), r); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
		wg.Wait()
		if n := turns.Load(); n != 32 {
			t.Errorf("%d of 32 had a turn", n)
		}
	}
}

// mysqlKills: connections are killed at any moment, and no call fails.
func mysqlKills(t *service.Trial, s *service.Server) {
	done, stop := steps.TakeTurns(t, "kills", 8, sideOf(t, s), steps.ClientOf(t, sideOf(t, s)), steps.ClientOf(t, sideOf(t, s)))
	steps.Further(t, done, 20)
	killed, enough := killMySQL(t, s)
	await.That(t, "connections were killed", func() bool { return killed.Load() >= 100 })
	steps.Further(t, done, 50)
	enough()
	steps.Further(t, done, 50)
	stop()
}

// mysqlLostReplies: the server executed the statement, and the connection broke before the answer.
func mysqlLostReplies(t *service.Trial, s *service.Server) {
	b, other := sideOf(t, s), sideOf(t, s)
	for i := range 5 {
		name := fmt.Sprint("lost/", i)
		lose := func(what, stmt string) func() {
			dropped := b.line.DropReply(stmt)
			return func() { t.Helper(); await.Closed(t, what, dropped) }
		}
		r := steps.Asked(b, name, time.Minute)
		was := lose("the reply to Acquire", "INSERT INTO dlock_locks")
		g := steps.Acquired(t, b, r)
		was()
		if q := steps.Queue(t, other, name); q.Len() != 1 || q.Arrivals[0].ID != r.ID || q.Arrivals[0].Token != g.Token {
			t.Fatalf("granted token %d, and there is %+v", g.Token, q)
		}

		was = lose("the reply to an Acquire that is refused", "INSERT INTO dlock_locks")
		steps.Refused(t, b, steps.Asked(b, name, time.Minute), g.SentAt.Add(g.TTL))
		was()

		was = lose("the reply to Renew", "UPDATE dlock_locks")
		if p := b.Renew(t.Context(), []driver.Request{r}); errors.Is(p[0].Err, driver.ErrLost) {
			t.Fatalf("Renew: %v", p[0].Err)
		}
		was()
		if p := b.Renew(t.Context(), []driver.Request{r}); p[0].Err != nil {
			t.Fatalf("Renew: %v", p[0].Err)
		}

		was = lose("the reply to Release", "UPDATE dlock_locks")
		steps.Released(t, b, r)
		was()
		if n := steps.Queue(t, other, name).Len(); n != 0 {
			t.Fatalf("%d requests are left", n)
		}
	}
	// A release that is lost passes the lock on once.
	const name = "lost/hand-off"
	r, next := steps.Asked(b, name, time.Minute), steps.Waiting(other, name, time.Minute)
	steps.Acquired(t, b, r)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := steps.Acquire(t.Context(), other, next); err != nil {
			t.Errorf("Acquire: %v", err)
		}
	})
	await.That(t, "the lock's row says that one waits", func() bool {
		return one[int](t, b.db, "SELECT others FROM dlock_locks WHERE name = CAST(? AS BINARY)", name) == 1
	})
	dropped := b.line.DropReply("UPDATE dlock_locks l")
	steps.Released(t, b, r)
	await.Closed(t, "the reply to Release", dropped)
	wg.Wait()
	if q := steps.Queue(t, b, name); len(q.Holders()) != 1 || q.Holders()[0].ID != next.ID {
		t.Errorf("there is %+v", q)
	}
	steps.Released(t, other, next)
}

// mysqlLateCopy: the reply to an Acquire was lost, so the driver sent it again. The release does
// not know of that, and a copy that comes after the release still creates nothing.
func mysqlLateCopy(t *service.Trial, s *service.Server) {
	b, other := sideOf(t, s), sideOf(t, s)
	r := steps.Asked(b, "late copy", time.Minute)
	steps.Queue(t, b, r.Name) // a connection is open
	sent, dropped := b.line.Record(), b.line.DropReply("INSERT INTO dlock_locks")
	steps.Acquired(t, b, r)
	await.Closed(t, "the reply to Acquire", dropped)
	sent.End()
	steps.Released(t, b, r)
	if err := replay(s, sent); err != nil {
		t.Fatal(err)
	}
	if q := steps.Queue(t, other, r.Name); q.Len() != 0 {
		t.Errorf("after the copies of an acquire that was released there is %+v", q)
	}
	next := steps.Asked(other, r.Name, time.Minute)
	steps.Acquired(t, other, next)
	steps.Released(t, other, next)
}

// noticing is a connection that calls arrived whenever something arrived.
type noticing struct {
	net.Conn
	arrived *atomic.Pointer[func()]
}

func (c noticing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if f := c.arrived.Load(); f != nil && n > 0 {
		(*f)()
	}
	return n, err
}

// mysqlUnreadAnswers: an Acquire whose context ends at the instant at which its answer arrives
// leaves nothing, whichever of the two is seen first.
func mysqlUnreadAnswers(t *service.Trial, s *service.Server) {
	d := mysqlOf(t, s)
	c := d.Clone()
	var arrived atomic.Pointer[func()]
	dialBy(c, func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return noticing{conn, &arrived}, err
	})
	db := dsn{c}.open()
	defer db.Close()
	db.SetMaxOpenConns(8) // what was left goes on, each on a connection
	db.SetMaxIdleConns(8)
	b, err := mysql.New(db, mysql.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	// hunts the instant at which the answer is there and not read
	cancelled, delay := 0, 50*time.Microsecond
	for i := range 600 {
		ctx, cancel := context.WithCancel(t.Context())
		after := delay
		soon := func() { time.AfterFunc(after, cancel) }
		arrived.Store(&soon)
		r := steps.Asked(b, fmt.Sprint("unread/", i), time.Hour)
		if _, err := steps.Acquire(ctx, b, r); err == nil {
			arrived.Store(nil)
			steps.Released(t, b, r)
			delay -= delay / 16
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		} else {
			cancelled++
			delay += delay / 16
		}
		arrived.Store(nil)
		cancel()
	}
	t.Logf("%d of 600 were cancelled first", cancelled)
	await.That(t, "nothing is left", func() bool {
		return one[int](t, db, "SELECT COUNT(*) FROM dlock_locks WHERE held_until > UTC_TIMESTAMP(6)")+
			one[int](t, db, "SELECT COUNT(*) FROM dlock_requests WHERE kind <> 'tombstone'") == 0
	})
}

// mysqlSteals: a request that finds an expired row takes its place, and the old owner touches
// nothing any more.
func mysqlSteals(t *service.Trial, s *service.Server) {
	b, other := sideOf(t, s), sideOf(t, s)
	const short = 300 * time.Millisecond
	for _, wait := range []bool{true, false} {
		name := fmt.Sprint("steal/", wait)
		old, thief := steps.Asked(b, name, short), steps.Asked(other, name, time.Minute)
		thief.Wait = wait
		before := steps.Acquired(t, b, old).Token
		var g driver.Grant
		if wait {
			g = steps.Acquired(t, other, thief)
		} else {
			await.That(t, "the row has expired", func() bool {
				var err error
				g, err = steps.Acquire(t.Context(), other, thief)
				return err == nil
			})
		}
		if g.Token <= before {
			service.Strict(t).Errorf("token %d after %d", g.Token, before)
		}
		if r := b.Renew(t.Context(), []driver.Request{old}); r[0].Err == nil {
			service.Strict(t).Errorf("Renew of the old owner, which was replaced, is nil")
		} else if !errors.Is(r[0].Err, driver.ErrLost) {
			t.Errorf("Renew of the old owner: %v", r[0].Err)
		}
		if err := b.Release(t.Context(), old); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of the old owner: %v", err)
		}
		if q := steps.Queue(t, b, name); q.Len() != 1 || q.Arrivals[0].ID != thief.ID {
			t.Errorf("there is %+v", q)
		}
	}
}

// mysqlGrantLasts: the grant of a waiter lasts for its TTL without any statement of its client;
// only for some seconds if the client was silent for 5 s, or if it is fixed.
func mysqlGrantLasts(t *service.Trial, s *service.Server) {
	db := mysqlOf(t, s).pool(t)
	for what, tt := range map[string]struct {
		fixed                    bool
		ttl, stands, least, most time.Duration
	}{
		"alive":         {false, time.Minute, 9 * time.Second, time.Minute, 2 * time.Minute},
		"a short TTL":   {false, time.Second, 9 * time.Second, 5 * time.Second, 10 * time.Second},
		"silent":        {false, time.Minute, 4 * time.Second, time.Second, 10 * time.Second},
		"nearly absent": {false, time.Minute, 500 * time.Millisecond, time.Second, 10 * time.Second},
		"fixed":         {true, time.Minute, 9 * time.Second, 5 * time.Second, 10 * time.Second},
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} { // that is before it
			b, other := sideOf(t, s), sideOf(t, s)
			name := fmt.Sprint("lasts/", what, "/", mode)
			first, next := steps.Asked(b, name, time.Minute), steps.Waiting(other, name, tt.ttl)
			first.Mode, next.Fixed = mode, tt.fixed
			steps.Acquired(t, b, first)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { steps.Acquire(ctx, other, next) })
			await.That(t, "it waits", func() bool { return len(steps.Queue(t, b, name).Waiters()) == 1 })
			heal := other.line.Isolate()
			// with another ID, so that no sign of life which is on its way changes that again
			ghost := driver.NewID()
			execute(t, db, fmt.Sprintf(`UPDATE dlock_requests SET id = X'%s', expires_at = UTC_TIMESTAMP(6) + INTERVAL %d MICROSECOND WHERE id = X'%s'`,
				ghost, tt.stands.Microseconds(), next.ID))
			steps.Released(t, b, first)
			us := one[int64](t, db, "SELECT TIMESTAMPDIFF(MICROSECOND, held_since, held_until) FROM dlock_locks WHERE holder = ?", ghost[:])
			if lasts := time.Duration(us) * time.Microsecond; lasts < tt.least || lasts > tt.most {
				t.Errorf("%s, after %s: granted for %s; want %s to %s", what, mode, lasts, tt.least, tt.most)
			}
			heal()
			cancel()
			wg.Wait()
		}
	}
}

// lockRow locks the row of a name in another transaction, and returns a function that releases it.
func lockRow(t testing.TB, s *service.Server, name string) (unlock func()) {
	t.Helper()
	return lockRowOf(t, s, "dlock_locks", name)
}

// lockRowOf locks the only row that a table has for a name.
func lockRowOf(t testing.TB, s *service.Server, table, name string) (unlock func()) {
	t.Helper()
	tx, err := mysqlOf(t, s).pool(t).Begin()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRow("SELECT COUNT(*) FROM (SELECT 1 FROM "+table+" WHERE prefix = '' AND name = CAST(? AS BINARY) FOR UPDATE) x", name).Scan(&n); err != nil || n != 1 {
		t.Fatalf("%d rows of %q are locked, %v", n, name, err)
	}
	unlock = sync.OnceFunc(func() { tx.Rollback() })
	t.Cleanup(unlock)
	return unlock
}

// mysqlBlockedRow: a statement that waits for the row makes a hold shorter by that, and no client
// trusts it for longer.
func mysqlBlockedRow(t *service.Trial, s *service.Server) {
	const ttl, blocked = 30 * time.Second, 2500 * time.Millisecond
	b := userOf(t, s, "blocked").side(t, netfault.NewProxy(), mysql.Options{})
	root := mysqlOf(t, s).pool(t)
	for _, what := range []string{"acquire", "renew", "hand-off"} {
		name := "blocked/" + what
		first := steps.Asked(b, name, time.Minute)
		steps.Acquired(t, b, first)
		r := steps.Waiting(b, name, ttl)
		switch what {
		case "acquire":
			steps.Released(t, b, first)
		case "renew":
			steps.Released(t, b, first)
			steps.Acquired(t, b, r)
		}
		unlock := lockRow(t, s, name)
		begun := time.Now()
		var until time.Time // as the client trusts it
		var wg sync.WaitGroup
		wg.Go(func() {
			switch what {
			case "renew":
				p := b.Renew(context.Background(), []driver.Request{r})
				if p[0].Err != nil {
					t.Errorf("Renew: %v", p[0].Err)
				}
				until = p[0].SentAt.Add(p[0].TTL)
			case "hand-off":
				steps.Released(t, b, first)
				fallthrough
			default:
				g := steps.Acquired(t, b, r)
				until = g.SentAt.Add(g.TTL)
			}
		})
		await.That(t, "it waits for the row", func() bool { _, wait := transactions(t, root, "blocked"); return wait > 0 })
		// less than a statement has
		<-time.After(blocked - time.Since(begun))
		unlock()
		wg.Wait()
		q := steps.Queue(t, b, name)
		if e := q.Holders(); len(e) == 1 && time.Now().Add(e[0].Left).Before(until) {
			service.Strict(t).Errorf("%s: the server keeps it for %s, its client trusts it for %s", what, e[0].Left, time.Until(until))
		}
		floor := ttl - time.Since(begun)
		if what == "hand-off" { // the waiter renews it
			floor = 0
		}
		if e := q.Holders(); len(e) != 1 || e[0].Left < floor || e[0].Left > ttl {
			t.Errorf("%s, the row was blocked for %s: want %s or more to be left; there are %d holders", what, blocked, floor, len(e))
			for _, h := range e {
				t.Errorf("of one %s are left", h.Left)
			}
		}
		steps.Released(t, b, r)
	}
}

// mysqlGhost: the statements of calls that have ended do not go on waiting at the server, except
// for the one that was sent before anything was known to be locked.
func mysqlGhost(t *service.Trial, s *service.Server) {
	b := userOf(t, s, "ghost").side(t, netfault.NewProxy(), mysql.Options{})
	root := mysqlOf(t, s).pool(t)
	const name = "ghost"
	steps.Released(t, b, func() driver.Request { r := steps.Asked(b, name, time.Minute); steps.Acquired(t, b, r); return r }())
	unlock := lockRow(t, s, name)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := steps.Acquire(ctx, b, steps.Waiting(b, name, time.Minute)); !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire: %v", err)
			}
		})
	}
	await.That(t, "they wait for the row", func() bool { _, wait := transactions(t, root, "ghost"); return wait > 0 })
	still, start := steps.MeasureStalls(), time.Now()
	cancel()
	wg.Wait()
	if took, not := time.Since(start), still(); took-not > time.Second {
		t.Errorf("they ended after %s, of which this process stood still for %s", took, not)
	}
	// Clean-up may go on trying, for a moment each time; nothing but that one statement may hang
	// there for the 50 s that are usual.
	second := func() int {
		return shown[int](t, root, `SELECT COALESCE((SELECT TIMESTAMPDIFF(SECOND, x.trx_wait_started, NOW()) FROM information_schema.innodb_trx x
			JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id WHERE p.user = 'ghost' AND x.trx_state = 'LOCK WAIT'
			ORDER BY x.trx_wait_started LIMIT 1, 1), 0)`)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		n := second()
		if n > 15 {
			t.Fatalf("two ghosts have waited for a row for %d seconds", n)
		}
		// one that waits for longer is watched: a moment is longer on a server that stood still
		if n <= 3 && time.Now().After(end) {
			break
		}
	}
	unlock()
	r := steps.Waiting(b, name, time.Minute) // one of them may take the lock now, and is removed
	steps.Acquired(t, b, r)
	steps.Released(t, b, r)
	await.That(t, "nothing of them is left", func() bool { return steps.Queue(t, b, name).Len() == 0 })
}

// mysqlDeadlocks: transactions of others take our rows in an order in which they deadlock with us.
// No call fails.
func mysqlDeadlocks(t *service.Trial, s *service.Server) {
	done, stop := steps.TakeTurns(t, "deadlocks", 8, sideOf(t, s), steps.ClientOf(t, sideOf(t, s)), steps.ClientOf(t, sideOf(t, s)))
	steps.Further(t, done, 20)
	db := mysqlOf(t, s).pool(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var theirs atomic.Int64
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				begun := time.Now()
				err := func() error {
					tx, err := db.BeginTx(ctx, nil)
					if err != nil {
						return err
					}
					defer tx.Rollback()
					var n int
					// requests first, then the lock row: the reverse of statements that change a
					// queue. Repeatable read locks gaps too.
					if err := tx.QueryRow("SELECT COUNT(*) FROM dlock_requests FOR UPDATE").Scan(&n); err != nil {
						return err
					}
					return tx.QueryRow("SELECT COUNT(*) FROM dlock_locks WHERE name LIKE 'deadlocks/%' FOR UPDATE").Scan(&n)
				}()
				var e *gomysql.MySQLError
				if errors.As(err, &e) && e.Number == 1213 {
					theirs.Add(1)
				}
				// four of them must not take all the time of the rows: our calls have 10 s
				<-time.After(time.Millisecond + min(2*time.Since(begun), time.Second))
			}
		})
	}
	before := deadlocks(t, db)
	await.That(t, "there were deadlocks", func() bool { return deadlocks(t, db) >= before+20 || theirs.Load() >= 20 })
	steps.Further(t, done, 20)
	cancel()
	wg.Wait()
	t.Logf("%d deadlocks, %d of them ended a transaction of the test", deadlocks(t, db)-before, theirs.Load())
	stop()
}

// mysqlLockedTables: tables that others lock for a time, and transactions of theirs that lock rows,
// end no call.
func mysqlLockedTables(t *service.Trial, s *service.Server) {
	locks := [][]string{
		{"LOCK TABLES dlock_locks READ, dlock_requests READ", "UNLOCK TABLES"},
		{"LOCK TABLES dlock_requests WRITE", "UNLOCK TABLES"},
		{"FLUSH TABLES WITH READ LOCK", "UNLOCK TABLES"},
		{"BEGIN", "UPDATE dlock_locks SET label = label", "UPDATE dlock_locks SET ttl_us = ttl_us + 1", "ROLLBACK"},
		{"BEGIN", "SELECT COUNT(*) FROM dlock_requests LOCK IN SHARE MODE", "ROLLBACK"},
	}
	if s.Kind.Name == "mysql" {
		locks = append(locks, []string{"LOCK INSTANCE FOR BACKUP", "UNLOCK INSTANCE"})
	} else {
		locks = append(locks, []string{"BACKUP STAGE START", "BACKUP STAGE FLUSH", "BACKUP STAGE BLOCK_DDL", "BACKUP STAGE BLOCK_COMMIT", "BACKUP STAGE END"})
	}
	conn, err := mysqlOf(t, s).pool(t).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	done, stop := steps.TakeTurns(t, "tables", 8, sideOf(t, s), steps.ClientOf(t, sideOf(t, s)), steps.ClientOf(t, sideOf(t, s)))
	steps.Further(t, done, 20)
	for _, how := range locks {
		last := len(how) - 1
		execute(t, conn, how[:last]...)
		<-time.After(2 * time.Second) // calls have 10 s
		execute(t, conn, how[last])
		steps.Further(t, done, 20)
	}
	stop()
}

// deadlocks returns how many the server has seen.
func deadlocks(t service.T, db *sql.DB) int {
	t.Helper()
	return one[int](t, db, "SELECT COUNT FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'")
}

// mysqlLocker is a client in a process of its own, which locks and unlocks all the time.
var mysqlLocker = service.NewProgram("mysql locker", func(in *bufio.Scanner, out io.Writer, args []string) error {
	c, err := dlock.Open(context.Background(), args[0], dlock.Logger(nil), dlock.TTL(mysqlTTL))
	if err != nil {
		return err
	}
	m := c.Mutex(args[1])
	for i := 0; ; i++ {
		l, err := m.Lock(context.Background())
		if err != nil {
			continue // a grant that it slept through
		}
		l.Unlock(context.Background())
		if i == 0 {
			fmt.Fprintln(out, "locked")
		}
	}
})

// mysqlStoppedClient: a client that is stopped in the middle of a call keeps no row locked.
func mysqlStoppedClient(t *service.Trial, s *service.Server) {
	userOf(t, s, "stopped")
	child := mysqlLocker.Start(t, strings.Replace(s.URL, "root@", "stopped@", 1), "stopped")
	child.Expect("locked")
	root, b := mysqlOf(t, s).pool(t), sideOf(t, s)
	for range 15 {
		<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond)
		child.Stop()
		await.That(t, "the stopped client has no transaction open", func() bool { open, _ := transactions(t, root, "stopped"); return open == 0 })
		start, r := time.Now(), steps.Waiting(b, "stopped", time.Minute)
		steps.Acquired(t, b, r)
		if took := time.Since(start); took > mysqlTTL+10*time.Second {
			t.Errorf("its lock was free after %s", took)
		}
		steps.Released(t, b, r)
		child.Continue()
	}
}

// mysqlFrozenServer: the server stands still.
func mysqlFrozenServer(t testing.TB, s *service.Server) {
	c, b := steps.ClientOf(t, sideOf(t, s), dlock.TTL(5*time.Second)), sideOf(t, s)
	l, err := c.Mutex("frozen/held").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	still, start := steps.MeasureStalls(), time.Now()
	if _, err := c.Mutex("frozen/asked").Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock: %v", err)
	}
	if took, not := time.Since(start), still(); took-not > 2*time.Second {
		t.Errorf("Lock returned after %s, of which this process stood still for %s", took, not)
	}
	select {
	case <-l.Lost():
	case <-time.After(time.Minute):
		t.Errorf("the lease is not lost")
	}
	if now := time.Now(); now.Before(l.Until()) {
		t.Errorf("lost %s too early", l.Until().Sub(now))
	}
	s.Continue(t)
	for _, name := range []string{"frozen/held", "frozen/asked"} {
		free := func() bool { return steps.Queue(t, b, name).Len() == 0 }
		await.That(t, "nothing is left of "+name, free)
		// what was sent before the pause may be executed only now, and is removed
		r := steps.Waiting(b, name, time.Minute)
		steps.Acquired(t, b, r)
		steps.Released(t, b, r)
		await.That(t, "nothing is left of "+name, free)
	}
}

// handedOver lets one client wait for a lock of another, which then releases it.
func handedOver(t testing.TB, from, to driver.Backend, r driver.Request, meanwhile func()) driver.Grant {
	t.Helper()
	first := steps.Asked(from, r.Name, time.Minute)
	steps.Acquired(t, from, first)
	var g driver.Grant
	var wg sync.WaitGroup
	wg.Go(func() { g = steps.Acquired(t, to, r) })
	await.That(t, "it waits", func() bool { return len(steps.Queue(t, from, r.Name).Waiters()) == 1 })
	meanwhile()
	steps.Released(t, from, first)
	wg.Wait()
	return g
}

// mysqlFound: a waiter that was granted by the release of another client trusts the grant for no
// longer than the server keeps it. One that had not been kept alive, or is fixed, is confirmed
// first, and has its whole time.
func mysqlFound(t *service.Trial, s *service.Server) {
	const ttl = time.Minute
	db := mysqlOf(t, s).pool(t)
	for what, tt := range map[string]struct {
		fixed  bool
		silent time.Duration // for so long it was not kept alive
	}{
		"kept alive":     {false, 0},
		"not kept alive": {false, 7 * time.Second},
		"fixed":          {true, 0},
	} {
		a, b := sideOf(t, s), sideOf(t, s)
		name := fmt.Sprint("found/", what)
		r := steps.Waiting(b, name, ttl)
		r.Fixed = tt.fixed
		began := time.Now()
		var place int64
		g := handedOver(t, a, b, r, func() {
			execute(t, db, fmt.Sprintf("UPDATE dlock_requests SET expires_at = expires_at - INTERVAL %d SECOND WHERE name = CAST('%s' AS BINARY)", tt.silent/time.Second, name))
			place = one[int64](t, db, "SELECT place FROM dlock_requests WHERE name = CAST(? AS BINARY)", name)
		})
		now := time.Now()
		h := steps.Queue(t, a, name).Holders()
		// The proof is as much older than the grant as the statement took to reach the server.
		earliest := began.Add(began.Sub(now))
		if len(h) != 1 || h[0].ID != r.ID || h[0].Token != g.Token || g.SentAt.Before(earliest) || g.SentAt.After(now) {
			t.Fatalf("%s: granted %+v, there is %+v", what, g, h)
		}
		if until := g.SentAt.Add(g.TTL); h[0].Left < time.Until(until) {
			service.Strict(t).Errorf("%s: the server keeps it for %s, its client trusts it for %s", what, h[0].Left, until.Sub(now))
		}
		if g.TTL < ttl/2 || g.TTL > ttl || tt.fixed && g.TTL != ttl {
			t.Errorf("%s: it is granted for %s, want %s", what, g.TTL, ttl)
		}
		if p := one[int64](t, db, "SELECT head FROM dlock_locks WHERE name = CAST(? AS BINARY)", name); p != place {
			t.Errorf("%s: it holds in place %d, and had %d while it waited", what, p, place)
		}
		if p := b.Renew(t.Context(), []driver.Request{r}); p[0].Err != nil || p[0].TTL != ttl {
			t.Errorf("%s: Renew: %+v", what, p[0])
		}
		if h := steps.Queue(t, a, name).Holders(); len(h) != 1 || h[0].Left < ttl/2 {
			t.Errorf("%s: after a renewal there is %+v", what, h)
		}
		steps.Released(t, b, r)
	}
}

// sends counts how often a client sends a text while f runs.
func sends(line *netfault.Proxy, text string, f func()) (n int) {
	r := line.Record()
	f()
	for _, sent := range r.End() {
		n += bytes.Count(sent, []byte(text))
	}
	return n
}

// listens reports whether a client listens to the wake-up lock of a request.
func listens(t service.T, db *sql.DB, r driver.Request) bool {
	t.Helper()
	return one[int](t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE CONCAT('SELECT GET_LOCK(_dlock.', ?, '%')", r.ID.String()) > 0
}

// mysqlWakeUps: the next waiter listens to the wake-up lock of the request ahead, and hardly polls.
// It has its turn also if that is never released, is released without need, or does not exist.
func mysqlWakeUps(t *service.Trial, s *service.Server) {
	const ttl = time.Minute
	db := mysqlOf(t, s).pool(t)
	for what, tt := range map[string]struct {
		cut     func(ahead driver.Request, conn *sql.Conn) // before its wake-up lock is taken
		during  func(ahead driver.Request)                 // once it is listened to
		most    int                                        // connections of the pools
		listens bool
	}{
		"it is released": {listens: true},
		"it is never released": {listens: true, cut: func(ahead driver.Request, conn *sql.Conn) {
			execute(t, conn, "DO GET_LOCK('dlock."+ahead.ID.String()+"', 10)") // and keeps it
		}},
		"its session is killed": {listens: true, during: func(ahead driver.Request) {
			execute(t, db, fmt.Sprint("KILL ", one[int](t, db, "SELECT IS_USED_LOCK(CONCAT('dlock.', ?))", ahead.ID.String())))
		}},
		"the pool is too small": {most: 7},
	} {
		var sides []*poolSide
		for range 3 {
			b := sideOf(t, s)
			b.db.SetMaxOpenConns(tt.most)
			sides = append(sides, b)
		}
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		name := "wake-up/" + what
		rs := []driver.Request{steps.Asked(sides[0], name, ttl)}
		steps.Acquired(t, sides[0], rs[0])
		// Each waits behind a request of another client, and holds in its turn. A client that
		// stalls when its turn comes may lose its place, and the next one holds.
		const waiters = 9
		var wg sync.WaitGroup
		holds := make(chan int, waiters)
		for i := 1; i <= waiters; i++ {
			b := sides[i%len(sides)]
			r := steps.Waiting(b, name, ttl)
			rs = append(rs, r)
			if tt.cut != nil {
				tt.cut(r, conn)
			}
			wg.Go(func() {
				steps.Acquired(t, b, r)
				holds <- i
			})
			await.That(t, "it waits", func() bool { return len(steps.Queue(t, sides[0], name).Waiters()) == i })
		}
		var released time.Time
		ordered := true
		for n := range rs {
			i := 0
			if n > 0 {
				select {
				case i = <-holds:
				case <-time.After(await.Patience):
					t.Fatalf("%s: none holds after %d", what, n)
				}
				took := time.Since(released)
				if ordered && i != n && took < time.Second {
					t.Errorf("%s: %d came in before %d, %s after the release", what, i, n, took)
				}
				ordered = ordered && i == n // with a request its client's others lose their places
			}
			r := rs[i]
			if n == 1 && tt.listens {
				await.That(t, what+": one listens", func() bool { return listens(t, db, r) })
				if tt.during != nil {
					tt.during(r)
				} else {
					looks := sends(sides[(i+1)%len(sides)].line, "SELECT HEX(l.name), l.head", func() { <-time.After(time.Second) })
					if looks > 20 {
						t.Errorf("%s: the client that listens polls %d times in a second", what, looks)
					}
				}
			}
			if !tt.listens && listens(t, db, r) {
				t.Errorf("%s: one listens", what)
			}
			released = time.Now()
			steps.Released(t, sides[i%len(sides)], r)
		}
		wg.Wait()
		await.That(t, what+": no wake-up lock of theirs is left", func() bool {
			left := 0
			for _, r := range rs {
				left += one[int](t, db, "SELECT IS_USED_LOCK(CONCAT('dlock.', ?)) IS NOT NULL AND IS_USED_LOCK(CONCAT('dlock.', ?)) <> ?", r.ID.String(), r.ID.String(),
					one[int](t, conn, "SELECT CONNECTION_ID()"))
			}
			return left == 0
		})
		discardConn(conn)
	}
}

// discardConn closes a connection, and what it has.
func discardConn(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	conn.Close()
}

// mysqlTogether: each of the calls that travel together has its own outcome. A free name is granted
// once, a held one is refused, a name that another client uses delays no other name, and a lost
// answer is asked for again.
func mysqlTogether(t *service.Trial, s *service.Server) {
	for _, part := range []struct {
		what string
		run  func(*travellers)
	}{
		{"each", (*travellers).each},
		{"a lost answer to acquires", (*travellers).lostAcquires},
		{"a lost answer to releases", (*travellers).lostReleases},
		{"a row that another has", func(p *travellers) { p.lockedRow(s) }},
		{"two clients for all names", (*travellers).twoClients},
	} {
		t.Run(part.what, func(t *service.Trial) {
			part.run(&travellers{t: t, what: part.what, a: sideOf(t, s), b: sideOf(t, s)})
		})
	}
}

// travellers are calls of one part of mysqlTogether, which has names of its own: after a lost reply
// a tombstone stays.
type travellers struct {
	t    *service.Trial
	what string
	a, b *poolSide
}

// begin is for new names. They have rows.
func (p *travellers) begin() {
	p.what += "+"
	p.release(p.a, p.all(p.a, p.acquire))
}

func (p *travellers) name(i int) string { return fmt.Sprint("together/", p.what, "/", i) }

// together is how many calls there are at once.
const together = 48

// all makes a request for each name, and hands them to f all at once.
func (p *travellers) all(b *poolSide, f func(b *poolSide, i int, r driver.Request)) []driver.Request {
	rs := make([]driver.Request, together)
	var wg sync.WaitGroup
	for i := range rs {
		rs[i] = steps.Asked(b, p.name(i), time.Minute)
		wg.Go(func() { f(b, i, rs[i]) })
	}
	wg.Wait()
	return rs
}

func (p *travellers) try(b *poolSide, r driver.Request) error {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	_, err := steps.Acquire(ctx, b, r)
	return err
}

// acquire is for what is free.
func (p *travellers) acquire(b *poolSide, _ int, r driver.Request) {
	if err := p.try(b, r); err != nil {
		p.t.Errorf("Acquire of %s: %v", r.Name, err)
	}
}

func (p *travellers) release(b *poolSide, rs []driver.Request) {
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
			defer cancel()
			if err := b.Release(ctx, r); err != nil {
				p.t.Errorf("Release of %s: %v", r.Name, err)
			}
		})
	}
	wg.Wait()
}

// stand checks that these requests hold, and nothing else stands there.
func (p *travellers) stand(rs []driver.Request) {
	for _, r := range rs {
		q := steps.Queue(p.t, p.b, r.Name)
		if len(q.Holders()) > 1 {
			service.Strict(p.t).Errorf("%d hold %s", len(q.Holders()), r.Name)
		}
		if q.Len() != 1 || q.Arrivals[0].ID != r.ID || q.Arrivals[0].Left > time.Minute {
			p.t.Errorf("under %s there is %+v", r.Name, q)
		}
	}
}

func (p *travellers) each() {
	p.begin()
	var rs []driver.Request
	if n := sends(p.a.line, "INSERT INTO dlock_locks", func() { rs = p.all(p.a, p.acquire) }); n == 0 || n >= together {
		p.t.Errorf("%d acquires made %d statements", together, n)
	}
	p.stand(rs)
	until := time.Now().Add(30 * time.Second) // half of their time
	p.all(p.b, func(b *poolSide, _ int, r driver.Request) { steps.Refused(p.t, b, r, until) })
	if n := sends(p.a.line, "UPDATE dlock_locks", func() { p.release(p.a, rs) }); n == 0 || n >= together {
		p.t.Errorf("%d releases made %d statements", together, n)
	}
}

func (p *travellers) lostAcquires() {
	for range 3 {
		p.begin()
		lost := p.a.line.DropReply("INSERT INTO dlock_locks")
		rs := p.all(p.a, p.acquire)
		await.Closed(p.t, "the loss of a reply to acquires", lost)
		p.stand(rs)
		p.release(p.a, rs)
	}
}

func (p *travellers) lostReleases() {
	for range 3 {
		p.begin()
		rs := p.all(p.a, p.acquire)
		lost := p.a.line.DropReply("UPDATE dlock_locks")
		p.release(p.a, rs)
		await.Closed(p.t, "the loss of a reply to releases", lost)
		for _, r := range rs {
			if n := steps.Queue(p.t, p.b, r.Name).Len(); n != 0 {
				p.t.Errorf("%d requests are left under %s", n, r.Name)
			}
		}
	}
}

func (p *travellers) lockedRow(s *service.Server) {
	p.begin()
	unlock := lockRow(p.t, s, p.name(7))
	var rs []driver.Request
	var done atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		rs = p.all(p.a, func(b *poolSide, i int, r driver.Request) {
			p.acquire(b, i, r)
			done.Add(1)
		})
	})
	await.That(p.t, "the others are granted", func() bool { return done.Load() >= together-1 })
	if done.Load() == together {
		p.t.Errorf("the one whose row is locked is granted too")
	}
	unlock()
	wg.Wait()
	p.stand(rs)
	p.release(p.a, rs)
}

func (p *travellers) twoClients() {
	p.begin()
	var mu sync.Mutex
	holders := make([]int, together)
	var held [2][]driver.Request
	var wg sync.WaitGroup
	for k, side := range []*poolSide{p.a, p.b} {
		wg.Go(func() {
			p.all(side, func(b *poolSide, i int, r driver.Request) {
				err := p.try(b, r)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					holders[i]++
					held[k] = append(held[k], r)
				} else if !errors.Is(err, driver.ErrHeld) {
					p.t.Errorf("%s: %v", r.Name, err)
				}
			})
		})
	}
	wg.Wait()
	for i, n := range holders {
		if n > 1 {
			service.Strict(p.t).Errorf("both hold %s", p.name(i))
		} else if n == 0 {
			p.t.Errorf("none of two holds %s", p.name(i))
		}
	}
	p.stand(slices.Concat(held[0], held[1]))
	p.release(p.a, held[0])
	p.release(p.b, held[1])
}

// mysqlRestart: the server is killed and started again, on its data.
func mysqlRestart(t testing.TB, s *service.Server) {
	steps.AcrossRestart(t, s, sideOf(t, s), steps.ClientOf(t, sideOf(t, s), dlock.TTL(time.Minute)), steps.ClientOf(t, sideOf(t, s), dlock.TTL(time.Minute)))
}

// mysqlRenewsBeside: holds that are released while they are renewed with others make no outcome
// uncertain.
func mysqlRenewsBeside(t *service.Trial, s *service.Server) {
	const many, abreast = 600, 8
	b := sideOf(t, s)
	all := make([]driver.Request, many)
	each := func(n int, f func(r driver.Request)) {
		var wg sync.WaitGroup
		for i := range abreast {
			wg.Go(func() {
				for j := i; j < n; j += abreast {
					f(all[j])
				}
			})
		}
		wg.Wait()
	}
	for i := range all {
		all[i] = steps.Asked(b, fmt.Sprint("beside/", i), 10*time.Minute)
	}
	each(many, func(r driver.Request) { steps.Acquired(t, b, r) })
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer over.Store(true)
		each(many/2, func(r driver.Request) { steps.Released(t, b, r) })
	})
	renewals := 0
	for ; !over.Load(); renewals++ {
		for i, n := range b.Renew(t.Context(), all) {
			if n.Err != nil && (i >= many/2 || !errors.Is(n.Err, driver.ErrLost)) {
				t.Errorf("renewal %d, of one that is released: %t: %v", renewals, i < many/2, n.Err)
				over.Store(true)
				break
			}
		}
	}
	wg.Wait()
	t.Logf("%d renewals", renewals)
}

// mysqlRenewsAround: while another transaction has a row of one hold, the others are renewed.
func mysqlRenewsAround(t *service.Trial, s *service.Server) {
	const many, locked, ttl = 20, 7, time.Minute
	for table, mode := range map[string]driver.Mode{"dlock_locks": driver.Exclusive, "dlock_requests": driver.Shared} {
		b := sideOf(t, s)
		rs := make([]driver.Request, many)
		for i := range rs {
			rs[i] = steps.Asked(b, fmt.Sprint("around/", table, "/", i), ttl)
			rs[i].Mode = mode
			steps.Acquired(t, b, rs[i])
		}
		unlock := lockRowOf(t, s, table, rs[locked].Name)
		for i, n := range b.Renew(t.Context(), rs) {
			switch {
			case i != locked && n.Err != nil:
				t.Errorf("%s, renewal %d: %v", table, i, n.Err)
			case i == locked && (n.Err == nil || errors.Is(n.Err, driver.ErrLost)):
				t.Errorf("%s: of the one whose row is locked: %v", table, n.Err)
			}
		}
		unlock()
		for i, n := range b.Renew(t.Context(), rs) {
			if n.Err != nil {
				t.Errorf("%s, renewal %d, when nothing is locked: %v", table, i, n.Err)
			}
		}
		for _, r := range rs {
			steps.Released(t, b, r)
		}
	}
}

// mysqlWaitsBehindRow: a request waits on, in its place, while another transaction has the row of
// the lock for longer than a waiter stands without a sign of life.
func mysqlWaitsBehindRow(t *service.Trial, s *service.Server) {
	const name, ttl = "behind a row", time.Minute
	a, b := sideOf(t, s), sideOf(t, s)
	first, second := steps.Asked(a, name, ttl), steps.Waiting(b, name, ttl)
	steps.Acquired(t, a, first)
	got := steps.Acquiring(b, second)
	waits := func() bool {
		w := steps.Queue(t, a, name).Waiters()
		return len(w) == 1 && w[0].ID == second.ID
	}
	await.That(t, "it waits", waits)
	unlock := lockRow(t, s, name)
	const long = 12 * time.Second
	<-time.After(long)
	if !waits() {
		t.Errorf("after %s it does not wait any more", long)
	}
	unlock()
	steps.Released(t, a, first)
	if err := <-got; err != nil {
		t.Errorf("Acquire: %v", err)
	}
	steps.Released(t, b, second)
}

// TestMySQLRefuses: a server that refuses for a time ends no wait and loses no lease, and a Lock
// that begins meanwhile retries.
func TestMySQLRefuses(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) {
		root := mysqlOf(t, s).pool(t)
		root.SetMaxOpenConns(1)
		root.SetMaxIdleConns(1)
		execute(t, root, "CREATE USER refused IDENTIFIED BY ''", "GRANT ALL ON test.* TO refused")
		s = migrated(t, s)
		user := mysqlOf(t, s)
		user.User = "refused"
		ordinary := user.pool(t)
		ordinary.SetMaxIdleConns(0)
		refusals := map[string][2]string{"read-only": {"SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0"}}
		if s.Kind.Name == "mysql" {
			refusals["offline"] = [2]string{"SET GLOBAL offline_mode = 1", "SET GLOBAL offline_mode = 0"}
			refusals["no connections"] = [2]string{"ALTER USER refused WITH MAX_CONNECTIONS_PER_HOUR 1", "ALTER USER refused WITH MAX_CONNECTIONS_PER_HOUR 0"}
		}
		for what, do := range refusals {
			open := func() *dlock.Client {
				p := netfault.NewProxy()
				t.Cleanup(p.Close)
				return steps.ClientOf(t, byURL(t, strings.Replace(behind(t, s, p, ""), "root@", "refused@", 1)), dlock.TTL(time.Minute))
			}
			holder, waiter, late := open(), open(), open()
			held := steps.MustLock(t, holder.Mutex(what))
			waits := steps.Try(t, waiter.Mutex(what))
			probe := sideOf(t, s)
			await.That(t, "one waits", func() bool { return len(steps.Queue(t, probe, what).Waiters()) == 1 })
			execute(t, root, do[0])
			execute(t, root, "FLUSH USER_RESOURCES")
			// the user still has a connection each hour: one of the clients would be served with it
			await.That(t, "the server refuses", func() bool {
				_, err := ordinary.Exec("DROP TABLE IF EXISTS nothing")
				return err != nil
			})
			for _, id := range connectionsOf(t, root, "refused") {
				_, _ = root.Exec(fmt.Sprint("KILL ", id)) // it may have gone
			}
			begins := steps.Try(t, late.Mutex(what+"/late"))
			// a Lock that begins has 10 s
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if err := held.Renew(ctx); err == nil {
				t.Errorf("%s: nothing was refused", what)
			}
			cancel()
			for which, a := range map[string]*steps.Attempt{"the one that waits": waits, "the one that begins": begins} {
				if !a.Pending() {
					t.Errorf("%s ended %s: %v", what, which, a.Err)
				}
			}
			execute(t, root, do[1])
			if err := held.Unlock(t.Context()); err != nil {
				t.Errorf("%s: Unlock: %v", what, err)
			}
			for _, a := range []*steps.Attempt{waits, begins} {
				if a.Returns(time.Minute); a.Err != nil || a.Pending() {
					t.Errorf("%s has ended, and Lock: %v", what, a.Err)
				}
			}
		}
	})
}

// connectionsOf are the IDs of a user's connections.
func connectionsOf(t *testing.T, db *sql.DB, user string) (ids []int64) {
	t.Helper()
	rows, err := db.Query("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = ?", user)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
