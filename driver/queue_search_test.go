package driver_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/race"
)

// The search visits every state that a queue of few requests can be in, so it covers every history,
// of any length, in which no more stand at a time. A release, an expiry and a cancelled wait are
// one event to the rule: a departure.
//
// What a waiter watches is part of the state, but grants do not depend on it, and no waiter's
// watches depend on another's. So it is enough to follow the watches of one waiter at a time, each
// in turn: a state is a queue, or a queue as one of its waiters sees it. That waiter has looked
// once and waits for the requests that the rule returned. When one of them goes, it looks again.
// That look is one of those that start from every queue.

// newcomer is the ID of the request that asks to be admitted.
var newcomer = driver.ID{9}

// mostRequests bounds the states that can be written down.
const mostRequests = 8

// The kinds of requests: what they ask for.
const (
	exclusive kind = iota
	unlimited
	limit1
	limit2
	limit3
	kinds // how many the search uses; larger limits follow
)

type kind uint8

func (k kind) mode() driver.Mode {
	if k == exclusive {
		return driver.Exclusive
	}
	return driver.Shared
}

func (k kind) limit() int { return max(0, int(k)-int(unlimited)) }

func (k kind) semaphore() bool { return k > unlimited }

func (k kind) String() string {
	switch {
	case k == exclusive:
		return "X"
	case k.semaphore():
		return "S" + strconv.Itoa(k.limit())
	}
	return "S"
}

func kindOf(r driver.Request) kind {
	if r.Mode == driver.Exclusive {
		return exclusive
	}
	return unlimited + kind(r.Limit)
}

// cell is one request of a state. Owners are numbered by the place of the arrival that began the
// hold; holds that live on in joins alone come after those.
type cell struct {
	kind    kind
	owner   uint8
	watched bool // by the waiter that is followed
	follow  bool // this is that waiter
}

// state is a queue in canonical form: two that differ only in the names of owners or the order of
// joins are equal.
type state struct {
	arrivals, joins uint8
	cells           [mostRequests]cell // arrivals in order of arrival, then joins
}

func (s *state) size() int { return int(s.arrivals + s.joins) }

// split returns copies, with room for one more each.
func (s *state) split() (arrivals, joins []cell) {
	n := int(s.arrivals)
	return append(make([]cell, 0, n+1), s.cells[:n]...), append(make([]cell, 0, s.joins+1), s.cells[n:s.size()]...)
}

// String shows arrivals, then joins, as {0X 1S2 | 0S}, each with the number of its owner and its
// kind; * is watched by the waiter in brackets.
func (s state) String() string {
	var b strings.Builder
	for i, c := range s.cells[:s.size()] {
		if i == int(s.arrivals) {
			b.WriteString("| ")
		}
		text := fmt.Sprint(c.owner) + c.kind.String()
		switch {
		case c.follow:
			text = "[" + text + "]"
		case c.watched:
			text += "*"
		}
		b.WriteString(text + " ")
	}
	return "{" + strings.TrimSpace(b.String()) + "}"
}

// canonical renumbers the owners, in place, and sorts the joins.
func canonical(arrivals, joins []cell) state {
	const unset = 255
	var number [256]uint8
	for i := range number {
		number[i] = unset
	}
	for i := range arrivals {
		number[arrivals[i].owner] = uint8(i)
		arrivals[i].owner = uint8(i)
	}
	// Holds that live on only in joins are distinguished by what those are.
	var ghosts []uint8
	for _, j := range joins {
		if number[j.owner] == unset && !slices.Contains(ghosts, j.owner) {
			ghosts = append(ghosts, j.owner)
		}
	}
	if len(ghosts) > 1 {
		content := func(owner uint8) []byte {
			var c []byte
			for _, j := range joins {
				if j.owner == owner {
					c = append(c, j.order())
				}
			}
			slices.Sort(c)
			return c
		}
		slices.SortFunc(ghosts, func(a, b uint8) int { return bytes.Compare(content(a), content(b)) })
	}
	for i, g := range ghosts {
		number[g] = uint8(len(arrivals) + i)
	}
	for i := range joins {
		joins[i].owner = number[joins[i].owner]
	}
	slices.SortFunc(joins, func(a, b cell) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.order(), b.order()))
	})
	s := state{arrivals: uint8(len(arrivals)), joins: uint8(len(joins))}
	copy(s.cells[copy(s.cells[:], arrivals):], joins)
	return s
}

func (c cell) order() byte {
	if c.watched {
		return byte(c.kind) | 0x80
	}
	return byte(c.kind)
}

// search explores the states from the empty queue on, breadth first, so that the first breach has
// the shortest history.
type search struct {
	rule rule
	most int // requests at a time
	// locks and semaphores stand in one queue, as where no server keeps them apart; otherwise only
	// those that Admit admits
	mixed bool

	seen  map[state]bool
	nodes []node
	steps int // from state to state

	at      int32 // the state that is being expanded
	granted int   // how many of its arrivals are
	follows int   // the waiter that is followed; -1: none

	entries [mostRequests]driver.Entry
	ptrs    [mostRequests]*driver.Entry
}

type node struct {
	state
	from int32
}

// run returns the first breach with the history that leads to it, or nil.
func (s *search) run() *breach {
	s.seen = map[state]bool{{}: true}
	s.nodes = []node{{from: -1}}
	for i := 0; i < len(s.nodes); i++ {
		if b := s.expand(int32(i)); b != nil {
			var history []string
			for n := int32(i); n >= 0; n = s.nodes[n].from {
				history = append(history, s.nodes[n].String())
			}
			slices.Reverse(history)
			b.detail += "\n\thistory: " + strings.Join(history, " ")
			return b
		}
	}
	return nil
}

// queue writes the state out as a queue that is valid until the next call. The Age of an entry is
// its place in the state.
func (s *search) queue(st *state) driver.Queue {
	for i, c := range st.cells[:st.size()] {
		e := &s.entries[i]
		*e = driver.Entry{Request: driver.Request{
			ID: driver.ID{1, byte(i)}, Owner: driver.ID{1, c.owner}, Token: driver.Token(c.owner) + 1,
			Mode: c.kind.mode(), Limit: c.kind.limit(),
		}, Age: time.Duration(i)}
		if i >= int(st.arrivals) {
			e.ID[0] = 2
		}
		s.ptrs[i] = e
	}
	return driver.Queue{Arrivals: s.ptrs[:st.arrivals:st.arrivals], Joins: s.ptrs[st.arrivals:st.size():st.size()]}
}

// expand checks the state and visits all that can follow it.
func (s *search) expand(i int32) *breach {
	st := s.nodes[i].state
	s.at, s.granted = i, s.rule.granted(s.queue(&st))
	s.follows = slices.IndexFunc(st.cells[:st.arrivals], func(c cell) bool { return c.follow })
	if s.follows >= 0 && s.granted > s.follows {
		return breached(woken, "%v: nothing that it watched went, and it is granted", st)
	}
	if s.follows < 0 {
		if b := s.look(&st); b != nil {
			return b
		}
	}
	if st.size() < s.most {
		if b := s.arrive(&st); b != nil {
			return b
		}
		if b := s.join(&st); b != nil {
			return b
		}
	}
	return s.depart(&st)
}

// look holds the queue to the laws, with the joins in every order, and follows each waiter from
// what it sees there.
func (s *search) look(st *state) (b *breach) {
	q := s.queue(st)
	permute(q.Joins, func() bool {
		if b = s.rule.check(q); b != nil {
			return false
		}
		for w := s.granted; w < len(q.Arrivals); w++ {
			seen := *st
			for _, d := range s.rule.depends(q, w) {
				seen.cells[d.Age].watched = true
			}
			seen.cells[w].follow = true
			s.visit(canonical(seen.split()))
		}
		return true
	})
	return b
}

// arrive adds an arrival of each kind.
func (s *search) arrive(st *state) *breach {
	for k := range kinds {
		_, err := s.rule.admit(s.queue(st), driver.Request{ID: newcomer, Owner: newcomer, Mode: k.mode(), Limit: k.limit()})
		if err == nil || s.mixed {
			arrivals, joins := st.split()
			if b := s.step(append(arrivals, cell{kind: k, owner: 255}), joins, s.granted); b != nil {
				return b
			}
		}
		if conflict := st.size() > 0 && st.cells[0].kind.semaphore() != k.semaphore(); (err != nil) != conflict && !s.mixed {
			return breached(admitted, "%v: an arrival %v: %v", *st, k, err)
		}
	}
	return nil
}

// join asks for each owner, and for an unknown one, in every mode and with every limit.
func (s *search) join(st *state) *breach {
	owners := uint8(0)
	for _, c := range st.cells[:st.size()] {
		owners = max(owners, c.owner+1)
	}
	for o := range owners + 1 {
		for k := range kinds {
			if b := s.joinOwner(st, o, k); b != nil {
				return b
			}
		}
	}
	return nil
}

func (s *search) joinOwner(st *state, o uint8, k kind) *breach {
	q := s.queue(st)
	ask := driver.Request{ID: newcomer, Owner: driver.ID{1, o}, Mode: k.mode(), Limit: k.limit()}
	r, err := s.rule.admit(q, ask)
	if s.mixed && errors.Is(err, driver.ErrConflict) {
		// The client saw the hold before the other kind came into the queue.
		r, err = s.rule.admit(only(q, ask.Owner), ask)
	}
	if err == nil {
		arrivals, joins := st.split()
		if b := s.step(arrivals, append(joins, cell{kind: kindOf(r), owner: o}), s.granted); b != nil {
			return b
		}
	}
	if s.follows < 0 && !s.mixed {
		if want := s.answer(st, o, k); !errors.Is(err, want) {
			return breached(admitted, "%v: a join %v of owner %d: %v, not %v", *st, k, o, err, want)
		}
	}
	return nil
}

// answer returns the result of a join, from the sentences of the rule alone.
func (s *search) answer(st *state, o uint8, k kind) error {
	held, covered := false, k != exclusive
	for i, c := range st.cells[:st.size()] {
		if c.owner == o && (i < s.granted || i >= int(st.arrivals)) {
			held, covered = true, covered || c.kind == exclusive
		}
	}
	switch {
	case !held:
		return driver.ErrLost
	case st.cells[0].kind.semaphore() != k.semaphore():
		return driver.ErrConflict
	case !covered:
		return driver.ErrUpgrade
	}
	return nil
}

// depart removes each request except the waiter that is followed and what it watches: their
// departure ends that wait.
func (s *search) depart(st *state) *breach {
	for i, c := range st.cells[:st.size()] {
		if c.follow || c.watched {
			continue
		}
		arrivals, joins := st.split()
		kept := s.granted
		if n := len(arrivals); i >= n {
			joins = slices.Delete(joins, i-n, i-n+1)
		} else {
			arrivals = slices.Delete(arrivals, i, i+1)
			if i < kept {
				kept--
			}
		}
		if b := s.step(arrivals, joins, kept); b != nil {
			return b
		}
	}
	return nil
}

// step goes to a state in which at least the first kept arrivals must be granted.
func (s *search) step(arrivals, joins []cell, kept int) *breach {
	s.steps++
	st := canonical(arrivals, joins)
	if s.follows < 0 {
		q := s.queue(&st)
		granted := s.rule.granted(q)
		if granted < kept {
			return breached(taken, "%v: of the arrivals, %d were granted, and now %d", st, kept, granted)
		}
		if b := together(q.Arrivals[:granted], q.Joins); b != nil {
			return b
		}
	}
	s.visit(st)
	return nil
}

// visit adds the state if it is new.
func (s *search) visit(st state) {
	if !s.seen[st] {
		s.seen[st] = true
		s.nodes = append(s.nodes, node{st, s.at})
	}
}

// permute calls f with s in every order, until it returns false.
func permute[T any](s []T, f func() bool) bool {
	if len(s) < 2 {
		return f()
	}
	var at func(i int) bool
	at = func(i int) bool {
		if i == len(s) {
			return f()
		}
		for j := i; j < len(s); j++ {
			s[i], s[j] = s[j], s[i]
			ok := at(i + 1)
			s[i], s[j] = s[j], s[i]
			if !ok {
				return false
			}
		}
		return true
	}
	return at(0)
}

// TestSearch explores as many requests as stay within seconds under the race detector.
func TestSearch(t *testing.T) {
	fewer := 0
	if race.Enabled { // the rule is pure: there is nothing to find, and it takes ten times as long
		fewer = 2
	}
	for _, s := range []search{
		{rule: theRule, most: 7 - fewer},
		{rule: theRule, most: 6 - fewer, mixed: true},
	} {
		t.Run(fmt.Sprintf("most=%d,mixed=%v", s.most, s.mixed), func(t *testing.T) {
			t.Parallel()
			if b := s.run(); b != nil {
				t.Fatal(b)
			}
			followed := 0
			for _, n := range s.nodes {
				if slices.ContainsFunc(n.cells[:n.arrivals], func(c cell) bool { return c.follow }) {
					followed++
				}
			}
			t.Logf("%d queues, %d more as a waiter sees them, %d steps", len(s.nodes)-followed, followed, s.steps)
		})
	}
}

// TestSearchFindsMutants: the search can fail. Each variant of the rule is wrong in one way and
// breaks the law named.
func TestSearchFindsMutants(t *testing.T) {
	caught := map[law]bool{}
	for _, m := range []struct {
		name   string
		breaks law
		mutate func(*rule)
	}{
		{"joins do not block arrivals", compatible, func(r *rule) {
			r.granted = func(q driver.Queue) int { return driver.Queue{Arrivals: q.Arrivals}.Granted() }
		}},
		{"a limit too many", compatible, func(r *rule) {
			r.granted = func(q driver.Queue) int {
				return rewritten(q, func(e *driver.Entry) {
					if e.Limit > 0 {
						e.Limit++
					}
				}).Granted()
			}
		}},
		{"the smallest limit is forgotten: each keeps its own", compatible, func(r *rule) {
			r.granted = func(q driver.Queue) int {
				for i, s := range q.Arrivals {
					all := slices.Concat(q.Joins, q.Arrivals[:i+1])
					if !restatement(rewritten(q, func(e *driver.Entry) { e.Limit = 0 }), i) || s.Limit > 0 && owners(all) > s.Limit {
						return i
					}
				}
				return len(q.Arrivals)
			}
		}},
		{"a waiting owner can be joined", taken, func(r *rule) {
			r.admit = func(q driver.Queue, a driver.Request) (driver.Request, error) {
				if !a.Join() {
					return q.Admit(a)
				}
				return only(q, a.Owner).Admit(a)
			}
		}},
		{"a shared hold can be upgraded", admitted, func(r *rule) {
			r.admit = func(q driver.Queue, a driver.Request) (driver.Request, error) {
				b, err := q.Admit(a)
				if errors.Is(err, driver.ErrUpgrade) {
					err = nil
				}
				return b, err
			}
		}},
		{"a join brings its own smaller limit", taken, func(r *rule) {
			r.admit = func(q driver.Queue, a driver.Request) (driver.Request, error) {
				b, err := q.Admit(a)
				if a.Join() && a.Limit > 0 && a.Limit < b.Limit {
					b.Limit = a.Limit
				}
				return b, err
			}
		}},
		{"requests are counted instead of owners", taken, func(r *rule) {
			r.granted = func(q driver.Queue) int {
				return rewritten(q, func(e *driver.Entry) { e.Owner = e.ID }).Granted()
			}
		}},
		{"the last in the queue always waits", stuck, func(r *rule) {
			r.granted = func(q driver.Queue) int { return min(q.Granted(), max(0, len(q.Arrivals)-1)) }
		}},
		{"readers do not share", restated, func(r *rule) {
			r.granted = func(q driver.Queue) int {
				return rewritten(q, func(e *driver.Entry) {
					if e.Limit == 0 {
						e.Mode = driver.Exclusive
					}
				}).Granted()
			}
		}},
		{"no waiter depends on joins", dependent, func(r *rule) {
			r.depends = func(q driver.Queue, i int) []*driver.Entry {
				return driver.Queue{Arrivals: q.Arrivals}.Depends(i)
			}
		}},
		{"a request is watched, not an owner", ahead, func(r *rule) {
			r.depends = func(q driver.Queue, i int) []*driver.Entry {
				d := q.Depends(i)
				for _, j := range q.Joins {
					if len(d) > 0 && j.Limit > 0 && !slices.Contains(d, j) {
						d = append(d, j)
					}
				}
				return d
			}
		}},
		{"the farthest comes first", ahead, func(r *rule) {
			r.depends = func(q driver.Queue, i int) []*driver.Entry {
				d := q.Depends(i)
				slices.Reverse(d)
				return d
			}
		}},
		{"every waiter watches the farthest", reach, func(r *rule) {
			r.depends = func(q driver.Queue, i int) []*driver.Entry {
				for _, e := range q.Arrivals[:i] {
					if e.Mode == driver.Exclusive || q.Arrivals[i].Mode == driver.Exclusive {
						return []*driver.Entry{e}
					}
				}
				return q.Depends(i)
			}
		}},
		{"every waiter watches the one that sets the smallest limit", reach, func(r *rule) {
			r.depends = func(q driver.Queue, i int) []*driver.Entry {
				deps, sets := fewest(q, i)
				if sets != nil && len(deps) > 0 && !slices.Contains(deps, sets) {
					deps = append(deps, sets)
				}
				return deps
			}
		}},
		{"no waiter watches the one that sets the smallest limit", woken, func(r *rule) {
			r.depends = func(q driver.Queue, i int) []*driver.Entry {
				deps, _ := fewest(q, i)
				return deps
			}
		}},
		{"one permit is watched instead of all", woken, func(r *rule) {
			r.depends = func(q driver.Queue, i int) []*driver.Entry {
				d := q.Depends(i)
				return d[:min(1, len(d))]
			}
		}},
		{"locks and semaphores mix", admitted, func(r *rule) {
			r.admit = func(q driver.Queue, a driver.Request) (driver.Request, error) {
				if !a.Join() {
					return a, nil
				}
				return q.Admit(a)
			}
		}},
		{"a hold that lives on in joins cannot be joined", admitted, func(r *rule) {
			r.admit = func(q driver.Queue, a driver.Request) (driver.Request, error) {
				if _, err := (driver.Queue{Arrivals: q.Arrivals}).Admit(a); a.Join() && err != nil {
					return a, err
				}
				return q.Admit(a)
			}
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			mutant := theRule
			m.mutate(&mutant)
			s := search{rule: mutant, most: 5}
			b := s.run()
			if b == nil {
				t.Fatalf("not caught in %d states", len(s.nodes))
			}
			if b.law != m.breaks {
				t.Fatalf("broke %q, not %q: %v", b.law, m.breaks, b)
			}
			t.Log(b)
			caught[b.law] = true
		})
	}
	for _, l := range laws {
		if !caught[l] {
			t.Errorf("no mutant breaks %q", l)
		}
	}
}

// rewritten returns a copy of the queue in which each entry was changed by f.
func rewritten(q driver.Queue, f func(*driver.Entry)) driver.Queue {
	change := func(es []*driver.Entry) (out []*driver.Entry) {
		for _, e := range es {
			c := *e
			f(&c)
			out = append(out, &c)
		}
		return out
	}
	return driver.Queue{Joins: change(q.Joins), Arrivals: change(q.Arrivals)}
}

// only returns what the queue would be if it had only the requests of one owner.
func only(q driver.Queue, owner driver.ID) driver.Queue {
	other := func(e *driver.Entry) bool { return e.Owner != owner }
	return driver.Queue{
		Joins:    slices.DeleteFunc(slices.Clone(q.Joins), other),
		Arrivals: slices.DeleteFunc(slices.Clone(q.Arrivals), other),
	}
}

// fewest is Depends with as few requests as fill the smallest limit of all requests ahead,
// whichever of them sets it.
func fewest(q driver.Queue, i int) (deps []*driver.Entry, sets *driver.Entry) {
	s := q.Arrivals[i]
	if s.Limit == 0 {
		return q.Depends(i), nil
	}
	near := slices.Clone(q.Arrivals[:i])
	slices.Reverse(near)
	near = append(near, q.Joins...)
	limit := s.Limit
	for _, e := range near {
		if e.Limit > 0 && e.Limit < limit {
			limit, sets = e.Limit, e
		}
	}
	for _, e := range near {
		if e.Owner != s.Owner && len(deps) < limit && owners(append(slices.Clone(deps), e)) > len(deps) {
			deps = append(deps, e)
		}
	}
	if len(deps) < limit {
		return nil, nil
	}
	return deps, sets
}
