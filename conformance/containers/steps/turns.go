package steps

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// TakeTurns runs n goroutines of the clients that take turns on two names, until stop: no call may
// fail, and no two may hold a name at once.
func TakeTurns(t testing.TB, prefix string, n int, probe driver.Backend, clients ...*dlock.Client) (done *atomic.Int64, stop func()) {
	t.Helper()
	return TakeTurnsThrough(t, t.Errorf, prefix, n, probe, clients...)
}

// TakeTurnsThrough is TakeTurns through an outage: failed is called for each call that fails.
func TakeTurnsThrough(t testing.TB, failed func(string, ...any), prefix string, n int, probe driver.Backend, clients ...*dlock.Client) (done *atomic.Int64, stop func()) {
	t.Helper()
	done = new(atomic.Int64)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var in [2]atomic.Int64
	var tokens [2]atomic.Uint64
	for i := range n {
		c, name := clients[i%len(clients)], i/2%2
		wg.Go(func() {
			for ctx.Err() == nil {
				l, err := c.Mutex(fmt.Sprint(prefix, "/", name)).Lock(ctx)
				if err != nil {
					if ctx.Err() == nil {
						failed("Lock: %v", err)
						<-time.After(100 * time.Millisecond)
					}
					continue
				}
				if in[name].Add(1) != 1 {
					service.Strict(t).Errorf("two hold one name")
				}
				if before := tokens[name].Swap(uint64(l.Token())); before >= uint64(l.Token()) {
					service.Strict(t).Errorf("token %d after %d", l.Token(), before)
				}
				in[name].Add(-1)
				if err := l.Unlock(context.Background()); err != nil {
					failed("Unlock: %v", err)
				}
				done.Add(1)
			}
		})
	}
	end := func() { cancel(); await.All(t, &wg) }
	stop = func() {
		t.Helper()
		end()
		await.That(t, "nothing is left", func() bool {
			return Queue(t, probe, prefix+"/0").Len()+Queue(t, probe, prefix+"/1").Len() == 0
		})
	}
	t.Cleanup(end)
	return done, stop
}

// Further waits for n more turns.
func Further(t service.T, done *atomic.Int64, n int64) {
	t.Helper()
	from := done.Load()
	await.That(t, "work continues", func() bool { return done.Load() >= from+n })
}

// AcrossRestart kills the server and starts it again on its data, while its clients hold, wait,
// take turns and open: no call fails, and holders go on holding. If every restart takes longer than
// drivers bridge, calls may fail, but everything else has to hold: the end of a run says so.
func AcrossRestart(t testing.TB, s *service.Server, b driver.Backend, c, other *dlock.Client) {
	t.Helper()
	// Drivers try for 8 to 10 s. The copy of a call that is under way when the server is back may
	// take 3 of them, and the pause before the next 1.
	const bridged = 6 * time.Second
	var down time.Duration
	var failed []string
	for try := range 3 {
		down, failed = restartUnder(t, s, b, c, other, fmt.Sprint("restart/", try))
		if len(failed) == 0 || down <= bridged || t.Failed() {
			break
		}
		t.Logf("the server was down for %s, which clients need not bridge: %v", down, failed)
	}
	switch {
	case len(failed) == 0:
	case down > bridged:
		t.Logf("no way to start %s again within %s: it took %s", s.Kind.Name, bridged, down)
	default:
		t.Errorf("the server was down for %s: %v", down, failed)
	}
}

// restartUnder is one restart of AcrossRestart. It returns how long the server was down, and which
// calls failed.
func restartUnder(t testing.TB, s *service.Server, b driver.Backend, c, other *dlock.Client, prefix string) (down time.Duration, failures []string) {
	t.Helper()
	var mu sync.Mutex
	failed := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		failures = append(failures, fmt.Sprintf(format, args...))
	}
	l, err := c.Mutex(prefix + "/held").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	done, stop := TakeTurnsThrough(t, failed, prefix, 8, b, c, other)
	Further(t, done, 20)
	var wg sync.WaitGroup
	wg.Go(func() { // waits through it all
		next, err := other.Mutex(prefix + "/held").Lock(await.Context(t))
		if err != nil {
			failed("Lock of the waiter: %v", err)
			return
		}
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		next.Unlock(t.Context())
	})
	await.That(t, "one waits", func() bool { return Queue(t, b, prefix+"/held").Len() == 2 })
	killed := time.Now()
	s.Kill(t)
	wg.Go(func() { // begins while no server listens
		late, err := c.Mutex(prefix + "/late").Lock(await.Context(t))
		if err != nil {
			failed("Lock that began while the server was down: %v", err)
			return
		}
		late.Unlock(t.Context())
	})
	s.Restart(t)
	down = time.Since(killed)
	Further(t, done, 50)
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew of the hold: %v", err)
	}
	if q := Queue(t, b, prefix+"/held"); len(q.Holders()) != 1 || q.Holders()[0].Token != l.Token() {
		t.Errorf("the queue is %+v", q)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	await.All(t, &wg)
	stop()
	return down, failures
}
