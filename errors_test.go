package dlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// Every wait that ends behind a hold of the same client says so, however it ends and whatever the
// backend reports.
func TestEndedWaitsSayWhoseTheHoldIs(t *testing.T) {
	const own, read = "pass lease.Context", "release the read lease first"
	queueless := func(b *hooked) {
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			r.Wait = false
			g, err := b.Backend.Acquire(ctx, r)
			if errors.Is(err, ErrHeld) {
				err = &driver.RetryError{After: 100 * time.Millisecond}
			}
			return g, err
		}
	}
	silent := func(b *hooked) { // it reports no more than its contract demands
		b.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := b.Backend.Acquire(ctx, r)
			switch {
			case errors.Is(err, ErrHeld) && ctx.Err() != nil:
				err = driver.Waited(ctx)
			case errors.Is(err, ErrHeld):
				err = ErrHeld
			}
			return g, err
		}
	}
	ends := map[string]func(context.Context, Mutex) (*Lease, error){
		"its context": func(ctx context.Context, m Mutex) (*Lease, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return m.Lock(ctx)
		},
		"a caller that left": func(ctx context.Context, m Mutex) (*Lease, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(2*time.Second, func() { cancel(io.ErrClosedPipe) })
			return m.Lock(ctx)
		},
		"Wait": func(ctx context.Context, m Mutex) (*Lease, error) { return m.Lock(ctx) },
		"All":  func(ctx context.Context, m Mutex) (*Lease, error) { return All(m).Lock(ctx) },
		"Do": func(ctx context.Context, m Mutex) (*Lease, error) {
			return nil, Do(ctx, m, func(context.Context) error { return nil })
		},
	}
	for what, backend := range map[string]func(*hooked){"queue": func(*hooked) {}, "no queue": queueless, "no more": silent} {
		for end, lock := range ends {
			bubble(t, func(t *testing.T) {
				space := new(memory.Space)
				b := &hooked{Backend: newMemory(space)}
				backend(b)
				c, other := newOn(t, b, Label("till 3")), newOn(t, newMemory(space), Label("till 4"))
				mustLock(t, c.Mutex("mine"), t.Context())
				mustLock(t, c.RWMutex("read").Read(), t.Context())
				mustLock(t, c.Semaphore("permit", 1), t.Context())
				mustLock(t, other.Mutex("theirs"), t.Context())
				time.Sleep(time.Minute)
				wait := Wait(3 * time.Second)
				for _, tt := range []struct {
					m      Mutex
					advice string
				}{
					{c.Mutex("mine", wait), own}, {c.RWMutex("mine", wait).Read(), own}, {c.Semaphore("permit", 1, wait), own},
					{c.RWMutex("read", wait).Write(), read}, {c.Mutex("theirs", wait), ""},
				} {
					_, err := lock(t.Context(), tt.m)
					wantErr(t, err, ErrHeld)
					text, mine := err.Error(), tt.advice != ""
					if strings.Contains(text, "held by this client") != mine || !strings.Contains(text, tt.advice) || strings.Contains(text, "another owner") == mine {
						t.Errorf("%s, ended by %s, %s: %s", what, end, tt.m.Name(), text)
					}
					by := (*HeldError)(nil)
					if errors.As(err, &by) != (mine || what == "queue") || by != nil && (by.Label != "till 3") == mine {
						t.Errorf("%s, ended by %s, %s: held by %+v", what, end, tt.m.Name(), by)
					}
					if by != nil && (by.Age < time.Minute || by.Age > 2*time.Minute) {
						t.Errorf("%s, ended by %s, %s: its age is %s", what, end, tt.m.Name(), by.Age)
					}
				}
			})
		}
	}
	space := new(memory.Space)
	c, other := newOn(t, newMemory(space)), newOn(t, newMemory(space), Label("till 4"))
	mustLock(t, c.RWMutex("read").Read(), t.Context())
	_, err := c.RWMutex("read").Write().TryLock(t.Context())
	if !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), read) {
		t.Error(err)
	}
	mustLock(t, other.Mutex("theirs"), t.Context())
	_, err = c.Mutex("theirs").TryLock(t.Context())
	if by := (*HeldError)(nil); !errors.As(err, &by) || by.Label != "till 4" || !strings.Contains(err.Error(), `held by another owner, "till 4"`) {
		t.Errorf("%v, by %+v", err, by)
	}
}

// TestAReaderBehindAWriter: code that forgot the context of a read lease waits for itself as soon
// as a writer stands between, and the error says so.
func TestAReaderBehindAWriter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		space := new(memory.Space)
		c, other := newOn(t, newMemory(space)), newOn(t, newMemory(space))
		r := mustLock(t, c.RWMutex("a").Read(), t.Context())
		writes := make(chan error, 1)
		go func() {
			l, err := other.RWMutex("a").Write().Lock(t.Context())
			if err == nil {
				err = l.Unlock(t.Context())
			}
			writes <- err
		}()
		synctest.Wait()
		_, err := c.RWMutex("a", Wait(time.Second)).Read().Lock(t.Context())
		if wantErr(t, err, ErrHeld); !strings.Contains(err.Error(), "pass lease.Context") {
			t.Errorf("the error does not say whose the hold is: %v", err)
		}
		mustUnlock(t, r)
		if err := <-writes; err != nil {
			t.Error(err)
		}
	})
}

// A loss is one fact, whatever the function makes of the end of its context.
func TestOneErrorOfALoss(t *testing.T) {
	own := errors.New("the card was refused")
	lose := func(c *Client, ctx context.Context) {
		q, err := c.Inspect(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Break(t.Context(), "a", q.Holders[0].Token, Force()); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
	}
	for what, tt := range map[string]struct {
		fn    func(ctx context.Context) error
		lines int
		says  string
		is    error
	}{
		"nil":             {fn: func(context.Context) error { return nil }, lines: 1},
		"the error":       {fn: context.Context.Err, lines: 1},
		"the cause":       {fn: context.Cause, lines: 1},
		"both":            {fn: contextErr, lines: 1},
		"wrapped":         {fn: func(ctx context.Context) error { return fmt.Errorf("charge: %w", ctx.Err()) }, lines: 1, says: "charge: context canceled"},
		"its cause":       {fn: func(ctx context.Context) error { return fmt.Errorf("charge: %w", context.Cause(ctx)) }, lines: 1, says: "charge: "},
		"its own":         {fn: func(context.Context) error { return own }, lines: 2, says: own.Error(), is: own},
		"both of them":    {fn: func(ctx context.Context) error { return errors.Join(own, ctx.Err()) }, lines: 3, says: own.Error(), is: own},
		"of an inner":     {fn: func(ctx context.Context) error { c, _ := newHooked(t); _, err := c.Mutex("b").Lock(ctx); return err }, lines: 1},
		"its own wrapped": {fn: func(ctx context.Context) error { return fmt.Errorf("%w after %w", own, ctx.Err()) }, lines: 2, is: own},
	} {
		for form, run := range map[string]func(*Client, func(context.Context) error) error{
			"Do": func(c *Client, fn func(context.Context) error) error { return Do(t.Context(), c.Mutex("a"), fn) },
			"Once": func(c *Client, fn func(context.Context) error) error {
				_, err := OncePer(t.Context(), c.Mutex("a"), time.Second, fn)
				return err
			},
			"Guard": func(c *Client, fn func(context.Context) error) error {
				_, err := Guard(func(int) Mutex { return c.Mutex("a") }, func(ctx context.Context, _ int) (int, error) { return 0, fn(ctx) })(t.Context(), 0)
				return err
			},
		} {
			c := newOn(t, newMemory(nil))
			err := run(c, func(ctx context.Context) error {
				lose(c, ctx)
				return tt.fn(ctx)
			})
			if !errors.Is(err, ErrLost) || isContext(err) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%s, %s: %v; want one that matches ErrLost and %v, and no end of a context", form, what, err, tt.is)
			}
			if n := strings.Count(err.Error(), "\n") + 1; n != tt.lines || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s, %s: want %d lines, and %q: %v", form, what, tt.lines, tt.says, err)
			}
		}
	}
	// the end of the client is one fact, too
	c, _ := newHooked(t)
	err := Do(t.Context(), c.Mutex("a"), func(ctx context.Context) error {
		go c.Close()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, ErrClosed) || isContext(err) || strings.Contains(err.Error(), "\n") {
		t.Errorf("closed: %v", err)
	}
	// the caller's own end is the caller's
	c, _ = newHooked(t)
	ctx, cancel := context.WithCancel(t.Context())
	err = Do(ctx, c.Mutex("a"), func(ctx context.Context) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
		t.Errorf("a caller that left: %v", err)
	}
}

func TestTheContextOfAReleasedLease(t *testing.T) {
	c, _ := newHooked(t)
	l := mustLock(t, c.Mutex("a"), t.Context())
	ctx := l.Context(t.Context())
	mustUnlock(t, l)
	for what, ctx := range map[string]context.Context{"before": ctx, "after": l.Context(t.Context())} {
		if cause := context.Cause(ctx); !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(cause, ErrNotHeld) || errors.Is(cause, ErrLost) {
			t.Errorf("derived %s Unlock: %v, with cause %v; want ErrNotHeld", what, ctx.Err(), cause)
		}
		// calls under it report why it ended, not that they found no hold
		b := mustLock(t, c.Mutex("b"), t.Context())
		for call, err := range map[string]error{"Break": c.Break(ctx, "b", b.Token()), "Renew": b.Renew(ctx)} {
			if !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), "not held") {
				t.Errorf("%s under it: %v", call, err)
			}
		}
		mustUnlock(t, b)
	}
}

type noText struct{ text string }

func (e *noText) Error() string { return e.text }

// TestACauseWithoutAText: a cause that cannot say its text ends no program.
func TestACauseWithoutAText(t *testing.T) {
	c := newOn(t, newMemory(nil))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel((*noText)(nil))
	if _, err := c.Mutex("a").Lock(ctx); !errors.Is(err, context.Canceled) || err.Error() == "" {
		t.Errorf("%v", err)
	}
	if err := driver.Waited(ctx); !errors.Is(err, ErrHeld) || err.Error() == "" {
		t.Errorf("%v", err)
	}
}

// TestOnePrefix: the end of a lease that ended a wait is named without a second "dlock: ".
func TestOnePrefix(t *testing.T) {
	c := newOn(t, newMemory(nil))
	mustLock(t, c.Mutex("held"), t.Context())
	outer := mustLock(t, c.Mutex("outer"), t.Context())
	ctx := outer.Context(t.Context())
	waits := make(chan error)
	go func() {
		_, err := c.Mutex("held").Lock(ctx)
		waits <- err
	}()
	mustUnlock(t, outer)
	if err := <-waits; err == nil || strings.Count(err.Error(), "dlock: ") != 1 {
		t.Errorf("%v", err)
	}
}

// TestShortWaitIsNamed: a wait of less than a millisecond is not said to be none.
func TestShortWaitIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newOn(t, newMemory(nil))
		mustLock(t, c.Mutex("a"), t.Context())
		for wait, want := range map[time.Duration]string{300 * time.Microsecond: "within 300µs", 998848232: "within 999ms"} {
			if _, err := c.Mutex("a", Wait(wait)).Lock(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q", err, want)
			}
		}
	})
}
