// Package await waits for conditions, so that no test sleeps: for as long as a slow machine needs,
// and no longer than it has to.
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

// work is for how long a test waits for the goroutines that it has started, whose calls have no
// bounds of their own, or long ones: for longer than any of them works, and for less than the tests
// of a package have.
var work = func() time.Duration {
	if size.Long() {
		return 40 * time.Minute
	}
	return 6 * time.Minute
}()

// From returns what comes from a channel. It is for what one of the test's goroutines sends, or
// closes, when it has done what it is for. If nothing comes for long the test fails, and says where
// the goroutines stand.
func From[V any](t T, c <-chan V) V {
	t.Helper()
	d := work
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("nothing has come for %s; where the goroutines stand:\n%s", d, stacks())
		panic("unreachable")
	}
}

// All waits until all goroutines of a group have ended. If they do not for long the test fails, and
// says where the goroutines stand.
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
		t.Fatalf("what was begun side by side goes on after %s; where the goroutines stand:\n%s", d, stacks())
	}
}

// Each gives all values to n goroutines of the test, which call do for them, and waits until they
// have ended. If a Fatalf of do ends one of them the others go on; if it ends all of them, what
// remains is not done.
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

// stacks returns where the goroutines stand that run code of this repository: the first of them, if
// there are very many.
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

// Running lets the process run for so long: the time for which it stalls hardly counts.
func Running(d time.Duration) {
	const step = 20 * time.Millisecond
	for ; d > 0; d -= step {
		<-time.After(step)
	}
}

// Context is a context for a call of a test that may wait for others for as long as they work.
func Context(t testing.TB) context.Context { return Bounded(t, work) }

// Bounded is a context for the calls of a test.
func Bounded(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
