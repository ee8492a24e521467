package dlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/hold"
)

func TestADayOfHeldLeases(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		var ls []*Lease
		for i := range 20 {
			ls = append(ls, mustLock(t, c.Mutex(fmt.Sprint(i)), t.Context()))
			time.Sleep(700 * time.Millisecond)
		}
		start := b.renews.Load()
		time.Sleep(day)
		if got, want := b.renews.Load()-start, int64(day/(10*time.Second)); got < want-1 || got > want+1 {
			t.Errorf("%d renewals in a day; want %d: one batch each TTL/3", got, want)
		}
		for _, l := range ls {
			if err := l.Err(); err != nil {
				t.Errorf("%s: %v", l.Name(), err)
			}
			mustUnlock(t, l)
		}
	})
}

func TestLossIsSignalledOnTimeWhileRenewHangs(t *testing.T) {
	for _, stuck := range []bool{false, true} { // the call ignores even its context
		t.Run(fmt.Sprintf("stuck=%t", stuck), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c, b := newHooked(t, TTL(30*time.Second))
				heal := make(chan struct{})
				b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
					if stuck {
						<-heal
					}
					return hungRenew(ctx, rs)
				}
				defer close(heal)
				start := time.Now()
				var ls []*Lease
				for i := range 100 {
					ls = append(ls, mustLock(t, c.Mutex(fmt.Sprint(i)), t.Context()))
					time.Sleep(10 * time.Millisecond)
				}
				ctx := ls[0].Context(t.Context())
				for i, l := range ls {
					<-l.Lost()
					at, server := time.Since(start), time.Duration(i)*10*time.Millisecond+30*time.Second
					if want := server - hold.Margin(30*time.Second); at != want {
						t.Fatalf("lease %d was lost after %s; want %s, and %s is the server's", i, at, want, server)
					}
					wantErr(t, l.Err(), ErrLost)
				}
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), ErrLost) {
					t.Errorf("cause %v; want ErrLost", context.Cause(ctx))
				}
				wantErr(t, ls[0].Unlock(t.Context()), ErrLost)
			})
		})
	}
}

func TestARenewalThatFailsIsTriedAgainBeforeTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		var fails atomic.Int64
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			if fails.Add(1) <= 5 {
				// a driver that answers nothing is an unknown outcome too
				return make([]driver.Renewal, 0)
			}
			return b.Backend.Renew(ctx, rs)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		time.Sleep(5 * time.Minute)
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		if n := fails.Load(); n < 30 || n > 36 {
			t.Errorf("%d renewals in 5 minutes, 5 of them failed", n)
		}
	})
}

func TestALostHoldIsReleasedAndTheNextIsRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		var cut atomic.Bool
		cut.Store(true)
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			if cut.Load() {
				return hungRenew(ctx, rs)
			}
			return b.Backend.Renew(ctx, rs)
		}
		var late []driver.Request
		b.release = func(ctx context.Context, r driver.Request) error {
			if cut.Load() {
				return hang(ctx)
			}
			late = append(late, r)
			return b.Backend.Release(ctx, r)
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		<-l.Lost()
		cut.Store(false)
		l2 := mustLock(t, c.Mutex("a"), t.Context())
		if l2.Token() <= l.Token() {
			t.Errorf("token %d after %d", l2.Token(), l.Token())
		}
		time.Sleep(time.Hour)
		if err := l2.Err(); err != nil {
			t.Fatal("the next lease was not renewed:", err)
		}
		if len(late) != 1 || late[0].ID != l.Owner().id || !late[0].Uncertain {
			t.Errorf("released in the background: %+v; want the lost request, marked as uncertain", late)
		}
		mustUnlock(t, l2)
	})
}

func TestAHoldTheBackendDeniesIsLostAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		l := mustLock(t, c.Mutex("a"), t.Context())
		if err := b.Break(t.Context(), "a", l.Token(), false); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		<-l.Lost()
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("lost %s after the break; the next renewal is due within 10s", d)
		}
	})
}

func TestGrantsOfAnOldInstantAreRenewedInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		mustLock(t, c.Mutex("young"), t.Context()) // its ticker is due in 10s
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := b.Backend.Acquire(ctx, r)
			g.SentAt = g.SentAt.Add(-25 * time.Second) // 5s left: the backend reported what remains
			return g, err
		}
		old := mustLock(t, c.Mutex("old"), t.Context())
		time.Sleep(time.Minute)
		if err := old.Err(); err != nil {
			t.Fatal(err)
		}
	})
}

// Not in a bubble, where times have no monotonic reading.
func TestASuspendedMachineRenewsItsHoldsBeforeItTrustsThem(t *testing.T) {
	ahead := time.Duration(0)
	now := func() time.Time { return asleep(-ahead) }
	c, b := newHooked(t, TTL(30*time.Second), clock(now))
	b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
		at := now()
		res := b.Backend.Renew(ctx, rs)
		for i := range res {
			res[i].SentAt = at
		}
		return res
	}
	l := mustLock(t, c.Mutex("a"), t.Context())
	ctx := l.Context(t.Context())

	if _, err := c.Mutex("a").Lock(ctx); err != nil || b.renews.Load() != 0 {
		t.Fatalf("re-entry: %v, %d renewals; want none", err, b.renews.Load())
	}
	// the wall clock went on, the monotonic one did not; the backend still has the hold
	ahead = time.Minute
	if _, err := c.Mutex("a").Lock(ctx); err != nil || b.renews.Load() != 1 {
		t.Fatalf("re-entry after a suspension: %v, %d renewals; want one", err, b.renews.Load())
	}
	if _, err := c.Mutex("a").Lock(ctx); err != nil || b.renews.Load() != 1 {
		t.Fatalf("re-entry after the renewal: %v, %d renewals; want no other", err, b.renews.Load())
	}
	ahead = 2 * time.Minute // by now the backend has ended it
	if err := b.Break(t.Context(), "a", l.Token(), true); err != nil {
		t.Fatal(err)
	}
	wantErr(t, l.Err(), ErrLost)
	if !isLost(l) {
		t.Error("not signalled")
	}
}

func TestTrust(t *testing.T) {
	for _, ttl := range []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, 30 * time.Second, day} {
		if m := hold.Margin(ttl); m <= 0 || m > ttl/2 || m > time.Second || ttl >= time.Second && m < 50*time.Millisecond {
			t.Errorf("hold.Margin(%s) = %s", ttl, m)
		}
	}
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t)
		l := mustLock(t, c.Mutex("a", FixedLease(time.Hour)), t.Context())
		until := l.Until()
		renew := func(ttl time.Duration, age time.Duration) {
			b.renew = func(context.Context, []driver.Request) []driver.Renewal {
				return []driver.Renewal{{TTL: ttl, SentAt: time.Now().Add(-age)}}
			}
			if err := l.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		renew(2*time.Hour, time.Minute) // the reply to a call that was sent before the last renewal
		if l.Until() != until {
			t.Error("an older renewal counted")
		}
		start := time.Now()
		renew(10*time.Second, 0) // the backend keeps it for less than before
		<-l.Lost()
		if d := time.Since(start); d != 10*time.Second-hold.Margin(10*time.Second) {
			t.Errorf("lost after %s", d)
		}
	})
}

func TestTenThousandLeasesAreCheap(t *testing.T) {
	const n = 10000
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		var batch atomic.Int64
		var hung atomic.Bool
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			if hung.Load() {
				return hungRenew(ctx, rs)
			}
			batch.Store(max(batch.Load(), int64(len(rs))))
			return b.Backend.Renew(ctx, rs)
		}
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint("orders/", i)
		}
		// What the backend keeps of n requests is not the client's: measured alone first.
		raw := heapOf(func() any {
			for i, name := range names {
				id := driver.NewID()
				if _, err := b.Backend.Acquire(t.Context(), driver.Request{Name: "raw" + name, ID: id, Owner: id, TTL: time.Hour}); err != nil {
					t.Fatal(i, err)
				}
			}
			return nil
		})
		goroutines := runtime.NumGoroutine()
		ls := make([]*Lease, n)
		all := heapOf(func() any {
			for i, name := range names {
				ls[i] = mustLock(t, c.Mutex(name), t.Context())
			}
			return ls
		})
		if per := (all - raw) / n; per > 1024 {
			t.Errorf("%d bytes of heap for each lease; at most 1024", per)
		} else {
			t.Logf("%d bytes of heap for each lease, and %d for the memory backend's entry", per, raw/n)
		}
		renews := b.renews.Load()
		time.Sleep(10 * time.Minute)
		if got := b.renews.Load() - renews; got > 61 || batch.Load() != n {
			t.Errorf("%d calls to Renew in 60 TTL/3, the largest of %d; want one of %d each", got, batch.Load(), n)
		}
		if got := goroutinesLeft(goroutines+4) - goroutines; got > 4 {
			t.Errorf("%d goroutines for %d leases; at most 4", got, n)
		}
		hung.Store(true)
		start := time.Now()
		for _, l := range ls {
			<-l.Lost()
		}
		if d := time.Since(start); d > 30*time.Second {
			t.Errorf("all learned of the loss after %s", d)
		}
		synctest.Wait()
	})
}

func heapOf(f func() any) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	keep := f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(keep)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

func TestAPausedClientFindsOutByItself(t *testing.T) {
	// The timer that reports a loss has not run yet when the process wakes up: every method judges
	// by the clock.
	late := time.Duration(0)
	c, _ := newHooked(t, TTL(time.Hour), clock(func() time.Time { return time.Now().Add(late) }))
	for what, try := range map[string]func(*Lease, context.Context) error{
		"Err":    func(l *Lease, _ context.Context) error { return l.Err() },
		"Unlock": func(l *Lease, ctx context.Context) error { return l.Unlock(ctx) },
		"Renew":  func(l *Lease, ctx context.Context) error { return l.Renew(ctx) },
		"Lock":   func(l *Lease, ctx context.Context) error { _, err := c.Mutex(l.Name()).Lock(ctx); return err },
	} {
		l := mustLock(t, c.Mutex(what), t.Context())
		ctx := l.Context(t.Context())
		late = time.Hour
		wantErr(t, try(l, ctx), ErrLost)
		late = 0
		if !isLost(l) {
			t.Errorf("%s: Lost is not closed", what)
		}
	}
}

func TestLogsReportALossWithoutSecrets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var out strings.Builder
		c, b := newHooked(t, TTL(time.Second), Logger(textLogger(&out)))
		b.renew = hungRenew
		l := mustLock(t, c.Mutex("a"), t.Context())
		<-l.Lost()
		time.Sleep(time.Second)
		synctest.Wait()
		if s := out.String(); strings.Count(s, "renewal failed") != 1 {
			t.Errorf("want the failing renewals logged once; log: %s", s)
		}
		if s := out.String(); !strings.Contains(s, "lease lost") || !strings.Contains(s, "name=a") || strings.Contains(s, l.Owner().id.String()) {
			t.Errorf("log: %s", s)
		}
	})
}

// stuckHandler is a log handler whose reader has gone.
type stuckHandler struct {
	slog.Handler
	heal chan struct{}
}

func (h stuckHandler) Handle(context.Context, slog.Record) error { <-h.heal; return nil }

func stuckLogger(t *testing.T) *slog.Logger {
	heal := make(chan struct{})
	t.Cleanup(func() { close(heal) })
	return slog.New(stuckHandler{slog.NewTextHandler(io.Discard, nil), heal})
}

func TestALogThatHangsDelaysNoNewsOfALoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second), Logger(stuckLogger(t)))
		b.renew = hungRenew
		var ls []*Lease
		for i := range 100 {
			ls = append(ls, mustLock(t, c.Mutex(fmt.Sprint(i)), t.Context()))
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		for i, l := range ls {
			if !isLost(l) {
				t.Fatalf("lease %d was not notified", i)
			}
		}
	})
}

func TestALogThatHangsKeepsNoLeaseFromBeingRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second), Logger(stuckLogger(t)))
		lost := mustLock(t, c.Mutex("a"), t.Context())
		l := mustLock(t, c.Mutex("b"), t.Context())
		if err := b.Break(t.Context(), "a", lost.Token(), true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if !isLost(lost) || l.Err() != nil {
			t.Errorf("notified of the loss: %t; the other lease: %v", isLost(lost), l.Err())
		}
	})
}

func TestABackendThatKeepsLessThanBeforeIsRenewedMoreOften(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, b := newHooked(t, TTL(30*time.Second))
		var ttl atomic.Int64
		ttl.Store(int64(6 * time.Second))
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			res := b.Backend.Renew(ctx, rs)
			for i := range res {
				res[i].TTL = time.Duration(ttl.Load())
			}
			return res
		}
		l := mustLock(t, c.Mutex("a"), t.Context())
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		n := b.renews.Load()
		time.Sleep(time.Minute)
		if n = b.renews.Load() - n; n < 29 || n > 31 {
			t.Errorf("%d renewals in a minute; want one each 2s", n)
		}
		ttl.Store(int64(30 * time.Second))
		time.Sleep(time.Minute)
		n = b.renews.Load()
		time.Sleep(time.Minute)
		if n = b.renews.Load() - n; n < 5 || n > 7 {
			t.Errorf("%d renewals in a minute; want one each 10s again", n)
		}
	})
}

func TestAMachineSuspendedBeforeTheReplyArrived(t *testing.T) {
	if at := asleep(time.Hour); time.Since(at) > time.Minute || time.Now().Round(0).Sub(at.Round(0)) < time.Hour {
		t.Fatal("time.Time is not what asleep thinks it is")
	}
	c, b := newHooked(t, TTL(30*time.Second))
	suspended := true
	b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		g, err := b.Backend.Acquire(ctx, r)
		if suspended {
			suspended, g.SentAt = false, asleep(time.Hour)
		}
		return g, err
	}
	l := mustLock(t, c.Mutex("a"), t.Context())
	if a, r := b.acquires.Load(), b.releases.Load(); a != 2 || r != 1 {
		t.Errorf("%d requests, %d released; want the first, which may have expired, released", a, r)
	}
	b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
		res := b.Backend.Renew(ctx, rs)
		if b.renews.Load() == 1 {
			res[0].SentAt = asleep(time.Hour)
		}
		return res
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Err(); err != nil || b.renews.Load() != 2 {
		t.Errorf("%v after %d renewals; want a renewal after the suspension", err, b.renews.Load())
	}
}

// If the backend needs more time for all holds than one renewal has, it is not always the same
// holds that come last.
func TestASlowRenewalReachesEveryHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const ttl, holds = 12 * time.Second, 100
		c, b := newHooked(t, TTL(ttl))
		b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			var res []driver.Renewal
			for i := range rs {
				select {
				case <-time.After(ttl / 2 / holds): // the call has a third
					res = append(res, b.Backend.Renew(ctx, rs[i:i+1])...)
				case <-ctx.Done():
					res = append(res, driver.Renewal{Err: ctx.Err()})
				}
			}
			return res
		}
		mustKeep(t, c, holds, 10*ttl)
	})
}

// A hold whose renewal stays unknown does not delay the others, whether its error comes at once or
// never, and however long ago it was last renewed.
func TestAHoldThatStaysUnknownCostsTheOthersNothing(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		for age := range 48 {
			bubble(t, func(t *testing.T) {
				const ttl, holds = 12 * time.Second, 10
				c, b := newHooked(t, TTL(ttl))
				b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
					res, odd := b.Backend.Renew(ctx, rs), false
					for i, r := range rs {
						if strings.HasPrefix(r.Name, "unknown/") {
							res[i], odd = driver.Renewal{Err: errors.New("a foreign key")}, true
						}
					}
					if odd && hangs {
						<-ctx.Done()
					}
					return res
				}
				go func() { // a new one, when the one before is lost
					for i := 0; t.Context().Err() == nil; i++ {
						l, err := c.Mutex(fmt.Sprint("unknown/", i)).Lock(t.Context())
						if err != nil {
							return
						}
						select {
						case <-l.Lost():
						case <-t.Context().Done():
						}
					}
				}()
				time.Sleep(time.Duration(age) * ttl / 24)
				mustKeep(t, c, holds, 10*ttl)
			})
		}
	}
}

// mustKeep fails the test if the client loses one of its leases within d.
func mustKeep(t *testing.T, c *Client, leases int, d time.Duration) {
	t.Helper()
	var ls []*Lease
	for i := range leases {
		ls = append(ls, mustLock(t, c.Mutex(fmt.Sprint(i)), t.Context()))
	}
	time.Sleep(d)
	for i, l := range ls {
		if isLost(l) {
			t.Errorf("lease %d of %d is lost", i, leases)
		}
	}
}
