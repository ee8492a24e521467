package dlocktest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// Delay makes each call of the client to its service take d longer from now on. Renewals are
// delayed too, so leases are lost if d is too long for their TTL. 0 ends the delay.
func (c *Client) Delay(d time.Duration) {
	c.made()
	c.service.set(func(s *service) { s.delay = d })
}

// Fail makes each call of the client to its service fail with err from now on, as if the service
// was down: Lock and Unlock return an error that matches err, and leases are not renewed and are
// lost when trust in them ends. A call that is waiting already goes on waiting. nil ends the
// failure.
//
// An err of package context appears in the text only, since no error of dlock matches those errors
// while the caller's context has not ended. A sentinel error of dlock counts as that answer of the
// service.
func (c *Client) Fail(err error) {
	c.made()
	c.service.set(func(s *service) { s.err = err })
}

// service is the client's connection to the service, which can be slow or broken.
type service struct {
	*memory.Backend

	mu    sync.Mutex
	delay time.Duration
	err   error
	id    driver.ID // of the client; zero until it locked
}

func newService(space *memory.Space) *service {
	b, err := memory.New(memory.Options{Space: space})
	if err != nil {
		panic(err) // New returns none for these options
	}
	return &service{Backend: b}
}

func (s *service) set(f func(*service)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *service) heal() { s.set(func(s *service) { s.delay, s.err = 0, nil }) }

// client returns the ID of the client; zero if it has locked nothing yet.
func (s *service) client() driver.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// pass takes as long as a call to the service is delayed, and returns the error that it is to fail
// with.
func (s *service) pass(ctx context.Context) error {
	s.mu.Lock()
	delay, err := s.delay, s.err
	s.mu.Unlock()
	if delay > 0 {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// Acquire implements driver.Backend.
func (s *service) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s.set(func(s *service) { s.id = r.Client })
	sent := time.Now()
	if err := s.pass(ctx); err != nil {
		return driver.Grant{}, err
	}
	at := time.Now()
	g, err := s.Backend.Acquire(ctx, r)
	if err == nil && !g.SentAt.After(at) {
		g.SentAt = sent
	}
	return g, err
}

// Renew implements driver.Backend.
func (s *service) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	sent := time.Now()
	if err := s.pass(ctx); err != nil {
		res := make([]driver.Renewal, len(rs))
		for i := range res {
			res[i].Err = err
		}
		return res
	}
	res := s.Backend.Renew(ctx, rs)
	for i := range res {
		res[i].SentAt = sent
	}
	return res
}

// Release implements driver.Backend.
func (s *service) Release(ctx context.Context, r driver.Request) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	return s.Backend.Release(ctx, r)
}

// Inspect implements driver.Backend.
func (s *service) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if err := s.pass(ctx); err != nil {
		return driver.Queue{}, err
	}
	return s.Backend.Inspect(ctx, name)
}

// List implements driver.Lister.
func (s *service) List(ctx context.Context) ([]string, error) {
	if err := s.pass(ctx); err != nil {
		return nil, err
	}
	return s.Backend.List(ctx)
}

// Break implements driver.Breaker.
func (s *service) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	return s.Backend.Break(ctx, name, t, force)
}

// Raise implements driver.Raiser.
func (s *service) Raise(ctx context.Context, r driver.Request, t driver.Token) error {
	if err := s.pass(ctx); err != nil {
		return err
	}
	return s.Backend.Raise(ctx, r, t)
}

// testLog is the log of a test, until its end.
type testLog struct {
	t     testing.TB
	mu    sync.Mutex
	ended bool
}

func (l *testLog) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *testLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// Write implements io.Writer.
func (l *testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.t.Log(strings.TrimRight(string(b), "\n"))
	}
	return len(b), nil
}
