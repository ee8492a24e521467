package fence

import (
	"context"
	"fmt"
	"sync"

	"github.com/dlock-go/dlock"
)

// Local admits holders to resources that only this process writes, in its memory or elsewhere. It
// remembers the greatest mark of each resource for as long as the process runs, which takes some
// hundred bytes for each. After a restart an older holder is admitted until a later one comes. The
// zero Local is ready to use. It must not be copied. It is safe for concurrent use.
type Local struct {
	mu   sync.Mutex
	bars map[string]*bar
}

// bar is what is remembered of a resource. The goroutine that has taken turn may change last.
type bar struct {
	turn chan struct{}
	last Mark
}

// Admit blocks until no other holder is admitted to the resource, and succeeds only if m is not
// older than any mark that was admitted. No other holder is admitted until done is called. Call
// done when the write is finished; further calls do nothing. Errors: [ErrStale], [dlock.ErrInvalid]
// (a mark or a name that is not valid), the context's. On an error done is nil.
func (l *Local) Admit(ctx context.Context, resource string, m Mark) (done func(), err error) {
	if l == nil {
		return nil, wrap("admit", resource, fmt.Errorf("%w: the Local is nil", dlock.ErrInvalid))
	}
	if err := Check(resource, m); err != nil {
		return nil, wrap("admit", resource, err)
	}
	b := l.bar(resource)
	if err := ctx.Err(); err != nil {
		return nil, wrap("admit", resource, err)
	}
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, wrap("admit", resource, ctx.Err())
	}
	done = sync.OnceFunc(func() { <-b.turn })
	if !b.last.admits(m) {
		done()
		return nil, wrap("admit", resource, ErrStale)
	}
	b.last = m
	return done, nil
}

func (l *Local) bar(resource string) *bar {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bars[resource]
	if b == nil {
		if l.bars == nil {
			l.bars = map[string]*bar{}
		}
		b = &bar{turn: make(chan struct{}, 1)}
		l.bars[resource] = b
	}
	return b
}
