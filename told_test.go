package dlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/internal/hold"
)

// isContext reports whether err looks as if the caller's context had ended.
func isContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func TestWaitBoundsTheWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		held := mustLock(t, c.Mutex("a"), t.Context())
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, tt := range []struct {
			what       string
			ctx        context.Context
			m          Mutex
			took       time.Duration
			is, is2    error
			contextual bool
		}{
			{"Wait", t.Context(), c.Mutex("a", Wait(3*time.Second)), 3 * time.Second, ErrHeld, ErrHeld, false},
			{"Wait(0)", t.Context(), c.Mutex("a", Wait(0)), 0, ErrHeld, ErrHeld, false},
			{"Wait under All", t.Context(), All(c.Mutex("b"), c.Mutex("a", Wait(time.Second))), time.Second, ErrHeld, ErrHeld, false},
			{"negative", t.Context(), c.Mutex("a", Wait(-1)), 0, ErrInvalid, ErrInvalid, false},
			{"a context that ends before", short, c.Mutex("a", Wait(time.Minute)), time.Second, context.DeadlineExceeded, ErrHeld, true},
		} {
			if tt.contextual {
				tt.ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				defer cancel()
			}
			start := time.Now()
			bound, done := context.WithTimeout(tt.ctx, time.Hour) // renewals go on for ever
			_, err := tt.m.Lock(bound)
			done()
			if took := time.Since(start); took != tt.took || !errors.Is(err, tt.is) || !errors.Is(err, tt.is2) || isContext(err) != tt.contextual {
				t.Errorf("%s: %v after %s", tt.what, err, took)
			}
			if strings.Contains(err.Error(), "did not answer") {
				t.Errorf("%s: %v; the backend did answer", tt.what, err)
			}
		}
		if !free(t, c, "b") {
			t.Error("the part that All had is not given back")
		}

		time.AfterFunc(time.Second, func() { mustUnlock(t, held) })
		if err := Do(t.Context(), c.Mutex("a", Wait(2*time.Second)), func(ctx context.Context) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		}); err != nil {
			t.Error("Wait bounds the work:", err)
		}

		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) { return driver.Grant{}, hang(ctx) }
		start := time.Now()
		_, err := c.Mutex("a", Wait(2*time.Second)).Lock(t.Context())
		if took := time.Since(start); took != 2*time.Second || isContext(err) || errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), "did not answer within 2s") {
			t.Errorf("a backend that does not answer: %v after %s", err, took)
		}
	})
}

// Whatever the backend does, a call ends in time, and never with the error of a context that the
// caller did not give.
func TestEveryCallIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(time.Hour))
		l, m := mustLock(t, c.Mutex("a"), t.Context()), mustLock(t, c.Mutex("b"), t.Context())
		b.acquire = func(ctx context.Context, _ driver.Request) (driver.Grant, error) { return driver.Grant{}, hang(ctx) }
		b.renew = hungRenew
		b.release = func(ctx context.Context, _ driver.Request) error { return fmt.Errorf("dial: refused: %w", hang(ctx)) }
		for what, f := range map[string]func(context.Context) error{
			"TryLock": func(ctx context.Context) error { _, err := c.Mutex("x").TryLock(ctx); return err },
			"join": func(ctx context.Context) error {
				_, err := c.RWMutex("a").Read().Lock(l.Context(ctx))
				return err
			},
			"Renew":  l.Renew,
			"Unlock": m.Unlock,
		} {
			start := time.Now()
			err := f(t.Context())
			if took := time.Since(start); took != answerTime || err == nil || isContext(err) || answered(err) || !strings.Contains(err.Error(), "did not answer within 10s") {
				t.Errorf("%s: %v after %s", what, err, took)
			}
			if what == "Unlock" && !strings.Contains(err.Error(), "refused") {
				t.Error("the cause is not told:", err)
			}
		}
	})
}

var errNobody = errors.New("nobody listens")

func init() {
	driver.Register("stuck", func(ctx context.Context, _ driver.Config) (driver.Backend, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("dial: %w: %w", errNobody, ctx.Err())
	})
}

func TestOpenIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		_, err := Open(context.Background(), "stuck://u:secret@h")
		if took := time.Since(start); took != answerTime || !errors.Is(err, errNobody) || isContext(err) {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// A dialler's own timeout matches context.DeadlineExceeded.
func TestADeadlineOfTheDriverIsNotTheCallers(t *testing.T) {
	c, b := newHooked(t)
	own := fmt.Errorf("dial tcp: i/o timeout: %w", context.DeadlineExceeded)
	b.acquire = func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, own }
	b.renew = func(_ context.Context, rs []driver.Request) []driver.Renewal { return []driver.Renewal{{Err: own}} }
	_, err := c.Mutex("a").Lock(t.Context())
	if isContext(err) || !errors.Is(err, own) || !strings.Contains(err.Error(), "i/o timeout") {
		t.Error(err)
	}
	b.acquire = nil
	l := mustLock(t, c.Mutex("a"), t.Context())
	if err := l.Renew(t.Context()); isContext(err) || !errors.Is(err, own) {
		t.Error(err)
	}
	b.release = func(context.Context, driver.Request) error { return own }
	if err := c.Close(); err == nil || isContext(err) {
		t.Error("Close:", err)
	}
}

// The end of a wait because an outer lease was lost is not the loss of what was waited for.
func TestAWaitThatEndsWithAnOuterLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		space := new(memory.Space)
		c, other := newOn(t, newMemory(space)), newOn(t, newMemory(space))
		mustLock(t, other.Mutex("b"), t.Context())
		outer := mustLock(t, c.Mutex("a", FixedLease(5*time.Second)), t.Context())
		start := time.Now()
		_, err := c.Mutex("b").Lock(outer.Context(t.Context()))
		if took := time.Since(start); took > 5*time.Second {
			t.Error("after", took)
		}
		for _, is := range []error{context.Canceled, ErrLost, ErrHeld} {
			wantErr(t, err, is)
		}
	})
}

func TestAllTellsALossFromTheEndOfAContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _ := newHooked(t)
		mustLock(t, c.Mutex("b"), t.Context())
		start := time.Now()
		_, err := All(c.Mutex("a", FixedLease(5*time.Second)), c.Mutex("b")).Lock(t.Context())
		wantErr(t, err, ErrLost)
		if isContext(err) || errors.Is(err, ErrHeld) || time.Since(start) > 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
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

func TestAWaitForOneselfIsTold(t *testing.T) {
	const ttl = 10 * time.Second
	const says = "pass lease.Context"
	for what, tt := range map[string]struct {
		hold, wait func(c, other *Client) Mutex
		foreign    bool
		warns      int
	}{
		"exclusive": {hold: func(c, _ *Client) Mutex { return c.Mutex("a", Label("till 3")) }, wait: func(c, _ *Client) Mutex { return c.Mutex("a") }, warns: 1},
		"under All": {hold: func(c, _ *Client) Mutex { return c.Mutex("a", Label("till 3")) }, wait: func(c, _ *Client) Mutex { return All(c.Mutex("A"), c.Mutex("a")) }, warns: 1},
		"a permit":  {hold: func(c, _ *Client) Mutex { return c.Semaphore("a", 1, Label("till 3")) }, wait: func(c, _ *Client) Mutex { return c.Semaphore("a", 1) }, warns: 1},
		"a writer":  {hold: func(c, _ *Client) Mutex { return c.RWMutex("a", Label("till 3")).Read() }, wait: func(c, _ *Client) Mutex { return c.Mutex("a") }, warns: 1},
		"another's": {hold: func(_, other *Client) Mutex { return other.Mutex("a") }, wait: func(c, _ *Client) Mutex { return c.Mutex("a") }},
	} {
		bubble(t, func(t *testing.T) {
			var log syncBuffer
			space := new(memory.Space)
			c, other := newOn(t, newMemory(space), TTL(ttl), Logger(textLogger(&log))), newOn(t, newMemory(space), TTL(ttl))
			l := mustLock(t, tt.hold(c, other), t.Context())
			time.Sleep(time.Minute) // however old the hold is
			got := make(chan *Lease)
			go func() { got <- mustLock(t, tt.wait(c, other), t.Context()) }()
			time.Sleep(ttl - time.Second)
			if s := log.String(); s != "" {
				t.Errorf("%s: too early: %s", what, s)
			}
			time.Sleep(5 * ttl)
			s := log.String()
			if strings.Count(s, says) != tt.warns || tt.warns > 0 && (!strings.Contains(s, "level=WARN") || !strings.Contains(s, "name=a") || !strings.Contains(s, "till 3") || !strings.Contains(s, "held=1m10s")) {
				t.Errorf("%s: want %d warnings: %s", what, tt.warns, s)
			}
			mustUnlock(t, l)
			mustUnlock(t, <-got)
		})
	}
	// Contention is no wait for oneself, however long it lasts: each hold is short.
	bubble(t, func(t *testing.T) {
		var log syncBuffer
		c := newOn(t, newMemory(nil), TTL(time.Second), Logger(textLogger(&log)))
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				l := mustLock(t, c.Mutex("a"), t.Context())
				time.Sleep(100 * time.Millisecond)
				mustUnlock(t, l)
			})
		}
		wg.Wait()
		if s := log.String(); s != "" {
			t.Error(s)
		}
	})
	// However many wait, each hold is told of once.
	bubble(t, func(t *testing.T) {
		var log syncBuffer
		c := newOn(t, newMemory(nil), TTL(time.Second), Logger(textLogger(&log)))
		l := mustLock(t, c.Mutex("a", Label("first")), t.Context())
		second := c.Mutex("a", Label("second"))
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				l := mustLock(t, second, t.Context())
				if strings.Count(log.String(), says) == 1 {
					time.Sleep(10 * time.Second)
				}
				mustUnlock(t, l)
			})
		}
		time.Sleep(10 * time.Second)
		if s := log.String(); strings.Count(s, says) != 1 || !strings.Contains(s, "holder=first") {
			t.Errorf("with 100 that wait: %s", s)
		}
		mustUnlock(t, l)
		wg.Wait()
		if s := log.String(); strings.Count(s, says) != 2 || !strings.Contains(s, "holder=second") {
			t.Errorf("after the second hold: %s", s)
		}
	})
	// TryLock says it at once, and only if it is so.
	space := new(memory.Space)
	c, other := newOn(t, newMemory(space)), newOn(t, newMemory(space))
	mustLock(t, c.Mutex("mine"), t.Context())
	mustLock(t, other.Mutex("theirs"), t.Context())
	for name, own := range map[string]bool{"mine": true, "theirs": false} {
		for _, m := range []Mutex{c.Mutex(name), All(c.Mutex("free"), c.Mutex(name))} {
			_, err := m.TryLock(t.Context())
			wantErr(t, err, ErrHeld)
			if strings.Contains(err.Error(), "held by this client") != own {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// The watch over waiters costs nothing that is not paid anyway.
// A fixed lease is over for its holder a margin before its time, and for others when its time is.
func TestAFixedLeaseStandsUntilItsTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const d = time.Minute
		space := new(memory.Space)
		b := &hooked{Backend: newMemory(space)}
		c, other := newOn(t, b), newOn(t, newMemory(space))
		start := time.Now()
		l := mustLock(t, c.Mutex("a", FixedLease(d)), t.Context())
		<-l.Lost()
		if told := time.Since(start); told != d-hold.Margin(d) {
			t.Errorf("its holder is told after %s", told)
		}
		if _, err := c.Mutex("a").Lock(WithOwner(t.Context(), mustParse(t, l.Owner().String()))); !errors.Is(err, ErrLost) {
			t.Errorf("a join by the client that was told: %v", err)
		}
		if n := b.releases.Load(); n != 0 {
			t.Errorf("%d releases before its time is over", n)
		}
		next := mustLock(t, other.Mutex("a"), t.Context())
		if in := time.Since(start); in != d {
			t.Errorf("the next is in after %s", in)
		}
		time.Sleep(time.Second)
		if n := b.releases.Load(); n != 1 {
			t.Errorf("%d releases when its time is over", n)
		}
		mustUnlock(t, next)
	})
}

// A driver that says that nothing of the TTL is left is believed.
func TestAGrantThatIsOverIsNotTrusted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := b.Backend.Acquire(ctx, r)
			g.TTL = -time.Millisecond
			return g, err
		}
		_, err := c.Mutex("a").Lock(t.Context())
		wantErr(t, err, ErrLost)
	})
}

func TestLockAllocates(t *testing.T) {
	const most = 10 // 9 without the race detector
	c, _ := newHooked(t)
	m := c.Mutex("a")
	if n := testing.AllocsPerRun(200, func() { mustUnlock(t, mustLock(t, m, t.Context())) }); n > most {
		t.Errorf("Lock and Unlock make %v allocations; want %d at most", n, most)
	}
	l := mustLock(t, m, t.Context())
	if n := testing.AllocsPerRun(200, func() { l.Err() }); n > 0 {
		t.Errorf("Err makes %v allocations; want none", n)
	}
}

func TestALostHoldIsNotJoinedByItsText(t *testing.T) {
	bubble(t, func(t *testing.T) {
		space := new(memory.Space)
		b := &hooked{Backend: newMemory(space)}
		c, other := newOn(t, b, TTL(time.Second)), newOn(t, newMemory(space))
		var cut atomic.Bool
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			if cut.Load() {
				b.Backend.Renew(ctx, rs) // the service hears it, and the client does not know
				return hungRenew(ctx, rs)
			}
			return b.Backend.Renew(ctx, rs)
		}
		b.release = func(ctx context.Context, r driver.Request) error {
			if cut.Load() {
				return hang(ctx)
			}
			return b.Backend.Release(ctx, r)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		text := WithOwner(t.Context(), mustParse(t, l.Owner().String()))
		mustUnlock(t, mustLock(t, c.Mutex("a"), text)) // while it is trusted
		cut.Store(true)
		for range 100 { // whoever is told first asks at once
			ctx := l.Context(t.Context())
			context.AfterFunc(ctx, func() {
				if _, err := c.RWMutex("a").Read().TryLock(text); !errors.Is(err, ErrLost) {
					t.Errorf("a join by one who was told of the loss: %v", err)
				}
			})
		}
		<-l.Lost()
		if free(t, other, "a") {
			t.Fatal("the service does not have the hold any more; this test proves nothing")
		}
		_, err := c.Mutex("a").Lock(text)
		wantErr(t, err, ErrLost)
		synctest.Wait()
		cut.Store(false)
		time.Sleep(grace + 2*longestPause)
		if !free(t, other, "a") {
			t.Error("not given back")
		}
		_, err = c.Mutex("a").Lock(text)
		wantErr(t, err, ErrLost)
	})
}

func TestFixedLeasesOverClose(t *testing.T) {
	for _, outlives := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			space := new(memory.Space)
			b := &hooked{Backend: newMemory(space), caps: func(c *driver.Capabilities) { c.FixedOutlives = outlives }}
			c, other := newOn(t, b), newOn(t, newMemory(space))
			l := mustLock(t, c.Mutex("a", FixedLease(time.Hour)), t.Context())
			mustLock(t, c.Mutex("b"), t.Context())
			c.Close()
			wantErr(t, l.Err(), ErrClosed)
			if free(t, other, "a") == outlives || !free(t, other, "b") {
				t.Errorf("FixedOutlives %t: after Close the fixed lease is free: %t", outlives, free(t, other, "a"))
			}
			if outlives {
				mustUnlock(t, mustLock(t, other.Mutex("a"), t.Context()))
			}
		})
	}
}

func TestThePlannedEndOfAFixedLeaseIsNoWarning(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log syncBuffer
		c := newOn(t, newMemory(nil), Logger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		fixed := mustLock(t, c.Mutex("a", FixedLease(time.Second)), t.Context())
		<-fixed.Lost()
		synctest.Wait()
		if s := log.String(); strings.Contains(s, "WARN") || !strings.Contains(s, "level=DEBUG msg=\"dlock: lease lost\"") {
			t.Error(s)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		c.Break(t.Context(), "a", l.Token(), Force())
		<-l.Lost()
		synctest.Wait()
		if s := log.String(); !strings.Contains(s, "level=WARN msg=\"dlock: lease lost\"") {
			t.Error(s)
		}
	})
}

func TestTheDefaultTTLIsOneThatTheBackendKeeps(t *testing.T) {
	for _, tt := range []struct {
		least, most time.Duration
		opts        []Option
		want        time.Duration
	}{
		{0, 0, nil, defaultTTL},
		{0, 28 * time.Second, nil, 28 * time.Second},
		{time.Minute, 0, nil, time.Minute},
		{0, 28 * time.Second, []Option{TTL(10 * time.Second)}, 10 * time.Second},
		{0, 28 * time.Second, []Option{TTL(30 * time.Second)}, 0},
	} {
		b := &hooked{Backend: newMemory(nil), caps: func(c *driver.Capabilities) { c.MinTTL, c.MaxTTL = tt.least, tt.most }}
		c, err := New(b, tt.opts...)
		if tt.want == 0 {
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "28s") {
				t.Errorf("a TTL over MaxTTL: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if l := mustLock(t, c.Mutex("a"), t.Context()); l.shares[0].held.Request().TTL != tt.want {
			t.Errorf("%+v: %s", tt, l.shares[0].held.Request().TTL)
		}
		if _, err := c.Mutex("b", FixedLease(day)).TryLock(t.Context()); tt.most > 0 && !errors.Is(err, ErrInvalid) {
			t.Errorf("a fixed lease over MaxTTL: %v", err)
		}
		c.Close()
	}
}

// slowToLeave is a parent from which a context is slow to come away when it ends.
type slowToLeave struct{ context.Context }

// Done is never closed.
func (slowToLeave) Done() <-chan struct{} { return make(chan struct{}) }

// AfterFunc is what package context asks such a parent for.
func (slowToLeave) AfterFunc(func()) (stop func() bool) {
	return func() bool {
		time.Sleep(time.Second)
		return true
	}
}

func TestAllHearOfALossBeforeTheHoldIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		var second atomic.Pointer[Lease]
		var early atomic.Bool
		b.release = func(ctx context.Context, r driver.Request) error {
			early.Store(!isLost(second.Load()))
			return b.Backend.Release(ctx, r)
		}
		m := c.Mutex("a", FixedLease(time.Minute))
		first := mustLock(t, m, t.Context())
		second.Store(mustLock(t, m, first.Context(slowToLeave{context.Background()})))
		time.Sleep(2 * time.Minute)
		if b.releases.Load() == 0 {
			t.Fatal("it was not given back")
		}
		if early.Load() {
			t.Error("the hold was given back before one of its leases had heard of the loss")
		}
	})
}
