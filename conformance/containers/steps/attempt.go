package steps

import (
	"context"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
)

// Attempt is a Lock under way.
type Attempt struct {
	t      *testing.T
	Cancel context.CancelFunc
	Done   chan struct{}
	Lease  *dlock.Lease
	Err    error
	At     time.Time // when it returned
}

// Try begins to lock. The Lock ends with the test, or with Cancel.
func Try(t *testing.T, m dlock.Mutex) *Attempt {
	t.Helper()
	a := &Attempt{t: t, Done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	a.Cancel = cancel
	t.Cleanup(cancel)
	go func() {
		defer close(a.Done)
		a.Lease, a.Err = m.Lock(ctx)
		a.At = time.Now()
	}()
	return a
}

// Within waits until the Lock has returned, and for no longer than that from a moment on.
func (a *Attempt) Within(what string, from time.Time, d time.Duration) {
	a.t.Helper()
	select {
	case <-a.Done:
		if took := a.At.Sub(from); took > d {
			a.t.Errorf("%s took %s; want at most %s", what, took, d)
		}
	case <-time.After(time.Minute):
		a.t.Fatalf("%s has not returned after a minute", what)
	}
}

// Got waits for the lease.
func (a *Attempt) Got(what string, from time.Time, d time.Duration) *dlock.Lease {
	a.t.Helper()
	a.Within(what, from, d)
	if a.Err != nil {
		a.t.Fatalf("%s: %v", what, a.Err)
	}
	return a.Lease
}

// Returns waits until the Lock has returned, or for that long.
func (a *Attempt) Returns(within time.Duration) {
	select {
	case <-a.Done:
	case <-time.After(within):
	}
}

// Pending reports whether the Lock has not returned.
func (a *Attempt) Pending() bool {
	select {
	case <-a.Done:
		return false
	default:
		return true
	}
}
