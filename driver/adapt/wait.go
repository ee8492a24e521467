package adapt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// tryTimeout is how long a waiter waits for the answer to one Try.
	tryTimeout = 5 * time.Second
	// leastOutage is how long an outage of the service may last, at least, until a wait fails.
	leastOutage = 3 * time.Second
	// mostPause is the longest pause of a waiter or a watch while the service does not answer.
	mostPause = 2 * time.Second
)

// line is what a client knows of a name while requests wait there.
type line struct {
	// the service's last answer, which matches ErrHeld; nil: there was none, or the last Try failed
	held     error
	answered time.Time // when it came; zero: there was none
	failed   error     // of the last Try; nil: it was answered, or there was none
	failures int       // in a row
	unwatch  func()    // ends the watch; nil: there is none
}

// wait is an Acquire that waits in the line of its name.
func (b *Backend) wait(ctx context.Context, m *ownRequest, r driver.Request) (driver.Grant, error) {
	b.mu.Lock()
	w, g, _ := b.waiters.Add(m)
	b.mu.Unlock()
	defer b.leave(w, g)
	for {
		pause := time.Duration(0) // until the waiter is woken
		b.mu.Lock()
		first := g.First() == w
		b.mu.Unlock()
		if first {
			grant, next, err := b.tryFirst(ctx, m, r, &g.State)
			if next == 0 {
				return grant, err
			}
			pause = next
		}
		if err := w.Sleep(ctx, b.life.Closed(), pause); err != nil {
			if ctx.Err() != nil {
				err = b.waited(ctx, &g.State)
			}
			return driver.Grant{}, err
		}
	}
}

// leave removes a waiter. The next in the line becomes the first.
func (b *Backend) leave(w *kit.Waiter[*ownRequest], g *kit.Group[*ownRequest, line]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := g.First() == w
	b.waiters.Remove(w)
	switch {
	case b.waiters.Group(w.Request.Name) != g:
		if g.State.unwatch != nil {
			g.State.unwatch()
		}
	case first:
		g.First().Wake()
	}
}

// wakeLine wakes the first waiter of a name: the lock may be free.
func (b *Backend) wakeLine(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.waiters.Group(name); g != nil {
		g.First().Wake()
	}
}

// tryFirst is a Try of the first waiter. If next is not 0 it goes on waiting, for that time at
// most.
func (b *Backend) tryFirst(ctx context.Context, m *ownRequest, r driver.Request, l *line) (g driver.Grant, next time.Duration, err error) {
	limited, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	began := time.Now()
	g, err = b.try(limited, m, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		// for those behind it, which may share the lock if this one does
		l.held, l.answered, l.failed, l.failures = driver.ErrHeld, time.Now(), nil, 0
		if r.Mode == driver.Shared {
			l.held = nil
		}
		return g, 0, nil
	case errors.Is(err, driver.ErrHeld) && driver.Refused(err):
		l.held, l.answered, l.failed, l.failures = err, time.Now(), nil, 0
		b.watch(r.Name, l)
		return g, b.pause(err), nil
	case driver.Refused(err):
		return g, 0, err
	case ctx.Err() != nil && time.Since(began) < time.Second && l.held != nil:
		// the last answer was given a moment ago, and stands
		return g, 0, driver.WaitedFor(ctx, l.held)
	case ctx.Err() != nil:
		return g, 0, kit.Ended(ctx, err)
	}
	if limited.Err() != nil {
		err = fmt.Errorf("no answer within %s: %w", tryTimeout, err)
	}
	err = kit.Hide(ctx, err)
	l.held, l.failed = nil, err
	l.failures++
	if l.answered.IsZero() || time.Since(l.answered) > max(r.TTL, leastOutage) {
		return g, 0, err
	}
	pause := min(min(b.o.RetryDelay, mostPause)<<min(l.failures, 10), mostPause)
	return g, around(pause), nil
}

// waited returns the error of a wait whose context has ended.
func (b *Backend) waited(ctx context.Context, l *line) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.held != nil {
		return driver.WaitedFor(ctx, l.held)
	}
	return kit.Ended(ctx, l.failed)
}

// pause returns how long to pause after the answer that the lock is held.
func (b *Backend) pause(held error) time.Duration {
	pause := around(b.o.RetryDelay)
	if h := (*HeldError)(nil); errors.As(held, &h) && h.Left > 0 {
		pause = min(pause, kit.AfterExpiry(h.Left))
	}
	return pause
}

// around returns d, more or less by up to half of it.
func around(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// watch begins the watch of a line that has none. mu is held.
func (b *Backend) watch(name string, l *line) {
	if b.waker == nil || l.unwatch != nil {
		return
	}
	ctx, cancel := context.WithCancel(b.life.Context())
	l.unwatch = cancel
	wake := func() {
		if ctx.Err() == nil {
			b.wakeLine(name)
		}
	}
	b.life.Go(func() {
		for ctx.Err() == nil {
			_ = b.waker.Watch(ctx, name, wake, wake) // the waiter's own Try reports what is wrong
			_ = kit.Pause(ctx, nil, around(min(b.o.RetryDelay, mostPause)))
		}
	})
}
