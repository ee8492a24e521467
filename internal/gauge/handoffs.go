package gauge

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Relay is what became of [HandOffs].
type Relay struct {
	Took    []time.Duration // from the call of Unlock to the return of the next Lock
	Turns   []int           // of each locker
	Elapsed time.Duration
}

// coming is how long it takes one of them to come, at most.
const coming = 4 * time.Millisecond

// HandOffs has the lockers, all of one name, take turns for that long, and hold it for a while each
// time. It is strict: who gives the lock back asks for it again only when another has had it. So
// nobody looks fast by taking it again at once. The first one holds it for a quarter of the length,
// or longer if they are many, while the others come. Then it counts. At its end whoever gets the
// lock passes it on at once and goes; who still waits then is cancelled, where that can be.
func HandOffs(parent context.Context, lockers []Locker, length, hold time.Duration) (Relay, error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	warm := max(length/4, time.Duration(len(lockers))*coming)
	b := &baton{from: time.Now().Add(warm), turns: make([]int, len(lockers)), had: make(chan struct{})}
	var over atomic.Bool
	end := make(chan struct{})
	errs := make([]error, len(lockers))
	var wg sync.WaitGroup
	for i, l := range lockers {
		wg.Go(func() {
			for !over.Load() {
				if err := l.Lock(ctx); err != nil {
					if ctx.Err() == nil {
						errs[i] = err
					}
					return
				}
				if over.Load() {
					errs[i] = l.Unlock()
					return
				}
				next := b.taken(i)
				pause(ctx, max(hold, time.Until(b.from)))
				b.leave()
				if err := l.Unlock(); err != nil {
					errs[i] = err
					return
				}
				select {
				case <-next:
				case <-end:
				}
			}
		})
	}
	pause(ctx, warm+length)
	b.mu.Lock()
	over.Store(true)
	r := Relay{Took: slices.Clone(b.took), Turns: slices.Clone(b.turns), Elapsed: time.Since(b.from)}
	b.mu.Unlock()
	close(end)
	late := time.AfterFunc(250*time.Millisecond, cancel)
	wg.Wait()
	late.Stop()
	return r, errors.Join(errs...)
}

// baton is what the lockers share.
type baton struct {
	from time.Time // before this nothing counts

	mu    sync.Mutex
	left  time.Time // when Unlock was called
	took  []time.Duration
	turns []int
	had   chan struct{} // closed when somebody has had it since
}

// taken notes that locker i has it, and returns what tells that another has had it.
func (b *baton) taken(i int) <-chan struct{} {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.After(b.from) {
		b.turns[i]++
		if !b.left.IsZero() {
			b.took = append(b.took, now.Sub(b.left))
		}
	}
	close(b.had)
	b.had = make(chan struct{})
	return b.had
}

func (b *baton) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = time.Now()
}

// pause waits for a time, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
