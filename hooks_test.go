package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/internal/hold"
	"github.com/dlock-go/dlock/internal/race"
)

// recorded has the calls of hooks.
type recorded struct {
	mu       sync.Mutex
	ops      []LockOp
	done     []error
	ends     []ended
	renewals []Renewal
}

// ended is the end of a hold, and the context that came with it.
type ended struct {
	HoldEnd
	ctx context.Context
}

type lockKey struct{}

// notifying is a hooked backend that reports losses by itself.
type notifying struct{ *hooked }

func (b notifying) Notify(lost func(driver.ID)) { b.Backend.(driver.Notifier).Notify(lost) }

func (h *recorded) hooks() Hooks {
	note := func(f func()) {
		h.mu.Lock()
		defer h.mu.Unlock()
		f()
	}
	return Hooks{
		Lock: func(ctx context.Context, op LockOp) (context.Context, func(*Lease, error)) {
			note(func() { h.ops = append(h.ops, op) })
			return context.WithValue(ctx, lockKey{}, op.Name), func(l *Lease, err error) {
				if (l == nil) == (err == nil) {
					panic("neither a lease nor an error, or both")
				}
				note(func() { h.done = append(h.done, err) })
			}
		},
		Ended:   func(ctx context.Context, e HoldEnd) { note(func() { h.ends = append(h.ends, ended{e, ctx}) }) },
		Renewed: func(r Renewal) { note(func() { h.renewals = append(h.renewals, r) }) },
	}
}

// last returns the last end, of so many.
func (h *recorded) last(t *testing.T, of int) ended {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ends) != of {
		t.Fatalf("%d calls of Ended; want %d: %+v", len(h.ends), of, h.ends)
	}
	return h.ends[of-1]
}

func TestHooksOfLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var h recorded
		c, _ := newHooked(t, Observe(h.hooks()), TTL(10*time.Second))
		l := mustLock(t, c.Mutex("a"), t.Context())
		ctx := l.Context(t.Context())
		mustUnlock(t, mustLock(t, c.Mutex("a"), ctx))               // re-enters
		mustUnlock(t, mustLock(t, c.RWMutex("a").Read(), ctx))      // joins: a hold of its own
		_, held := c.Mutex("a").TryLock(t.Context())                //
		_, waited := c.Mutex("a", Wait(time.Second)).Lock(ctx)      // re-enters
		_, never := c.Semaphore("b", 0).Lock(t.Context())           // invalid
		both := mustLock(t, All(c.Mutex("x"), c.Mutex("y")), ctx)   // each part
		_, tried := All(c.Mutex("x"), c.Mutex("z")).TryLock(ctx)    // the first part
		_, zero := c.Mutex("a", Wait(0)).Lock(context.Background()) //
		mustUnlock(t, both)
		if waited != nil {
			t.Fatal(waited)
		}
		var got []string
		for _, op := range h.ops {
			got = append(got, fmt.Sprintf("%s try=%t shared=%t limit=%d reenters=%t", op.Name, op.Try, op.Shared, op.Limit, op.Reenters))
			if op.Backend != "memory" || op.TTL != 10*time.Second {
				t.Errorf("%+v", op)
			}
		}
		want := []string{
			"a try=false shared=false limit=0 reenters=false",
			"a try=false shared=false limit=0 reenters=true",
			"a try=false shared=true limit=0 reenters=false",
			"a try=true shared=false limit=0 reenters=false",
			"a try=false shared=false limit=0 reenters=true",
			"b try=false shared=true limit=0 reenters=false",
			"x try=false shared=false limit=0 reenters=false",
			"y try=false shared=false limit=0 reenters=false",
			"x try=true shared=false limit=0 reenters=false",
			"a try=true shared=false limit=0 reenters=false",
		}
		if !slices.Equal(got, want) {
			t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		wantDone := []error{nil, nil, nil, held, nil, never, nil, nil, tried, zero}
		if len(h.done) != len(wantDone) {
			t.Fatalf("done %v; want %v", h.done, wantDone)
		}
		for i, err := range h.done {
			if (err == nil) != (wantDone[i] == nil) || err != nil && i != 8 && err != wantDone[i] {
				t.Errorf("done of %s: %v; Lock returned %v", got[i], err, wantDone[i])
			}
		}
		wantErr(t, h.done[8], ErrHeld)
	})
}

// Several hooks are called in order, and done in reverse order. Each sees the context of those
// before it.
func TestHooksAddUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var said []string
		hook := func(name string) Option {
			return Observe(Hooks{
				Lock: func(ctx context.Context, _ LockOp) (context.Context, func(*Lease, error)) {
					before, _ := ctx.Value(lockKey{}).(string)
					said = append(said, "lock "+before+name)
					return context.WithValue(ctx, lockKey{}, before+name), func(*Lease, error) { said = append(said, "done "+name) }
				},
				Ended: func(ctx context.Context, e HoldEnd) {
					said = append(said, "ended "+name+" of "+ctx.Value(lockKey{}).(string))
				},
			})
		}
		silent := Observe(Hooks{Lock: func(context.Context, LockOp) (context.Context, func(*Lease, error)) { return nil, nil }})
		c, _ := newHooked(t, hook("a"), silent, hook("b"))
		mustUnlock(t, mustLock(t, c.Mutex("n"), t.Context()))
		if want := "lock a, lock ab, done b, done a, ended b of ab, ended a of ab"; strings.Join(said, ", ") != want {
			t.Errorf("said %q; want %q", strings.Join(said, ", "), want)
		}
	})
}

func TestEndedIsCalledOnceWithTheReason(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var h recorded
		b := &hooked{Backend: newMemory(nil)}
		c := newOn(t, notifying{b}, Observe(h.hooks()), TTL(10*time.Second))
		var down atomic.Bool
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			if down.Load() {
				return hungRenew(ctx, rs)
			}
			return b.Backend.Renew(ctx, rs)
		}
		n := 0
		check := func(what string, l *Lease, held time.Duration, err error, why Loss) {
			t.Helper()
			n++
			e := h.last(t, n)
			if e.Name != l.Name() || e.Backend != "memory" || e.Token != l.Token() || e.Held != held || e.Loss != why || !errors.Is(e.Err, err) || (err == nil) != (e.Err == nil) {
				t.Errorf("%s: %+v; want %q, token %d, held %s, %v, %q", what, e, l.Name(), l.Token(), held, err, why)
			}
			if e.ctx.Value(lockKey{}) != l.Name() {
				t.Errorf("%s: the context is not that of its Lock", what)
			}
		}
		lock := func(opts ...LockOption) *Lease { return mustLock(t, c.Mutex(fmt.Sprint(n), opts...), t.Context()) }

		l := lock()
		again := mustLock(t, c.Mutex(l.Name()), l.Context(t.Context()))
		time.Sleep(time.Minute)
		mustUnlock(t, l)
		synctest.Wait()
		if len(h.ends) != 0 {
			t.Errorf("Ended was called while a lease is left: %+v", h.ends)
		}
		mustUnlock(t, again)
		check("released", l, time.Minute, nil, "")
		wantErr(t, l.Unlock(t.Context()), ErrNotHeld)

		l = lock()
		time.Sleep(time.Second)
		if err := c.Break(t.Context(), l.Name(), l.Token(), Force()); err != nil {
			t.Fatal(err)
		}
		check("reported", l, time.Second, ErrLost, LossReported)

		l = lock(TTL(12 * time.Second))
		if err := c.Break(t.Context(), l.Name(), l.Token()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		check("denied", l, 4*time.Second, ErrLost, LossDenied)

		l = lock()
		if err := c.Break(t.Context(), l.Name(), l.Token()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, l.Unlock(t.Context()), ErrLost)
		check("denied to its Unlock", l, 0, ErrLost, LossDenied)

		l = lock(FixedLease(5 * time.Second))
		time.Sleep(6 * time.Second)
		check("time up", l, 5*time.Second-hold.Margin(5*time.Second), ErrLost, LossTimeUp)

		l = lock()
		down.Store(true)
		time.Sleep(11 * time.Second)
		check("unproved", l, 10*time.Second-hold.Margin(10*time.Second), ErrLost, LossNotRenewed)
		down.Store(false)

		l = lock()
		time.Sleep(time.Hour)
		c.Close()
		check("closed", l, time.Hour, ErrClosed, "")
		if len(h.done) != n+1 {
			t.Errorf("%d Locks are done; want %d", len(h.done), n+1)
		}
	})
}

func TestRenewedIsCalledForEachBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var h recorded
		c, b := newHooked(t, Observe(h.hooks()), TTL(9*time.Second))
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			time.Sleep(100 * time.Millisecond)
			res := b.Backend.Renew(ctx, rs)
			if len(rs) == 3 {
				res[0].Err, res[1].Err = errors.New("no answer"), ErrLost
			}
			return res
		}
		var ls []*Lease
		for i := range 3 {
			ls = append(ls, mustLock(t, c.Mutex(fmt.Sprint(i)), t.Context()))
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		want := Renewal{Backend: "memory", TTL: 9 * time.Second, Holds: 3, Unknown: 1, Lost: 1, Took: 100 * time.Millisecond}
		if len(h.renewals) == 0 || h.renewals[0] != want {
			t.Fatalf("calls of Renewed: %+v; want first %+v", h.renewals, want)
		}
		n := len(h.renewals)
		for _, l := range ls {
			l.Renew(t.Context())
		}
		want.Holds, want.Unknown, want.Lost = 1, 0, 0
		if got := h.renewals[n:]; len(got) != 2 || got[0] != want || got[1] != want {
			t.Errorf("two calls of Renew are reported as %+v; want each %+v", got, want)
		}
	})
}

// Hooks that panic change nothing and are logged.
func TestHooksThatPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log syncBuffer
		c, _ := newHooked(t, TTL(9*time.Second), Logger(textLogger(&log)), Observe(Hooks{
			Lock: func(_ context.Context, op LockOp) (context.Context, func(*Lease, error)) {
				if op.Try {
					panic("in Lock")
				}
				return nil, func(*Lease, error) { panic("in done") }
			},
			Ended:   func(context.Context, HoldEnd) { panic("in Ended") },
			Renewed: func(Renewal) { panic("in Renewed") },
		}))
		l, err := c.Mutex("a").TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		lost := mustLock(t, c.Mutex("b"), t.Context())
		ctx := lost.Context(t.Context())
		time.Sleep(time.Hour)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		if err := c.Break(t.Context(), "b", lost.Token(), Force()); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		mustUnlock(t, l)
		last := mustLock(t, c.Mutex("c"), t.Context())
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		wantErr(t, last.Err(), ErrClosed)
		for _, where := range []string{"in Lock", "in done", "in Ended", "in Renewed"} {
			if !strings.Contains(log.String(), where) {
				t.Errorf("the log does not say that a hook panicked %s", where)
			}
		}
	})
}

// Hooks that hang delay no lease: leases are renewed, learn of a loss in time, and are released.
func TestHooksThatHang(t *testing.T) {
	bubble(t, func(t *testing.T) {
		heal := make(chan struct{})
		space := new(memory.Space)
		b := &hooked{Backend: newMemory(space)}
		c := newOn(t, notifying{b}, TTL(9*time.Second), Observe(Hooks{
			Ended:   func(context.Context, HoldEnd) { <-heal },
			Renewed: func(Renewal) { <-heal },
		}))
		other := newOn(t, newMemory(space))
		var ls []*Lease
		for i := range 5 {
			ls = append(ls, mustLock(t, c.Mutex(fmt.Sprint(i)), t.Context()))
			time.Sleep(time.Second / 2)
		}
		time.Sleep(time.Hour)
		for _, l := range ls {
			if err := l.Err(); err != nil {
				t.Fatalf("%s was not renewed: %v", l.Name(), err)
			}
		}
		for _, l := range ls[:2] { // the driver reports one after the other
			if err := other.Break(t.Context(), l.Name(), l.Token(), Force()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if !isLost(l) {
				t.Errorf("%s: the loss was not reported", l.Name())
			}
		}
		go ls[2].Unlock(t.Context())
		mustUnlock(t, mustLock(t, other.Mutex("2"), t.Context()))

		var down atomic.Bool
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			down.Store(true)
			return hungRenew(ctx, rs)
		}
		start, until := time.Now(), ls[3].Until()
		<-ls[3].Lost()
		<-ls[4].Lost()
		if took := time.Since(start); took > 9*time.Second || !down.Load() || time.Now().Before(until) {
			t.Errorf("the loss was reported after %s", took)
		}
		mustUnlock(t, mustLock(t, other.Mutex("4"), t.Context()))
		last := mustLock(t, c.Mutex("5"), t.Context())
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		wantErr(t, last.Err(), ErrClosed)
		start = time.Now()
		mustUnlock(t, mustLock(t, other.Mutex("5"), t.Context()))
		if time.Since(start) != 0 {
			t.Error("a hook delayed the releases of Close")
		}
		if err := <-closed; err != nil || time.Since(start) > 2*grace {
			t.Errorf("Close took %s: %v", time.Since(start), err)
		}
		close(heal)
	})
}

// A client without hooks pays nothing for them: the figures are those from before hooks existed.
func TestNilHooksCostNothing(t *testing.T) {
	if size := unsafe.Sizeof(held{}); unsafe.Sizeof(uintptr(0)) == 8 && size > 352 {
		t.Errorf("a hold takes %d bytes; 352 are a size of the allocator, and the next is 384", size)
	}
	c, _ := newHooked(t, TTL(day), Observe(Hooks{}))
	m, ctx := c.Mutex("a"), t.Context()
	allocates := func(what string, want float64, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(200, f); n != want {
			t.Errorf("%s makes %v allocations; want %v", what, n, want)
		}
	}
	lock := 8.0
	if race.Enabled {
		lock++ // made by the race detector
	}
	allocates("Lock and Unlock", lock, func() {
		l, _ := m.Lock(ctx)
		l.Unlock(ctx)
	})
	l := mustLock(t, m, ctx)
	inner := l.Context(ctx)
	allocates("re-entry and its Unlock", 1, func() {
		l, _ := m.Lock(inner)
		l.Unlock(inner)
	})
	allocates("Renew", 3, func() { l.Renew(ctx) })
}
