package mysql

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// at is a row at a place. Its ID is that of its place; it has a minute left.
func at(place int64, kind string, mode driver.Mode, limit int) row {
	id := driver.ID{byte(place), 1}
	return row{kind: kind, place: place, Entry: driver.Entry{Left: time.Minute,
		Request: driver.Request{ID: id, Owner: id, Mode: mode, Limit: limit, TTL: time.Minute}}}
}

// joins is a join of the hold that the request at that place began.
func joins(place, of int64, mode driver.Mode, limit int) row {
	r := at(place, "join", mode, limit)
	r.Owner = driver.ID{byte(of), 1}
	return r
}

func (r row) String() string {
	mode := "X"
	if r.Mode == driver.Shared {
		mode = fmt.Sprint("S", r.Limit)
	}
	if !alive(&r.Entry) {
		mode = "dead " + mode
	}
	return fmt.Sprintf("%s %d %s of %d", r.kind, r.place, mode, r.Owner[0])
}

func (l *lock) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "token %d, head %d, holder %d with %s left", l.token, l.head, l.holder.ID[0], l.holder.Left)
	for _, r := range l.beside {
		fmt.Fprintf(&s, "\n\t%s", r)
	}
	return s.String()
}

// copied is the lock as a second read would return it.
func (l *lock) copied() *lock {
	c := *l
	c.beside = slices.Clone(l.beside)
	return &c
}

// apply does what swap does with a step. It reports what swap refuses.
func (l *lock) apply(s *step) error {
	joins, shared, passed := 0, 0, 0
	for _, r := range l.beside {
		switch {
		case r.kind == "join":
			joins++
		case r.kind == "request" && r.Mode == driver.Shared && r.place <= s.head:
			shared++
		case r.kind == "request" && r.Mode == driver.Exclusive && r.place > l.head && r.place < s.head && alive(&r.Entry):
			passed++
		}
	}
	if joins > s.joins || shared > s.read || passed > 0 {
		return fmt.Errorf("refused: %d joins, %d shared and %d passed, by %+v", joins, shared, passed, s)
	}
	l.token += s.head - l.head
	l.head = s.head
	switch {
	case s.next != nil:
		l.holder = s.next.Entry
	case s.ended:
		l.holder = driver.Entry{}
	}
	return nil
}

// holders are the IDs of those that hold, as the rows say.
func (l *lock) holders() (ids []driver.ID) {
	if l.held() {
		ids = append(ids, l.holder.ID)
	}
	for _, r := range l.beside {
		if alive(&r.Entry) && (r.kind == "join" || r.kind == "request" && r.Mode == driver.Shared && r.place <= l.head) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// wanted are the IDs of those that hold by the rule once the request gone has left. It does not use
// the code under test.
func (l *lock) wanted(gone driver.ID) (ids []driver.ID) {
	var q driver.Queue
	if l.holder.ID != (driver.ID{}) && l.holder.Left > 0 && l.holder.ID != gone {
		q.Arrivals = append(q.Arrivals, &l.holder)
	}
	for i := range l.beside {
		r := &l.beside[i]
		let := r.place <= l.head
		switch {
		case r.Left <= 0 || r.kind == "tombstone":
		case r.kind == "join":
			q.Joins = append(q.Joins, &r.Entry)
		case !let || r.Mode == driver.Shared:
			q.Arrivals = append(q.Arrivals, &r.Entry)
		}
	}
	for _, e := range q.Holders() {
		ids = append(ids, e.ID)
	}
	return ids
}

// sameIDs reports whether both have the same IDs, in any order.
func sameIDs(a, b []driver.ID) bool {
	count := map[driver.ID]int{}
	for _, id := range a {
		count[id]++
	}
	for _, id := range b {
		count[id]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// TestDecide: one case of each kind.
func TestDecide(t *testing.T) {
	const x, s = driver.Exclusive, driver.Shared
	held := func(place int64, left time.Duration) driver.Entry {
		r := at(place, "request", x, 0)
		r.Left = left
		return r.Entry
	}
	dead := func(r row) row { r.Left = -1; return r }
	for what, c := range map[string]struct {
		holder driver.Entry
		head   int64
		part   bool // more was not read
		beside []row
		gone   int64 // which holder is released
		want   string
	}{
		"nothing stands there":                {want: "lower"},
		"nothing more was read":               {part: true, want: "nothing"},
		"a holder":                            {holder: held(1, time.Minute), head: 1, want: "lower"},
		"a holder has expired":                {holder: held(1, -1), head: 1, want: "ended lower"},
		"a holder goes":                       {holder: held(1, time.Minute), head: 1, gone: 1, want: "ended lower"},
		"another goes":                        {holder: held(1, time.Minute), head: 1, gone: 2, want: "lower"},
		"a holder and a reader":               {holder: held(1, time.Minute), head: 1, beside: []row{at(2, "request", s, 0)}, want: "nothing"},
		"readers follow":                      {holder: held(1, time.Minute), head: 1, gone: 1, beside: []row{at(2, "request", s, 0), at(4, "request", s, 0), at(5, "request", x, 0)}, want: "ended head 4 of 2"},
		"readers follow one that expired":     {holder: held(1, -1), head: 1, beside: []row{at(2, "request", s, 0), at(4, "request", s, 0)}, want: "ended head 4 of 2"},
		"a writer follows":                    {holder: held(1, time.Minute), head: 1, gone: 1, beside: []row{at(3, "request", x, 0), at(4, "request", s, 0)}, want: "ended next 3 head 3 of 0"},
		"a writer follows readers":            {head: 4, beside: []row{at(4, "request", s, 0), at(5, "request", x, 0)}, want: "nothing"},
		"the last reader has gone":            {head: 4, beside: []row{at(5, "request", x, 0), at(6, "request", s, 0)}, want: "next 5 head 5 of 0"},
		"writers alone":                       {head: 4, beside: []row{at(5, "request", x, 0), at(6, "request", x, 0)}, want: "next 5 head 5 lower of 0"},
		"a writer that was granted":           {head: 4, beside: []row{at(4, "request", x, 0), at(5, "request", s, 0)}, want: "head 5 of 1"},
		"a permit is free":                    {head: 4, beside: []row{at(2, "request", s, 2), at(5, "request", s, 2), at(6, "request", s, 2)}, want: "head 5 of 2"},
		"a join keeps the hold":               {holder: held(1, time.Minute), head: 1, gone: 1, beside: []row{joins(2, 1, x, 0), at(3, "request", x, 0)}, want: "ended"},
		"a shared join and a reader":          {head: 1, beside: []row{joins(2, 1, s, 0), at(3, "request", s, 0)}, want: "head 3 of 1"},
		"a join of what waits behind readers": {head: 3, beside: []row{joins(2, 1, s, 0), at(4, "request", x, 0)}, want: "nothing"},
		"a tombstone":                         {head: 1, beside: []row{at(2, "tombstone", x, 0)}, want: "nothing"},
		"a tombstone and a writer":            {head: 1, beside: []row{at(3, "request", x, 0), at(2, "tombstone", x, 0)}, want: "next 3 head 3 of 0"},
		"a writer that has expired":           {head: 1, beside: []row{dead(at(2, "request", x, 0)), at(3, "request", x, 0)}, want: "next 3 head 3 lower of 0"},
	} {
		l := &lock{token: 100, head: c.head, others: 2, holder: c.holder, beside: c.beside, whole: !c.part}
		gone := driver.ID{}
		if c.gone > 0 {
			gone = driver.ID{byte(c.gone), 1}
		}
		got := "nothing"
		if st := l.decide(gone); st != nil {
			var said []string
			if st.ended {
				said = append(said, "ended")
			}
			if st.next != nil {
				said = append(said, fmt.Sprint("next ", st.next.place))
			}
			if st.head != c.head {
				said = append(said, fmt.Sprint("head ", st.head))
			}
			if st.lower {
				said = append(said, "lower")
			}
			if st.head != c.head {
				said = append(said, fmt.Sprint("of ", st.read))
			}
			got = strings.Join(said, " ")
		}
		if got != c.want {
			t.Errorf("%s: %q; want %q\n%s", what, got, c.want, l)
		}
	}
}

// history makes a queue as requests come and go. Between two events the rule is applied, as each
// client does after a change; the last event is not followed by that.
type history struct {
	r    *rand.Rand
	l    *lock
	next int64 // place
	kind int   // of the name: 0 a lock, 1 a semaphore
}

func (h *history) event() (gone driver.ID) {
	l := h.l
	n := len(l.beside)
	switch e := h.r.IntN(8); {
	case e < 4 || n == 0 && !l.held(): // a request comes
		mode, limit := driver.Exclusive, 0
		if h.kind == 1 {
			mode, limit = driver.Shared, 1+h.r.IntN(3)
		} else if h.r.IntN(2) == 0 {
			mode = driver.Shared
		}
		h.add(at(h.next, "request", mode, limit))
	case e == 4: // a join comes, if it may
		q := l.queue()
		holds := q.Holders()
		if len(holds) == 0 {
			break
		}
		e := holds[h.r.IntN(len(holds))]
		admitted, err := q.Admit(driver.Request{Owner: e.Owner, Mode: e.Mode, Limit: e.Limit})
		if err == nil {
			h.add(joins(h.next, int64(e.Owner[0]), admitted.Mode, admitted.Limit))
		}
	case e == 5 && l.held(): // the holder goes
		return l.holder.ID
	case e == 6 && l.held():
		l.holder.Left = -1
	case n > 0: // any other goes
		i := h.r.IntN(n)
		switch {
		case h.r.IntN(3) > 0:
			l.beside = slices.Delete(l.beside, i, i+1)
		case h.r.IntN(2) == 0:
			l.beside[i].Left = -1
		default:
			l.beside[i].kind = "tombstone"
			h.sort()
		}
	}
	return driver.ID{}
}

func (h *history) add(r row) {
	h.next += 1 + h.r.Int64N(2)
	h.l.beside = append(h.l.beside, r)
	h.sort()
}

// sort puts the rows in the order in which they are read.
func (h *history) sort() {
	slices.SortFunc(h.l.beside, func(a, b row) int {
		if c := strings.Compare(a.kind, b.kind); c != 0 {
			return c
		}
		return int(a.place - b.place)
	})
}

// inPieces writes what follows from the rule as a client does that reads only up to the first
// waiter, and reads again after each step. It returns the holders after that. No request may hold
// meanwhile that is not wanted.
func (l *lock) inPieces(gone driver.ID, want []driver.ID) ([]driver.ID, error) {
	for range 100 {
		part := l.copied()
		for n := range len(l.beside) + 1 {
			part.beside, part.whole = slices.Clone(l.beside[:n]), n == len(l.beside)
			if part.waits() {
				break
			}
		}
		s := part.decide(gone)
		if s == nil || s.head == l.head && !s.ended {
			return l.holders(), nil
		}
		if err := l.apply(s); err != nil {
			return nil, err
		}
		for _, id := range l.holders() {
			if !slices.Contains(want, id) {
				return nil, fmt.Errorf("%v holds after %+v", id, s)
			}
		}
	}
	return nil, errBusy
}

// TestDecideKeepsTheRule: after any history, the decision grants exactly the requests that the rule
// grants, in one step, and nothing more follows from it. A client that reads in pieces comes to the
// same result. The head never goes back, and the tokens of shared holders do not change.
func TestDecideKeepsTheRule(t *testing.T) {
	steps, granted := 0, 0
	for seed := range uint64(1000) {
		h := &history{r: rand.New(rand.NewPCG(seed, 7)), l: &lock{token: 1000, others: 2, whole: true}, next: 1, kind: int(seed % 3 / 2)}
		for range 25 {
			gone := h.event()
			before := h.l.copied()
			want := before.wanted(gone)
			tokens := map[driver.ID]driver.Token{}
			for _, r := range h.l.beside {
				if r.kind == "request" && r.Mode == driver.Shared && r.place <= h.l.head {
					tokens[r.ID] = h.l.tokenAt(r.place)
				}
			}
			if got, err := before.copied().inPieces(gone, want); err != nil || !sameIDs(got, want) {
				t.Fatalf("seed %d: read in pieces those hold: %v, %v; want %v\n%s", seed, got, err, want, before)
			}
			s := h.l.decide(gone)
			if s != nil {
				steps++
				if s.head > before.head {
					granted++
				}
				if err := h.l.apply(s); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, before)
				}
			}
			if got := h.l.holders(); !sameIDs(got, want) {
				t.Fatalf("seed %d: those hold: %v; want %v\n%s\nafter %+v", seed, got, want, before, s)
			}
			if h.l.head < before.head {
				t.Fatalf("seed %d: the head goes back to %d\n%s", seed, h.l.head, before)
			}
			for _, r := range h.l.beside {
				if was, is := tokens[r.ID]; is && h.l.tokenAt(r.place) != was {
					t.Fatalf("seed %d: the token of %s was %d, and is %d", seed, r, was, h.l.tokenAt(r.place))
				}
			}
			if s := h.l.decide(driver.ID{}); s != nil && (s.head != h.l.head || s.ended || s.next != nil) {
				t.Fatalf("seed %d: %+v follows\n%s", seed, s, h.l)
			}
		}
	}
	if steps < 1000 || granted < 1000 {
		t.Errorf("%d steps, %d of which grant: the histories show little", steps, granted)
	}
}

// TestAPermitIsPassedOn: one statement passes it on while another deletes the row; then nothing
// else follows. Otherwise, and for readers, the rule decides.
func TestAPermitIsPassedOn(t *testing.T) {
	for what, c := range map[string]struct {
		limit        int
		passed, gone int64 // the rows that changed
		lets, reads  int
	}{
		"one waits":            {3, 1, 1, 1, 0},
		"none waits":           {3, 0, 1, 1, 1},
		"the hold was over":    {3, 1, 0, 1, 1},
		"a reader":             {0, 0, 1, 0, 1},
		"a permit that is one": {1, 1, 1, 1, 0},
	} {
		server := &scripted{answer: func(stmt string) (answer, error) {
			switch {
			case is(stmt, let):
				return answer{affected: c.passed}, nil
			case is(stmt, leaveAlive):
				return answer{affected: c.gone}, nil
			}
			return answer{}, nil
		}}
		b := server.client(t, Options{})
		r := at(2, "request", driver.Shared, c.limit).Request
		r.Name = "x"
		if found, err := b.release(b.newTask(true), r, false, true); err != nil || found != (c.gone > 0) {
			t.Errorf("%s: %t, %v", what, found, err)
		}
		lets, reads := server.count("UPDATE dlock_locks l JOIN"), server.count("SELECT l.token")
		if lets != c.lets || reads > 0 != (c.reads > 0) {
			t.Errorf("%s: it sends %q", what, server.said("dlock_"))
		}
	}
}

// TestABreakOfWhatGoesMeanwhile: a holder that finds its hold broken releases it, which is the
// purpose of the break.
func TestABreakOfWhatGoesMeanwhile(t *testing.T) {
	holder := driver.NewID().String()
	marked := false
	server := &scripted{}
	server.answer = func(stmt string) (answer, error) {
		lock := []string{"1000", "0", "0", holder, holder, "", "60000000", "0", "0", "0", "60000000"}
		switch {
		case is(stmt, breakLock):
			marked = true
		case is(stmt, read):
			if marked {
				lock[3], lock[10] = none, "-1"
			}
			return reads(append(lock, make([]string, 14)...)...), nil
		}
		return answer{}, nil
	}
	b := server.client(t, Options{})
	if err := b.Break(t.Context(), "x", 1000, true); err != nil || !marked {
		t.Errorf("Break: %v", err)
	}
	if err := b.Break(t.Context(), "x", 1000, true); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Break again: %v", err)
	}
}

// TestSwapSaysWhatWasRead: the statement that writes a step names the state that was read, and
// requires the conditions under which the step is right.
func TestSwapSaysWhatWasRead(t *testing.T) {
	b := (&scripted{}).client(t, Options{Prefix: "p"})
	holder, next := at(1, "request", driver.Exclusive, 0), at(6, "request", driver.Exclusive, 0)
	l := &lock{name: "n", token: 1000, head: 4, others: 2, holder: holder.Entry}
	const token, expired = "l.token = GREATEST(l.token + 1, ", "AND l.held_until <= UTC_TIMESTAMP(6) AND ("
	ids := fmt.Sprintf("AND l.holder = %s AND ", hexID(holder.ID))
	read := "WHERE l.prefix = X'70' AND l.name = X'6e' AND l.others = 2 AND l.token = 1000 AND l.head = 4 " + ids
	for what, c := range map[string]struct {
		s      step
		gone   driver.ID
		has    []string
		hasNot []string
	}{
		"readers": {step{head: 6, joins: 2, read: 3}, driver.ID{},
			[]string{read + "TRUE AND", "SET l.token = 1002, l.head = 6,", "l.holder = IF(1, l.holder, ", ") <= 2 ", ") <= 3 ", "IF(0 AND 0 = ("}, []string{token, expired}},
		"a writer": {step{head: 6, next: &next, ended: true, lower: true}, holder.ID,
			[]string{read + "TRUE AND", token, "l.head = 6,", "q.id = " + hexID(next.ID), "l.holder = IF(0, ", "IF(1 AND 0 = ("}, []string{expired}},
		"it has expired": {step{head: 4, ended: true}, driver.ID{},
			[]string{read + expired[4:], "SET l.token = 1000, l.head = 4,", "l.holder = IF(0, "}, []string{token}},
		"it has expired, and another goes": {step{head: 4, ended: true}, next.ID,
			[]string{read + expired[4:], "l.holder = IF(0, "}, []string{token}},
	} {
		stmt := b.swap(l, &c.s, c.gone)
		for _, text := range c.has {
			if !strings.Contains(stmt, text) {
				t.Errorf("%s: it does not say %q:\n%s", what, text, stmt)
			}
		}
		for _, text := range c.hasNot {
			if strings.Contains(stmt, text) {
				t.Errorf("%s: it says %q:\n%s", what, text, stmt)
			}
		}
	}
}
