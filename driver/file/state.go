//go:build linux || darwin

package file

import (
	"iter"
	"slices"

	"github.com/dlock-go/dlock/driver"
)

// state is the content of one slot of the table: the queues of all names that hash there, mostly
// one. A state that was read or put in place is never changed, nor are its queues and entries. An
// edited copy replaces it.
type state struct {
	word       uint64 // the slot's word while this is the slot's state
	queues     []queue
	tombstones []tombstone

	// These belong to an edited copy.
	dirty   bool     // it differs from what it was copied from
	granted []*entry // the waiters that it grants
}

// queue is the queue of one name, with at least one request.
type queue struct {
	name            string // with the prefix
	joins, arrivals []*entry
}

// sessionID names a client for as long as the folder of the boot exists. The lower bits are the
// index of its first block, its home; the others are a number that is never used again. 0 is no
// client.
type sessionID uint64

const homeBits = 20

func (s sessionID) home() int { return int(s & (1<<homeBits - 1)) }

// entry is a request in a queue. Times are of the monotonic clock, in nanoseconds.
type entry struct {
	driver.Entry // its Name has the prefix; Age and Left are not set
	// the client whose end also ends the request; 0: it lasts for its full time in any case
	session sessionID
	cell    int // the session's cell with the time of the last renewal
	arrived int64
	armed   int64 // when it arrived, or, if it waited, when it was granted
	suspect bool  // it was seen to have expired: see tidy
	until   int64 // when a broken hold ends; 0: not known yet

	line string // as it stands in the record, once known
}

// tombstone bars the request from the name until then.
type tombstone struct {
	name  string
	id    driver.ID
	until int64
}

func (s *state) empty() bool { return len(s.queues) == 0 && len(s.tombstones) == 0 }

// edit returns a copy that the methods of state may change. None of them changes s.
func (s *state) edit() *state {
	c := &state{word: s.word, queues: slices.Clone(s.queues), tombstones: slices.Clip(s.tombstones)}
	for i := range c.queues {
		q := &c.queues[i]
		q.arrivals, q.joins = slices.Clip(q.arrivals), slices.Clip(q.joins)
	}
	return c
}

// queue returns the queue of the name, or nil; s may be nil. It is valid until the next change.
func (s *state) queue(name string) *queue {
	if s == nil {
		return nil
	}
	for i := range s.queues {
		if s.queues[i].name == name {
			return &s.queues[i]
		}
	}
	return nil
}

// find returns the request; nil if it is not there.
func (s *state) find(name string, id driver.ID) *entry {
	if q := s.queue(name); q != nil {
		for e := range q.all() {
			if e.ID == id {
				return e
			}
		}
	}
	return nil
}

// all returns all requests: the joins, then the arrivals in order.
func (q *queue) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, es := range [2][]*entry{q.joins, q.arrivals} {
			for _, e := range es {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// hasTombstone reports whether a tombstone bars the request from the name.
func (s *state) hasTombstone(name string, id driver.ID) bool {
	return slices.ContainsFunc(s.tombstones, func(t tombstone) bool { return t.name == name && t.id == id })
}

// add puts a request at the end of its queue.
func (s *state) add(e *entry) {
	s.dirty = true
	q := s.queue(e.Name)
	if q == nil {
		s.queues = append(s.queues, queue{name: e.Name})
		q = &s.queues[len(s.queues)-1]
	}
	q.add(e)
}

func (q *queue) add(e *entry) {
	if e.Join() {
		q.joins = append(q.joins, e)
	} else {
		q.arrivals = append(q.arrivals, e)
	}
}

// addTombstone adds a tombstone, which replaces an earlier one of the same request.
func (s *state) addTombstone(t tombstone) {
	s.dirty = true
	s.tombstones = slices.DeleteFunc(slices.Clone(s.tombstones), func(o tombstone) bool { return o.name == t.name && o.id == t.id })
	s.tombstones = append(s.tombstones, t)
}

// purgeTombstones removes the tombstones whose time has passed.
func (s *state) purgeTombstones(now int64) {
	n := len(s.tombstones)
	s.tombstones = slices.DeleteFunc(slices.Clone(s.tombstones), func(t tombstone) bool { return now >= t.until })
	s.dirty = s.dirty || len(s.tombstones) != n
}

// each replaces every request of the named queue by the result of f for it: the same, a changed
// copy, or nil.
func (s *state) each(name string, f func(*entry) *entry) {
	if q := s.queue(name); q != nil {
		s.replace(&q.joins, f)
		s.replace(&q.arrivals, f)
		s.dropEmpty()
	}
}

// replace is each for some requests of a queue.
func (s *state) replace(es *[]*entry, f func(*entry) *entry) {
	out, changed := *es, false
	for i, e := range *es {
		k := f(e)
		if k == e && !changed {
			continue
		}
		if !changed {
			out, changed = append(make([]*entry, 0, len(*es)), (*es)[:i]...), true
		}
		if k != nil {
			out = append(out, k)
		}
	}
	*es, s.dirty = out, s.dirty || changed
}

// dropEmpty removes the empty queues.
func (s *state) dropEmpty() {
	s.queues = slices.DeleteFunc(s.queues, func(q queue) bool { return len(q.arrivals)+len(q.joins) == 0 })
}

// alter replaces one request.
func (s *state) alter(name string, id driver.ID, f func(*entry) *entry) {
	s.each(name, func(e *entry) *entry {
		if e.ID == id {
			return f(e)
		}
		return e
	})
}

// remove takes the request out of its queue.
func (s *state) remove(name string, id driver.ID) {
	s.alter(name, id, func(*entry) *entry { return nil })
}

// grant assigns a token to every arrival that the rule grants now and did not grant before. The TTL
// of the arrival begins now.
func (s *state) grant(now int64, token func() (uint64, error)) error {
	for i := range s.queues {
		q := &s.queues[i]
		for j, e := range q.arrivals[:q.rule().Granted()] {
			if e.Token != 0 {
				continue
			}
			t, err := token()
			if err != nil {
				return err
			}
			g := e.change(func(g *entry) { g.Token, g.armed = driver.Token(t), now })
			q.arrivals = slices.Clone(q.arrivals)
			q.arrivals[j], s.dirty, s.granted = g, true, append(s.granted, g)
		}
	}
	return nil
}

// rule returns the queue as the rule needs it.
func (q *queue) rule() driver.Queue {
	return driver.Queue{Joins: bare(q.joins), Arrivals: bare(q.arrivals)}
}

func bare(es []*entry) []*driver.Entry {
	if len(es) == 0 {
		return nil
	}
	out := make([]*driver.Entry, len(es))
	for i, e := range es {
		out[i] = &e.Entry
	}
	return out
}

// granted returns the granted requests, and the first arrival that waits, if there is one.
func (q *queue) granted() (granted, first []*entry) {
	n := q.waiting()
	return slices.Concat(q.arrivals[:n], q.joins), q.arrivals[n:min(n+1, len(q.arrivals))]
}

// waiting returns the index of the first arrival that waits.
func (q *queue) waiting() int {
	n := 0
	for n < len(q.arrivals) && q.arrivals[n].Token != 0 {
		n++
	}
	return n
}

// change returns a changed copy.
func (e *entry) change(f func(*entry)) *entry {
	c := *e
	c.line = ""
	f(&c)
	return &c
}

// expires returns when the request expires, given the time in its cell.
func (e *entry) expires(cell int64) int64 {
	if e.Broken && e.until != 0 {
		return e.until
	}
	return max(e.armed, cell) + int64(e.TTL)
}

// outlives reports whether the request lasts for its full time even if its client is dead.
func (e *entry) outlives() bool { return e.Fixed && e.Token != 0 }

// detached returns a copy that no longer depends on its client. cell is the time in its cell.
func (e *entry) detached(cell int64) *entry {
	return e.change(func(e *entry) { e.session, e.cell, e.armed = 0, 0, max(e.armed, cell) })
}
