package mysql

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
	"github.com/dlock-go/dlock/internal/size"
)

// leastPacket is the least max_allowed_packet that dlock works with.
const leastPacket = 16384

// TestMySQLLimits: statements and answers are bounded. The driver works with the smallest packets
// that dlock allows, with very long queues, and with very many names.
func TestMySQLLimits(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) {
		inTurn(t, migrated(t, s),
			part{"small packets", mysqlSmallPackets},
			part{"a crowd in small packets", mysqlCrowdInSmallPackets},
			part{"packets that shrink", mysqlPacketsShrink},
			part{"thousands of readers at once", mysqlManyReaders},
			part{"a long queue", mysqlLongQueue},
			part{"many names", mysqlManyNames},
		)
	}, fmt.Sprint("--max-allowed-packet=", leastPacket), fmt.Sprint("--net-buffer-length=", leastPacket))
}

// longest is the longest label of a request, in its longest form, and long a name of the greatest
// length.
var longest = strings.Repeat("😀", 60)

func long(i int) string { return fmt.Sprintf("%0255d", i) }

// mysqlSmallPackets: the longest names and labels, and leases whose renewal does not fit a packet.
func mysqlSmallPackets(t *service.Trial, s *service.Server) {
	const leases, renewed = 300, 14 // as many as fit
	line, prefix := netfault.NewProxy(), mysql.Options{Prefix: strings.Repeat("p", 255)}
	b, other := mysqlOf(t, s).side(t, line, prefix), mysqlOf(t, s).side(t, netfault.NewProxy(), prefix)
	c := steps.ClientOf(t, b, dlock.TTL(time.Minute), dlock.Label(longest))
	held := steps.HoldMany(t, c, leases)
	// everything with the longest of all
	r := line.Record()
	ask := func(b driver.Backend, i int, change func(*driver.Request)) driver.Request {
		r := steps.Waiting(b, long(i), time.Minute)
		r.Label = longest
		change(&r)
		return r
	}
	for i, shared := range []bool{false, true} {
		mode := func(r *driver.Request) {
			if shared {
				r.Mode, r.Limit = driver.Shared, 1
			}
		}
		first := ask(other, i, mode)
		g := steps.Acquired(t, other, first)
		next := ask(b, i, mode)
		got := steps.Acquiring(b, next)
		await.That(t, "it waits", func() bool { return len(steps.Queue(t, other, long(i)).Waiters()) == 1 })
		if !shared {
			joined := ask(b, i, func(r *driver.Request) { r.Owner, r.Token, r.Wait = first.ID, g.Token, false })
			steps.Acquired(t, b, joined)
			if err := b.Renew(t.Context(), []driver.Request{joined})[0].Err; err != nil {
				t.Errorf("renewal of a join: %v", err)
			}
			steps.Released(t, b, joined)
		}
		steps.Released(t, other, first)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		steps.Queue(t, b, long(i))
		if err := b.Renew(t.Context(), []driver.Request{next})[0].Err; err != nil {
			t.Errorf("renewal: %v", err)
		}
		next.Uncertain = true
		steps.Released(t, b, next)
		g = steps.Acquired(t, b, ask(b, i, mode))
		if err := b.Break(t.Context(), long(i), g.Token, true); err != nil {
			t.Errorf("Break: %v", err)
		}
	}
	most := 0
	for _, sent := range r.End() {
		for stmt := range statements(sent) {
			most = max(most, len(stmt))
		}
	}
	t.Logf("the longest statement has %d bytes", most)
	if most > leastPacket/2 {
		t.Errorf("a statement has %d bytes; want half a packet at most", most)
	}
	rs := make([]driver.Request, leases)
	for i := range rs {
		rs[i] = steps.Asked(b, fmt.Sprint("renewed/", i), time.Minute)
		steps.Acquired(t, b, rs[i])
	}
	n := spoken(t, line, func() {
		for i, r := range b.Renew(t.Context(), rs) {
			if r.Err != nil {
				t.Fatalf("renewal %d: %v", i, r.Err)
			}
		}
	})
	if n, want := n["renew"], (leases+renewed-1)/renewed; n != want {
		t.Errorf("%d leases are renewed by %d statements; want %d", leases, n, want)
	}
	steps.MustLive(t, held)
}

// mysqlCrowdInSmallPackets: requests that come at once, and travel together, with the longest names
// and labels.
func mysqlCrowdInSmallPackets(t *service.Trial, s *service.Server) {
	const crowd = 300
	prefix := mysql.Options{Prefix: strings.Repeat("p", 255)}
	b := mysqlOf(t, s).side(t, netfault.NewProxy(), prefix)
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Go(func() {
			r := steps.Waiting(b, long(i%(crowd/2)), time.Minute) // two of each
			r.Label = longest
			ctx := await.Bounded(t, await.Patience)
			if _, err := steps.Acquire(ctx, b, r); err != nil {
				t.Errorf("Acquire: %v", err)
			} else if err := b.Release(ctx, r); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
	}
	wg.Wait()
}

// mysqlManyReaders: a writer goes, and more readers are granted than one read of the queue shows,
// some of them while they still arrive. Not each of them reads all holders.
func mysqlManyReaders(t *service.Trial, s *service.Server) {
	const readers = 550
	line := netfault.NewProxy()
	b, other := sideOf(t, s), mysqlOf(t, s).side(t, line, mysql.Options{})
	writer := steps.Asked(b, "read", time.Minute)
	steps.Acquired(t, b, writer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	recorded := line.Record()
	grants := make([]driver.Grant, readers)
	for i := range readers {
		side := []*poolSide{b, other}[min(i%8, 1)] // most are of one client
		r := steps.Waiting(side, "read", time.Minute)
		r.Mode = driver.Shared
		wg.Go(func() {
			g, err := steps.Acquire(ctx, side, r)
			if err != nil {
				t.Errorf("a reader: %v", err)
			}
			grants[i] = g
		})
	}
	for len(steps.Queue(t, b, "read").Waiters()) < readers && !t.Failed() {
		<-time.After(50 * time.Millisecond)
	}
	released := time.Now()
	steps.Released(t, b, writer)
	wg.Wait()
	whole := 0
	for _, sent := range recorded.End() {
		for stmt := range statements(sent) {
			// more than its own row and the first ones
			if kindOf(stmt) == "read" && strings.HasSuffix(stmt, " LIMIT 500") {
				whole++
			}
		}
	}
	t.Logf("%d readers hold after %s, and read all %d times", readers, time.Since(released).Round(time.Millisecond), whole)
	// A reader that has a row, and has not looked yet when the writer goes, reads all: up to 72 on
	// a busy machine. It was 596 to 896 when all readers that were granted did.
	if whole > readers/4 {
		t.Errorf("%d readers read all holders %d times; want %d at most", readers, whole, readers/4)
	}
	seen := map[driver.Token]bool{}
	for _, g := range grants {
		if seen[g.Token] = true; g.Token == 0 {
			t.Fatal("a reader has no token")
		}
	}
	if len(seen) != readers {
		t.Errorf("%d readers have %d tokens", readers, len(seen))
	}
	held := map[driver.Token]bool{}
	q := steps.Queue(t, b, "read")
	for _, e := range q.Holders() {
		held[e.Token] = true
	}
	now := time.Now()
	for _, g := range grants { // one that lasts less than its TTL is renewed soon, by its holder
		if !held[g.Token] && g.SentAt.Add(g.TTL).After(now) {
			t.Errorf("a reader does not hold, %s before its grant ends", g.SentAt.Add(g.TTL).Sub(now))
		}
	}
	if n := len(q.Waiters()); n > 0 {
		t.Errorf("%d of %d readers wait", n, readers)
	}
}

// mysqlPacketsShrink: an operator lowers the bound while a client has more leases than fit a
// packet.
func mysqlPacketsShrink(t *service.Trial, s *service.Server) {
	root := mysqlOf(t, s).pool(t)
	set := func(bytes int) {
		execute(t, root, fmt.Sprint("SET GLOBAL max_allowed_packet = ", bytes))
	}
	set(1 << 24)
	defer set(leastPacket)
	line := netfault.NewProxy()
	b := mysqlOf(t, s).side(t, line, mysql.Options{})
	rs := make([]driver.Request, 300)
	for i := range rs {
		rs[i] = steps.Asked(b, fmt.Sprint("shrink/", i), time.Minute)
		steps.Acquired(t, b, rs[i])
	}
	set(leastPacket)
	line.Cut() // connections that exist keep the old bound
	start := time.Now()
	for i, r := range b.Renew(t.Context(), rs) {
		if r.Err != nil {
			t.Fatalf("renewal %d: %v", i, r.Err)
		}
	}
	t.Logf("renewed in %s", time.Since(start).Round(time.Millisecond))
}

// numbers is a table of the numbers n from 0 up to that one.
func numbers(below int) string {
	const digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 " +
		"UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	return "(SELECT n, UNHEX(LEFT(SHA2(n, 256), 32)) AS id FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d AS n FROM " +
		digits + " a, " + digits + " b, " + digits + " c, " + digits + " e, " + digits + " f, " + digits + " g) numbers WHERE n < " + fmt.Sprint(below) + ") some"
}

// insertLocks puts as many locks of clients that are not there into a table. Each is held for an
// hour, or has others beside it.
func insertLocks(t service.T, db execer, name string, n int, held bool, others int) {
	t.Helper()
	execute(t, db, fmt.Sprintf("INSERT INTO dlock_locks (prefix, name, token, head, others, holder, client, label, ttl_us, fixed, broken, held_since, held_until) "+
		"SELECT X'', %s, 1, 0, %d, IF(%[3]t, id, REPEAT(X'00', 16)), REPEAT(X'01', 16), '', 3600000000, FALSE, FALSE, UTC_TIMESTAMP(6), "+
		"IF(%[3]t, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, TIMESTAMP'1970-01-01 00:00:00') FROM %s", name, others, held, numbers(n)))
}

// insertRequests puts as many exclusive requests of clients that are not there into a table, in
// order, each under a name or all under one, which last for a number of seconds.
func insertRequests(t service.T, db execer, name string, n, lasts int) {
	t.Helper()
	execute(t, db, fmt.Sprintf("INSERT INTO dlock_requests (prefix, name, kind, id, owner, client, mode, permits, fixed, broken, token, ttl_us, label, arrived_at, expires_at) "+
		"SELECT X'', %s, 'request', id, id, REPEAT(X'01', 16), 'exclusive', 0, FALSE, FALSE, 0, 3600000000, CONCAT('number ', n), UTC_TIMESTAMP(6), "+
		"UTC_TIMESTAMP(6) + INTERVAL %d SECOND FROM %s ORDER BY n", name, lasts, numbers(n)))
}

// mysqlLongQueue: a long queue is read in pieces of five hundred.
func mysqlLongQueue(t *service.Trial, s *service.Server) {
	const waiters, pages = 6500, 14
	db := mysqlOf(t, s).pool(t)
	insertLocks(t, db, "'queue'", 1, true, 1)
	insertRequests(t, db, "'queue'", waiters, 3600)
	// the ID of the holder is that of the first waiter, which has gone
	execute(t, db, "UPDATE dlock_locks SET holder = REPEAT(X'07', 16)")
	b, line := ownSide(t, s, "")
	n := spoken(t, line, func() {
		q, err := b.Inspect(t.Context(), "queue")
		if err != nil {
			t.Fatal(err)
		}
		if len(q.Holders()) != 1 || len(q.Waiters()) != waiters {
			t.Fatalf("the queue has %d that hold and %d that wait; want 1 and %d", len(q.Holders()), len(q.Waiters()), waiters)
		}
		for i, e := range q.Waiters() {
			if want := fmt.Sprint("number ", i); e.Label != want {
				t.Fatalf("in place %d is %s", i, e.Label)
			}
		}
	})
	if n := n["read"]; n != pages {
		t.Errorf("%d requests are read by %d statements; want %d", waiters, n, pages)
	}
}

// mysqlManyNames: many names are read in pieces of five thousand.
func mysqlManyNames(t *service.Trial, s *service.Server) {
	names := 60_000
	if size.Long() {
		names = 400_000
	}
	db := mysqlOf(t, s).pool(t)
	insertLocks(t, db, "CONCAT('held/', n)", names/2, true, 0)
	insertLocks(t, db, "CONCAT('waited for/', n)", names/2, false, 1)
	insertRequests(t, db, "CONCAT('waited for/', n)", names/2, 3600)
	insertLocks(t, db, "CONCAT('free/', n)", 5000, false, 1)
	p := netfault.NewProxy()
	b := mysqlOf(t, s).side(t, p, mysql.Options{})
	start := time.Now()
	n := spoken(t, p, func() {
		all, err := b.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, name := range all {
			seen[name] = true
		}
		if len(all) != names || len(seen) != names {
			t.Errorf("%d names are listed, %d of them different; want %d", len(all), len(seen), names)
		}
	})
	t.Logf("%d names in %s: %v", names, time.Since(start).Round(time.Millisecond), n)
	if n, want := n["list"], names/5000+1; n != want {
		t.Errorf("%d names are read by %d statements; want %d", names, n, want)
	}
}
