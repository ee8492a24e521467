package containers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// takeTurns runs n goroutines of the clients that take turns on two names, until stop: no call may fail, and no two may hold.
func takeTurns(t *testing.T, prefix string, n int, probe driver.Backend, clients ...*dlock.Client) (done *atomic.Int64, stop func()) {
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
						t.Errorf("Lock: %v", err)
						<-time.After(100 * time.Millisecond)
					}
					continue
				}
				if in[name].Add(1) != 1 {
					t.Errorf("two hold one name")
				}
				if before := tokens[name].Swap(uint64(l.Token())); before >= uint64(l.Token()) {
					t.Errorf("token %d after %d", l.Token(), before)
				}
				in[name].Add(-1)
				if err := l.Unlock(context.Background()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
				done.Add(1)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		await(t, "nothing is left", func() bool {
			return queue(t, probe, prefix+"/0").Len()+queue(t, probe, prefix+"/1").Len() == 0
		})
	})
	t.Cleanup(stop)
	return done, stop
}

// further waits for n more turns.
func further(t T, done *atomic.Int64, n int64) {
	t.Helper()
	from := done.Load()
	await(t, "work goes on", func() bool { return done.Load() >= from+n })
}

// acrossRestart kills the server and starts it again on its data, while clients of it hold, wait, take turns and come: no call fails, and who held goes on.
func acrossRestart(t *testing.T, s *Server, b driver.Backend, c, other *dlock.Client) {
	t.Helper()
	l, err := c.Mutex("restart/held").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done, stop := takeTurns(t, "restart", 8, b, c, other)
	further(t, done, 20)
	var wg sync.WaitGroup
	wg.Go(func() { // waits through it all
		next, err := other.Mutex("restart/held").Lock(t.Context())
		if err != nil {
			t.Errorf("Lock of one who waited: %v", err)
			return
		}
		if next.Token() <= l.Token() {
			t.Errorf("token %d after %d", next.Token(), l.Token())
		}
		next.Unlock(t.Context())
	})
	await(t, "one waits", func() bool { return queue(t, b, "restart/held").Len() == 2 })
	s.Kill(t)
	wg.Go(func() { // begins while nobody listens
		late, err := c.Mutex("restart/late").Lock(t.Context())
		if err != nil {
			t.Errorf("Lock of one who came while the server was down: %v", err)
			return
		}
		late.Unlock(t.Context())
	})
	s.Restart(t)
	further(t, done, 50)
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew of what was held: %v", err)
	}
	if q := queue(t, b, "restart/held"); len(q.Holders()) != 1 || q.Holders()[0].Token != l.Token() {
		t.Errorf("there is %+v", q)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	wg.Wait()
	stop()
}
