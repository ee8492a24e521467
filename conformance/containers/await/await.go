// Package await waits for conditions, so that no test sleeps: for as long as a slow machine needs,
// and no longer than it has to.
package await

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// T is what this package needs of a test.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// That waits until cond holds, for at most [Patience]: then the test fails, and says that what is
// still not so.
func That(t T, what string, cond func() bool) {
	t.Helper()
	Within(t, Patience, what, cond)
}

// Within is That with another patience.
func Within(t T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	pause := time.Millisecond
	for end := time.Now().Add(d); !cond(); <-time.After(pause) {
		if pause = min(2*pause, 20*time.Millisecond); time.Now().After(end) {
			t.Fatalf("after %s it is still not so that %s", d, what)
		}
	}
}

// Patience is for how long a test waits for what has to happen: nothing that is right waits it out.
const Patience = time.Minute

// Quiet is how long nothing has to happen for a test to believe that it will not. Too short, it
// misses a defect now and then; it never fails what is right.
const Quiet = 50 * time.Millisecond

// IsTimeout reports whether an error says that somebody's patience ended.
func IsTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// Closed waits until a channel is closed, which is what happened.
func Closed(t T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(Patience):
		t.Fatalf("%s did not happen", what)
	}
}

// Running lets the process run for so long: the time for which it stalls hardly counts.
func Running(d time.Duration) {
	const step = 20 * time.Millisecond
	for ; d > 0; d -= step {
		<-time.After(step)
	}
}

// Bounded is a context for the calls of a test.
func Bounded(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
