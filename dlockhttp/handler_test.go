package dlockhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/fence"
)

// service is a backend that a test can make fail.
type service struct {
	driver.Backend
	acquire func(ctx context.Context, r driver.Request) (driver.Grant, error)
}

func (s *service) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if s.acquire != nil {
		return s.acquire(ctx, r)
	}
	return s.Backend.Acquire(ctx, r)
}

func (s *service) Capabilities() driver.Capabilities {
	return s.Backend.(driver.Capable).Capabilities()
}

func (s *service) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	return s.Backend.(driver.Breaker).Break(ctx, name, t, force)
}

func open(t *testing.T, opts ...dlock.Option) (*dlock.Client, *service) {
	t.Helper()
	b, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Backend: b}
	c, err := dlock.New(s, append([]dlock.Option{dlock.TTL(10 * time.Second), dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, s
}

func lock(t *testing.T, m dlock.Mutex) *dlock.Lease {
	t.Helper()
	l, err := m.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// byID picks the lock of a request by a parameter of its URL.
func byID(c *dlock.Client, opts ...dlock.LockOption) func(*http.Request) dlock.Mutex {
	return func(r *http.Request) dlock.Mutex { return c.Mutex(r.FormValue("id"), opts...) }
}

func get(ctx context.Context, h http.Handler, target string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", target, nil))
	return w.Result()
}

// expect fails the test unless the response has the status, Retry-After with 503 only, and a text
// that reveals nothing but the status.
func expect(t *testing.T, what string, r *http.Response, status int) {
	t.Helper()
	text, _ := io.ReadAll(r.Body)
	if r.StatusCode != status {
		t.Errorf("%s: %d %s, want %d", what, r.StatusCode, text, status)
	}
	if after := r.Header.Get("Retry-After"); (after != "") != (status == 503) {
		t.Errorf("%s: %d with Retry-After %q", what, status, after)
	}
	if status >= 400 && strings.TrimSpace(string(text)) != http.StatusText(status) {
		t.Errorf("%s: the answer says %q", what, text)
	}
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})

// TestHandlerRunsOneAtATime sends a hundred requests for each of two keys at once: the handlers of
// a key run one at a time, and all run. Those of two keys run concurrently.
func TestHandlerRunsOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t)
		var mu sync.Mutex
		in, most, ran, side := map[string]int{}, 0, 0, false
		h := Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := r.FormValue("id")
			mu.Lock()
			ran++
			in[id]++
			most = max(most, in[id])
			side = side || len(in) == 2 && in["a"] > 0 && in["b"] > 0
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			in[id]--
			mu.Unlock()
		}), byID(c), Options{})
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() { expect(t, "in turn", get(t.Context(), h, "/?id="+string("ab"[i%2])), 200) })
		}
		all.Wait()
		if most != 1 || ran != 200 || !side {
			t.Errorf("%d ran, %d of one key at once, two keys concurrently: %v", ran, most, side)
		}
	})
}

// TestHandlerThatDoesNotWait is the same with a lock that is tried: one runs, the others get 409.
func TestHandlerThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t)
		var ran atomic.Int64
		h := Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran.Add(1)
			time.Sleep(time.Second)
		}), byID(c, dlock.Wait(0)), Options{})
		var all sync.WaitGroup
		var statuses sync.Map
		for range 100 {
			all.Go(func() {
				n, _ := statuses.LoadOrStore(get(t.Context(), h, "/?id=a").StatusCode, new(atomic.Int64))
				n.(*atomic.Int64).Add(1)
			})
		}
		all.Wait()
		held, _ := statuses.Load(409)
		if ran.Load() != 1 || held == nil || held.(*atomic.Int64).Load() != 99 {
			t.Errorf("%d ran, and %v got 409", ran.Load(), held)
		}
	})
}

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := open(t)
		other := lock(t, c.Mutex("held"))
		permit := lock(t, c.Semaphore("permit", 2))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, a := range []struct {
			what   string
			h      http.Handler
			ctx    func() context.Context
			target string
			status int
		}{
			{"free", Handler(ok, byID(c), Options{}), nil, "/?id=free", 200},
			{"tried", Handler(ok, byID(c, dlock.Wait(0)), Options{}), nil, "/?id=held", 409},
			{"waited as long as it may", Handler(ok, byID(c, dlock.Wait(time.Second)), Options{}), nil, "/?id=held", 409},
			{"another kind", Handler(ok, byID(c), Options{}), nil, "/?id=permit", 409},
			{"the wait ran out", Handler(ok, byID(c), Options{}), func() context.Context {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				t.Cleanup(cancel)
				return ctx
			}, "/?id=held", 503},
			{"the client has gone", Handler(ok, byID(c), Options{}), func() context.Context { return ended }, "/?id=free", 503},
			{"no name", Handler(ok, byID(c), Options{}), nil, "/", 400},
			{"a name that is too long", Handler(ok, byID(c), Options{}), nil, "/?id=" + strings.Repeat("x", 256), 400},
			{"a name that is not valid", Handler(ok, byID(c), Options{}), nil, "/?id=%00", 400},
			{"a TTL that is not kept", Handler(ok, byID(c, dlock.TTL(-1)), Options{}), nil, "/?id=a", 500},
			{"no lock", Handler(ok, func(*http.Request) dlock.Mutex { return nil }, Options{}), nil, "/", 200},
			{"a zero RWMutex", Handler(ok, func(*http.Request) dlock.Mutex { return dlock.RWMutex{}.Write() }, Options{}), nil, "/", 500},
			{"a nil client", Handler(ok, func(*http.Request) dlock.Mutex { return (*dlock.Client)(nil).Mutex("a") }, Options{}), nil, "/", 500},
			{"no handler", Handler(nil, byID(c), Options{}), nil, "/?id=a", 500},
			{"no function", Handler(ok, nil, Options{}), nil, "/?id=a", 500},
			{"a negative time", Handler(ok, byID(c), Options{RetryAfter: -1}), nil, "/?id=a", 500},
		} {
			ctx := t.Context()
			if a.ctx != nil {
				ctx = a.ctx()
			}
			expect(t, a.what, get(ctx, a.h, a.target), a.status)
		}
		other.Unlock(t.Context())
		permit.Unlock(t.Context())

		h := Handler(ok, byID(c), Options{RetryAfter: 1500 * time.Millisecond})
		s.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			return driver.Grant{}, errors.New("connection refused by secret-host")
		}
		r := get(t.Context(), h, "/?id=a")
		if after := r.Header.Get("Retry-After"); after != "2" {
			t.Errorf("Retry-After: %s, want whole seconds, rounded up", after)
		}
		expect(t, "the service fails", r, 503)
		s.acquire = func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, driver.ErrLost }
		expect(t, "lost again and again", get(t.Context(), h, "/?id=a"), 503)
		s.acquire = nil
		c.Close()
		expect(t, "closed", get(t.Context(), h, "/?id=a"), 503)
	})
}

func TestRefuse(t *testing.T) {
	c, _ := open(t)
	lock(t, c.Mutex("a"))
	var why error
	h := Handler(ok, byID(c, dlock.Wait(0)), Options{Refuse: func(w http.ResponseWriter, r *http.Request, status int, err error) {
		why = err
		w.WriteHeader(status)
		fmt.Fprint(w, "later")
	}})
	r := get(t.Context(), h, "/?id=a")
	text, _ := io.ReadAll(r.Body)
	if r.StatusCode != 409 || string(text) != "later" || !errors.Is(why, dlock.ErrHeld) {
		t.Errorf("%d %s for %v", r.StatusCode, text, why)
	}
}

// TestRefusalsAreLogged holds that the log says which request was answered with 5xx and why, and
// nothing of its query.
func TestRefusalsAreLogged(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	c, s := open(t)
	s.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
		return driver.Grant{}, errors.New("no route")
	}
	h := Handler(ok, byID(c), Options{})
	get(t.Context(), h, "/")
	if log.Len() > 0 {
		t.Errorf("what the client did wrong is logged: %s", &log)
	}
	get(t.Context(), h, "/orders/42?id=a&key=secret")
	for _, part := range []string{"no route", "status=503", "method=GET", "path=/orders/42 "} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log does not have %q: %s", part, &log)
		}
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log has the query: %s", &log)
	}
}

// TestContextOfTheHandler holds that a handler whose lease is lost sees its context end with the
// cause, that a Lock under the context re-enters, and that the context carries the mark.
func TestContextOfTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t)
		var after error
		h := Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			l, err := c.Mutex("a").TryLock(ctx)
			if err != nil {
				t.Errorf("it does not re-enter: %v", err)
				return
			}
			want, _ := fence.Of(l)
			if m, ok := fence.FromContext(ctx); !ok || m != want {
				t.Errorf("the mark is %+v, want %+v", m, want)
			}
			if err := c.Break(ctx, "a", l.Token()); err != nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
				after = context.Cause(ctx)
			case <-time.After(time.Minute):
				t.Error("the context does not end")
			}
		}), byID(c), Options{})
		expect(t, "lost", get(t.Context(), h, "/?id=a"), 200)
		if !errors.Is(after, dlock.ErrLost) {
			t.Errorf("the context ended with %v", after)
		}
	})
}

// TestHandlerReleasesTheLock holds that the lock is free when the handler has returned, also if it
// panicked or if the client has gone away.
func TestHandlerReleasesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t)
		free := func(what string) {
			t.Helper()
			l, err := c.Mutex("a").TryLock(t.Context())
			if err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			l.Unlock(t.Context())
		}
		func() {
			defer func() { recover() }()
			get(t.Context(), Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("no") }), byID(c), Options{}), "/?id=a")
		}()
		free("after a panic")
		ctx, cancel := context.WithCancel(t.Context())
		get(ctx, Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel() }), byID(c), Options{}), "/?id=a")
		free("after the client has gone")
	})
}
