//go:build linux

package file

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	// tick is how often the slots with waiters are looked at, and whether those in the way are alive: that soon is
	// free what a process held that was killed. Of a grant the bell tells at once.
	tick = 10 * time.Millisecond
	// patience is for how many ticks in a row a slot may be unreadable before its waiters are told.
	patience = 100
)

// waits are this client's waiters in one slot.
type waits struct {
	holds  map[driver.ID]*hold // guarded by backend.mu
	state  *state              // the last that was looked at: of the poller alone
	faults int                 // how often in a row it could not be: of the poller alone
}

// join makes the poller look after a waiting request.
func (b *backend) join(h *hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h.waiting++
	w := b.waits[h.slot]
	if w == nil {
		w = &waits{holds: map[driver.ID]*hold{}}
		b.waits[h.slot] = w
	}
	w.holds[h.id] = h
	if !b.polling {
		b.polling = true
		b.calls.Go(b.poll)
	}
}

// part undoes a join.
func (b *backend) part(h *hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.waiting--; h.waiting > 0 {
		return
	}
	if w := b.waits[h.slot]; w != nil {
		delete(w.holds, h.id)
		if len(w.holds) == 0 {
			delete(b.waits, h.slot)
		}
	}
}

// decide makes those who wait for the request look at it: it is granted or gone, or nothing can be known (err).
func (b *backend) decide(id driver.ID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.mine[id]; h != nil {
		h.decide(err)
	}
}

// decide is guarded by backend.mu.
func (h *hold) decide(err error) {
	select {
	case <-h.decided:
	default:
		h.fault = err
		close(h.decided)
	}
}

// poll runs while somebody waits: one goroutine and one pipe for all.
func (b *backend) poll() {
	rings := make([]byte, 512)
	for {
		b.session.bell.SetReadDeadline(time.Now().Add(b.tick))
		if _, err := b.session.bell.Read(rings); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(b.tick) // without a bell, then
		}
		now, err := b.clock()
		if err != nil {
			continue
		}
		rounds := b.rounds(now)
		if rounds == nil {
			return
		}
		for _, r := range rounds {
			for _, h := range r.due {
				h.touch(now)
			}
			if err := b.attend(r, now); err == nil {
				r.waits.faults = 0
			} else if r.waits.faults++; r.waits.faults >= patience {
				b.failAll(r.waits, err)
			}
		}
	}
}

// round is what the poller has to do in a slot.
type round struct {
	slot  int
	waits *waits
	due   []*hold // to be kept alive
}

// rounds returns what there is to do; nil: nothing any more.
func (b *backend) rounds(now int64) []round {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waits) == 0 || b.closed {
		b.polling = false
		return nil
	}
	rounds := make([]round, 0, len(b.waits))
	for slot, w := range b.waits {
		r := round{slot: slot, waits: w}
		for _, h := range w.holds {
			if now-h.touched >= int64(h.ttl)/3 {
				h.touched = now
				r.due = append(r.due, h)
			}
		}
		rounds = append(rounds, r)
	}
	return rounds
}

// touch keeps a waiting request alive.
func (h *hold) touch(now int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over && raise(h.word, uint64(now)) == nil {
		h.armed = max(h.armed, now)
	}
}

// attend tells the waiters of a slot that were granted or are gone, and drops those who stand in the way and are over.
func (b *backend) attend(r round, now int64) error {
	word, err := load(b.table.word(r.slot))
	if err != nil {
		return err
	}
	s := r.waits.state
	if s == nil || s.word != word {
		if s, err = b.read(r.slot); err != nil {
			return err
		}
		r.waits.state = s
		for i := range s.queues {
			granted, _ := s.queues[i].granted()
			for _, e := range granted {
				b.decide(e.ID, nil)
			}
		}
	}
	if len(r.due) > 0 { // now and then: who of them does not stand there any more?
		there := map[driver.ID]bool{}
		for _, e := range s.entries() {
			there[e.ID] = true
		}
		for _, h := range r.due {
			if !there[h.id] {
				b.decide(h.id, nil)
			}
		}
	}
	for i := range s.queues {
		if over, err := b.overdue(&s.queues[i], now); err != nil {
			return err
		} else if over {
			return b.update(context.Background(), r.slot, nil)
		}
	}
	return nil
}

// overdue reports whether an update would let somebody in. Only those who hold and the first who waits matter: the
// others wait for that one whether they live or not.
func (b *backend) overdue(q *queue, now int64) (bool, error) {
	granted, first := q.granted()
	for _, e := range append(granted, first...) {
		cell, dead, err := b.cell(e, now)
		if err != nil {
			return false, err
		}
		if dead || now >= e.expires(cell) || e.Broken && e.until == 0 {
			return true, nil
		}
	}
	return len(granted) == 0, nil
}

// failAll tells the waiters of a slot that nothing can be known.
func (b *backend) failAll(w *waits, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range w.holds {
		h.decide(err)
	}
}
