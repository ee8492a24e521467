package hold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const ttl = 12 * time.Second

// backend answers as a test sets it up: by default, that it has every hold.
type backend struct {
	renew   func(ctx context.Context, rs []driver.Request) []driver.Renewal
	release func(ctx context.Context, r driver.Request) error
	acquire func(ctx context.Context, r driver.Request) (driver.Grant, error)

	mu       sync.Mutex
	says     error // for each request, unless renew is set
	released []driver.Request
}

func (b *backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	if b.renew != nil {
		return b.renew(ctx, rs)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return answer(rs, b.says)
}

// say makes the backend answer that to each renewal.
func (b *backend) say(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.says = err
}

func (b *backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return b.acquire(ctx, r)
}

func (b *backend) Release(ctx context.Context, r driver.Request) error {
	b.mu.Lock()
	b.released = append(b.released, r)
	b.mu.Unlock()
	if b.release != nil {
		return b.release(ctx, r)
	}
	return nil
}

// releases returns how often a release was sent.
func (b *backend) releases() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.released)
}

// answer is what the backend says of all requests.
func answer(rs []driver.Request, err error) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	for i := range res {
		res[i] = driver.Renewal{SentAt: time.Now(), Err: err}
	}
	return res
}

// holder records the ends that it was notified of.
type holder struct {
	mu    sync.Mutex
	ends  []error
	ended func()
}

func (h *holder) Ended(end error) {
	h.mu.Lock()
	h.ends = append(h.ends, end)
	h.mu.Unlock()
	if h.ended != nil {
		h.ended()
	}
}

func (h *holder) notified() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.ends)
}

// newSet returns a Set on the backend, whose clock is late by what the function returns.
func newSet(t *testing.T, b Backend, late func() time.Duration) *Set {
	t.Helper()
	c := Config{Backend: b, Name: "test", Logger: slog.New(slog.DiscardHandler)}
	if late != nil {
		c.Now = func() time.Time { return time.Now().Add(late()) }
	}
	s := New(c)
	t.Cleanup(s.Close)
	return s
}

func request(name string) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, TTL: ttl, Wait: true}
}

// keep returns a hold of the name with that holder.
func keep(t *testing.T, s *Set, r driver.Request, by Holder) *Hold {
	t.Helper()
	h := new(Hold)
	s.Expect(h, r)
	if err := h.Granted(driver.Grant{SentAt: time.Now()}, by); err != nil {
		t.Fatal(err)
	}
	return h
}

// remembered returns how many things the Set still has.
func (s *Set) remembered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.requests) + len(s.names) + len(s.deadlines.heap) + len(s.releases.queue) + len(s.releases.failed) + s.releases.senders + len(s.releases.owners)
	for _, g := range s.groups {
		n += len(g.holds)
	}
	return n
}

var errNoAnswer = errors.New("no answer")

func TestATickerRenewsOnceAtATime(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	b := &backend{renew: func(_ context.Context, rs []driver.Request) []driver.Renewal {
		entered <- struct{}{}
		<-goOn
		return answer(rs, nil)
	}}
	s := newSet(t, b, nil)
	h := keep(t, s, request("a"), new(holder))
	first := make(chan struct{})
	go func() {
		defer close(first)
		s.renew(h.group)
	}()
	<-entered
	second := make(chan struct{})
	go func() { // its timer was reset while it fired
		defer close(second)
		s.renew(h.group)
	}()
	select {
	case <-second:
	case <-entered:
		t.Error("two renewals at once")
	}
	close(goOn)
	<-first
	<-second
}

// Each way in which a hold ends is reported to all its holders, once, and before the hold is
// released.
func TestEveryHolderIsNotifiedOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(s *Set, h *Hold, b *backend)
		want error
	}{
		"lost: the backend says so":    {func(s *Set, h *Hold, _ *backend) { s.Report(h.req.ID) }, driver.ErrLost},
		"lost: a renewal says so":      {func(_ *Set, _ *Hold, b *backend) { b.say(driver.ErrLost) }, driver.ErrLost},
		"lost: Prove says so":          {func(_ *Set, h *Hold, b *backend) { b.say(driver.ErrLost); h.Prove(context.Background()) }, driver.ErrLost},
		"lost: it could not be proved": {func(_ *Set, _ *Hold, b *backend) { b.say(errNoAnswer) }, driver.ErrLost},
		"closed":                       {func(s *Set, _ *Hold, _ *backend) { s.Close(); s.Wait(); s.ReleaseAll() }, driver.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := new(backend)
				s := newSet(t, b, nil)
				early := func() {
					if b.releases() > 0 {
						t.Error("released before all were notified")
					}
				}
				first, second, gone := &holder{ended: early}, &holder{ended: early}, new(holder)
				h := keep(t, s, request("a"), first)
				h.Attach(second)
				h.Attach(gone)
				h.Detach(gone)
				tt.end(s, h, b)
				time.Sleep(ttl)
				for _, by := range []*holder{first, second} {
					if got := by.notified(); len(got) != 1 || got[0] != tt.want || h.End(by) != tt.want {
						t.Errorf("notified of %v; want %v, once", got, tt.want)
					}
					if last, err := h.Detach(by); last || err != tt.want {
						t.Errorf("detached afterwards: %t, %v; want %v", last, err, tt.want)
					}
				}
				if got := gone.notified(); len(got) != 1 || got[0] != driver.ErrNotHeld || h.End(gone) != driver.ErrNotHeld {
					t.Errorf("a holder that was detached before was notified of %v", got)
				}
				if err := h.Attach(new(holder)); err != tt.want {
					t.Errorf("attached afterwards: %v", err)
				}
				if b.releases() != 1 {
					t.Errorf("released %d times", b.releases())
				}
			})
		})
	}
}

func TestTheLastHolderReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(backend)
		s := newSet(t, b, nil)
		first, second := new(holder), new(holder)
		h := keep(t, s, request("a"), first)
		if err := h.Attach(second); err != nil {
			t.Fatal(err)
		}
		if last, err := h.Detach(first); last || err != nil {
			t.Errorf("the first of two: %t, %v", last, err)
		}
		if last, err := h.Detach(first); last || err != driver.ErrNotHeld {
			t.Errorf("the first again: %t, %v", last, err)
		}
		if last, err := h.Detach(second); !last || err != nil {
			t.Errorf("the second: %t, %v", last, err)
		}
		if err := h.Attach(first); err != driver.ErrLost {
			t.Errorf("a hold that was released is shared again: %v", err)
		}
		s.Close()
		waited := make(chan struct{})
		go func() { s.Wait(); close(waited) }()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("Wait does not wait for the release")
		default:
		}
		s.Release(t.Context(), *h.Request())
		s.Done()
		<-waited
		if b.releases() != 1 {
			t.Errorf("released %d times", b.releases())
		}
	})
}

// A caller learns that trust has ended, even if the timer has not fired.
func TestALateTimerHidesNoLoss(t *testing.T) {
	var ahead atomic.Int64
	b := new(backend)
	s := newSet(t, b, func() time.Duration { return time.Duration(ahead.Load()) })
	for what, call := range map[string]func(h *Hold, by Holder) error{
		"Judge":  func(h *Hold, _ Holder) error { _, err := h.Judge(); return err },
		"Detach": func(h *Hold, by Holder) error { _, err := h.Detach(by); return err },
		"Lost": func(h *Hold, _ Holder) error {
			if s.Lost("b", h.req.Owner) || !s.Lost("a", h.req.Owner) {
				return errors.New("not lost, or under another name")
			}
			return driver.ErrLost
		},
	} {
		by := new(holder)
		h := keep(t, s, request("a"), by)
		ahead.Store(int64(ttl - Margin(ttl) - time.Second))
		if _, err := h.Judge(); err != nil {
			t.Errorf("%s: ended too early: %v", what, err)
		}
		ahead.Store(int64(ttl))
		if err := call(h, by); err != driver.ErrLost {
			t.Errorf("%s: %v", what, err)
		}
		if got := by.notified(); len(got) != 1 || got[0] != driver.ErrLost {
			t.Errorf("%s: notified of %v", what, got)
		}
		ahead.Store(0)
	}
}

func TestALossReportedBeforeItsGrantIsNoLease(t *testing.T) {
	s := newSet(t, new(backend), nil)
	r, h, by := request("a"), new(Hold), new(holder)
	s.Expect(h, r)
	s.Report(r.ID)
	if err := h.Granted(driver.Grant{SentAt: time.Now()}, by); err != ErrLate {
		t.Errorf("granted: %v", err)
	}
	again := request("a")
	s.Expect(h, again) // with a new ID
	s.Report(r.ID)
	if err := h.Granted(driver.Grant{SentAt: time.Now()}, by); err != nil {
		t.Errorf("granted again: %v", err)
	}
	h.Detach(by)
	if n := s.remembered(); n != 0 {
		t.Errorf("%d remembered for ever", n)
	}
}

// An owner is remembered as lost until the backend has confirmed that the hold is gone.
func TestALostHoldIsNotJoinedByItsText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		cut.Store(true)
		b := &backend{release: func(context.Context, driver.Request) error {
			if cut.Load() {
				return errNoAnswer
			}
			return driver.ErrLost
		}}
		s := newSet(t, b, nil)
		h := keep(t, s, request("a"), new(holder))
		s.Report(h.req.ID)
		time.Sleep(time.Minute)
		if !s.Lost("a", h.req.Owner) {
			t.Error("forgotten while the backend may have it")
		}
		cut.Store(false)
		time.Sleep(time.Minute)
		if s.Lost("a", h.req.Owner) || s.remembered() != 0 {
			t.Errorf("%d remembered for ever", s.remembered())
		}
	})
}

// The backend has a fixed hold until its time, a little longer than its holder trusts it. Until
// then its owner is remembered; then it is released.
func TestAFixedLeaseBlocksUntilItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(backend)
		s := newSet(t, b, nil)
		r, by := request("a"), new(holder)
		r.Fixed = true
		h := keep(t, s, r, by)
		time.Sleep(ttl - 1)
		if len(by.notified()) != 1 || !s.Lost("a", h.req.Owner) || b.releases() != 0 {
			t.Errorf("notified of %v, %d releases before its time", by.notified(), b.releases())
		}
		time.Sleep(time.Second)
		if b.releases() != 1 || s.remembered() != 0 {
			t.Errorf("%d releases, %d remembered for ever", b.releases(), s.remembered())
		}
	})
}

// A grant with less than the requested TTL is renewed soon, once, and then like any other. If it is
// released before that, it costs no renewal.
func TestAShortGrantIsRenewedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewed []time.Duration
		began := time.Now()
		s := newSet(t, &backend{renew: func(_ context.Context, rs []driver.Request) []driver.Renewal {
			for range rs {
				renewed = append(renewed, time.Since(began))
			}
			return answer(rs, nil)
		}}, nil)
		short := func() (*Hold, *holder) {
			h, by := new(Hold), new(holder)
			s.Expect(h, request("a"))
			if err := h.Granted(driver.Grant{TTL: time.Second, SentAt: time.Now()}, by); err != nil {
				t.Fatal(err)
			}
			return h, by
		}
		h, by := short()
		time.Sleep(soon / 2)
		if last, err := h.Detach(by); !last || err != nil {
			t.Fatal(last, err)
		}
		s.Done()
		began = began.Add(soon / 2)
		h, _ = short()
		time.Sleep(ttl - Margin(ttl))
		synctest.Wait()
		want := []time.Duration{soon, soon + ttl/3, soon + ttl/3*2}
		if !slices.EqualFunc(renewed, want, func(a, b time.Duration) bool { return a >= b-soon/2 && a <= b }) {
			t.Errorf("renewed after %v, want %v", renewed, want)
		}
		if left := time.Until(h.Until()); left < ttl/2 {
			t.Errorf("trusted for %s only", left)
		}
	})
}

// Holds of one TTL are renewed by one call, whatever part of it their grants had left: from the
// first renewal on if that is most of it, and from the second on if it is less.
func TestGrantsThatDifferALittleAreRenewedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []int
		s := newSet(t, &backend{renew: func(_ context.Context, rs []driver.Request) []driver.Renewal {
			calls = append(calls, len(rs))
			return answer(rs, nil)
		}}, nil)
		for i, left := range []time.Duration{ttl, ttl - 1, ttl - time.Millisecond, ttl * 3 / 4, ttl * 6 / 10} {
			h := new(Hold)
			s.Expect(h, request(fmt.Sprint(i)))
			if err := h.Granted(driver.Grant{TTL: left, SentAt: time.Now()}, new(holder)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(ttl)
		synctest.Wait()
		if want := []int{1, 5, 5, 5}; !slices.Equal(calls, want) {
			t.Errorf("%v were renewed by one call each, want %v", calls, want)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.groups) != 1 {
			t.Errorf("there are %d groups", len(s.groups))
		}
	})
}

func TestAWaitForTheSameClientIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, new(backend), nil)
		by := new(holder)
		h := keep(t, s, request("a"), by)
		w, join := new(Hold), new(Hold)
		s.Expect(w, request("a"))
		j := request("a")
		j.Owner = h.req.Owner
		s.Expect(join, j)
		warned := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return h.warned
		}
		s.mu.Lock()
		if w.place < 0 || join.place >= 0 {
			t.Error("a request that waits has a deadline, and a join has none")
		}
		s.mu.Unlock()
		time.Sleep(ttl - 1)
		if warned() {
			t.Error("logged too early")
		}
		time.Sleep(ttl)
		if !warned() {
			t.Error("not logged")
		}
		r := request("a")
		if by, is := s.Blocks(&r); !is || by.Held != 2*ttl-1 || by.Advice != "pass lease.Context" {
			t.Errorf("the request is blocked by %+v, %t", by, is)
		}
		w.Forget()
		join.Forget()
		h.Detach(by)
		if n := s.remembered(); n != 0 {
			t.Errorf("%d remembered for ever", n)
		}
		if by, is := s.Blocks(&r); is {
			t.Errorf("%+v blocks the request, and was released", by)
		}
	})
}

func TestCloseLeavesFixedLeasesThatOutliveIt(t *testing.T) {
	for _, outlives := range []bool{true, false} {
		b := new(backend)
		s := New(Config{Backend: b, Logger: slog.New(slog.DiscardHandler), FixedOutlives: outlives})
		fixed, waits, by := request("a"), new(Hold), new(holder)
		fixed.Fixed = true
		keep(t, s, fixed, by)
		keep(t, s, request("b"), by)
		s.Expect(waits, request("a"))
		s.Close()
		s.Wait()
		if err := s.ReleaseAll(); err != nil {
			t.Error(err)
		}
		want := 2
		if outlives {
			want = 1
		}
		if n := b.releases(); n != want || len(by.notified()) != 2 {
			t.Errorf("FixedOutlives %t: %d released, notified of %v", outlives, n, by.notified())
		}
		// a grant after Close fails with ErrClosed, and is released by the next ReleaseAll
		if err := waits.Granted(driver.Grant{SentAt: time.Now()}, by); err != driver.ErrClosed {
			t.Errorf("a grant that comes after Close: %v", err)
		}
		waits.Forget()
		if err := s.ReleaseAll(); err != nil || b.releases() != want+1 || s.remembered() != 0 {
			t.Errorf("%v, %d released, %d remembered for ever", err, b.releases(), s.remembered())
		}
	}
}

// TestCloseOfThousands: Close releases thousands of holds in its time, even if each release takes
// as long as the others that are sent with it.
func TestCloseOfThousands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{release: func(ctx context.Context, _ driver.Request) error {
			select {
			case <-time.After(100 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		s := newSet(t, b, nil)
		for range 3000 {
			keep(t, s, request(driver.NewID().String()), new(holder))
		}
		s.Close()
		s.Wait()
		if err := s.ReleaseAll(); err != nil {
			t.Error(err)
		}
	})
}

// TestProofThatCameTooLate: an answer is no proof if trust has ended by the clock when it arrives,
// even if the timer has not fired: the trust from before, or that which the answer brings, since
// the service keeps the hold for less than was asked.
func TestProofThatCameTooLate(t *testing.T) {
	for what, answer := range map[string]struct{ took, ttl time.Duration }{
		"the trust from before":    {took: 2 * ttl},
		"the trust that it brings": {took: ttl * 3 / 4, ttl: ttl / 2},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var late time.Duration
				b := &backend{renew: func(_ context.Context, rs []driver.Request) []driver.Renewal {
					sent := time.Now()
					late = answer.took
					return []driver.Renewal{{SentAt: sent, TTL: answer.ttl}}
				}}
				h := keep(t, newSet(t, b, func() time.Duration { return late }), request("a"), new(holder))
				if err := h.Prove(t.Context()); err != driver.ErrLost {
					t.Errorf("Prove: %v; want ErrLost", err)
				}
			})
		})
	}
}

// TestRenewalAfterTheEndOfTrust: a renewal whose answer comes after the end of trust extends
// nothing, even if the timer that reports the loss has not fired: the process was stopped.
func TestRenewalAfterTheEndOfTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late time.Duration
		b := &backend{renew: func(context.Context, []driver.Request) []driver.Renewal {
			late = ttl
			return []driver.Renewal{{SentAt: time.Now().Add(late)}} // the service has it still
		}}
		s := newSet(t, b, func() time.Duration { return late })
		h := keep(t, s, request("a"), new(holder))
		until := h.Until()
		time.Sleep(ttl/3 + time.Millisecond) // the first renewal
		if _, err := h.Judge(); err != driver.ErrLost || !h.Until().Equal(until) {
			t.Errorf("Judge: %v, trusted until %s; want ErrLost, and %s as before", err, h.Until(), until)
		}
	})
}

// TestOwnerIsRememberedForEachLostHold: an owner is remembered until the releases of all its lost
// holds are answered, since the service may still have the hold.
func TestOwnerIsRememberedForEachLostHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuses atomic.Bool
		refuses.Store(true)
		first := request("a")
		join := request("a")
		join.Owner = first.Owner
		b := &backend{release: func(_ context.Context, r driver.Request) error {
			if r.ID == join.ID && refuses.Load() {
				return errors.New("no answer")
			}
			return nil
		}}
		s := newSet(t, b, nil)
		keep(t, s, first, new(holder))
		keep(t, s, join, new(holder))
		b.say(driver.ErrLost)
		time.Sleep(ttl)
		if !s.Lost("a", first.Owner) {
			t.Error("forgotten with the answer to the first release")
		}
		refuses.Store(false)
		time.Sleep(time.Minute)
		if s.Lost("a", first.Owner) || s.remembered() != 0 {
			t.Errorf("%d things are remembered after both answers", s.remembered())
		}
	})
}
