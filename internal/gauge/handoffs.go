package gauge

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Relay is the result of [HandOffs].
type Relay struct {
	Took    []time.Duration // from the call of Unlock to the return of the next Lock
	Turns   []int           // how many each locker had
	Elapsed time.Duration
}

// coming is the longest time that one locker needs to queue.
const coming = 4 * time.Millisecond

// HandOffs makes the lockers, all of one name, take turns for that long, and hold the lock for a
// while each time. It is strict: a locker that has released the lock requests it again only after
// another one has had it, so no lock looks fast by taking it again at once. The first locker holds
// the lock for a quarter of the length, or longer if there are many, while the others queue.
// Counting starts after that. At the end each locker that gets the lock releases it at once and
// stops; the waits of the rest are cancelled, if the lock supports that.
func HandOffs(parent context.Context, lockers []Locker, length, hold time.Duration) (Relay, error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	warm := max(length/4, time.Duration(len(lockers))*coming)
	b := &baton{from: time.Now().Add(warm), turns: make([]int, len(lockers)), had: make(chan struct{})}
	var ended atomic.Bool
	end := make(chan struct{})
	errs := make([]error, len(lockers))
	var wg sync.WaitGroup
	for i, l := range lockers {
		wg.Go(func() {
			for !ended.Load() {
				if err := l.Lock(ctx); err != nil {
					if ctx.Err() == nil {
						errs[i] = err
					}
					return
				}
				if ended.Load() {
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
	ended.Store(true)
	r := Relay{Took: slices.Clone(b.took), Turns: slices.Clone(b.turns), Elapsed: time.Since(b.from)}
	b.mu.Unlock()
	close(end)
	late := time.AfterFunc(250*time.Millisecond, cancel)
	wg.Wait()
	late.Stop()
	return r, errors.Join(errs...)
}

// baton is the state that the lockers share.
type baton struct {
	from time.Time // when counting starts

	mu    sync.Mutex
	left  time.Time // when Unlock was called
	took  []time.Duration
	turns []int
	had   chan struct{} // closed when another locker gets the lock
}

// taken records that locker i has the lock. The channel is closed when another locker gets it.
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

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
