package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// terms records the leaders, and checks the promise for each.
type terms struct {
	t *testing.T

	mu    sync.Mutex
	leads map[context.Context]Token // those under way
	last  Token
	count int
}

func newTerms(t *testing.T) *terms { return &terms{t: t, leads: map[context.Context]Token{}} }

// lead leads until its context ends, or for d if that is not 0, and then resigns.
func (s *terms) lead(d time.Duration) func(context.Context, Token) error {
	return func(ctx context.Context, term Token) error {
		s.mu.Lock()
		for other, t := range s.leads {
			if other.Err() == nil {
				s.t.Errorf("term %d began while the context of term %d lives", term, t)
			}
		}
		if term <= s.last {
			s.t.Errorf("term %d came after %d", term, s.last)
		}
		s.leads[ctx], s.last = term, term
		s.count++
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.leads, ctx)
		}()
		if d == 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
}

func (s *terms) now() (leads int, last Token, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leads), s.last, s.count
}

// candidates opens clients of one space whose backends a test can spoil.
func candidates(t *testing.T, n int, opts ...Option) (cs []*Client, bs []*hooked) {
	t.Helper()
	space := new(memory.Space)
	for i := range n {
		b := &hooked{Backend: newMemory(space)}
		cs = append(cs, newOn(t, b, append([]Option{TTL(10 * time.Second), Label(fmt.Sprint(i))}, opts...)...))
		bs = append(bs, b)
	}
	return cs, bs
}

// Candidates are cut off, broken and made to resign at random for a day. There is never a second
// leader, terms grow, and in the end there is a leader.
func TestElectionHasOneLeaderWhateverHappens(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 5
		cs, bs := candidates(t, n)
		s, ctx := newTerms(t), t.Context()
		cut := make([]atomic.Bool, n)
		hung := make([]atomic.Int32, n) // how many releases were cut off
		var running sync.WaitGroup
		ctx, stop := context.WithCancel(ctx)
		for i, b := range bs {
			b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
				if cut[i].Load() {
					return driver.Grant{}, errors.New("cut off")
				}
				return b.Backend.Acquire(ctx, r)
			}
			b.renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
				if cut[i].Load() {
					return hungRenew(ctx, rs)
				}
				return b.Backend.Renew(ctx, rs)
			}
			b.release = func(ctx context.Context, r driver.Request) error {
				if cut[i].Load() {
					hung[i].Add(1)
					return hang(ctx)
				}
				return b.Backend.Release(ctx, r)
			}
			running.Go(func() {
				for ctx.Err() == nil {
					before := hung[i].Load()
					d := time.Duration(0)
					if rand.N(2) == 0 {
						d = rand.N(time.Minute) + 1
					}
					// One that is cut off when it resigns does not know whether that arrived, also
					// if the network is there again before its call ends.
					if err := cs[i].Election("leader").Run(ctx, s.lead(d)); err != nil && ctx.Err() == nil && hung[i].Load() == before {
						t.Errorf("candidate %d: %v", i, err)
					}
				}
			})
		}
		for end := time.Now().Add(day); time.Now().Before(end); time.Sleep(rand.N(30 * time.Second)) {
			i := rand.N(n)
			switch rand.N(3) {
			case 0:
				cut[i].Store(!cut[i].Load())
			case 1:
				if l, err := cs[i].Election("leader").Leader(ctx); err == nil && l.Term != 0 {
					cs[i].Break(ctx, "leader", l.Term)
				}
			}
		}
		for i := range cut {
			cut[i].Store(false)
		}
		time.Sleep(time.Minute)
		l, err := cs[0].Election("leader").Leader(ctx)
		if leads, last, count := s.now(); err != nil || leads == 0 || l.Term != last || count < 500 {
			t.Errorf("after a day and %d terms %d lead; the last term is %d, and the leader %+v, %v", count, leads, last, l, err)
		}
		stop()
		running.Wait()
	})
}

func TestElectionResigns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, _ := candidates(t, 2)
		first := cs[0].Election("leader")
		own := errors.New("enough")
		err := first.Run(t.Context(), func(ctx context.Context, term Token) error {
			if l, err := cs[1].Election("leader").Leader(ctx); err != nil || l.Term != term || l.Label != "0" {
				t.Errorf("leader %+v, %v; want term %d", l, err, term)
			}
			return own
		})
		if !errors.Is(err, own) {
			t.Errorf("Run returned %v; want what lead returned", err)
		}
		if l, err := first.Leader(t.Context()); l != (Leader{}) || err != nil {
			t.Errorf("leader %+v, %v after it resigned", l, err)
		}
	})
}

func TestElectionEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, _ := candidates(t, 2)
		s := newTerms(t)
		ctx, stop := context.WithCancelCause(t.Context())
		ended := make(chan error, 2)
		for _, c := range cs { // one leads, one waits
			go func() { ended <- c.Election("leader").Run(ctx, s.lead(0)) }()
		}
		time.Sleep(time.Minute)
		cause := errors.New("shutting down")
		stop(cause)
		for range cs {
			if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
				t.Errorf("Run returned %v; want the context's error and its cause", err)
			}
		}
		synctest.Wait()
		if !free(t, cs[0], "leader") {
			t.Error("something stands in the queue")
		}
		ctx, stop = context.WithCancelCause(t.Context())
		own := errors.New("could not save")
		err := cs[0].Election("leader").Run(ctx, func(context.Context, Token) error {
			stop(nil)
			return own
		})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, own) {
			t.Errorf("Run returned %v; want the context's error and that of lead", err)
		}
	})
}

func TestElectionEndsOnWhatCannotBeMended(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, bs := candidates(t, 1)
		c, ctx, start := cs[0], t.Context(), time.Now()
		never := func(context.Context, Token) error { t.Error("it led"); return nil }
		wantErr(t, c.Election("").Run(ctx, never), ErrInvalidName)
		wantErr(t, c.Election("leader", TTL(-1)).Run(ctx, never), ErrInvalid)
		wantErr(t, c.Election("leader").Run(ctx, nil), ErrInvalid)
		held := mustLock(t, c.Mutex("leader"), ctx)
		wantErr(t, c.Election("leader").Run(held.Context(ctx), never), ErrInvalid)
		mustUnlock(t, held)
		bs[0].acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{}, fmt.Errorf("%w: another format", ErrUnsupported)
		}
		wantErr(t, c.Election("leader").Run(ctx, never), ErrUnsupported)
		bs[0].acquire = nil
		_, err := c.Election("").Leader(ctx)
		wantErr(t, err, ErrInvalidName)
		n := 0
		for l, err := range c.Election("").Watch(ctx) {
			wantErr(t, err, ErrInvalidName)
			if n++; n > 1 || l != (Leader{}) {
				t.Errorf("Watch goes on, with %+v", l)
			}
		}
		if n != 1 || time.Since(start) != 0 {
			t.Errorf("%d errors of Watch; all that took %s", n, time.Since(start))
		}
	})
}

// The client is closed while it leads: the context of lead says so, and Run returns as soon as lead
// has.
func TestElectionEndsWithItsClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, _ := candidates(t, 1)
		ended, cause := make(chan error), make(chan error, 1)
		go func() {
			ended <- cs[0].Election("leader").Run(t.Context(), func(ctx context.Context, _ Token) error {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return ctx.Err()
			})
		}()
		synctest.Wait()
		start := time.Now()
		cs[0].Close()
		wantErr(t, <-cause, ErrClosed)
		wantErr(t, <-ended, ErrClosed)
		if took := time.Since(start); took != 0 {
			t.Errorf("Run returned after %s", took)
		}
	})
}

// An hour without the backend costs a few hundred calls, and afterwards there is a leader within
// the longest pause.
func TestElectionPausesInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, bs := candidates(t, 1)
		s := newTerms(t)
		var down atomic.Bool
		bs[0].acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if down.Load() {
				return driver.Grant{}, errors.New("connection refused")
			}
			return bs[0].Backend.Acquire(ctx, r)
		}
		down.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go cs[0].Election("leader").Run(ctx, s.lead(0))
		time.Sleep(time.Hour)
		if n := bs[0].acquires.Load(); n < 300 || n > 700 {
			t.Errorf("%d calls in an hour without the backend", n)
		}
		down.Store(false)
		time.Sleep(longestRetry * 3 / 2)
		synctest.Wait()
		if leads, _, _ := s.now(); leads != 1 {
			t.Error("there is no leader after the outage")
		}
	})
}

// A leader whose lead ignores its context does not keep others from leading, and campaigns again
// only when lead has returned.
func TestElectionWaitsForLead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, bs := candidates(t, 2)
		var down atomic.Bool
		bs[0].renew = func(ctx context.Context, rs []driver.Request) []driver.Renewal {
			if down.Load() {
				return hungRenew(ctx, rs)
			}
			return bs[0].Backend.Renew(ctx, rs)
		}
		var in, most atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- cs[0].Election("leader").Run(ctx, func(ctx context.Context, _ Token) error {
				most.Store(max(most.Load(), in.Add(1)))
				defer in.Add(-1)
				time.Sleep(time.Hour)
				return errors.New("the log has it")
			})
		}()
		synctest.Wait()
		down.Store(true)
		time.Sleep(10*time.Second - hold.Margin(10*time.Second))
		down.Store(false)
		s := newTerms(t)
		if err := cs[1].Election("leader").Run(ctx, s.lead(time.Second)); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Hour)
		stop()
		<-ended
		if most.Load() != 1 {
			t.Errorf("%d calls of lead at once", most.Load())
		}
	})
}

func TestElectionReleasesWhenLeadPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, _ := candidates(t, 1)
		func() {
			defer func() {
				if recover() != "no" {
					t.Error("the panic did not come through")
				}
			}()
			cs[0].Election("leader").Run(t.Context(), func(context.Context, Token) error { panic("no") })
		}()
		if !free(t, cs[0], "leader") {
			t.Error("it leads still")
		}
	})
}

// An error that lead returns after its context has ended is returned, unless it is just the end of
// that context, whatever becomes of the release.
func TestElectionReturnsWhatLeadFailedWith(t *testing.T) {
	full, why := errors.New("disk full"), errors.New("the program ends")
	for what, f := range map[string]struct {
		lead func(ctx context.Context, waited error) error
		more bool
	}{
		"its error":           {func(ctx context.Context, _ error) error { return ctx.Err() }, false},
		"its cause":           {func(ctx context.Context, _ error) error { return fmt.Errorf("stopped: %w", context.Cause(ctx)) }, false},
		"both":                {func(ctx context.Context, _ error) error { return errors.Join(ctx.Err(), context.Cause(ctx)) }, false},
		"that of a Lock":      {func(_ context.Context, waited error) error { return fmt.Errorf("stopped: %w", waited) }, false},
		"another":             {func(context.Context, error) error { return full }, true},
		"another beside it":   {func(ctx context.Context, _ error) error { return errors.Join(ctx.Err(), full) }, true},
		"another, by its end": {func(ctx context.Context, _ error) error { return fmt.Errorf("%w: %w", full, context.Cause(ctx)) }, true},
	} {
		for _, end := range []string{"context", "context, and the backend is down", "client"} {
			bubble(t, func(t *testing.T) {
				cs, bs := candidates(t, 1)
				mustLock(t, cs[0].Mutex("held"), t.Context())
				ctx, stop := context.WithCancelCause(t.Context())
				err := cs[0].Election("leader").Run(ctx, func(ctx context.Context, _ Token) error {
					if end == "context, and the backend is down" {
						bs[0].release = func(context.Context, driver.Request) error { return errors.New("connection refused") }
					}
					time.AfterFunc(time.Second, func() {
						if end == "client" {
							cs[0].Close()
						} else {
							stop(why)
						}
					})
					_, waited := cs[0].Mutex("held").Lock(ctx)
					<-ctx.Done() // Close ends calls first, and then leases
					return f.lead(ctx, waited)
				})
				want := why
				if end == "client" {
					want = ErrClosed
				}
				if !errors.Is(err, want) || errors.Is(err, full) != f.more || strings.Contains(err.Error(), "\n") != f.more {
					t.Errorf("%s ended, lead returned %s, Run: %v", end, what, err)
				}
			})
		}
	}
}

// Failures that are hours apart are no long outage: each is followed by a short pause.
func TestElectionPausesAreOfOneOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, bs := candidates(t, 1)
		var failed time.Time
		var longest time.Duration
		bs[0].acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			if !failed.IsZero() {
				longest = max(longest, time.Since(failed))
			}
			select {
			case <-time.After(time.Hour): // it stands in the queue
			case <-ctx.Done():
				return driver.Grant{}, ctx.Err()
			}
			failed = time.Now()
			return driver.Grant{}, errors.New("connection reset")
		}
		ctx, stop := context.WithTimeout(t.Context(), 12*time.Hour)
		defer stop()
		cs[0].Election("leader").Run(ctx, newTerms(t).lead(0))
		if longest == 0 || longest > 2*firstRetry {
			t.Errorf("after a failure each hour it paused for up to %s", longest)
		}
	})
}

// A leader that lost its term and fails is logged, and one that returns because of the loss is not.
func TestElectionReportsAFailureAfterALoss(t *testing.T) {
	for _, fails := range []bool{true, false} {
		testLossOfALead(t, fails)
	}
}

func testLossOfALead(t *testing.T, fails bool) {
	bubble(t, func(t *testing.T) {
		var log syncBuffer
		cs, _ := candidates(t, 1, Logger(textLogger(&log)))
		ctx, stop := context.WithCancel(t.Context())
		n := 0
		cs[0].Election("leader").Run(ctx, func(lead context.Context, term Token) error {
			if n++; n == 2 {
				stop()
				return nil
			}
			if err := cs[0].Break(ctx, "leader", term, Force()); err != nil {
				t.Error(err)
			}
			<-lead.Done()
			if !fails {
				return fmt.Errorf("stopped: %w", context.Cause(lead))
			}
			return errors.New("could not save")
		})
		if said := strings.Contains(log.String(), "a leader failed"); n != 2 || said != fails || strings.Contains(log.String(), "could not save") != fails {
			t.Errorf("%d terms, and the log has\n%s", n, log.String())
		}
	})
}

func TestWatchSeesVacancyAndSuccessor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, bs := candidates(t, 3)
		const bound = time.Second // a tenth of the TTL
		var down atomic.Bool
		bs[2].inspect = func(ctx context.Context, name string) (driver.Queue, error) {
			if down.Load() {
				return driver.Queue{}, errors.New("down")
			}
			return bs[2].Backend.Inspect(ctx, name)
		}
		type sight struct {
			Leader
			err error
			at  time.Time
		}
		var mu sync.Mutex
		var seen []sight
		last := func() sight {
			mu.Lock()
			defer mu.Unlock()
			return seen[len(seen)-1]
		}
		ctx, stop := context.WithCancel(t.Context())
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			for l, err := range cs[2].Election("leader").Watch(ctx) {
				mu.Lock()
				seen = append(seen, sight{l, err, time.Now()})
				mu.Unlock()
			}
		}()
		sees := func(what, label string) {
			t.Helper()
			time.Sleep(bound)
			synctest.Wait()
			if s := last(); s.Label != label || s.err != nil {
				t.Errorf("%s: after %s it sees %+v", what, bound, s)
			}
		}
		sees("at first", "")
		for _, c := range cs[:2] {
			s := newTerms(t)
			term, resign := context.WithCancel(ctx)
			ended := make(chan error)
			go func() { ended <- c.Election("leader").Run(term, s.lead(0)) }()
			sees("a leader", c.set.label)
			resign()
			<-ended
			sees("it resigned", "")
		}
		mu.Lock()
		before := len(seen)
		mu.Unlock()
		down.Store(true)
		time.Sleep(time.Minute)
		down.Store(false)
		sees("after an outage", "")
		mu.Lock()
		defer mu.Unlock()
		if got := seen[before:]; len(got) != 2 || got[0].err == nil {
			t.Errorf("of an outage it sees %+v; want one error, and then the leader", got)
		}
		n := len(seen)
		mu.Unlock()
		stop()
		<-watched
		mu.Lock()
		if len(seen) != n {
			t.Errorf("the end of the context is seen as %+v", seen[n:])
		}
	})
}

// Watch ends when its reader stops, and costs one call for each query.
func TestWatchCosts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cs, bs := candidates(t, 1)
		var looks atomic.Int64
		bs[0].inspect = func(ctx context.Context, name string) (driver.Queue, error) {
			looks.Add(1)
			return bs[0].Backend.Inspect(ctx, name)
		}
		for range cs[0].Election("leader").Watch(t.Context()) {
			break
		}
		if looks.Load() != 1 {
			t.Errorf("%d looks for the first leader", looks.Load())
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		for range cs[0].Election("leader").Watch(ctx) {
		}
		if n := looks.Load(); n < 3600 || n > 3600*2+2 {
			t.Errorf("%d looks in an hour; the bound is a second", n)
		}
	})
}
