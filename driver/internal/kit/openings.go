package kit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Openings bounds how many connections a client opens at once: one at first, and twice as many
// after each that was opened. After a failure it is one again. So the clients of an overloaded
// server do not overload it further by connections that it cannot serve in time.
type Openings struct {
	// An attempt that takes longer than Late counts as a failure. It goes on, but has no part in
	// the bound any more: where one connection hangs, others may not. Late has to be set.
	Late time.Duration

	mu      sync.Mutex
	most    int // 0: one
	running int // attempts that are not late
	waiting []chan struct{}
}

// maxOpenings bounds the doubling.
const maxOpenings = 64

// errLate is the failure of an attempt that goes on.
var errLate = errors.New("late")

// Begin blocks until an attempt may begin. end has to be called with its error. If ctx ends first,
// its error is returned, and there is no attempt.
func (o *Openings) Begin(ctx context.Context) (end func(error), err error) {
	turn := make(chan struct{})
	o.mu.Lock()
	o.waiting = append(o.waiting, turn)
	o.admit()
	o.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
		o.mu.Lock()
		defer o.mu.Unlock()
		if i := slices.Index(o.waiting, turn); i >= 0 {
			o.waiting = slices.Delete(o.waiting, i, i+1)
		} else { // its turn has come meanwhile
			o.running--
			o.admit()
		}
		return nil, ctx.Err()
	}
	var once sync.Once
	ended := func(err error) { once.Do(func() { o.ended(err) }) }
	late := time.AfterFunc(o.Late, func() { ended(errLate) })
	return func(err error) {
		late.Stop()
		ended(err)
	}, nil
}

// Slow records that a statement was not answered in time: the next connections are opened as after
// a failure.
func (o *Openings) Slow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.most = 1
}

// ended records the end of an attempt.
func (o *Openings) ended(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running--
	if o.most = min(2*max(1, o.most), maxOpenings); err != nil {
		o.most = 1
	}
	o.admit()
}

// admit begins the attempts that may begin. o.mu is held.
func (o *Openings) admit() {
	for len(o.waiting) > 0 && o.running < max(1, o.most) {
		o.running++
		close(o.waiting[0])
		o.waiting = o.waiting[1:]
	}
}
