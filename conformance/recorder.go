package conformance

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// recorder is a T that records the output of a law.
type recorder struct {
	name   string
	ctx    context.Context
	cancel context.CancelFunc

	mu              sync.Mutex
	failed, skipped bool
	limit           context.Context // a first failure after its end sets late; nil: none does
	late            bool
	// by Fatalf or Skipf; package testing panics if a test ends in another way without returning
	ended    bool
	log      []string
	cleanups []func()
}

func (r *recorder) Helper()                  {}
func (r *recorder) Name() string             { return r.name }
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) note(failed, skipped bool, format string, args []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed && !r.failed {
		r.late = r.limit != nil && r.limit.Err() != nil
	}
	r.failed, r.skipped = r.failed || failed, r.skipped || skipped
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *recorder) Logf(format string, args ...any)   { r.note(false, false, format, args) }
func (r *recorder) Errorf(format string, args ...any) { r.note(true, false, format, args) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.note(true, false, format, args)
	r.end()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.note(false, true, format, args)
	r.end()
}

func (r *recorder) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) String() string { return strings.Join(r.log, "\n") }

// record runs the law, then ends its context, then runs the clean-ups in reverse order, as package
// testing does.
func (r *recorder) record(l Law, h Harness) {
	alone(func() { l.Run(r, h) })
	r.cancel()
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		alone(last)
	}
}

// alone runs f in a goroutine of its own, which f may end.
func alone(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}
