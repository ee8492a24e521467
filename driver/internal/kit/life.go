package kit

import (
	"context"
	"sync"
)

// Life is the time from New to Close of a client, and what it does in the background meanwhile. Its
// methods are safe for concurrent use. That of a backend which New did not make is nil, and over.
type Life struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	tasks sync.WaitGroup
}

// NewLife returns a life that has begun.
func NewLife() *Life {
	l := &Life{}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Context returns the context of what the client does in the background. It ends with the life.
func (l *Life) Context() context.Context { return l.ctx }

// Closed returns a channel that is closed when the life ends.
func (l *Life) Closed() <-chan struct{} { return l.ctx.Done() }

// Over reports whether the life has ended.
func (l *Life) Over() bool { return l == nil || l.ctx.Err() != nil }

// Go runs f in the background. It reports false, and does not run f, if the life is over. f has to
// return soon after the life ends, and f may call Go.
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

// End ends the life. It reports false if the life was over before. It does not wait.
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

// Wait returns when all that Go began has returned. The life must be over.
func (l *Life) Wait() { l.tasks.Wait() }
