//go:build linux

package file

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// hold is what this client knows of one of its requests, granted or waiting.
type hold struct {
	name string // with the prefix
	slot int
	id   driver.ID
	ttl  time.Duration
	cell int
	word *uint64 // of the cell

	entered atomic.Bool // it was in the queue: where it is no more, it is lost

	// Guarded by Backend.mu.
	// closed once it is granted or gone, or fault tells why that cannot be known
	decided chan struct{}
	fault   error
	waiting int   // calls of Acquire that wait for that
	touched int64 // when the poller last kept it alive

	mu sync.Mutex
	// the word of the slot under which it was last seen to stand, unbroken and without a mark
	seen  uint64
	armed int64 // the time in the cell, or of the grant
	over  bool  // it was seen to be lost, or is given back
}

// finish makes every later proof of the request fail.
func (h *hold) finish() {
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
}

// Renew implements [driver.Backend]. It makes no system call for each request, unless the slot of
// its name has changed.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	out := make([]driver.Renewal, len(rs))
	fail := func(err error) []driver.Renewal {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	if err := b.begin(ctx); err != nil {
		return fail(err)
	}
	defer b.calls.Done()
	if b.table.removed() {
		return fail(fmt.Errorf("%w: %s was removed", driver.ErrLost, b.table.path))
	}
	since := time.Now()
	now, err := b.clock()
	if err != nil {
		return fail(err)
	}
	b.clear(nil)
	for i := range rs {
		b.mu.Lock()
		h := b.mine[rs[i].ID]
		b.mu.Unlock()
		if h == nil {
			out[i].Err = driver.ErrLost
			continue
		}
		out[i] = driver.Renewal{TTL: h.ttl, SentAt: since, Err: b.prove(h, now)}
	}
	return out
}

// prove arms a granted request as of now, which the caller has read before, and returns nil if it
// still holds: see tidy.
func (b *Backend) prove(h *hold, now int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return driver.ErrLost
	}
	if err := b.look(h); err != nil { // what is broken is not armed any more
		return err
	}
	if now >= h.armed+int64(h.ttl) {
		h.over = true // it may stand there still, but somebody may have seen it expired
		return driver.ErrLost
	}
	b.at("arm")
	if err := raise(h.word, uint64(now)); err != nil {
		return err
	}
	h.armed = max(h.armed, now)
	b.at("armed")
	return b.look(h)
}

// look returns nil if the request stands in its queue, neither broken nor marked. h.mu is locked.
func (b *Backend) look(h *hold) error {
	for {
		w, err := load(b.table.word(h.slot))
		if err != nil {
			return err
		}
		if w == h.seen {
			return nil
		}
		s, err := b.read(h.slot)
		if err != nil {
			return err
		}
		e, err := s.find(h.name, h.id)
		switch {
		case err != nil:
			return err
		case e == nil || e.session != b.session.id || e.Broken:
			h.over = true
			return driver.ErrLost
		case e.Token == 0:
			return driver.ErrNotHeld
		case e.suspect:
			if err := b.update(context.Background(), h.slot, nil); err != nil {
				return err
			}
		default:
			h.seen = s.word
		}
	}
}
