// Package await waits for conditions, so that tests need not sleep. It waits as long as a slow
// machine needs, and returns as soon as the condition holds.
package await

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/internal/size"
)

// T has the methods of a test that this package uses.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// That blocks until cond holds, for at most [Patience]. Then it fails the test with what, a
// sentence that says what was awaited.
func That(t T, what string, cond func() bool) {
	t.Helper()
	Within(t, Patience, what, cond)
}

// Within is That with another time limit.
func Within(t T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	pause := time.Millisecond
	for end := time.Now().Add(d); !cond(); <-time.After(pause) {
		if pause = min(2*pause, 20*time.Millisecond); time.Now().After(end) {
			t.Fatalf("after %s this is still not true: %s", d, what)
		}
	}
}

// Patience is how long a test waits for an event. A test that passes never waits that long.
const Patience = time.Minute

// Quiet is how long a test watches for an event that must not happen. If it is too short, a test
// may miss a defect; it never makes a correct program fail.
const Quiet = 50 * time.Millisecond

// IsTimeout reports whether an error is that of a deadline.
func IsTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// Closed blocks until a channel is closed; what names the event that closes it.
func Closed(t T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(Patience):
		t.Fatalf("%s did not happen", what)
	}
}

// work is how long a test waits for the goroutines that it has started, whose calls have no time
// limits, or long ones. It is longer than any of them works, and shorter than the time limit of a
// package's tests.
var work = func() time.Duration {
	if size.Long() {
		return 40 * time.Minute
	}
	return 6 * time.Minute
}()

// From receives from a channel to which one of the test's goroutines sends, or which it closes,
// when it is done. If that takes too long the test fails and prints the stacks of the goroutines.
func From[V any](t T, c <-chan V) V {
	t.Helper()
	d := work
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("nothing was received for %s; the stacks of the goroutines:\n%s", d, stacks())
		panic("unreachable")
	}
}

// All blocks until all goroutines of a group have ended. If that takes too long the test fails and
// prints the stacks of the goroutines.
func All(t T, wg *sync.WaitGroup) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	d := work
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		t.Fatalf("the goroutines of a group still run after %s; the stacks of the goroutines:\n%s", d, stacks())
	}
}

// Each calls do for all values from n goroutines, and blocks until they have ended. If a Fatalf of
// do ends one of them the others go on; if it ends all of them, the remaining values are skipped.
func Each[V any](t T, n int, values []V, do func(V)) {
	t.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(values)); i = next.Add(1) - 1 {
				do(values[i])
			}
		})
	}
	All(t, &all)
}

// stacks returns the stacks of goroutines that run code of this repository, or of the first of them
// if there are very many.
func stacks() string {
	const most = 64 << 10
	text := make([]byte, 16<<20)
	text = text[:runtime.Stack(text, true)]
	var ours []string
	size := 0
	for s := range strings.SplitSeq(string(text), "\n\n") {
		if waits := strings.Contains(s, "testing.(*T).Parallel"); waits || !strings.Contains(s, "github.com/dlock-go/dlock/") {
			continue
		}
		if size += len(s); size > most {
			break
		}
		ours = append(ours, s)
	}
	return strings.Join(ours, "\n\n")
}

// Running blocks for d of running time: stalls of the process hardly count.
func Running(d time.Duration) {
	const step = 20 * time.Millisecond
	for ; d > 0; d -= step {
		<-time.After(step)
	}
}

// Context is a context for a call of a test that may wait until other goroutines are done.
func Context(t testing.TB) context.Context { return Bounded(t, work) }

// Bounded is a context for the calls of a test.
func Bounded(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
