package dlock

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// hooked is a backend whose calls a test can count, hang, fail and change.
type hooked struct {
	driver.Backend
	acquires, renews, releases atomic.Int64

	acquire func(ctx context.Context, r driver.Request) (driver.Grant, error)
	renew   func(ctx context.Context, rs []driver.Request) []driver.Renewal
	release func(ctx context.Context, r driver.Request) error
	inspect func(ctx context.Context, name string) (driver.Queue, error)
	caps    func(*driver.Capabilities)
}

func (b *hooked) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b.acquires.Add(1)
	if b.acquire != nil {
		return b.acquire(ctx, r)
	}
	return b.Backend.Acquire(ctx, r)
}

func (b *hooked) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	b.renews.Add(1)
	if b.renew != nil {
		return b.renew(ctx, rs)
	}
	return b.Backend.Renew(ctx, rs)
}

func (b *hooked) Release(ctx context.Context, r driver.Request) error {
	b.releases.Add(1)
	if b.release != nil {
		return b.release(ctx, r)
	}
	return b.Backend.Release(ctx, r)
}

func (b *hooked) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if b.inspect != nil {
		return b.inspect(ctx, name)
	}
	return b.Backend.Inspect(ctx, name)
}

func (b *hooked) Capabilities() driver.Capabilities {
	caps := b.Backend.(driver.Capable).Capabilities()
	if b.caps != nil {
		b.caps(&caps)
	}
	return caps
}

func (b *hooked) Break(ctx context.Context, name string, t Token, force bool) error {
	return b.Backend.(driver.Breaker).Break(ctx, name, t, force)
}

// newMemory returns a backend of the space, or of its own one if that is nil.
func newMemory(space *memory.Space) *memory.Backend {
	b, err := memory.New(memory.Options{Space: space})
	if err != nil {
		panic(err)
	}
	return b
}

// newHooked returns a client of its own memory backend, and the hooks. Close is the test's cleanup.
func newHooked(t testing.TB, opts ...Option) (*Client, *hooked) {
	t.Helper()
	b := &hooked{Backend: newMemory(nil)}
	return newOn(t, b, opts...), b
}

func newOn(t testing.TB, b driver.Backend, opts ...Option) *Client {
	t.Helper()
	c, err := New(b, append([]Option{Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// bubble runs f in virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func mustLock(t testing.TB, m Mutex, ctx context.Context) *Lease {
	t.Helper()
	l, err := m.Lock(ctx)
	if err != nil {
		t.Fatalf("Lock(%s): %v", m.Name(), err)
	}
	return l
}

func mustUnlock(t testing.TB, l *Lease) {
	t.Helper()
	if err := l.Unlock(context.Background()); err != nil {
		t.Fatalf("Unlock: %v", err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v; want one that matches %q", err, want)
	}
	if e := (*Error)(nil); !errors.As(err, &e) {
		t.Fatalf("error %v is no *Error", err)
	}
}

func isLost(l *Lease) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

// free reports that the name has neither holders nor waiters.
func free(t testing.TB, c *Client, name string) bool {
	t.Helper()
	q, err := c.Inspect(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	return q.Len() == 0
}

// goroutinesLeft returns how many goroutines there are, once there are no more than want:
// [runtime.NumGoroutine] counts those that are just ending, and the runtime's while it runs a
// finalizer. On a busy machine that takes a while, which the clock of a bubble cannot measure.
func goroutinesLeft(want int) (n int) {
	for range 10_000_000 {
		if n = runtime.NumGoroutine(); n <= want {
			break
		}
		runtime.Gosched()
	}
	return n
}

// hang is a call that never gets through: it returns when its context ends.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func hungRenew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	err := hang(ctx)
	res := make([]driver.Renewal, len(rs))
	for i := range res {
		res[i].Err = err
	}
	return res
}

const day = 24 * time.Hour

// longestPause is the longest between two attempts to release in the background.
const longestPause = 5 * time.Second

// clock is an option that sets the clock of the client's holds.
type clock func() time.Time

func (now clock) client(s *settings) { s.now = now }

// asleep is a reading of time.Now from before the machine was suspended for d, or, if d is
// negative, from after it was: the monotonic clock stood still.
func asleep(d time.Duration) time.Time {
	now := time.Now().Add(-d)
	(*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&now)).ext += int64(d)
	return now
}

// mustBeLost waits until the lease is lost, for an hour of virtual time at most.
func mustBeLost(t *testing.T, l *Lease) {
	t.Helper()
	select {
	case <-l.Lost():
	case <-time.After(time.Hour):
		t.Fatal("the loss was not reported")
	}
}

// isContext reports whether err looks as if the caller's context had ended.
func isContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
