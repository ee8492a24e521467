package driver_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver"
)

// rule is the rule under test, as functions, so that wrong variants of it can be held to the same
// laws.
type rule struct {
	granted func(driver.Queue) int
	depends func(driver.Queue, int) []*driver.Entry
	admit   func(driver.Queue, driver.Request) (driver.Request, error)
}

var theRule = rule{driver.Queue.Granted, driver.Queue.Depends, driver.Queue.Admit}

// law is a promise of the rule.
type law string

const (
	compatible law = "never two incompatible grants"
	taken      law = "a grant is never taken back"
	stuck      law = "some request holds unless the queue is empty"
	restated   law = "the granted arrivals are the prefix that the sentences of the rule name"
	dependent  law = "Depends is empty if and only if the arrival is granted"
	ahead      law = "a waiter depends on arrivals ahead of it, nearest first, then on joins, one of each owner"
	reach      law = "a departure wakes one writer, or the readers up to the next writer, or at most n for permits"
	woken      law = "no waiter is granted without a wake-up"
	admitted   law = "only a hold can be joined, in a mode that it covers, and locks and semaphores do not mix"
)

var laws = []law{compatible, taken, stuck, restated, dependent, ahead, reach, woken, admitted}

// breach reports which law was broken, and how.
type breach struct {
	law    law
	detail string
}

func (b *breach) Error() string { return string(b.law) + ": " + b.detail }

func breached(l law, format string, args ...any) *breach {
	return &breach{l, fmt.Sprintf(format, args...)}
}

// check holds one queue to the laws that need no history.
func (r rule) check(q driver.Queue) *breach {
	granted := r.granted(q)
	if b := together(q.Arrivals[:granted], q.Joins); b != nil {
		return b
	}
	if q.Len() > 0 && granted+len(q.Joins) == 0 {
		return breached(stuck, "%s", show(q))
	}
	for i := range q.Arrivals {
		if (i < granted) != restatement(q, i) {
			return breached(restated, "%s: %d granted", show(q), granted)
		}
		deps := r.depends(q, i)
		if (i < granted) != (len(deps) == 0) {
			return breached(dependent, "%s: %d granted, arrival %d depends on %d", show(q), granted, i, len(deps))
		}
		if owners(deps) != len(deps) {
			return breached(ahead, "%s: arrival %d watches one owner twice", show(q), i)
		}
		last := i
		for n, d := range deps {
			place := slices.Index(q.Arrivals, d)
			switch {
			case place >= last, place < 0 && !slices.Contains(q.Joins, d):
				return breached(ahead, "%s: arrival %d, number %d", show(q), i, n)
			case place < 0:
				last = 0
			default:
				last = place
			}
			if !reaches(q, d, place, i) {
				return breached(reach, "%s: arrival %d watches from too far", show(q), i)
			}
		}
	}
	return nil
}

// together says whether the requests may hold at the same time.
func together(arrivals, joins []*driver.Entry) *breach {
	hold := slices.Concat(arrivals, joins)
	owners := owners(hold)
	for _, e := range hold {
		if owners > 1 && e.Mode == driver.Exclusive || e.Limit > 0 && owners > e.Limit {
			return breached(compatible, "%s all hold", show(driver.Queue{Arrivals: arrivals, Joins: joins}))
		}
	}
	return nil
}

// owners counts them.
func owners(es []*driver.Entry) (n int) {
	for i, e := range es {
		if !slices.ContainsFunc(es[:i], func(f *driver.Entry) bool { return f.Owner == e.Owner }) {
			n++
		}
	}
	return n
}

// restatement says whether arrival i is granted, word for word.
func restatement(q driver.Queue, i int) bool {
	s := q.Arrivals[i]
	all := slices.Concat(q.Joins, q.Arrivals[:i+1])
	for _, e := range all {
		if e.Owner != s.Owner && (e.Mode == driver.Exclusive || s.Mode == driver.Exclusive) {
			return false
		}
	}
	n := owners(all)
	for _, e := range all {
		if e.Limit > 0 && n > 1 && n > e.Limit {
			return false
		}
	}
	return true
}

// reaches says whether arrival i may watch d, which stands at place among the arrivals or is a
// join. It bounds the wake-ups: the waiters that watch d stand close behind it, or, if it is a
// join, close to the front.
func reaches(q driver.Queue, d *driver.Entry, place, i int) bool {
	s, between := q.Arrivals[i], q.Arrivals[place+1:i]
	switch {
	case s.Mode == driver.Exclusive:
		return len(between) == 0
	case d.Mode == driver.Exclusive:
		return !slices.ContainsFunc(between, func(e *driver.Entry) bool { return e.Mode == driver.Exclusive })
	default:
		// a limit that s does not have is only met where kinds mix
		return s.Limit == 0 || len(between) < s.Limit
	}
}

// show writes a queue as the search writes its states.
func show(q driver.Queue) string {
	var owners []driver.ID
	number := func(e *driver.Entry) uint8 {
		if !slices.Contains(owners, e.Owner) {
			owners = append(owners, e.Owner)
		}
		return uint8(slices.Index(owners, e.Owner))
	}
	text := "{"
	for _, e := range q.Arrivals {
		text += fmt.Sprintf("%d%v ", number(e), kindOf(e.Request))
	}
	text += "|"
	for _, e := range q.Joins {
		text += fmt.Sprintf(" %d%v", number(e), kindOf(e.Request))
	}
	return text + "}"
}

// crowd is a long queue with all its waiters. They check again some time after a request that they
// watched went.
type crowd struct {
	rule  rule
	mixed bool
	kinds []kind
	queue driver.Queue
	// of waiters that have looked and were not woken since
	watches map[*driver.Entry][]*driver.Entry
	arrived map[*driver.Entry]int
	next    int             // number and ID of the next arrival
	granted []*driver.Entry // before the last event, and not gone since
	newest  int             // of those ever granted, the one that arrived last
}

const mostInCrowd = 40

// TestCrowd holds long queues to the laws, with all waiters at once.
func TestCrowd(t *testing.T) {
	for name, c := range map[string]crowd{
		"locks":   {kinds: []kind{exclusive, unlimited}},
		"permits": {kinds: []kind{limit1, limit1 + 1, limit1 + 4, limit1 + 11}},
		"mixed":   {kinds: []kind{exclusive, unlimited, limit1 + 1, limit1 + 6}, mixed: true},
	} {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			c := c
			c.rule, c.newest = theRule, -1
			c.watches, c.arrived = map[*driver.Entry][]*driver.Entry{}, map[*driver.Entry]int{}
			t.Repeat(map[string]func(*rapid.T){
				"arrive": c.arrive, "arrive2": c.arrive, "join": c.join, "depart": c.depart, "look": c.look, "": c.verify,
			})
		}))
	}
}

func (c *crowd) id() driver.ID {
	c.next++
	return driver.ID{byte(c.next >> 8), byte(c.next), 1}
}

// arrive adds some arrivals.
func (c *crowd) arrive(t *rapid.T) {
	for range rapid.IntRange(1, 6).Draw(t, "n") {
		if c.queue.Len() == mostInCrowd {
			return
		}
		k, id := rapid.SampledFrom(c.kinds).Draw(t, "kind"), c.id()
		r, err := c.rule.admit(c.queue, driver.Request{ID: id, Owner: id, Mode: k.mode(), Limit: k.limit()})
		if err != nil && !c.mixed {
			t.Fatalf("%v is refused by %s: %v", k, show(c.queue), err)
		}
		e := &driver.Entry{Request: r}
		c.queue.Arrivals = append(c.queue.Arrivals, e)
		c.arrived[e] = c.next
	}
}

// join asks for the hold of any request that stands in the queue.
func (c *crowd) join(t *rapid.T) {
	if c.queue.Len() == 0 || c.queue.Len() == mostInCrowd {
		t.Skip()
	}
	to := rapid.SampledFrom(slices.Concat(c.queue.Arrivals, c.queue.Joins)).Draw(t, "to")
	k := rapid.SampledFrom(c.kinds).Draw(t, "kind")
	r, err := c.rule.admit(c.queue, driver.Request{ID: c.id(), Owner: to.Owner, Mode: k.mode(), Limit: k.limit()})
	held := c.queue.Holders()
	if errors.Is(err, driver.ErrLost) == slices.Contains(held, to) {
		t.Fatalf("%v joins %v in %s: %v", k, to.Owner, show(c.queue), err)
	}
	if err == nil {
		e := &driver.Entry{Request: r}
		if with := append(held, e); owners(with) != owners(held) || smallest(with) != smallest(held) {
			t.Fatalf("%v joins %v in %s: an owner or a limit was added", k, to.Owner, show(c.queue))
		}
		c.queue.Joins = append(c.queue.Joins, e)
	}
}

// depart removes any request, and wakes those that watch it.
func (c *crowd) depart(t *rapid.T) {
	if c.queue.Len() == 0 {
		t.Skip()
	}
	e := rapid.SampledFrom(slices.Concat(c.queue.Arrivals, c.queue.Joins)).Draw(t, "gone")
	var wakes []*driver.Entry
	for _, w := range c.queue.Arrivals {
		if slices.Contains(c.watches[w], e) {
			wakes = append(wakes, w)
			delete(c.watches, w)
		}
	}
	writers, permits := 0, 0
	for _, w := range wakes {
		permits = max(permits, w.Limit)
		if w.Mode == driver.Exclusive {
			writers++
		}
	}
	if !c.mixed && (writers > 0 && len(wakes) > 1 || permits > 0 && len(wakes) > permits) {
		t.Fatalf("%s: the departure of %v wakes %d", show(c.queue), e.Owner, len(wakes))
	}
	delete(c.watches, e)
	is := func(f *driver.Entry) bool { return f == e }
	c.queue.Arrivals = slices.DeleteFunc(c.queue.Arrivals, is)
	c.queue.Joins = slices.DeleteFunc(c.queue.Joins, is)
	c.granted = slices.DeleteFunc(c.granted, is)
}

// look lets some waiters that were woken look again; others take their time.
func (c *crowd) look(t *rapid.T) {
	for i, w := range c.queue.Arrivals {
		if c.watches[w] == nil && rapid.Bool().Draw(t, "looks") {
			if d := c.rule.depends(c.queue, i); len(d) > 0 {
				c.watches[w] = d
			}
		}
	}
}

func (c *crowd) verify(t *rapid.T) {
	if len(c.queue.Joins) > 1 {
		c.queue.Joins = rapid.Permutation(c.queue.Joins).Draw(t, "joins")
	}
	if b := c.rule.check(c.queue); b != nil {
		t.Fatal(b)
	}
	granted := c.queue.Arrivals[:c.rule.granted(c.queue)]
	for _, e := range c.granted {
		if !slices.Contains(granted, e) {
			t.Fatalf("%s: a grant was taken back", show(c.queue))
		}
	}
	for _, e := range granted {
		if c.watches[e] != nil {
			t.Fatalf("%s: nothing that %v watched went, and it is granted", show(c.queue), e.Owner)
		}
		if !slices.Contains(c.granted, e) {
			if c.arrived[e] < c.newest {
				t.Fatalf("%s: %v was overtaken", show(c.queue), e.Owner)
			}
			c.newest = c.arrived[e]
		}
	}
	c.granted = slices.Clone(granted)
}

// smallest returns the smallest limit.
func smallest(es []*driver.Entry) (limit int) {
	for _, e := range es {
		if e.Limit > 0 && (limit == 0 || e.Limit < limit) {
			limit = e.Limit
		}
	}
	return limit
}

// hold returns a granted entry of the owner.
func hold(owner byte, k kind, token driver.Token) *driver.Entry {
	id := driver.ID{owner}
	return &driver.Entry{Request: driver.Request{ID: id, Owner: id, Token: token, Mode: k.mode(), Limit: k.limit()}}
}

// joined returns a granted join of the owner's hold.
func joined(owner byte, k kind, token driver.Token) *driver.Entry {
	e := hold(owner, k, token)
	e.ID = driver.ID{owner, 1}
	return e
}

func broken(e *driver.Entry) *driver.Entry {
	e.Broken = true
	return e
}

func TestAdmit(t *testing.T) {
	type entries = []*driver.Entry
	for _, c := range []struct {
		name     string
		arrivals entries
		joins    entries
		owner    byte // of the request that asks; 9 is in no queue
		kind     kind
		err      error
		stored   kind // of what is admitted
		token    driver.Token
	}{
		// Arrivals.
		{"the first lock", nil, nil, 0, exclusive, nil, exclusive, 0},
		{"the first permit", nil, nil, 0, limit3, nil, limit3, 0},
		{"a lock behind a lock", entries{hold(1, exclusive, 5)}, nil, 0, unlimited, nil, unlimited, 0},
		{"another limit is kept as it is", entries{hold(1, limit3, 5)}, nil, 0, limit1, nil, limit1, 0},
		{"a lock among permits", entries{hold(1, limit3, 5)}, nil, 0, exclusive, driver.ErrConflict, 0, 0},
		{"a shared lock among permits", entries{hold(1, limit1, 5)}, nil, 0, unlimited, driver.ErrConflict, 0, 0},
		{"a permit among locks", entries{hold(1, exclusive, 5)}, nil, 0, limit1, driver.ErrConflict, 0, 0},
		{"a permit among readers", entries{hold(1, unlimited, 5)}, nil, 0, limit2, driver.ErrConflict, 0, 0},
		{"a permit where a lock lives on in joins", nil, entries{joined(1, unlimited, 5)}, 0, limit2, driver.ErrConflict, 0, 0},
		{"a lock where a permit lives on in a join", nil, entries{joined(1, limit2, 5)}, 0, exclusive, driver.ErrConflict, 0, 0},
		{"a permit where the lock is broken", entries{broken(hold(1, exclusive, 5))}, nil, 0, limit2, driver.ErrConflict, 0, 0},
		{"a lock behind a broken lock", entries{broken(hold(1, exclusive, 5))}, nil, 0, exclusive, nil, exclusive, 0},

		// Joins that are admitted take the token and the limit of the hold.
		{"exclusive under exclusive", entries{hold(1, exclusive, 5)}, nil, 1, exclusive, nil, exclusive, 5},
		{"shared under exclusive", entries{hold(1, exclusive, 5)}, nil, 1, unlimited, nil, unlimited, 5},
		{"shared under shared", entries{hold(1, unlimited, 5), hold(2, unlimited, 6)}, nil, 2, unlimited, nil, unlimited, 6},
		{"past a waiting writer", entries{hold(1, unlimited, 5), hold(2, exclusive, 0)}, nil, 1, unlimited, nil, unlimited, 5},
		{"a hold that lives on in a join", nil, entries{joined(1, exclusive, 5)}, 1, exclusive, nil, exclusive, 5},
		{"a smaller limit", entries{hold(1, limit3, 5)}, nil, 1, limit1, nil, limit3, 5},
		{"a larger limit", entries{hold(1, limit1, 5)}, nil, 1, limit3, nil, limit1, 5},
		{"its hold's limit, not another's", entries{hold(1, limit3, 5), hold(2, limit2, 6)}, nil, 1, limit2, nil, limit3, 5},
		{"the limit of a hold that lives on in a join", nil, entries{joined(1, limit2, 5)}, 1, limit3, nil, limit2, 5},
		{"the smallest limit of a hold", entries{hold(1, limit3, 5)}, entries{joined(1, limit2, 5)}, 1, limit3, nil, limit2, 5},

		// Joins that are refused.
		{"a hold that has ended", nil, nil, 9, exclusive, driver.ErrLost, 0, 0},
		{"a hold that has ended, and has a successor", entries{hold(1, exclusive, 5)}, nil, 9, exclusive, driver.ErrLost, 0, 0},
		{"a hold that has ended, among the other kind", entries{hold(1, exclusive, 5)}, nil, 9, limit1, driver.ErrLost, 0, 0},
		{"a waiter", entries{hold(1, exclusive, 5), hold(2, exclusive, 0)}, nil, 2, exclusive, driver.ErrLost, 0, 0},
		{"a waiter for a permit", entries{hold(1, limit1, 5), hold(2, limit3, 0)}, nil, 2, limit3, driver.ErrLost, 0, 0},
		{"a waiter for joins", entries{hold(2, exclusive, 0)}, entries{joined(1, unlimited, 5)}, 2, exclusive, driver.ErrLost, 0, 0},
		{"a broken hold", entries{broken(hold(1, exclusive, 5))}, nil, 1, exclusive, driver.ErrLost, 0, 0},
		{"a broken hold that lives on in a join", nil, entries{broken(joined(1, exclusive, 5))}, 1, exclusive, driver.ErrLost, 0, 0},
		{"an upgrade", entries{hold(1, unlimited, 5)}, nil, 1, exclusive, driver.ErrUpgrade, 0, 0},
		{"an upgrade beside a reader", entries{hold(1, unlimited, 5), hold(2, unlimited, 6)}, nil, 1, exclusive, driver.ErrUpgrade, 0, 0},
		{"an upgrade after a downgrade", nil, entries{joined(1, unlimited, 5)}, 1, exclusive, driver.ErrUpgrade, 0, 0},
		{"a permit as a lock", entries{hold(1, limit2, 5)}, nil, 1, exclusive, driver.ErrConflict, 0, 0},
		{"a permit as a shared lock", entries{hold(1, limit2, 5)}, nil, 1, unlimited, driver.ErrConflict, 0, 0},
		{"a lock as a permit", entries{hold(1, exclusive, 5)}, nil, 1, limit2, driver.ErrConflict, 0, 0},
		{"a shared lock as a permit", entries{hold(1, unlimited, 5)}, nil, 1, limit2, driver.ErrConflict, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := driver.Queue{Arrivals: c.arrivals, Joins: c.joins}
			before := show(q)
			r := driver.Request{
				Name: "n", ID: newcomer, Owner: newcomer, Client: driver.ID{8}, Label: "l",
				Mode: c.kind.mode(), Limit: c.kind.limit(),
			}
			if c.owner != 0 {
				r.Owner, r.Token = driver.ID{c.owner, 0}, 77 // the queue's token counts
			}
			if c.owner == 9 {
				r.Owner = driver.ID{9, 9}
			}
			got, err := q.Admit(r)
			if !errors.Is(err, c.err) {
				t.Fatalf("%v, want %v", err, c.err)
			}
			if after := show(q); after != before {
				t.Fatalf("%s became %s", before, after)
			}
			if err != nil {
				return
			}
			want := r
			want.Mode, want.Limit, want.Token = c.stored.mode(), c.stored.limit(), c.token
			if got != want {
				t.Fatalf("stored as %+v, want %+v", got, want)
			}
		})
	}
}

// TestHoldersWaiters: each request is one or the other.
func TestHoldersWaiters(t *testing.T) {
	a, b, c, j := hold(1, unlimited, 5), hold(2, unlimited, 6), hold(3, exclusive, 0), joined(1, unlimited, 5)
	q := driver.Queue{Arrivals: []*driver.Entry{a, b, c}, Joins: []*driver.Entry{j}}
	if got := q.Holders(); !slices.Equal(got, []*driver.Entry{a, b, j}) {
		t.Errorf("holders: %v", got)
	}
	if got := q.Waiters(); !slices.Equal(got, []*driver.Entry{c}) {
		t.Errorf("waiters: %v", got)
	}
	if q.Len() != 4 {
		t.Errorf("Len: %d", q.Len())
	}
	var empty driver.Queue
	if len(empty.Holders()) != 0 || len(empty.Waiters()) != 0 || empty.Len() != 0 || empty.Granted() != 0 {
		t.Error("the empty queue is not empty")
	}
}

// TestGrantedStops: nothing beyond the first waiter is read; a nil entry would panic.
func TestGrantedStops(t *testing.T) {
	for _, k := range []kind{exclusive, limit1, limit2} {
		holders := max(1, k.limit())
		var q driver.Queue
		for i := range holders + 1 {
			q.Arrivals = append(q.Arrivals, hold(byte(i+1), k, 0))
		}
		q.Arrivals = append(q.Arrivals, make([]*driver.Entry, 100)...)
		if got := q.Granted(); got != holders {
			t.Errorf("%v: %d granted, want %d", k, got, holders)
		}
	}
}

// waiting returns a queue with one holder, or all that fit, and n waiters of the same kind behind.
func waiting(k kind, n int) driver.Queue {
	var q driver.Queue
	for i := range max(1, k.limit()) + n {
		id := driver.ID{byte(i >> 8), byte(i), 1}
		r := driver.Request{ID: id, Owner: id, Mode: k.mode(), Limit: k.limit()}
		q.Arrivals = append(q.Arrivals, &driver.Entry{Request: r})
	}
	if k == unlimited {
		q.Arrivals[0].Mode = driver.Exclusive
	}
	return q
}

func BenchmarkGranted(b *testing.B) { benchmark(b, func(q driver.Queue) { q.Granted() }) }

// BenchmarkDepends asks for the last waiter.
func BenchmarkDepends(b *testing.B) {
	benchmark(b, func(q driver.Queue) { q.Depends(len(q.Arrivals) - 1) })
}

func benchmark(b *testing.B, f func(driver.Queue)) {
	for _, k := range []kind{exclusive, unlimited, limit3} {
		for _, n := range []int{10, 1000} {
			b.Run(fmt.Sprintf("%v/waiters=%d", k, n), func(b *testing.B) {
				q := waiting(k, n)
				b.ReportAllocs()
				for b.Loop() {
					f(q)
				}
			})
		}
	}
}
