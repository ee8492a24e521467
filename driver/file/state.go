package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// state is what stands in one slot of the table: the queues of all names that hash there, mostly one. A state that was
// read or committed, its queues and its entries are never changed; an edited copy takes its place.
type state struct {
	word   uint64 // of the table, while this is the slot's state
	queues []queue
	gone   []tombstone

	dirty   bool     // an edited copy differs from what it was copied from
	granted []*entry // of an edited copy: the waiters that it grants
}

// queue is what stands under one name. It has at least one request.
type queue struct {
	name             string // with the prefix
	strangers, joins []*entry
}

// entry is a request in a queue. Times are of the monotonic clock, in nanoseconds.
type entry struct {
	driver.Entry           // its Name has the prefix; Age and Left are not set
	session      driver.ID // whose requests die with the process
	cell         int       // where in that session's file the time of the last renewal stands
	arrived      int64
	armed        int64 // when it arrived, or, of a waiter that was granted, when that was
	suspect      bool  // seen expired: see tidy
	until        int64 // when what is Broken ends; 0: not known yet

	line []byte // as it stands in the file, once known
}

// tombstone bars the request from the name until then.
type tombstone struct {
	name  string
	id    driver.ID
	until int64
}

func (s *state) empty() bool { return len(s.queues) == 0 && len(s.gone) == 0 }

// edit returns a copy to be changed by the methods of state, none of which touches s.
func (s *state) edit() *state {
	c := &state{word: s.word, queues: slices.Clone(s.queues), gone: slices.Clip(s.gone)}
	for i := range c.queues {
		q := &c.queues[i]
		q.strangers, q.joins = slices.Clip(q.strangers), slices.Clip(q.joins)
	}
	return c
}

// queue returns the queue of the name, or nil. It is valid until the next change.
func (s *state) queue(name string) *queue {
	for i := range s.queues {
		if s.queues[i].name == name {
			return &s.queues[i]
		}
	}
	return nil
}

func (s *state) find(name string, id driver.ID) *entry {
	if q := s.queue(name); q != nil {
		for _, es := range [][]*entry{q.strangers, q.joins} {
			for _, e := range es {
				if e.ID == id {
					return e
				}
			}
		}
	}
	return nil
}

func (s *state) barred(name string, id driver.ID) bool {
	return slices.ContainsFunc(s.gone, func(t tombstone) bool { return t.name == name && t.id == id })
}

// add puts a request at the end of its queue.
func (s *state) add(e *entry) {
	s.dirty = true
	q := s.queue(e.Name)
	if q == nil {
		s.queues = append(s.queues, queue{name: e.Name})
		q = &s.queues[len(s.queues)-1]
	}
	if e.Join() {
		q.joins = append(q.joins, e)
	} else {
		q.strangers = append(q.strangers, e)
	}
}

// bury leaves a tombstone, in the place of an earlier one.
func (s *state) bury(t tombstone) {
	s.dirty = true
	s.gone = slices.DeleteFunc(slices.Clone(s.gone), func(o tombstone) bool { return o.name == t.name && o.id == t.id })
	s.gone = append(s.gone, t)
}

// unbury removes the tombstones whose time is over.
func (s *state) unbury(now int64) {
	n := len(s.gone)
	s.gone = slices.DeleteFunc(slices.Clone(s.gone), func(t tombstone) bool { return now >= t.until })
	s.dirty = s.dirty || len(s.gone) != n
}

// each replaces every entry of the named queue ("": of all) by what f makes of it: itself, a changed copy, or nil.
func (s *state) each(name string, f func(*entry) *entry) {
	empty := false
	for i := range s.queues {
		q := &s.queues[i]
		if name != "" && q.name != name {
			continue
		}
		var a, b bool
		q.strangers, a = replace(q.strangers, f)
		q.joins, b = replace(q.joins, f)
		s.dirty = s.dirty || a || b
		empty = empty || len(q.strangers)+len(q.joins) == 0
	}
	if empty {
		s.queues = slices.DeleteFunc(s.queues, func(q queue) bool { return len(q.strangers)+len(q.joins) == 0 })
	}
}

// replace returns es with every element replaced, in a new slice if one of them differs.
func replace(es []*entry, f func(*entry) *entry) ([]*entry, bool) {
	out, changed := es, false
	for i, e := range es {
		k := f(e)
		if k == e && !changed {
			continue
		}
		if !changed {
			out, changed = append(make([]*entry, 0, len(es)), es[:i]...), true
		}
		if k != nil {
			out = append(out, k)
		}
	}
	return out, changed
}

// remove takes the request out of its queue.
func (s *state) remove(name string, id driver.ID) {
	s.each(name, func(e *entry) *entry {
		if e.ID == id {
			return nil
		}
		return e
	})
}

// grant gives a token to every stranger that the rule grants now and did not grant before, and arms its TTL.
func (s *state) grant(now int64, token func() (uint64, error)) error {
	for i := range s.queues {
		q := &s.queues[i]
		var fault error
		n, cloned := q.rule().Granted(), false
		for j, e := range q.strangers[:n] {
			if e.Token != 0 {
				continue
			}
			t, err := token()
			if err != nil {
				fault = err
				break
			}
			if !cloned {
				q.strangers, cloned = slices.Clone(q.strangers), true
			}
			g := e.change(func(g *entry) { g.Token, g.armed = driver.Token(t), now })
			q.strangers[j], s.dirty, s.granted = g, true, append(s.granted, g)
		}
		if fault != nil {
			return fault
		}
	}
	return nil
}

// rule returns the queue as the rule sees it.
func (q *queue) rule() driver.Queue {
	return driver.Queue{Joins: bare(q.joins), Strangers: bare(q.strangers)}
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

// granted returns the requests that have been granted, and the first stranger that has not, if there is one.
func (q *queue) granted() (granted, first []*entry) {
	n := 0
	for n < len(q.strangers) && q.strangers[n].Token != 0 {
		n++
	}
	return slices.Concat(q.strangers[:n], q.joins), q.strangers[n:min(n+1, len(q.strangers))]
}

// change returns a changed copy.
func (e *entry) change(f func(*entry)) *entry {
	c := *e
	c.line = nil
	f(&c)
	return &c
}

// expires returns when it does, if its session's cell has that time in it.
func (e *entry) expires(cell int64) int64 {
	if e.Broken && e.until != 0 {
		return e.until
	}
	return max(e.armed, cell) + int64(e.TTL)
}

// line is a line of a state file: a request, or, if Gone is set, a tombstone.
type line struct {
	Name    string       `json:"name"`
	ID      driver.ID    `json:"id"`
	Gone    int64        `json:"gone,omitempty"`
	Owner   driver.ID    `json:"owner,omitzero"` // of a join
	Mode    string       `json:"mode,omitempty"`
	Limit   int          `json:"limit,omitempty"`
	Token   driver.Token `json:"token,omitempty"`
	TTL     string       `json:"ttl,omitempty"`
	Fixed   bool         `json:"fixed,omitempty"`
	Label   string       `json:"label,omitempty"`
	Client  driver.ID    `json:"client,omitzero"`
	Session driver.ID    `json:"session,omitzero"`
	Cell    int          `json:"cell,omitempty"`
	Arrived int64        `json:"arrived,omitempty"`
	Armed   int64        `json:"armed,omitempty"`
	Suspect bool         `json:"suspect,omitempty"`
	Broken  bool         `json:"broken,omitempty"`
	Until   int64        `json:"until,omitempty"`
}

// encode returns the content of a state file: a line of JSON for each request, in order of arrival, joins after
// strangers.
func (s *state) encode() ([]byte, error) {
	all, size := s.entries(), 0
	for _, e := range all {
		if e.line == nil {
			text, err := json.Marshal(e.json())
			if err != nil {
				return nil, err
			}
			e.line = append(text, '\n')
		}
		size += len(e.line)
	}
	out := make([]byte, 0, size)
	for _, e := range all {
		out = append(out, e.line...)
	}
	for _, t := range s.gone {
		b, err := json.Marshal(line{Name: t.name, ID: t.id, Gone: t.until})
		if err != nil {
			return nil, err
		}
		out = append(append(out, b...), '\n')
	}
	return out, nil
}

func (e *entry) json() line {
	l := line{
		Name: e.Name, ID: e.ID, Mode: e.Mode.String(), Limit: e.Limit, Token: e.Token, TTL: e.TTL.String(), Fixed: e.Fixed,
		Label: e.Label, Client: e.Client, Session: e.session, Cell: e.cell, Arrived: e.arrived, Armed: e.armed,
		Suspect: e.suspect, Broken: e.Broken, Until: e.until,
	}
	if e.Join() {
		l.Owner = e.Owner
	}
	return l
}

// entry returns the request, or why it cannot be one.
func (l *line) entry() (*entry, error) {
	e := &entry{session: l.Session, cell: l.Cell, arrived: l.Arrived, armed: l.Armed, suspect: l.Suspect, until: l.Until}
	e.Name, e.ID, e.Owner, e.Limit, e.Token, e.Fixed = l.Name, l.ID, l.Owner, l.Limit, l.Token, l.Fixed
	e.Label, e.Client, e.Broken = l.Label, l.Client, l.Broken
	if e.Owner.IsZero() {
		e.Owner = e.ID
	}
	switch l.Mode {
	case driver.Exclusive.String():
	case driver.Shared.String():
		e.Mode = driver.Shared
	default:
		return nil, fmt.Errorf("unknown mode %q", l.Mode)
	}
	ttl, err := time.ParseDuration(l.TTL)
	if err == nil && (ttl <= 0 || l.Cell < 0 || l.Name == "" || l.ID.IsZero() || l.Session.IsZero()) {
		err = fmt.Errorf("a request without name, ID, session or TTL")
	}
	e.TTL = ttl
	return e, err
}

// decode reads what encode wrote. Requests that stand in old in the same words are taken from there: a queue of a
// thousand changes by a line or two at a time. Old may be nil.
func decode(data []byte, old *state) (*state, error) {
	known := old.entries()
	s := &state{}
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			return nil, errors.New("its last line is cut off")
		}
		text := data[:end+1]
		data = data[end+1:]
		var e *entry
		if e, known = take(known, text); e != nil {
			s.add(e)
			continue
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, err
		}
		if l.Gone != 0 {
			s.bury(tombstone{l.Name, l.ID, l.Gone})
			continue
		}
		e, err := l.entry()
		if err != nil {
			return nil, err
		}
		e.line = bytes.Clone(text)
		s.add(e)
	}
	s.dirty = false
	return s, nil
}

// entries returns all requests in the order of the file.
func (s *state) entries() []*entry {
	var all []*entry
	if s != nil {
		for _, q := range s.queues {
			all = append(append(all, q.strangers...), q.joins...)
		}
	}
	return all
}

// take finds the line among the next few entries, and returns what comes after it. A miss costs a parse, no more.
func take(known []*entry, text []byte) (*entry, []*entry) {
	for i, e := range known[:min(4, len(known))] {
		if bytes.Equal(e.line, text) {
			return e, known[i+1:]
		}
	}
	return nil, known
}
