//go:build linux

package file

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// update changes the state of a slot. It drops what is over, grants who is next, lets change edit the copy (nil: no
// more than that), grants again, and puts the copy in place, from the start again as long as others are faster; so
// change may run several times. What else changed is put in place even if change returns an error, which update
// returns. After any other error nothing of change was done.
func (b *backend) update(ctx context.Context, slot int, change func(s *state, now int64) error) error {
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
		if try > 1 { // others are faster: let them finish
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
		again, err := b.tidy(s, now)
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
			b.keep(slot, s)
			b.wake(s.granted)
		}
		if !again {
			return refused
		}
	}
}

// tidy drops what is over: the requests of dead clients, and in two steps those that nobody kept alive.
//
// A request that has expired is marked suspect first. Its owner arms it in two steps too: it writes the time into its
// cell, and then looks at the word of the slot. If it sees the word from before the mark, its time was in the cell
// before the mark was in place, so that whoever reads the cell after it read the mark sees that time, and takes the
// mark away. If it sees a later word, it reads the state and finds the mark. So a suspect whose cell still shows that
// it expired can go.
//
// The end of a broken hold is found in the same way: from the cell, once the break is in place.
//
// It reports whether it has set marks: then nothing else was decided, and this copy has to be put in place first.
func (b *backend) tidy(s *state, now int64) (marked bool, err error) {
	s.each("", func(e *entry) *entry {
		if err != nil {
			return e
		}
		var cell int64
		var dead bool
		cell, dead, err = b.cell(e, now)
		expires := e.expires(cell)
		switch expired := now >= expires; {
		case err != nil:
			return e
		case dead, expired && e.suspect, expired && e.Broken && e.until != 0:
			return nil
		case e.Broken && e.until == 0:
			return e.change(func(e *entry) { e.until = expires })
		case expired:
			marked = true
			return e.change(func(e *entry) { e.suspect = true })
		case e.suspect && !e.Broken:
			return e.change(func(e *entry) { e.suspect = false })
		}
		return e
	})
	s.unbury(now)
	return marked, err
}

// cell returns when the request was last kept alive, or that its client is dead.
func (b *backend) cell(e *entry, now int64) (int64, bool, error) {
	if e.session == b.session.id {
		at, err := b.session.cell(e.cell)
		return at, false, err
	}
	return b.peers.cell(e.session, e.cell, now)
}

// read returns the state of the slot as of now.
func (b *backend) read(slot int) (*state, error) {
	b.mu.Lock()
	old := b.cache[slot]
	b.mu.Unlock()
	s, err := b.table.read(slot, old)
	if err == nil && s != old {
		b.keep(slot, s)
	}
	return s, err
}

// cached bounds how many states are kept: what is read again and again is what others wait for.
const cached = 64

func (b *backend) keep(slot int, s *state) {
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

// wake tells those that an update granted.
func (b *backend) wake(granted []*entry) {
	rung := map[driver.ID]bool{b.session.id: true}
	for _, e := range granted {
		if e.session == b.session.id {
			b.decide(e.ID, nil)
		} else if !rung[e.session] {
			rung[e.session] = true
			b.peers.ring(e.session)
		}
	}
}
