package mysql

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/netfault"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// leastPacket is the least max_allowed_packet that dlock bears.
const leastPacket = 8192

// TestMySQLLimits: what a client sends, and what it is answered, is bounded: it works where packets
// are as small as dlock bears, and with as much under a name, and as many names, as anybody has.
func TestMySQLLimits(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *service.Server) {
		inTurn(t, migrated(t, s),
			part{"small packets", mysqlSmallPackets},
			part{"packets that shrink", mysqlPacketsShrink},
			part{"thousands of readers at once", mysqlManyReaders},
			part{"a long queue", mysqlLongQueue},
			part{"many names", mysqlManyNames},
		)
	}, fmt.Sprint("--max-allowed-packet=", leastPacket), fmt.Sprint("--net-buffer-length=", leastPacket))
}

// mysqlSmallPackets: the longest names and labels, and leases whose renewal does not fit a packet.
func mysqlSmallPackets(t *service.Trial, s *service.Server) {
	const leases, renewed = 300, 117 // as many as fit
	line := netfault.NewProxy()
	b := mysqlOf(t, s).side(t, line, mysql.Options{Prefix: strings.Repeat("p", 255)})
	c := steps.ClientOf(t, b, dlock.TTL(time.Minute), dlock.Label(strings.Repeat("😀", 60)))
	held := steps.HoldMany(t, c, leases)
	long := steps.MustLock(t, c.Mutex(strings.Repeat("n", 255)))
	rs := make([]driver.Request, leases)
	for i := range rs {
		rs[i] = steps.Asked(b, fmt.Sprint("renewed/", i), time.Minute)
		steps.Acquired(t, b, rs[i])
	}
	calls := spoken(t, line, func() {
		for i, r := range b.Renew(t.Context(), rs) {
			if r.Err != nil {
				t.Fatalf("renewal %d: %v", i, r.Err)
			}
		}
	})
	if n, want := calls["dlock_renew"], (leases+renewed-1)/renewed; n != want {
		t.Errorf("%d leases are renewed by %d statements; want %d", leases, n, want)
	}
	if err := long.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	steps.MustLive(t, held)
}

// mysqlManyReaders: a writer goes, and more readers are let in than one transaction grants, or than
// a reply of one packet could name.
func mysqlManyReaders(t *service.Trial, s *service.Server) {
	const readers = 550
	b, other := sideOf(t, s), sideOf(t, s)
	writer := steps.Asked(b, "read", time.Minute)
	steps.Acquired(t, b, writer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	tokens := make([]driver.Token, readers)
	for i := range readers {
		side := []*poolSide{b, other}[min(i%8, 1)] // most are of one client
		r := steps.Waiting(side, "read", time.Minute)
		r.Mode = driver.Shared
		wg.Go(func() {
			g, err := side.Acquire(ctx, r)
			if err != nil {
				t.Errorf("a reader: %v", err)
			}
			tokens[i] = g.Token
		})
	}
	await.That(t, "they wait", func() bool {
		if t.Failed() {
			t.FailNow() // one of them waits no more
		}
		return len(steps.Queue(t, b, "read").Waiters()) >= readers
	})
	steps.Released(t, b, writer)
	await.All(t, &wg)
	seen := map[driver.Token]bool{}
	for _, token := range tokens {
		if seen[token] = true; token == 0 {
			t.Fatal("a reader has no token")
		}
	}
	if len(seen) != readers {
		t.Errorf("%d readers have %d tokens", readers, len(seen))
	}
	q := steps.Queue(t, b, "read")
	if n := len(q.Arrivals) - len(q.Waiters()); n != readers {
		t.Errorf("%d of %d readers hold", n, readers)
	}
}

// mysqlPacketsShrink: an operator lowers the bound while a client has more leases than fit.
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

// insertRequests puts requests of clients that are not there into a table: that wait, each under a
// name or all under one.
func insertRequests(t *service.Trial, s *service.Server, name string, n int) {
	t.Helper()
	const digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 " +
		"UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	db := mysqlOf(t, s).pool(t)
	execute(t, db, "INSERT INTO dlock_requests (prefix, name, place, id, owner, client, mode, permits, state, broken, fixed, token, ttl_us, expires_at, arrived_at, label) "+
		"SELECT X'', "+name+", n + 1, id, id, X'01', 'exclusive', 0, 'waiting', FALSE, FALSE, 0, "+
		"3600000000, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, UTC_TIMESTAMP(6), CONCAT('number ', n) "+
		"FROM (SELECT n, UNHEX(LEFT(SHA2(n, 256), 32)) AS id FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d AS n FROM "+
		digits+" a, "+digits+" b, "+digits+" c, "+digits+" e, "+digits+" f, "+digits+" g) numbers WHERE n < "+fmt.Sprint(n)+") some")
}

// mysqlLongQueue is read in pieces of a thousand.
func mysqlLongQueue(t *service.Trial, s *service.Server) {
	const waiters, pages = 6500, 7
	insertRequests(t, s, "'queue'", waiters)
	b, line := ownSide(t, s, "")
	calls := spoken(t, line, func() {
		q, err := b.Inspect(t.Context(), "queue")
		if err != nil {
			t.Fatal(err)
		}
		if len(q.Arrivals) != waiters {
			t.Fatalf("the queue has %d requests; want %d", len(q.Arrivals), waiters)
		}
		for i, e := range q.Arrivals {
			if want := fmt.Sprint("number ", i); e.Label != want {
				t.Fatalf("in place %d is %s", i, e.Label)
			}
		}
	})
	if n := calls["dlock_inspect"]; n != pages {
		t.Errorf("%d requests are read by %d statements; want %d", waiters, n, pages)
	}
}

// mysqlManyNames are read in pieces of five thousand.
func mysqlManyNames(t *service.Trial, s *service.Server) {
	names := 60_000
	if conformance.Long() {
		names = 400_000
	}
	insertRequests(t, s, "CONCAT('name/', n)", names)
	p := netfault.NewProxy()
	b := mysqlOf(t, s).side(t, p, mysql.Options{})
	start := time.Now()
	calls := spoken(t, p, func() {
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
	t.Logf("%d names in %s: %v", names, time.Since(start).Round(time.Millisecond), calls)
	if n, want := calls["dlock_list"], names/5000+1; n != want {
		t.Errorf("%d names are read by %d statements; want %d", names, n, want)
	}
}
