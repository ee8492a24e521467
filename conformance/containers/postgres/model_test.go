package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dlock-go/dlock/driver"
)

// model is the state of one name. driver.Queue decides which requests are granted. Nothing expires
// in it by itself.
type model struct {
	driver.Queue
	tombs   map[driver.ID]bool // those that have ended and left a tombstone; true: by force
	granted map[driver.ID]bool // the arrivals that were granted until now
	seen    map[string]int     // what happened, and how often
}

func newModel() *model {
	return &model{tombs: map[driver.ID]bool{}, granted: map[driver.ID]bool{}, seen: map[string]int{}}
}

// all are all requests that stand.
func (m *model) all() []*driver.Entry { return slices.Concat(m.Arrivals, m.Joins) }

func (m *model) find(id driver.ID) *driver.Entry {
	for _, e := range m.all() {
		if e.ID == id {
			return e
		}
	}
	return nil
}

func (m *model) holds(id driver.ID) bool {
	return slices.ContainsFunc(m.Holders(), func(e *driver.Entry) bool { return e.ID == id })
}

// remove removes a request, and reports whether it was there.
func (m *model) remove(id driver.ID) bool {
	is := func(e *driver.Entry) bool { return e.ID == id }
	before := m.Len()
	m.Arrivals, m.Joins = slices.DeleteFunc(m.Arrivals, is), slices.DeleteFunc(m.Joins, is)
	delete(m.granted, id)
	return m.Len() < before
}

// grantNew returns the arrivals that are granted now and were not before, in order.
func (m *model) grantNew() (fresh []*driver.Entry) {
	for _, e := range m.Arrivals[:m.Granted()] {
		if !m.granted[e.ID] {
			m.granted[e.ID] = true
			fresh = append(fresh, e)
		}
	}
	return fresh
}

// The answers to calls, in one word.
func word(err error) string {
	for _, e := range []struct {
		err  error
		word string
	}{{nil, "done"}, {driver.ErrHeld, "held"}, {driver.ErrLost, "lost"}, {driver.ErrConflict, "conflict"}, {driver.ErrUpgrade, "upgrade"}, {driver.ErrNotHeld, "not held"}} {
		if errors.Is(err, e.err) {
			return e.word
		}
	}
	return fmt.Sprint(err)
}

func (m *model) acquire(r driver.Request) string {
	if e := m.find(r.ID); e != nil { // it holds
		if e.Broken { // its caller is to release it
			m.remove(r.ID)
			return m.note("a broken hold is asked for again", "lost")
		}
		return m.note("a hold is asked for again", "done")
	}
	if _, is := m.tombs[r.ID]; is {
		return m.note("a tombstone is met", "lost")
	}
	stored, err := m.Admit(r)
	if err != nil {
		return m.note(word(err), word(err))
	}
	e := &driver.Entry{Request: stored}
	if r.Join() {
		m.Joins = append(m.Joins, e)
		return m.note("a join is granted", "done")
	}
	m.Arrivals = append(m.Arrivals, e)
	switch {
	case m.holds(r.ID):
		return m.note("granted at once", "done")
	case r.Wait:
		return m.note("a waiter arrives", "waits")
	}
	m.remove(r.ID)
	return m.note("held", "held")
}

func (m *model) release(id driver.ID, tombstone bool) string {
	e := m.find(id)
	m.remove(id)
	if tombstone {
		if _, is := m.tombs[id]; !is {
			m.tombs[id] = false
		}
		m.note("a tombstone is left", "")
	}
	switch {
	case e == nil:
		return m.note("what is gone is released", "lost")
	case e.Broken:
		return m.note("a broken hold is released", "lost")
	}
	return "done"
}

func (m *model) renew(id driver.ID) string {
	switch e := m.find(id); {
	case e == nil:
		return m.note("what is gone is not renewed", "lost")
	case !m.holds(id):
		return m.note("what waits is not renewed", "not held")
	case e.Broken:
		return m.note("a broken hold is not renewed", "lost")
	}
	return m.note("renewed", "done")
}

func (m *model) breaks(token driver.Token, force bool) string {
	answer := "not held"
	for _, e := range m.Holders() {
		if e.Token != token {
			continue
		}
		answer = "done"
		if e.Broken = true; force {
			m.remove(e.ID)
			m.tombs[e.ID] = true
		}
	}
	return m.note(fmt.Sprint("broken, by force: ", force), answer)
}

func (m *model) raise(id driver.ID, token driver.Token) string {
	r := m.find(id)
	if r == nil || r.Join() || r.Mode != driver.Exclusive || r.Broken || !m.holds(id) {
		return m.note("what does not hold is not raised", "lost")
	}
	what := "raised"
	for _, e := range m.Holders() {
		if e.Token = max(e.Token, token); e != r {
			what = "raised, with joins"
		}
	}
	return m.note(what, "done")
}

func (m *model) note(what, answer string) string {
	m.seen[what]++
	return answer
}

// String is what the tables have to show: the requests in order, which of them hold, and
// tombstones.
func (m *model) String() string {
	var lines []string
	for i, e := range m.Arrivals {
		lines = append(lines, fmt.Sprintf("%s %s holds %t broken %t", e.ID, e.Mode, i < m.Granted(), e.Broken))
	}
	var beside []string
	for _, e := range m.Joins {
		beside = append(beside, fmt.Sprintf("%s %s joins %s broken %t", e.ID, e.Mode, e.Owner, e.Broken))
	}
	for id := range m.tombs {
		beside = append(beside, id.String()+" tombstone")
	}
	slices.Sort(beside)
	return strings.Join(append(lines, beside...), "\n")
}
