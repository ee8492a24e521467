package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/postgres"
	"github.com/dlock-go/dlock/internal/size"
)

// TestPostgresCosts counts.
func TestPostgresCosts(t *testing.T) {
	s := service.StartOwn(t, PostgreSQL)
	inTurn(t, s,
		part{"round trips", postgresRoundTrips},
		part{"commits", postgresCommits},
		part{"a hand-off", postgresHandOff},
		part{"short waits for one name", postgresShortWaits(1)},
		part{"short waits for many names", postgresShortWaits(20)},
		part{"a crowd", postgresCrowd},
	)
	abreast(t, s,
		part{"waiting", postgresWaiting(1)},
		part{"waiting under many names", postgresWaiting(16)},
		part{"holding", postgresHolding},
	)
	inTurn(t, s,
		part{"the size of the tables", postgresSize},
		part{"the size of the tables under contention", postgresContendedSize},
	)
}

// kinds are the statements of the driver, by what they do. The first that matches counts.
var kinds = []struct {
	name string
	is   *regexp.Regexp
}{
	{"sweep", regexp.MustCompile(`^WITH turn AS`)},
	{"take", regexp.MustCompile(`INSERT INTO dlock_locks AS l .*ON CONFLICT`)},
	{"give", regexp.MustCompile(`^WITH .*UPDATE dlock_locks l SET holder = '', held_until = `)},
	{"renew", regexp.MustCompile(`UPDATE dlock_locks l SET held_until = greatest`)},
	{"keep", regexp.MustCompile(`UPDATE dlock_requests r SET expires_at = .* SKIP|SKIP LOCKED.*UPDATE dlock_requests r SET expires_at = .*10000000`)},
	{"renew", regexp.MustCompile(`^WITH .*UPDATE dlock_requests r SET expires_at = greatest`)},
	{"look", regexp.MustCompile(`^SELECT i\.n, l\.token`)},
	{"read", regexp.MustCompile(`^SELECT l\.token`)},
	{"endings", regexp.MustCompile(`^SELECT encode\(id, 'hex'\) FROM dlock_requests`)},
	{"list", regexp.MustCompile(`^SELECT encode\(l\.name, 'hex'\) FROM`)},
	{"sweep", regexp.MustCompile(`^WITH turn AS`)},
	{"visit", regexp.MustCompile(`^BEGIN`)},
	{"listen", regexp.MustCompile(`^(UN)?LISTEN`)},
	{"ping", regexp.MustCompile(`^-- ping`)}, // of database/sql, on an idle connection
	{"schema", regexp.MustCompile(`to_regclass|^SELECT pg_backend_pid`)},
}

// unqualified leaves out the schema of the tables, as servers quote it.
var unqualified = strings.NewReplacer("public.", "", `"public".`, "")

// kindOf returns the kind of a statement; of others all of it.
func kindOf(stmt string) string {
	stmt = unqualified.Replace(stmt)
	for _, k := range kinds {
		if k.is.MatchString(stmt) {
			return k.name
		}
	}
	return stmt
}

// commit ends a visit.
const commit = "COMMIT"

// spoken counts the exchanges that a client sends while f runs, by kind: a transaction is one,
// which is called a visit.
func (l *line) spoken(f func()) map[string]int {
	l.learn()
	r := l.p.Record()
	f()
	l.learn()
	n := map[string]int{}
	for _, sent := range r.End() {
		within := false
		for stmt := range l.statements(sent) {
			switch kind := kindOf(stmt); {
			case stmt == commit:
				within = false
			case !within:
				n[kind]++
				within = kind == "visit"
			}
		}
	}
	return n
}

// statements are the texts of those that were executed, in what was sent on a connection.
func (l *line) statements(sent []byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		text := map[string]string{}
		l.mu.Lock()
		for name, message := range l.prepared {
			text[name] = prepared(message)
		}
		l.mu.Unlock()
		for kind, message := range messages(sent) {
			body := string(message[header:])
			switch kind {
			case 'P':
				name, _, _ := strings.Cut(body, "\x00")
				text[name] = prepared(message)
			case 'B': // a portal, a statement
				_, rest, _ := strings.Cut(body, "\x00")
				name, _, _ := strings.Cut(rest, "\x00")
				if !yield(text[name]) {
					return
				}
			case 'Q':
				if !yield(strings.TrimSuffix(body, "\x00")) {
					return
				}
			}
		}
	}
}

// prepared is the text of the statement that a message prepares.
func prepared(message []byte) string {
	_, rest, _ := strings.Cut(string(message[header:]), "\x00")
	text, _, _ := strings.Cut(rest, "\x00")
	return text
}

// total is how many statements that is.
func total(n map[string]int) (sum int) {
	for v := range maps.Values(n) {
		sum += v
	}
	return sum
}

// trips returns how many round trips f makes, but for those of connections that it opens.
func trips(p *netfault.Proxy, f func()) int64 {
	const greeting = 12 // round trips of a new connection, with the statements that it prepares
	before := p.Counts()
	f()
	after := p.Counts()
	return after.RoundTrips - before.RoundTrips - greeting*(after.Dialed-before.Dialed)
}

// postgresRoundTrips: Lock is one, Unlock is one, re-entry none, on the driver's own connections
// and on pools of the user's.
func postgresRoundTrips(t *service.Trial, s *service.Server) {
	own, ownLine := ownSide(t, s)
	pool, strange := sideOf(t, s), side(t, hostile(config(t, s.URL)), netfault.NewProxy(), postgres.Options{})
	executes := config(t, s.URL)
	executes.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	unprepared := side(t, executes, netfault.NewProxy(), postgres.Options{})
	sqlPool := sideOfDB(t, s.URL, netfault.NewProxy(), postgres.Options{})
	for _, x := range []struct {
		what string
		b    driver.Backend
		p    *netfault.Proxy
	}{{"own connections", own, ownLine}, {"a pool of the user's", pool, pool.line}, {"a pool of database/sql", sqlPool, sqlPool.line},
		{"a pool with other settings", strange, strange.line}, {"a pool that prepares nothing", unprepared, unprepared.line}} {
		c, l := steps.ClientOf(t, x.b, dlock.TTL(10*time.Minute)), record(x.p)
		const rounds = 50
		m := c.Mutex("trips/" + x.what)
		once := func() {
			l, err := m.Lock(await.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			for range 3 { // re-entry is a counter
				again, err := m.Lock(l.Context(t.Context()))
				if err != nil {
					t.Fatal(err)
				}
				if err := again.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 { // each connection of the pool prepares what it executes
			once()
		}
		// two may be repeated by a busy machine; the others ask, twice a second, which holds were
		// ended by force, and delete each three seconds what has expired
		begun := time.Now()
		more := func() int64 {
			return 2 + 4 + int64(time.Since(begun)/(500*time.Millisecond)+time.Since(begun)/(3*time.Second))
		}
		var n int64
		said := l.spoken(func() {
			n = trips(x.p, func() {
				for range rounds {
					once()
				}
			})
		})
		t.Logf("%s: %d round trips for %d times Lock, re-entry and Unlock: %v", x.what, n, rounds, said)
		if n > 2*rounds+more() {
			t.Errorf("%s: Lock and Unlock made %d round trips in %d rounds; want %d", x.what, n, rounds, 2*rounds)
		}
		for what, n := range said {
			switch what {
			case "take", "give":
				if n < rounds || n > rounds+3 {
					t.Errorf("%s: %d statements to %s in %d rounds", x.what, n, what, rounds)
				}
			case "endings", "sweep", "schema", "ping": // counted above
			default:
				t.Errorf("%s: %d times %s in %d rounds", x.what, n, what, rounds)
			}
		}
		held, err := m.Lock(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		begun = time.Now()
		n = trips(x.p, func() {
			for range rounds {
				if _, err := m.TryLock(t.Context()); err == nil && held.Err() == nil {
					service.Strict(t).Fatal("it is held")
				}
			}
		})
		if n > rounds+more() {
			t.Errorf("%s: TryLock of a held name made %d round trips in %d rounds; want %d", x.what, n, rounds, rounds)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// written returns how many transactions of the server have written while f runs: only those have a
// number.
func written(t *service.Trial, b *poolSide, f func()) (transactions int) {
	t.Helper()
	id := func() int {
		return one[int](t, b.db, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
	}
	before := id()
	f()
	return id() - before
}

// postgresCommits: a lock is one transaction that writes, an unlock another one, a refused try and
// an inspection none.
func postgresCommits(t *service.Trial, s *service.Server) {
	const rounds = 50
	b := sideOf(t, s)
	pair := func() {
		r := steps.Asked(b, "writes", time.Hour)
		steps.Acquired(t, b, r)
		steps.Released(t, b, r)
	}
	pair()
	committed := func() int {
		execute(t, b.db, "SELECT pg_stat_force_next_flush()")
		return one[int](t, b.db, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
	}
	before := committed()
	n := written(t, b, func() {
		for range rounds {
			pair()
		}
	})
	t.Logf("%d pairs: %d transactions write, %d commit", rounds, n, committed()-before)
	// one is swept now and then, and the server writes statistics
	if n < 2*rounds || n > 2*rounds+8 {
		t.Errorf("%d pairs are %d transactions that write; want %d", rounds, n, 2*rounds)
	}
	held := steps.Asked(b, "writes", time.Hour)
	steps.Acquired(t, b, held)
	n = written(t, b, func() {
		for range rounds {
			steps.Refused(t, b, steps.Asked(b, "writes", time.Hour), time.Now().Add(time.Minute))
			steps.Queue(t, b, "writes")
		}
	})
	t.Logf("%d refused tries: %d transactions write", rounds, n)
	if n > 8 {
		t.Errorf("%d refused tries are %d transactions that write", rounds, n)
	}
	steps.Released(t, b, held)
}

// postgresHandOff: a waiter asks, arrives, and finds its grant; a release that passes the lock on
// is one transaction.
func postgresHandOff(t *service.Trial, s *service.Server) {
	const waiters = 16
	for what, clients := range map[string]int{"one client": 1, "two clients": 2} {
		probe := sideOf(t, s)
		var sides []*poolSide
		for range clients {
			sides = append(sides, sideOf(t, s))
		}
		l := record(sides[clients-1].line)
		name := "hand-off/" + what
		first := steps.Waiting(sides[0], name, time.Minute)
		steps.Acquired(t, sides[0], first)
		var wg sync.WaitGroup
		pass := make(chan struct{}, waiters) // a call that fails takes none
		n := l.spoken(func() {
			for i := range waiters {
				wg.Go(func() {
					b := sides[(i+1)%clients]
					r := steps.Waiting(b, name, time.Minute)
					steps.Acquired(t, b, r)
					<-pass
					steps.Released(t, b, r)
				})
				await.That(t, "it waits", func() bool { return len(steps.Queue(t, probe, name).Waiters()) == i+1 })
			}
			steps.Released(t, sides[0], first)
			for range waiters {
				pass <- struct{}{}
			}
			await.All(t, &wg)
		})
		own := waiters / clients
		t.Logf("%s, %d of their waiters: %v", what, own, n)
		// to arrive and to pass the lock on; one that stalls is repeated
		if n["visit"] < own || n["visit"] > 2*own+2+own/4 {
			t.Errorf("%s: %d waiters made %d visits; want up to %d", what, own, n["visit"], 2*own)
		}
		if n["read"] > 0 || n["take"] > own+2 {
			t.Errorf("%s: %d waiters made %v; want none to read, and one try each", what, own, n)
		}
	}
}

// queueUp lets n requests of the client wait for a name, until stop.
func queueUp(t testing.TB, b driver.Backend, probe driver.Backend, name string, n int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, err := steps.Acquire(ctx, b, steps.Waiting(b, name, time.Minute)); err == nil {
				service.Strict(t).Error("a waiter was granted")
			}
		})
	}
	await.That(t, "they wait", func() bool { return len(steps.Queue(t, probe, name).Waiters()) == n })
	return func() { cancel(); await.All(t, &wg) }
}

// postgresShortWaits: a client that begins twenty waits of 300 ms each second, for a lock of
// another client, or for as many locks.
func postgresShortWaits(names int) func(*service.Trial, *service.Server) {
	return func(t *service.Trial, s *service.Server) {
		const rate, lasts, seconds, most = 20, 300 * time.Millisecond, 4, 130
		holder := sideOf(t, s)
		for i := range names {
			steps.Acquired(t, holder, steps.Asked(holder, fmt.Sprint("short/", i), time.Hour))
		}
		b, p := ownSide(t, s)
		l := record(p)
		var wg sync.WaitGroup
		waits := func(n int) {
			for i, next := range slices.Repeat([]time.Duration{time.Second / rate}, n) {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), lasts)
					defer cancel()
					if _, err := steps.Acquire(ctx, b, steps.Waiting(b, fmt.Sprint("short/", i%names), time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Acquire: %v", err)
					}
				})
				<-time.After(next)
			}
		}
		waits(rate) // connections, and the first for each name
		begun := time.Now()
		n := l.spoken(func() { waits(seconds * rate) })
		wg.Wait()
		second := float64(total(n)) / time.Since(begun).Seconds()
		t.Logf("%d waits a second, of %s, for %d names: %.1f exchanges a second: %v", rate, lasts, names, second, n)
		if second > most {
			t.Errorf("%d waits a second, of %s, for %d names, make %.1f exchanges a second; want %d at most", rate, lasts, names, second, most)
		}
	}
}

// postgresWaiting: 128 waiters under that many names cost a client few connections, and a few
// exchanges a second, like a single waiter.
func postgresWaiting(names int) func(*service.Trial, *service.Server) {
	return func(t *service.Trial, s *service.Server) {
		const waiters, connections, most = 128, 3, 12
		holder := sideOf(t, s)
		b, p := ownSide(t, s)
		l := record(p)
		var stops []func()
		for i := range names {
			name := fmt.Sprint("waiting/", i)
			steps.Acquired(t, holder, steps.Asked(holder, name, time.Hour))
			stops = append(stops, queueUp(t, b, holder, name, waiters/names))
		}
		await.That(t, "other connections are closed", func() bool { return p.Counts().Open <= connections })
		const span = 6 * time.Second
		start := time.Now()
		n := l.spoken(func() { <-time.After(span) })
		rate := float64(total(n)) / time.Since(start).Seconds()
		t.Logf("%d waiters for %d names: %d connections, %.1f exchanges a second: %v", waiters, names, p.Counts().Open, rate, n)
		if open := p.Counts().Open; open > connections+1 {
			t.Errorf("%d waiters use %d connections", waiters, open)
		}
		if rate > most {
			t.Errorf("%d waiters for %d names make %.1f exchanges a second; want %d at most: %v", waiters, names, rate, most, n)
		}
		for _, stop := range stops {
			stop()
		}
		await.That(t, "nothing goes on any more", func() bool { return total(l.spoken(func() { <-time.After(time.Second) })) == 0 })
	}
}

// postgresHolding: a client renews all of its leases with few statements each TTL/3, and asks twice
// a second which of them were ended by force.
func postgresHolding(t *service.Trial, s *service.Server) {
	many, ttl := size.Longer(1000), 20*time.Second // a slow server takes seconds for so many
	if size.Long() {
		ttl = 30 * time.Second
	}
	b, p := ownSide(t, s)
	l := record(p)
	c := steps.ClientOf(t, b, dlock.TTL(ttl))
	leases := steps.HoldMany(t, c, many)
	// the first renewal may be in parts: that of leases that are younger than it
	<-time.After(ttl / 3)
	const periods = 2
	asked := int(periods * ttl / 3 / (500 * time.Millisecond))
	parts := (many + 999) / 1000
	// what is not answered in time is repeated; a client that renews too often does so each time
	for try := range 3 {
		n := l.spoken(func() { <-time.After(periods * ttl / 3) })
		t.Logf("%d leases: %v in %d times TTL/3", many, n, periods)
		if r := n["renew"]; r >= periods-1 && r <= parts*(periods+1) && total(n) <= r+n["endings"]+n["sweep"] && n["endings"] <= asked+1 {
			break
		}
		if try == 2 {
			t.Errorf("%d leases make the statements %v in %d times TTL/3; want %d renewals, and %d times endings", many, n, periods, parts*periods, asked)
		}
	}
	steps.MustLive(t, leases)
}

// numbers is a table of the numbers n from 0 up to that one, each with an ID.
func numbers(below int) string {
	return fmt.Sprintf("(SELECT n, decode(md5(n::text), 'hex') AS id FROM generate_series(0, %d) n) numbers", below-1)
}

// insertLocks puts as many locks of clients that are not there into a table. Each is held for an
// hour, or has others beside it.
func insertLocks(t service.T, db execer, name string, n int, held, beside bool) {
	t.Helper()
	execute(t, db, fmt.Sprintf("INSERT INTO dlock_locks (prefix, name, token, head, floor, last, beside, holder, client, label, ttl_us, fixed, broken, held_since, held_until) "+
		"SELECT '', %s, 1, 0, 0, 1000000, %[3]t, CASE WHEN %[2]t THEN id ELSE '' END, decode(repeat('01', 16), 'hex'), '', 3600000000, FALSE, FALSE, clock_timestamp(), "+
		"CASE WHEN %[2]t THEN clock_timestamp() + interval '1 hour' ELSE '1970-01-01' END FROM %[4]s", name, held, beside, numbers(n)))
}

// insertRequests puts as many exclusive requests of clients that are not there into a table, in
// order, each under a name or all under one, which last for a number of seconds.
func insertRequests(t service.T, db execer, name string, n, lasts int) {
	t.Helper()
	execute(t, db, fmt.Sprintf("INSERT INTO dlock_requests (id, prefix, name, kind, place, owner, client, exclusive, permits, fixed, broken, token, ttl_us, label, arrived_at, expires_at) "+
		"SELECT decode(md5(%[1]s::text || n), 'hex'), '', %[1]s, 'request', n + 1, decode(md5(%[1]s::text || n), 'hex'), decode(repeat('01', 16), 'hex'), TRUE, 0, FALSE, FALSE, 0, 3600000000, "+
		"convert_to('number ' || n, 'UTF8'), clock_timestamp(), clock_timestamp() + %[2]d * interval '1 second' FROM %[3]s ORDER BY n", name, lasts, numbers(n)))
}

// postgresCrowd: with five thousand waiters of one name, a try, a join, a wait and a renewal do not
// take much longer than with one. The dead are removed by any client that locks something.
func postgresCrowd(t *service.Trial, s *service.Server) {
	const crowd, rounds = 5000, 20
	db := poolOf(t, s.URL)
	a, b := sideOf(t, s), sideOf(t, s)
	least := func(took map[string]time.Duration, what string, f func()) {
		start := time.Now()
		f()
		if d := time.Since(start); took[what] == 0 || d < took[what] { // the machine is shared
			took[what] = d
		}
	}
	took := map[string]map[string]time.Duration{}
	for _, kind := range []struct {
		name         string
		count, lasts int
	}{{"one", 1, 3600}, {"living", crowd, 3600}} {
		name := "crowd/" + kind.name
		held := steps.Asked(a, name, time.Hour)
		g := steps.Acquired(t, a, held)
		insertRequests(t, db, "'"+name+"'::bytea", kind.count, kind.lasts)
		execute(t, db, fmt.Sprintf("UPDATE dlock_locks SET beside = TRUE, last = %d WHERE name = '%s'", crowd, name))
		took[kind.name] = map[string]time.Duration{}
		for range rounds {
			least(took[kind.name], "a try", func() { steps.Refused(t, b, steps.Asked(b, name, time.Hour), time.Now().Add(time.Minute)) })
			least(took[kind.name], "a renewal", func() {
				if err := steps.Renewed(a, held); err != nil {
					t.Fatal(err)
				}
			})
			least(took[kind.name], "a join", func() {
				join := steps.Asked(b, name, time.Hour)
				join.Owner, join.Token = held.Owner, g.Token
				steps.Acquired(t, b, join)
				steps.Released(t, b, join)
			})
			least(took[kind.name], "a wait", func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if _, err := steps.AcquireOrRelease(ctx, b, steps.Waiting(b, name, time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Acquire: %v", err)
				}
			})
		}
	}
	for what, one := range took["one"] {
		living := took["living"][what]
		t.Logf("%s: with one %s, with %d %s", what, one, crowd, living)
		if living > 3*one+10*time.Millisecond {
			t.Errorf("%s takes %s with one waiter, and %s with %d", what, one, living, crowd)
		}
	}
	insertRequests(t, db, "'crowd/dead'::bytea", crowd, -60)
	insertLocks(t, db, "'crowd/dead'", 1, false, true)
	other := steps.Asked(a, "crowd/other", time.Hour)
	steps.Acquired(t, a, other)
	begun := time.Now()
	stop := queueUp(t, b, a, other.Name, 1)
	await.That(t, "the dead are gone", func() bool {
		r := steps.Asked(a, "crowd/sweeps", time.Minute) // what waits or is refused sweeps nothing
		steps.Acquired(t, a, r)
		steps.Released(t, a, r)
		return one[int](t, db, "SELECT count(*) FROM dlock_requests WHERE expires_at <= clock_timestamp()") == 0
	})
	t.Logf("%d dead are gone after %s", crowd, time.Since(begun).Round(time.Millisecond))
	stop()
}

// mostSize bounds the tables with their indexes, however often a few names are locked: a server
// that vacuums removes old row versions, and most updates leave the indexes alone.
const mostSize = 2 << 20

// sizes are those of the two tables, with their indexes, in bytes.
func sizes(t service.T, db rower) int {
	t.Helper()
	return one[int](t, db, "SELECT pg_total_relation_size('dlock_locks') + pg_total_relation_size('dlock_requests')")
}

// postgresSize: the tables stay small after very many pairs on one name.
func postgresSize(t *service.Trial, s *service.Server) {
	pairs := 20_000
	if size.Long() {
		pairs = 1_000_000
	}
	b := sideOf(t, s)
	r := steps.Asked(b, "size", time.Minute)
	steps.Acquired(t, b, r)
	execute(t, b.db, "SELECT pg_stat_force_next_flush()")
	before := one[int](t, b.db, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'dlock_locks'")
	steps.Released(t, b, r)
	start, most := time.Now(), 0
	for i := range pairs {
		r := steps.Asked(b, "size", time.Minute)
		steps.Acquired(t, b, r)
		steps.Released(t, b, r)
		if i%5000 == 0 {
			most = max(most, sizes(t, b.db))
		}
	}
	most = max(most, sizes(t, b.db))
	execute(t, b.db, "SELECT pg_stat_force_next_flush()")
	var hot int
	await.That(t, "the updates are counted", func() bool {
		hot = one[int](t, b.db, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'dlock_locks'") - before
		return one[int](t, b.db, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'dlock_locks'") >= 2*pairs-100
	})
	t.Logf("%d pairs in %s: the tables have up to %d bytes; %d updates changed no index", pairs, time.Since(start).Round(time.Millisecond), most, hot)
	if most > mostSize {
		t.Errorf("after %d pairs the tables have %d bytes; want %d at most", pairs, most, mostSize)
	}
	if hot < 2*pairs*9/10 {
		t.Errorf("of %d updates %d changed no index", 2*pairs, hot)
	}
}

// postgresContendedSize: nor do they grow while waiters hand a lock on, and dlock_requests has a
// row for each of them for a while.
func postgresContendedSize(t *service.Trial, s *service.Server) {
	turns := int64(size.Longer(3000))
	done, stop := steps.TakeTurns(t, "contended", 8, sideOf(t, s), steps.ClientOf(t, sideOf(t, s)), steps.ClientOf(t, sideOf(t, s)))
	db := poolOf(t, s.URL)
	most := 0
	for i := int64(0); i < turns; i += 500 {
		steps.Further(t, done, 500)
		most = max(most, sizes(t, db))
	}
	stop()
	t.Logf("%d turns: the tables have up to %d bytes", done.Load(), most)
	if most > 2*mostSize {
		t.Errorf("after %d turns the tables have %d bytes; want %d at most", done.Load(), most, 2*mostSize)
	}
}
