//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"slices"

	"github.com/dlock-go/dlock/driver"
)

// The client watches what it holds, so that its holders learn of a loss before their next renewal.
// A forced break is detected when another client writes to the pipe. That and a directory that was
// moved are detected at each fallback of the poller. Fixed holds, which are not renewed, are
// watched too. Without Notify nothing is watched.

// Explain implements [driver.Explainer].
func (b *Backend) Explain(id driver.ID) error {
	own := b.own(id)
	if own == nil {
		return nil
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	return own.why
}

// watch has the poller watch a request that was granted.
func (b *Backend) watch(own *ownRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost == nil || b.closed || b.requests[own.id] != own || slices.Contains(b.held[own.slot], own) {
		return
	}
	b.held[own.slot] = append(b.held[own.slot], own)
	b.poll()
}

// unwatch undoes watch. b.mu is held.
func (b *Backend) unwatch(own *ownRequest) {
	held := b.held[own.slot]
	i := slices.Index(held, own)
	if i < 0 {
		return
	}
	if held = slices.Delete(held, i, i+1); len(held) == 0 {
		delete(b.held, own.slot)
	} else {
		b.held[own.slot] = held
	}
}

// watched returns the holds in those slots, or all of them if all is set.
func (b *Backend) watched(slots map[int]bool, all bool) (owns []*ownRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !all {
		for slot := range slots {
			owns = append(owns, b.held[slot]...)
		}
		return owns
	}
	for _, held := range b.held {
		owns = append(owns, held...)
	}
	return owns
}

// unchanged reports whether nothing has changed in the request's slot since the request was last
// seen in the queue. It also reports true for a request that is being proved at the moment.
func (b *Backend) unchanged(own *ownRequest) bool {
	if !own.mu.TryLock() {
		return true
	}
	defer own.mu.Unlock()
	w, err := load(b.table.word(own.slot))
	return own.over || err == nil && w == own.seen
}

// verifyHeld reports the requests that are not in their queues any more.
func (b *Backend) verifyHeld(owns []*ownRequest) {
	for _, own := range owns {
		select {
		case <-b.closing:
			return
		default:
		}
		own.mu.Lock()
		var err error
		if !own.over {
			err = b.verify(own)
		}
		own.mu.Unlock()
		if errors.Is(err, driver.ErrLost) { // after any other error it is not known
			b.lose(own, nil)
		}
	}
}

// loseAll ends all holds and waits, since the directory was moved.
func (b *Backend) loseAll(moved error) {
	for _, own := range b.watched(nil, true) {
		b.lose(own, fmt.Errorf("%w: %w", driver.ErrLost, moved))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.waiting {
		for _, own := range w.requests {
			own.decide(moved)
		}
	}
}

// lose reports a request that is lost, and records the cause, if there is one.
func (b *Backend) lose(own *ownRequest, why error) {
	own.mu.Lock()
	own.over, own.why = true, why
	own.mu.Unlock()
	b.mu.Lock()
	lost, watched := b.lost, slices.Contains(b.held[own.slot], own)
	b.unwatch(own)
	b.mu.Unlock()
	if watched {
		lost(own.id)
	}
}
