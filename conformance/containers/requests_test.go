package containers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var clientIDs sync.Map // by backend

// asked is a request of the backend's client for a name.
func asked(b driver.Backend, name string, ttl time.Duration) driver.Request {
	client, _ := clientIDs.LoadOrStore(b, driver.NewID())
	r := request(name)
	r.Client, r.TTL = client.(driver.ID), ttl
	return r
}

// waiting is asked for a request that waits.
func waiting(b driver.Backend, name string, ttl time.Duration) driver.Request {
	r := asked(b, name, ttl)
	r.Wait = true
	return r
}

// acquired acquires what has to be granted.
func acquired(t T, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := b.Acquire(ctx, r)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

// released releases what has to be there.
func released(t T, b driver.Backend, r driver.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.Release(ctx, r); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// queue returns what stands under a name.
func queue(t T, b driver.Backend, name string) driver.Queue {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	q, err := b.Inspect(ctx, name)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return q
}

// acquiring calls Acquire, and sends what it returns.
func acquiring(b driver.Backend, r driver.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := b.Acquire(ctx, r)
		done <- err
	}()
	return done
}

// renewed renews one request.
func renewed(b driver.Backend, r driver.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return b.Renew(ctx, []driver.Request{r})[0].Err
}

// clientOf is dlock.New over a backend.
func clientOf(t T, b driver.Backend, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.New(b, append([]dlock.Option{dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// mustLock takes a lock.
func mustLock(t *testing.T, m dlock.Mutex) *dlock.Lease {
	t.Helper()
	l, err := m.Lock(bounded(t, time.Minute))
	if err != nil {
		t.Fatalf("Lock of %s: %v", m.Name(), err)
	}
	return l
}

// listing is a backend that lists its names.
type listing interface {
	driver.Backend
	driver.Lister
}

// namesApart lets b hold every name, and looks with other, which shares its keys or rows, and with stranger, which has another root: no
// name is taken for another, and nothing is there under another root.
func namesApart(t *testing.T, b, other, stranger listing, names []string) {
	t.Helper()
	const ttl = 10 * time.Minute // nobody renews, and there may be many names
	tokens := map[string]driver.Token{}
	for i, n := range names {
		if slices.Contains(names[:i], n) {
			t.Fatalf("%q is there twice", n)
		}
		tokens[n] = acquired(t, b, asked(b, n, ttl)).Token
	}
	for _, n := range names {
		if _, err := other.Acquire(t.Context(), asked(other, n, ttl)); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%q: %v", n, err)
		}
		if q := queue(t, other, n); q.Len() != 1 || q.Strangers[0].Token != tokens[n] || q.Strangers[0].Name != n {
			t.Errorf("%q: %+v", n, q)
		}
		if q := queue(t, stranger, n); q.Len() != 0 {
			t.Errorf("under another root, %q: %+v", n, q)
		}
	}
	listed, err := other.List(t.Context())
	slices.Sort(listed)
	names = slices.Sorted(slices.Values(names))
	if err != nil || !slices.Equal(listed, names) {
		t.Errorf("List: %q, %v", listed, err)
	}
	if listed, err := stranger.List(t.Context()); err != nil || len(listed) != 0 {
		t.Errorf("List under another root: %q, %v", listed, err)
	}
}

// holdMany locks n names, 64 at a time.
func holdMany(t *testing.T, c *dlock.Client, n int) []*dlock.Lease {
	t.Helper()
	leases := make([]*dlock.Lease, n)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				l, err := c.Mutex(fmt.Sprint("holding/", i)).Lock(t.Context())
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				leases[i] = l
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return leases
}

// standstill measures for how long this process stood still until stop is called, for what is to be done by itself within some time.
func standstill() (stop func() time.Duration) {
	const step = 5 * time.Millisecond
	over, sum := make(chan struct{}), make(chan time.Duration)
	go func() {
		var still time.Duration
		for last, going := time.Now(), true; going; {
			select {
			case <-over:
				going = false
			case <-time.After(step):
			}
			now := time.Now()
			still += max(0, now.Sub(last)-2*step)
			last = now
		}
		sum <- still
	}()
	return func() time.Duration {
		close(over)
		return <-sum
	}
}

// mustLive fails the test if one of the leases was lost.
func mustLive(t *testing.T, leases []*dlock.Lease) {
	t.Helper()
	for i, l := range leases {
		if err := l.Err(); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
}
