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

// state is what stands in one slot of the table: the queues of all names that hash there, mostly
// one. A state that was read or committed, its queues and its entries are never changed; an edited
// copy takes its place.
type state struct {
	word   uint64 // of the table, while this is the slot's state
	queues []queue
	gone   []tombstone

	dirty   bool     // an edited copy differs from what it was copied from
	granted []*entry // of an edited copy: the waiters that it grants
}

// queue is what stands under one name. It has at least one request. Of the strangers all that are
// granted and the first that waits are at hand; those behind are lines as they stand in the file,
// which nobody reads before their turn: so what an arrival or a hand-off costs does not grow with
// the queue, but for the copying of its text.
type queue struct {
	name             string // with the prefix
	joins, strangers []*entry
	tail             []byte
}

// sessionID names a client for as long as the directory of the boot is there: the index of its
// first block, its home, in the lower bits, and a number that never comes back in the others. 0 is
// nobody.
type sessionID uint64

const homeBits = 20

func (s sessionID) home() int { return int(s & (1<<homeBits - 1)) }

// entry is a request in a queue. Times are of the monotonic clock, in nanoseconds.
type entry struct {
	driver.Entry // its Name has the prefix; Age and Left are not set
	// whose requests die with the process; 0: it stands until its time, whoever lives
	session sessionID
	cell    int // where the session has the time of the last renewal
	arrived int64
	armed   int64 // when it arrived, or, of a waiter that was granted, when that was
	suspect bool  // seen expired: see tidy
	until   int64 // when what is Broken ends; 0: not known yet

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

// find returns the request, nil if it is not there.
func (s *state) find(name string, id driver.ID) (*entry, error) {
	q := s.queue(name)
	if q == nil {
		return nil, nil
	}
	for _, es := range [][]*entry{q.strangers, q.joins} {
		for _, e := range es {
			if e.ID == id {
				return e, nil
			}
		}
	}
	if from, to := q.locate(id); from < to {
		return parse(q.tail[from:to])
	}
	return nil, nil
}

// locate returns where in the tail the line of the request is; from == to: nowhere. No other text
// of a line can look like its ID, since quotes in names and labels are escaped.
func (q *queue) locate(id driver.ID) (from, to int) {
	at := bytes.Index(q.tail, fmt.Appendf(nil, `,"id":"%s"`, id))
	if at < 0 {
		return 0, 0
	}
	return bytes.LastIndexByte(q.tail[:at], '\n') + 1, at + bytes.IndexByte(q.tail[at:], '\n') + 1
}

// pull takes the next n requests off the tail.
func (q *queue) pull(n int) error {
	for q.strangers = slices.Clip(q.strangers); n > 0 && len(q.tail) > 0; n-- {
		end := bytes.IndexByte(q.tail, '\n') + 1
		e, err := parse(q.tail[:end])
		if err != nil {
			return err
		}
		q.strangers, q.tail = append(q.strangers, e), q.tail[end:]
	}
	return nil
}

// open pulls until the first who waits is at hand.
func (q *queue) open() error {
	for len(q.tail) > 0 && (len(q.strangers) == 0 || q.strangers[len(q.strangers)-1].Token != 0) {
		if err := q.pull(max(1, len(q.strangers))); err != nil {
			return err
		}
	}
	return nil
}

// all returns all strangers.
func (q *queue) all() ([]*entry, error) {
	c := *q
	err := c.pull(bytes.Count(q.tail, []byte{'\n'}))
	return c.strangers, err
}

func (q *queue) empty() bool { return len(q.strangers)+len(q.joins)+len(q.tail) == 0 }

func (s *state) barred(name string, id driver.ID) bool {
	return slices.ContainsFunc(s.gone, func(t tombstone) bool { return t.name == name && t.id == id })
}

// add puts a request at the end of its queue.
func (s *state) add(e *entry) error {
	s.dirty = true
	q := s.queue(e.Name)
	if q == nil {
		s.queues = append(s.queues, queue{name: e.Name})
		q = &s.queues[len(s.queues)-1]
	}
	switch {
	case e.Join():
		q.joins = append(q.joins, e)
	case len(q.strangers) == 0 || q.strangers[len(q.strangers)-1].Token != 0:
		q.strangers = append(q.strangers, e)
	default:
		text, err := e.text()
		if err != nil {
			return err
		}
		q.tail = slices.Concat(q.tail, text)
	}
	return nil
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

// each replaces every request of the named queue ("": of all) that is at hand by what f makes of
// it: itself, a changed copy, or nil.
func (s *state) each(name string, f func(*entry) *entry) error {
	for i := range s.queues {
		q := &s.queues[i]
		if name != "" && q.name != name {
			continue
		}
		var a, b bool
		q.strangers, a = replace(q.strangers, f)
		q.joins, b = replace(q.joins, f)
		s.dirty = s.dirty || a || b
		if err := q.open(); err != nil {
			return err
		}
	}
	s.queues = slices.DeleteFunc(s.queues, func(q queue) bool { return q.empty() })
	return nil
}

// behind does the same with some of those that are not at hand: with n lines from the given one on.
func (s *state) behind(q *queue, from, n int, f func(*entry) *entry) error {
	var out []byte // what the tail becomes, up to the line that has its end at copied
	copied, changed := 0, false
	for ; n > 0 && from < len(q.tail); n-- {
		to := from + bytes.IndexByte(q.tail[from:], '\n') + 1
		e, err := parse(q.tail[from:to])
		if err != nil {
			return err
		}
		if k := f(e); k != e {
			out, changed = append(out, q.tail[copied:from]...), true
			copied = to
			if k != nil {
				text, err := k.text()
				if err != nil {
					return err
				}
				out = append(out, text...)
			}
		}
		from = to
	}
	if changed {
		q.tail, s.dirty = append(out, q.tail[copied:]...), true
	}
	return nil
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

// alter replaces one request, wherever it stands.
func (s *state) alter(name string, id driver.ID, f func(*entry) *entry) error {
	if q := s.queue(name); q != nil {
		if from, to := q.locate(id); from < to {
			return s.behind(q, from, 1, f)
		}
	}
	return s.each(name, func(e *entry) *entry {
		if e.ID == id {
			return f(e)
		}
		return e
	})
}

// remove takes the request out of its queue.
func (s *state) remove(name string, id driver.ID) error {
	return s.alter(name, id, func(*entry) *entry { return nil })
}

// grant gives a token to every stranger that the rule grants now and did not grant before, and arms
// its TTL.
func (s *state) grant(now int64, token func() (uint64, error)) error {
	for i := range s.queues {
		q := &s.queues[i]
		n := q.rule().Granted()
		for n == len(q.strangers) && len(q.tail) > 0 {
			if err := q.pull(max(1, n)); err != nil {
				return err
			}
			n = q.rule().Granted()
		}
		for j, e := range q.strangers[:n] {
			if e.Token != 0 {
				continue
			}
			t, err := token()
			if err != nil {
				return err
			}
			g := e.change(func(g *entry) { g.Token, g.armed = driver.Token(t), now })
			q.strangers = slices.Clone(q.strangers)
			q.strangers[j], s.dirty, s.granted = g, true, append(s.granted, g)
		}
	}
	return nil
}

// rule returns the queue as the rule sees it, as far as it is at hand: the rule grants nothing
// behind the first who waits.
func (q *queue) rule() driver.Queue {
	return driver.Queue{Joins: bare(q.joins), Arrivals: bare(q.strangers)}
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

// granted returns the requests that have been granted, and the first stranger that has not, if
// there is one.
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

// outlives reports whether it stands until its time although its client does not live.
func (e *entry) outlives() bool { return e.Fixed && e.Token != 0 }

// orphan returns a copy that does not depend on its client, in whose cell that time is, any more.
func (e *entry) orphan(cell int64) *entry {
	return e.change(func(e *entry) { e.session, e.cell, e.armed = 0, 0, max(e.armed, cell) })
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
	Session sessionID    `json:"session,omitempty"`
	Cell    int          `json:"cell,omitempty"`
	Arrived int64        `json:"arrived,omitempty"`
	Armed   int64        `json:"armed,omitempty"`
	Suspect bool         `json:"suspect,omitempty"`
	Broken  bool         `json:"broken,omitempty"`
	Until   int64        `json:"until,omitempty"`
}

// encode returns the content of a state file: a line of JSON for each request, of each queue the
// joins and then the strangers in order of arrival.
func (s *state) encode() ([]byte, error) {
	var parts [][]byte
	for _, q := range s.queues {
		for _, es := range [][]*entry{q.joins, q.strangers} {
			for _, e := range es {
				text, err := e.text()
				if err != nil {
					return nil, err
				}
				parts = append(parts, text)
			}
		}
		parts = append(parts, q.tail)
	}
	for _, t := range s.gone {
		text, err := json.Marshal(line{Name: t.name, ID: t.id, Gone: t.until})
		if err != nil {
			return nil, err
		}
		parts = append(parts, append(text, '\n'))
	}
	return slices.Concat(parts...), nil
}

// text returns the line of the request.
func (e *entry) text() ([]byte, error) {
	if e.line != nil {
		return e.line, nil
	}
	text, err := json.Marshal(e.json())
	if err == nil {
		e.line = append(text, '\n')
	}
	return e.line, err
}

// parse reads the line of a request.
func parse(text []byte) (*entry, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, err
	}
	e, err := l.entry()
	if err == nil {
		e.line = bytes.Clone(text)
	}
	return e, err
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
	if err == nil && (ttl <= 0 || l.Cell < 0 || l.Name == "" || l.ID.IsZero() || l.Session == 0 && !e.outlives()) {
		err = fmt.Errorf("a request without name, ID, session or TTL")
	}
	e.TTL = ttl
	return e, err
}

// decode reads what encode wrote, but for what stands in the tails. Requests that are at hand in
// old in the same words are taken from there. Old may be nil.
func decode(data []byte, old *state) (*state, error) {
	known := old.known()
	s := &state{}
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n') + 1
		if end == 0 {
			return nil, errors.New("its last line is cut off")
		}
		var l line
		e := known[string(data[:end])]
		if e == nil {
			if err := json.Unmarshal(data[:end], &l); err != nil {
				return nil, err
			}
			if l.Gone != 0 {
				s.bury(tombstone{l.Name, l.ID, l.Gone})
				data = data[end:]
				continue
			}
			var err error
			if e, err = l.entry(); err != nil {
				return nil, err
			}
			e.line = bytes.Clone(data[:end])
		}
		if err := s.add(e); err != nil {
			return nil, err
		}
		data = data[end:]
		if e.Join() || e.Token != 0 {
			continue
		}
		n, err := run(data, e)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			s.queue(e.Name).tail, data = data[:n:n], data[n:]
		}
	}
	s.dirty = false
	return s, nil
}

// run returns how long the lines of the requests behind e are: those of the same name.
func run(data []byte, e *entry) (n int, err error) {
	start := e.line[:bytes.Index(e.line, []byte(`,"id":"`))]
	for bytes.HasPrefix(data[n:], start) {
		end := bytes.IndexByte(data[n:], '\n') + 1
		switch after := n + len(start) + len(`,"id":"`) + len(e.ID.String()) + len(`"`); {
		case end == 0:
			return 0, errors.New("its last line is cut off")
		case after < n+end && bytes.HasPrefix(data[after:], []byte(`,"gone":`)):
			return n, nil
		}
		n += end
	}
	return n, nil
}

// known returns the requests that are at hand by their lines.
func (s *state) known() map[string]*entry {
	if s == nil {
		return nil
	}
	known := map[string]*entry{}
	for _, q := range s.queues {
		for _, es := range [][]*entry{q.joins, q.strangers} {
			for _, e := range es {
				known[string(e.line)] = e
			}
		}
	}
	return known
}

// cutLine returns the first line of a tail, and what follows it.
func cutLine(tail []byte) (text, rest []byte) {
	end := bytes.IndexByte(tail, '\n') + 1
	return tail[:end], tail[end:]
}

// sessionOf returns the session of a request from its line, without reading all of that; 0: it has
// none.
func sessionOf(text []byte) sessionID {
	_, after, _ := bytes.Cut(text, []byte(`,"session":`))
	var s sessionID
	for _, c := range after {
		if c < '0' || c > '9' {
			break
		}
		s = 10*s + sessionID(c-'0')
	}
	return s
}

// ids returns all that stand under the name.
func (s *state) ids(name string) map[driver.ID]bool {
	ids := map[driver.ID]bool{}
	q := s.queue(name)
	if q == nil {
		return ids
	}
	for _, es := range [][]*entry{q.joins, q.strangers} {
		for _, e := range es {
			ids[e.ID] = true
		}
	}
	const mark = `,"id":"`
	for text := range bytes.Lines(q.tail) {
		var id driver.ID
		if at := bytes.Index(text, []byte(mark)) + len(mark); id.UnmarshalText(text[at:min(at+2*len(id), len(text))]) == nil {
			ids[id] = true
		}
	}
	return ids
}
