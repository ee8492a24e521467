// Package steps has the steps that tests of all services share: acquire, hold, wait, take turns.
package steps

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
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// Request is a request for a name, by a client and an owner of its own.
func Request(name string) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, Client: driver.NewID(), TTL: time.Minute, Label: "a test"}
}

var clientIDs sync.Map // by backend

// Asked is a request of the backend's client for a name.
func Asked(b driver.Backend, name string, ttl time.Duration) driver.Request {
	client, _ := clientIDs.LoadOrStore(b, driver.NewID())
	r := Request(name)
	r.Client, r.TTL = client.(driver.ID), ttl
	return r
}

// Waiting is Asked for a request that waits.
func Waiting(b driver.Backend, name string, ttl time.Duration) driver.Request {
	r := Asked(b, name, ttl)
	r.Wait = true
	return r
}

// Acquired acquires a request that has to be granted.
func Acquired(t service.T, b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := Acquire(ctx, b, r)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

// Acquire calls Acquire of the backend, and does what package dlock does after an error: a request
// that may stand is released in the background, until the release is answered.
func Acquire(ctx context.Context, b driver.Backend, r driver.Request) (driver.Grant, error) {
	g, err := b.Acquire(ctx, r)
	if err != nil && !driver.Refused(err) {
		go releaseFailed(b, r, err)
	}
	return g, err
}

// AcquireOrRelease is Acquire that returns after that release: until then a driver may know of a
// request that the service does not have any more.
func AcquireOrRelease(ctx context.Context, b driver.Backend, r driver.Request) (driver.Grant, error) {
	g, err := b.Acquire(ctx, r)
	if err != nil && !driver.Refused(err) {
		releaseFailed(b, r, err)
	}
	return g, err
}

// releaseFailed releases a request whose Acquire failed with err, until the release is answered.
func releaseFailed(b driver.Backend, r driver.Request, err error) {
	r.Uncertain = !driver.HasWaited(err)
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		err := b.Release(ctx, r)
		cancel()
		if err == nil || errors.Is(err, driver.ErrLost) || errors.Is(err, driver.ErrClosed) {
			return
		}
	}
}

// Released releases a request that has to be there.
func Released(t service.T, b driver.Backend, r driver.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.Release(ctx, r); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// Queue returns the queue of a name.
func Queue(t service.T, b driver.Backend, name string) driver.Queue {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	q, err := b.Inspect(ctx, name)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return q
}

// Refused acquires a name that is held until that time at least. Nothing excuses an earlier grant.
func Refused(t testing.TB, b driver.Backend, r driver.Request, until time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch _, err := Acquire(ctx, b, r); {
	case err == nil && time.Now().Before(until):
		service.Strict(t).Fatalf("Acquire of %s, which another holds, was granted", r.Name)
	case !errors.Is(err, driver.ErrHeld):
		t.Fatalf("Acquire of %s, which another holds: %v", r.Name, err)
	}
}

// Acquiring calls Acquire, and sends the result.
func Acquiring(b driver.Backend, r driver.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := Acquire(ctx, b, r)
		done <- err
	}()
	return done
}

// Renewed renews one request.
func Renewed(b driver.Backend, r driver.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return b.Renew(ctx, []driver.Request{r})[0].Err
}

// ClientOf is dlock.New over a backend.
func ClientOf(t service.T, b driver.Backend, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.New(b, append([]dlock.Option{dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// MustLock takes a lock.
func MustLock(t testing.TB, m dlock.Mutex) *dlock.Lease {
	t.Helper()
	l, err := m.Lock(await.Bounded(t, time.Minute))
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

// NamesApart lets b hold every name, and inspects them through other, which shares its keys or
// rows, and through foreign, which has another root: no name is taken for another, and there is
// nothing under another root.
func NamesApart(t testing.TB, b, other, foreign listing, names []string) {
	t.Helper()
	const ttl = 10 * time.Minute // the names are not renewed, and there may be many
	tokens, until := map[string]driver.Token{}, time.Now().Add(ttl)
	for i, n := range names {
		if slices.Contains(names[:i], n) {
			t.Fatalf("%q is there twice", n)
		}
		tokens[n] = Acquired(t, b, Asked(b, n, ttl)).Token
	}
	for _, n := range names {
		Refused(t, other, Asked(other, n, ttl), until)
		if q := Queue(t, other, n); q.Len() != 1 || q.Arrivals[0].Token != tokens[n] || q.Arrivals[0].Name != n {
			t.Errorf("%q: %+v", n, q)
		}
		if q := Queue(t, foreign, n); q.Len() != 0 {
			t.Errorf("under another root, %q: %+v", n, q)
		}
	}
	listed, err := other.List(t.Context())
	slices.Sort(listed)
	names = slices.Sorted(slices.Values(names))
	if err != nil || !slices.Equal(listed, names) {
		t.Errorf("List: %q, %v", listed, err)
	}
	if listed, err := foreign.List(t.Context()); err != nil || len(listed) != 0 {
		t.Errorf("List under another root: %q, %v", listed, err)
	}
}

// HoldMany locks n names, 16 at a time. A Lock that fails is tried again, since a slow server may
// drop a few of so many.
func HoldMany(t testing.TB, c *dlock.Client, n int) []*dlock.Lease {
	t.Helper()
	leases := make([]*dlock.Lease, n)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				m := c.Mutex(fmt.Sprint("holding/", i))
				l, err := m.Lock(await.Context(t))
				for tries := 0; err != nil && tries < 3; tries++ {
					l, err = m.Lock(await.Context(t))
				}
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				leases[i] = l
			}
		})
	}
	await.All(t, &wg)
	if t.Failed() {
		t.FailNow()
	}
	return leases
}

// MeasureStalls measures for how long the machine did not run this process, until stop is called.
// It is for tests with a time limit.
func MeasureStalls() (stop func() time.Duration) {
	const step = 5 * time.Millisecond
	over, sum := make(chan struct{}), make(chan time.Duration)
	go func() {
		var stalled time.Duration
		for last, going := time.Now(), true; going; {
			select {
			case <-over:
				going = false
			case <-time.After(step):
			}
			now := time.Now()
			stalled += max(0, now.Sub(last)-2*step)
			last = now
		}
		sum <- stalled
	}()
	return func() time.Duration {
		close(over)
		return <-sum
	}
}

// MustLive fails the test if one of the leases was lost.
func MustLive(t testing.TB, leases []*dlock.Lease) {
	t.Helper()
	for i, l := range leases {
		if err := l.Err(); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
}
