package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/alarm"
)

// ends has the ways in which the context of a call ends, and what it reports then.
var ends = []struct {
	name       string
	end        func(call *bound, cancel context.CancelCauseFunc, close context.CancelFunc)
	err, cause error
}{
	{"its caller's", func(_ *bound, cancel context.CancelCauseFunc, _ context.CancelFunc) { cancel(errMine) }, context.Canceled, errMine},
	{"its client's", func(_ *bound, _ context.CancelCauseFunc, close context.CancelFunc) { close() }, context.Canceled, ErrClosed},
	{"its time's", func(*bound, context.CancelCauseFunc, context.CancelFunc) { time.Sleep(answerTime) }, context.DeadlineExceeded, noAnswer},
	{"its own", func(call *bound, _ context.CancelCauseFunc, _ context.CancelFunc) { call.end() }, context.Canceled, context.Canceled},
}

var errMine = errors.New("mine")

// withBound runs f with the context of a call, and with functions that end its caller and its
// client. The caller's context has the value 1 for the key 1.
func withBound(t *testing.T, f func(call *bound, cancel context.CancelCauseFunc, close context.CancelFunc)) {
	bubble(t, func(t *testing.T) {
		type key int
		caller, cancel := context.WithCancelCause(context.WithValue(t.Context(), key(1), 1))
		defer cancel(nil)
		client, close := context.WithCancel(context.Background())
		defer close()
		call := bounded(caller, noAnswer, new(alarm.Clock))
		defer call.end()
		call.client = client
		begun := time.Now()
		f(call, cancel, close)
		if at, ok := call.Deadline(); !ok || !at.Equal(begun.Add(answerTime)) {
			t.Errorf("its deadline is %v, %v", at.Sub(begun), ok)
		}
		if v := call.Value(key(1)); v != 1 {
			t.Errorf("its caller's value is %v", v)
		}
	})
}

// The context of a call reports the same whether it was queried before its end, or only after it.
func TestBoundReportsItsEnd(t *testing.T) {
	for _, c := range ends {
		for name, ask := range map[string]func(*bound){
			"unasked":         func(*bound) {},
			"asked Err":       func(b *bound) { b.Err() },
			"asked Done":      func(b *bound) { b.Done() },
			"asked the cause": func(b *bound) { context.Cause(b) },
		} {
			t.Run(c.name+" end, "+name, func(t *testing.T) {
				withBound(t, func(call *bound, cancel context.CancelCauseFunc, close context.CancelFunc) {
					ask(call)
					if err := call.Err(); err != nil {
						t.Errorf("it has ended already: %v", err)
					}
					c.end(call, cancel, close)
					synctest.Wait()
					if err := call.Err(); err != c.err {
						t.Errorf("its error is %v; want %v", err, c.err)
					}
					if cause := context.Cause(call); cause != c.cause {
						t.Errorf("its cause is %v; want %v", cause, c.cause)
					}
					<-call.Done()
				})
			})
		}
	}
}

// The end of the context of a call, or of a context derived from it, wakes every waiter.
func TestBoundWakes(t *testing.T) {
	for _, c := range ends {
		t.Run(c.name, func(t *testing.T) {
			withBound(t, func(call *bound, cancel context.CancelCauseFunc, close context.CancelFunc) {
				of, stop := context.WithTimeout(call, time.Hour)
				defer stop()
				go c.end(call, cancel, close)
				<-of.Done()
				<-call.Done()
				if cause := context.Cause(of); cause != c.cause {
					t.Errorf("the cause of the one made of it is %v; want %v", cause, c.cause)
				}
			})
		})
	}
}

// Whatever the backend does, a call ends in time, and never with the error of a context that is not
// the caller's.
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
				t.Error("the cause is not reported:", err)
			}
		}
	})
}

var errSilent = errors.New("no listener")

func init() {
	driver.Register("stuck", func(ctx context.Context, _ driver.Config) (driver.Backend, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("dial: %w: %w", errSilent, ctx.Err())
	})
}

func TestOpenIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		_, err := Open(context.Background(), "stuck://u:secret@h")
		if took := time.Since(start); took != answerTime || !errors.Is(err, errSilent) || isContext(err) {
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
	var fails atomic.Bool // a release that follows the failed Acquire may be under way
	b.release = func(ctx context.Context, r driver.Request) error {
		if fails.Load() {
			return own
		}
		return b.Backend.Release(ctx, r)
	}
	_, err := c.Mutex("a").Lock(t.Context())
	if isContext(err) || !errors.Is(err, own) || !strings.Contains(err.Error(), "i/o timeout") {
		t.Error(err)
	}
	b.acquire = nil
	l := mustLock(t, c.Mutex("a"), t.Context())
	if err := l.Renew(t.Context()); isContext(err) || !errors.Is(err, own) {
		t.Error(err)
	}
	fails.Store(true)
	if err := c.Close(); err == nil || isContext(err) {
		t.Error("Close:", err)
	}
}
