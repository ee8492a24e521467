//go:build linux || darwin

package file

import (
	"context"
	"math/rand/v2"
	"time"
)

// update changes the state of a slot. It works on a copy: it drops dead and expired requests,
// grants the next ones, calls change on the copy, and grants again. Then it puts the copy in the
// place of the state. If another client was faster it starts again, so change may run several
// times. With a nil change it only drops and grants, and checks all requests.
//
// If change returns an error, update puts the rest in place and returns that error. After any other
// error nothing of change was done.
func (b *Backend) update(ctx context.Context, slot int, change func(s *state, now int64) error) error {
	lock := b.updating[slot%len(b.updating)]
	select {
	case lock <- struct{}{}:
		defer func() { <-lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if try > 1 { // other clients are faster: let them finish
			time.Sleep(time.Duration(rand.IntN(min(try, 50)*10)+1) * time.Microsecond)
		}
		old, err := b.read(slot)
		if err != nil {
			return err
		}
		now, err := b.clock()
		if err != nil {
			return err
		}
		s := old.edit()
		again, err := b.tidy(s, change == nil, now)
		if err != nil {
			return err
		}
		var refused error
		if !again {
			if err := s.grant(now, b.table.next); err != nil {
				return err
			}
			if change != nil {
				refused = change(s, now)
			}
			if err := s.grant(now, b.table.next); err != nil {
				return err
			}
		}
		if s.dirty {
			done, err := b.table.replace(slot, old, s, b.at)
			if err != nil {
				return err
			}
			if !done {
				continue
			}
			b.cacheState(slot, s)
			b.wake(slot, old, s)
		}
		if !again {
			return refused
		}
	}
}

// sample is how many of the waiters behind the first an update checks, so that dead requests do not
// pile up there.
const sample = 4

// tidy drops requests: those of dead clients at once, and expired ones in two steps.
//
// An expired request is first marked as suspect. Its client renews it in two steps too: it writes
// the time into its cell, and then reads the word of the slot. There are two cases:
//
//   - The client reads the word from before the mark. Then its time was in the cell before the mark
//     was in place. An update that reads the cell after the mark sees that time, and removes the
//     mark.
//   - The client reads a later word. Then it reads the state and finds the mark.
//
// So a suspect whose cell still shows that it has expired can be dropped. The end of a broken hold
// is found in the same way: from the cell, once the break is in place.
//
// tidy checks all requests, or the holders, the first waiter, and some of the waiters behind it,
// which block no other request. If the first waiter can be dropped, it checks all behind it too:
// the next may be dead as well. So no grant overtakes a live request, and dead requests are not
// found one at a time.
//
// It reports whether it has set marks that affect a grant. Then this copy has to be put in place
// before anything else is decided.
func (b *Backend) tidy(s *state, all bool, now int64) (marked bool, err error) {
	judge := func(e *entry, decides bool) *entry {
		if err != nil {
			return e
		}
		var cell int64
		var dead bool
		cell, dead, err = b.life(e, now)
		expires := e.expires(cell)
		switch expired := now >= expires; {
		case err != nil:
			return e
		case dead && !expired && e.outlives():
			return e.detached(cell)
		case dead, expired && e.suspect, expired && e.Broken && e.until != 0:
			return nil
		case e.Broken && e.until == 0:
			return e.change(func(e *entry) { e.until = expires })
		case expired:
			marked = marked || decides
			return e.change(func(e *entry) { e.suspect = true })
		case e.suspect && !e.Broken:
			return e.change(func(e *entry) { e.suspect = false })
		}
		return e
	}
	for i := range s.queues {
		q := &s.queues[i]
		first, over := q.waiting(), false
		if first < len(q.arrivals) && err == nil {
			over, err = b.over(q.arrivals[first], now)
		}
		from, to := first+1, len(q.arrivals) // of those behind
		if !all && !over && to-from > sample {
			from += rand.IntN(to - from - sample + 1)
			to = from + sample
		}
		at := -1
		s.replace(&q.arrivals, func(e *entry) *entry {
			if at++; at > first && (at < from || at >= to) {
				return e
			}
			return judge(e, at <= first || over)
		})
		s.replace(&q.joins, func(e *entry) *entry { return judge(e, true) })
	}
	s.dropEmpty()
	s.purgeTombstones(now)
	return marked, err
}

// over reports whether the request can be dropped now, or once it is marked.
func (b *Backend) over(e *entry, now int64) (bool, error) {
	cell, dead, err := b.life(e, now)
	return dead || now >= e.expires(cell), err
}

// life returns the time in the request's cell, and whether its client is dead.
func (b *Backend) life(e *entry, now int64) (cell int64, dead bool, err error) {
	if e.session == 0 {
		return 0, false, nil
	}
	lives := e.session == b.session.id
	if !lives {
		lives, err = b.table.cells.lives(e.session, now)
	}
	if err == nil {
		cell, err = b.table.cells.at(e.session, e.cell)
	}
	return cell, !lives, err
}

// read returns the current state of the slot.
func (b *Backend) read(slot int) (*state, error) {
	b.mu.Lock()
	old := b.cache[slot]
	b.mu.Unlock()
	s, err := b.table.read(slot, old)
	if err == nil && s != old {
		b.cacheState(slot, s)
	}
	return s, err
}

// cached bounds how many states are kept in memory. States with waiters are read again and again.
const cached = 64

// cacheState keeps a state in memory until the slot has a newer one.
func (b *Backend) cacheState(slot int, s *state) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.empty() {
		delete(b.cache, slot)
		return
	}
	for k := range b.cache {
		if len(b.cache) < cached {
			break
		}
		delete(b.cache, k)
	}
	b.cache[slot] = s
}

// wake wakes the waiters that an update granted, and the clients that it made guards.
func (b *Backend) wake(slot int, old, s *state) {
	woken := map[sessionID]bool{}
	for _, e := range s.granted {
		if e.session == b.session.id {
			b.decide(e.ID, nil)
		} else {
			woken[e.session] = true
		}
	}
	for i := range s.queues {
		g := s.queues[i].guard()
		if q := old.queue(s.queues[i].name); g != 0 && (q == nil || q.guard() != g) {
			woken[g] = true
		}
	}
	for g := range woken {
		if g == b.session.id {
			b.notifyPoller(slot)
		} else {
			b.table.wakeUp(g, slot)
		}
	}
}
