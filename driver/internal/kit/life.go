package kit

import (
	"context"
	"sync"
)

// Life is the time from New to Close of a client, and its background work. Its methods are safe for
// concurrent use. A nil Life, as in the zero value of a backend, has ended.
type Life struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	tasks sync.WaitGroup
}

// NewLife begins a life.
func NewLife() *Life {
	l := &Life{}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Context returns the context of the client's background work. It ends with the life.
func (l *Life) Context() context.Context { return l.ctx }

// Closed returns a channel that is closed when the life ends.
func (l *Life) Closed() <-chan struct{} { return l.ctx.Done() }

// Over reports whether the life has ended.
func (l *Life) Over() bool { return l == nil || l.ctx.Err() != nil }

// Go runs f in the background. It returns false, without running f, if the life has ended. f has to
// return soon after the life ends, and may call Go.
func (l *Life) Go(f func()) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Over() {
		return false
	}
	l.tasks.Go(f)
	return true
}

// End ends the life. It returns false if the life had already ended. It does not wait.
func (l *Life) End() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Over() {
		return false
	}
	l.cancel()
	return true
}

// Wait blocks until all functions that Go started have returned. The life must have ended.
func (l *Life) Wait() { l.tasks.Wait() }
