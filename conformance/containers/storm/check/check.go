// Package check finds out whether a history of a storm keeps what dlock promises.
//
// Each law is sound: what it reports is a violation, on whatever machine and with whatever faults,
// since it relies only on the order of recorded times and on what the recorder guarantees of them
// (package history). A law may miss a violation; the comments say which.
package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/storm/history"
)

// Law is the name of a promise.
type Law string

// The laws.
const (
	// Exclusion: no two leases of different owners that exclude each other are trusted at one time,
	// and no more owners hold a semaphore than its limit. A lease is trusted from the return of
	// Lock to the earliest of the call of Unlock, the signal of its loss, and its Until.
	Exclusion Law = "exclusion"
	// Loss: a call that begins after Until (of Err, of Unlock, of Lock under the hold's context)
	// reports the loss, however long the process slept.
	Loss Law = "loss"
	// Tokens: of two holds, one granted before the other was requested, the later one has the
	// greater token if one of them is exclusive; no two holds have one token; all leases of a hold
	// have the same.
	Tokens Law = "tokens"
	// Order: if a request was seen in the queue before another one was sent, or ahead of it, and
	// they exclude each other, it is granted first, unless it ended or lost its place. (Queues are
	// read some hundred times a second: what changes in between is missed. So is what concerns a
	// request that was seen at two places at a time.)
	Order Law = "order"
	// Linearizable: for each grant and each release there is an instant between call and return so
	// that, one after the other, they are those of one lock. What was lost is released at an
	// instant of its own, which is never before the end of trust. What was never answered does
	// not count.
	Linearizable Law = "linearizable"
	// Progress: every call of a process that was not killed returns, at the latest within the
	// patience after the last fault.
	Progress Law = "progress"
	// Remains: within the patience after the end, the backend has no request of any client.
	Remains Law = "remains"
	// Baseline: at its end a process has no more goroutines and memory than before its work, and no
	// more connections than its goroutines need at a time.
	Baseline Law = "baseline"
	// Fencing: no update of the register that checks tokens is lost.
	Fencing Law = "fencing"
)

// Violation is a promise that was broken.
type Violation struct {
	Law  Law
	Text string
	At   int64    // when
	Ops  []uint64 // the calls of Lock that are concerned
}

// String returns the law and the text.
func (v Violation) String() string { return string(v.Law) + ": " + v.Text }

// Report is the result of a check.
type Report struct {
	Violations []Violation // in order of time
	Excluded   []Violation // those that a window explains; see windows
	Calls      int         // of Lock
	Holds      int         // leases that were granted
	Losses     int         // of those, how many were lost
	Faults     map[string]int
	Windows    [][2]int64 // in which grants may be lost, in order of time; see windows
	Within     float64    // the share of the time that they have
	Linearized int        // how many calls the law linearizable was checked for
	Unsearched int        // for how many it was not: too many of them overlap
	Touched    int        // for how many it was not: a window touches them
	Updates    int        // of the register that does not check tokens
	LostThere  int        // of those, how many were lost: the storm bites
	Refused    int        // writes that the register refused for their tokens
	// the storm was interrupted, so that Progress, Remains and Baseline could not be checked
	Interrupted bool
}

// Bites reports whether the storm would have caught a lock that does not protect its resource: the
// register that does not check tokens lost an update.
func (r *Report) Bites() bool { return r.LostThere > 0 }

// checker checks one history.
type checker struct {
	*history.History
	Report
	names     map[string][]*history.Op // the calls by the name of the lock, in order
	roots     map[string]*history.Op   // those that began a hold, by its owner
	failovers [][2]int64               // those of the windows that are of failovers
}

// History checks a history.
func History(h *history.History) *Report {
	c := &checker{History: h, names: map[string][]*history.Op{}, roots: map[string]*history.Op{}}
	c.Faults, c.Interrupted = map[string]int{}, !h.Finished
	for _, o := range h.Ops {
		c.names[o.Name] = append(c.names[o.Name], o)
		c.Calls++
		if o.Held() {
			c.Holds++
			if o.Arrival() {
				c.roots[o.Owner] = o
			}
			if o.Lost != 0 || o.UnlockClass == history.Loss {
				c.Losses++
			}
		}
	}
	for _, t := range h.Troubles {
		c.Faults[t.Text]++
	}
	c.windows()
	for _, ops := range c.names {
		c.exclusion(ops)
		c.order(ops)
		c.tokens(ops)
		c.linearizable(ops)
	}
	c.loss()
	c.registers()
	if !c.Interrupted {
		c.progress()
		c.remains()
		c.baseline()
	}
	for _, vs := range [][]Violation{c.Violations, c.Excluded} {
		slices.SortStableFunc(vs, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	}
	return &c.Report
}

func (c *checker) violation(l Law, at int64, ops []*history.Op, format string, args ...any) {
	c.report(l == Order && c.touched(at, at), l, at, ops, format, args...)
}

// report reports a violation, apart from the others if a failover explains it.
func (c *checker) report(excluded bool, l Law, at int64, ops []*history.Op, format string, args ...any) {
	v := Violation{Law: l, At: at, Text: fmt.Sprintf(format, args...)}
	for _, o := range ops {
		v.Ops = append(v.Ops, o.ID)
	}
	to := &c.Violations
	if excluded {
		to = &c.Excluded
	}
	*to = append(*to, v)
}

// by describes a call.
func (c *checker) by(o *history.Op) string {
	mode := "exclusive"
	switch {
	case o.Limit > 0:
		mode = fmt.Sprint("permit of ", o.Limit)
	case o.Shared:
		mode = "shared"
	}
	if !o.Held() {
		return fmt.Sprintf("%s %s of process %d.%d (%s at %s)", o.Name, mode, o.Proc, o.Lane, o.Class, c.at(o.Returned))
	}
	return fmt.Sprintf("%s %s of process %d.%d (token %d, granted at %s, trusted until %s)",
		o.Name, mode, o.Proc, o.Lane, o.Token, c.at(o.Returned), c.at(o.End()))
}

// at is a time since the beginning of the storm.
func (c *checker) at(t int64) string {
	return time.Duration(t - c.From).Round(time.Microsecond).String()
}

// excludes reports whether two leases cannot be held together because of their modes.
func excludes(a, b *history.Op) bool { return a.Owner != b.Owner && (!a.Shared || !b.Shared) }

// limit returns the limit that a lease brings: a lease that joined a hold has that of the hold.
func (c *checker) limit(o *history.Op) int {
	if o.Arrival() {
		return o.Limit
	}
	if root := c.roots[o.Owner]; root != nil {
		return root.Limit
	}
	return 0 // its process was killed before it could record it
}

// least returns the smaller of two limits, of which 0 is none.
func least(a, b int) int {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// exclusion sweeps over the trusted leases of one name. Each violation is reported once, for the
// later lease.
func (c *checker) exclusion(ops []*history.Op) {
	var in []*history.Op
	for _, o := range sorted(ops, func(o *history.Op) int64 { return o.Returned }) {
		if o.End() <= o.Returned {
			continue
		}
		in = slices.DeleteFunc(in, func(q *history.Op) bool { return q.End() <= o.Returned })
		owners, limit, until := map[string]bool{o.Owner: true}, c.limit(o), o.End()
		for _, q := range in {
			if excludes(o, q) {
				c.report(c.inWindow(o.Returned, min(o.End(), q.End())), Exclusion, o.Returned, []*history.Op{q, o}, "%s is held together with %s", c.by(o), c.by(q))
				break
			}
			owners[q.Owner] = true
			limit, until = least(limit, c.limit(q)), min(until, q.End())
		}
		in = append(in, o)
		if limit > 0 && len(owners) > limit {
			c.report(c.inWindow(o.Returned, until), Exclusion, o.Returned, in, "%d owners hold a semaphore of %d together, the last of them %s", len(owners), limit, c.by(o))
		}
	}
}

// sorted returns the calls that were granted, in the order of a time.
func sorted(ops []*history.Op, by func(*history.Op) int64) []*history.Op {
	var held []*history.Op
	for _, o := range ops {
		if o.Held() {
			held = append(held, o)
		}
	}
	slices.SortStableFunc(held, func(a, b *history.Op) int { return cmp.Compare(by(a), by(b)) })
	return held
}

func called(o *history.Op) int64   { return o.Called }
func returned(o *history.Op) int64 { return o.Returned }

func (c *checker) loss() {
	for _, o := range c.Ops {
		if o.Held() && o.Called >= o.Until {
			c.violation(Loss, o.Returned, []*history.Op{o}, "Lock was called after the lease that it returned had ended: %s", c.by(o))
		}
		if q := c.Op(o.Parent); o.Held() && q != nil && q.Held() && c.lostBefore(q, o.Called) {
			c.violation(Loss, o.Returned, []*history.Op{q, o}, "Lock under a hold that had ended returned a lease: %s, under %s", c.by(o), c.by(q))
		}
		for _, l := range o.Looks {
			if l.Class == "" && l.At >= l.Until {
				c.violation(Loss, l.At, []*history.Op{o}, "Err returned nil %s after the end of trust: %s", time.Duration(l.At-l.Until), c.by(o))
			}
		}
		if o.Unlocked != 0 && o.UnlockClass == "" && o.UntilUnlocked != 0 && o.Unlock >= o.UntilUnlocked {
			c.violation(Loss, o.Unlock, []*history.Op{o}, "Unlock returned nil, %s after the end of trust: %s", time.Duration(o.Unlock-o.UntilUnlocked), c.by(o))
		}
	}
}

// lostBefore reports whether a lease had ended before a call under it. What a killed process knew
// last may not be recorded, and a lease that was unlocked may have left others of its hold.
func (c *checker) lostBefore(q *history.Op, called int64) bool {
	switch {
	case q.Gone != 0 || q.Unlock != 0 && q.Unlock < called:
		return false
	case q.Lost != 0 && q.Lost < called:
		return true
	}
	return q.Until <= called
}

func (c *checker) tokens(ops []*history.Op) {
	if !c.Storm.Fencing {
		return
	}
	owners := map[string]*history.Op{}
	var roots []*history.Op
	for _, o := range sorted(ops, called) {
		if first := owners[o.Owner]; first != nil {
			if first.Token != o.Token {
				// the old master granted it, and later the new one, in whose queue it still stood
				twice := first.Token < o.Token && c.failedOver(first.Returned, o.Returned)
				c.report(twice, Tokens, o.Returned, []*history.Op{first, o}, "leases of one hold have two tokens: %s and %s", c.by(first), c.by(o))
			}
			continue
		}
		owners[o.Owner] = o
		if o.Arrival() {
			roots = append(roots, o)
		}
	}
	same := map[uint64]*history.Op{}
	for _, o := range roots {
		if q := same[o.Token]; q != nil {
			c.violation(Tokens, o.Returned, []*history.Op{q, o}, "two holds have one token: %s and %s", c.by(q), c.by(o))
		}
		same[o.Token] = o
	}
	// the greatest tokens of the holds that were granted before the call
	var exclusive, shared *history.Op
	before := sorted(roots, returned)
	for _, o := range roots {
		if o.Limit > 0 {
			continue // a semaphore's token says nothing about order
		}
		for ; len(before) > 0 && before[0].Returned < o.Called; before = before[1:] {
			q := before[0]
			greatest := &exclusive
			if q.Shared {
				greatest = &shared
			}
			if *greatest == nil || (*greatest).Token < q.Token {
				*greatest = q
			}
		}
		for _, q := range []*history.Op{exclusive, shared} {
			if q != nil && excludes(q, o) && q.Token >= o.Token {
				c.violation(Tokens, o.Returned, []*history.Op{q, o}, "the token does not grow: %s was granted before %s was requested", c.by(q), c.by(o))
			}
		}
	}
}

// standing is what was seen of a request while it waited at one place.
type standing struct {
	history.Place
	seen  int64 // it stood there by then
	until int64 // and it still waited there at that time; forever: until the grant that op reports
	op    *history.Op
}

// order checks what was seen in the queue. An owner's ID is that of the request that began its
// hold.
func (c *checker) order(ops []*history.Op) {
	if !c.Storm.Queue || len(ops) == 0 {
		return
	}
	granted := map[string]*history.Op{}
	for _, o := range ops {
		if o.Held() && o.Arrival() {
			granted[o.Owner] = o
		}
	}
	stood, behind := c.stood(ops[0].Name, granted)
	reported := map[*history.Op]bool{} // each request once
	for _, p := range behind {
		if b := granted[p.behind]; !reported[b] && c.inOrder(p.ahead, b, "stood ahead of it in the queue") {
			reported[b] = true
		}
	}
	// Of those that were seen before a call, one is enough of each mode: the one that waited
	// longest without being granted, the one that was granted last, and the one with the greatest
	// token.
	var most [6]*standing
	keep := func(i int, s *standing, more func(was *standing) bool) {
		if s.Shared {
			i += 3
		}
		if most[i] == nil || more(most[i]) {
			most[i] = s
		}
	}
	slices.SortStableFunc(stood, func(a, b *standing) int { return cmp.Compare(a.seen, b.seen) })
	for _, b := range ops { // in the order of the calls
		for ; len(stood) > 0 && stood[0].seen < b.Called; stood = stood[1:] {
			switch s := stood[0]; {
			case s.until != forever:
				keep(0, s, func(was *standing) bool { return was.until < s.until })
			case s.op != nil:
				if s.op.End() > s.op.Returned {
					keep(1, s, func(was *standing) bool { return was.op.Returned < s.op.Returned })
				}
				keep(2, s, func(was *standing) bool { return was.op.Token < s.op.Token })
			}
		}
		if !b.Held() || !b.Arrival() || reported[b] {
			continue
		}
		for _, s := range most {
			if s != nil && c.inOrder(s, b, "was seen in the queue before it was requested") {
				break
			}
		}
	}
}

// pair is a request that stood ahead of another one.
type pair struct {
	ahead  *standing
	behind string
}

// stood returns what was seen of each request of a name, and which of them stood ahead of which.
func (c *checker) stood(name string, granted map[string]*history.Op) (all []*standing, pairs []pair) {
	now := map[string]*standing{}
	known := map[pair]bool{}
	var seen []history.Event
	for _, e := range c.Events {
		if e.Kind == history.Seen && e.Name == name {
			seen = append(seen, e)
		}
	}
	double := atTwoPlaces(seen)
	for _, e := range seen {
		e.Waiters = slices.DeleteFunc(slices.Clone(e.Waiters), func(w history.Place) bool { return double[w.ID] })
		for _, h := range e.Holders {
			// a grant that its client never saw may expire, and the request then arrives again
			if s := now[h.ID]; s != nil && s.Same(h) && s.op != nil && s.op.Token == h.Token && h.Token != 0 {
				s.until = forever
			}
		}
		for i, w := range e.Waiters {
			s := now[w.ID]
			if s == nil || !s.Same(w) {
				s = &standing{Place: w, seen: e.At, op: granted[w.ID]}
				now[w.ID] = s
				all = append(all, s)
			}
			s.until = max(s.until, e.From)
			for _, a := range e.Waiters[:i] {
				if p := (pair{now[a.ID], w.ID}); !known[p] {
					known[p] = true
					pairs = append(pairs, p)
				}
			}
		}
	}
	return all, pairs
}

// atTwoPlaces returns the requests that one reading shows at two places that look the same. A
// client of ZooKeeper whose session seems to be over sends its requests in a new one, and the
// server may have taken some of them in the old one just before. The first place is lost with the
// old session.
func atTwoPlaces(seen []history.Event) map[string]bool {
	double := map[string]bool{}
	for _, e := range seen {
		places := slices.Concat(e.Holders, e.Waiters)
		for i, p := range places {
			double[p.ID] = double[p.ID] || slices.ContainsFunc(places[:i], func(q history.Place) bool { return q.ID == p.ID && q.Same(p) })
		}
	}
	return double
}

// inOrder reports a violation unless b, which stood behind a, was granted after it. b may be nil:
// it was never granted. If a was seen to be granted at its place, its token, or the time at which
// it was granted, is later than b's. The time counts only if the lease was trusted then: the
// process may have stood still. Otherwise a must not wait any more when b is granted.
func (c *checker) inOrder(a *standing, b *history.Op, why string) (violated bool) {
	if b == nil || a.ID == b.Owner || a.Shared && b.Shared && b.Limit == 0 {
		return false
	}
	switch {
	case a.until != forever:
		if b.Returned >= a.until {
			return false
		}
		c.violation(Order, b.Returned, []*history.Op{b}, "%s was granted while request %.8s, which %s, still waited at %s", c.by(b), a.ID, why, c.at(a.until))
		return true
	case a.op == nil || !excludes(a.op, b):
		return false
	}
	later := a.op.End() > a.op.Returned && a.op.Returned > b.Returned
	if c.Storm.Fencing && !a.Shared && !b.Shared {
		later = later || a.op.Token > b.Token
	}
	if later {
		c.violation(Order, b.Returned, []*history.Op{a.op, b}, "%s was granted before %s, which %s", c.by(b), c.by(a.op), why)
	}
	return later
}

// ended reports whether a process was killed, so that its calls need not return.
func (c *checker) ended(proc int) bool { return c.Killed[proc] != 0 }

func (c *checker) progress() {
	latest := c.Calm + int64(c.Storm.Patience)
	for _, e := range c.Events {
		if e.Kind == history.Hung {
			c.violation(Progress, e.At, nil, "the work of process %d did not end %s after the last fault", e.Proc, time.Duration(e.At-c.Calm))
		}
	}
	for _, o := range c.Ops {
		switch {
		case c.ended(o.Proc):
		case o.Returned == 0:
			c.violation(Progress, o.Called, []*history.Op{o}, "Lock of %s by process %d.%d, called at %s, never returned", o.Name, o.Proc, o.Lane, c.at(o.Called))
		case o.Returned > latest:
			c.violation(Progress, o.Returned, []*history.Op{o}, "Lock of %s by process %d.%d returned %s after the last fault", o.Name, o.Proc, o.Lane, time.Duration(o.Returned-c.Calm))
		case o.Unlock != 0 && o.Unlocked == 0:
			c.violation(Progress, o.Unlock, []*history.Op{o}, "Unlock never returned: %s", c.by(o))
		case o.Unlocked > latest:
			c.violation(Progress, o.Unlocked, []*history.Op{o}, "Unlock returned %s after the last fault: %s", time.Duration(o.Unlocked-c.Calm), c.by(o))
		}
	}
}

func (c *checker) remains() {
	for _, e := range c.Events {
		if e.Kind == history.Remains && e.Count > 0 {
			c.violation(Remains, e.At, nil, "%d requests of %s are left %s after the last fault: %v", e.Count, e.Name, time.Duration(e.At-c.Calm).Round(time.Millisecond), ids(e.Holders, e.Waiters))
		}
	}
}

// ids returns the IDs of requests.
func ids(places ...[]history.Place) (all []string) {
	for _, p := range slices.Concat(places...) {
		all = append(all, p.ID)
	}
	return all
}

// moreHeap is by how much the memory of a process may differ from what it was before: caches and
// pools have what the work needed.
const moreHeap = 4 << 20

func (c *checker) baseline() {
	// A pool has a connection for each call at a time. Where each call goes to several servers, a
	// late one is under way beside the next.
	more := c.Storm.Lanes
	if c.Storm.Nodes > 1 {
		more *= 2 * c.Storm.Nodes
	}
	before := map[int]*history.Uses{}
	for _, e := range c.Events {
		if e.Kind != history.Usage {
			continue
		}
		b := before[e.Proc]
		if b == nil {
			before[e.Proc] = e.Uses
			continue
		}
		switch a := e.Uses; {
		case a.Goroutines > b.Goroutines:
			c.violation(Baseline, e.At, nil, "process %d had %d goroutines and has %d\n%s", e.Proc, b.Goroutines, a.Goroutines, e.Text)
		case a.Connections > b.Connections+more:
			c.violation(Baseline, e.At, nil, "process %d had %d connections and has %d", e.Proc, b.Connections, a.Connections)
		case a.Heap > b.Heap+moreHeap:
			c.violation(Baseline, e.At, nil, "process %d used %d bytes of memory and uses %d", e.Proc, b.Heap, a.Heap)
		}
	}
}

// The names of the two registers, in the events of their writes.
const (
	Fenced = "fenced" // checks tokens
	Plain  = "plain"  // does not
)

// registers checks the writes, which the process of the registers recorded in the order in which it
// made them. Each writer adds one to the value that it read under the lock.
func (c *checker) registers() {
	type cell struct{ register, name string }
	values, updates := map[cell]int64{}, map[cell]int64{}
	var last = map[cell]uint64{}
	for _, e := range c.Events {
		if e.Kind != history.Write {
			continue
		}
		if e.Class != "" {
			c.Refused++
			continue
		}
		at := cell{e.Text, e.Name}
		updates[at]++
		if at.register == Fenced {
			if e.Token < last[at] {
				c.violation(Fencing, e.At, nil, "the register of %s took a write with token %d after one with %d", e.Name, e.Token, last[at])
			}
			if e.Count != values[at]+1 {
				c.violation(Fencing, e.At, nil, "the register of %s had %d, and token %d wrote %d: an update is lost", e.Name, values[at], e.Token, e.Count)
			}
			last[at] = e.Token
		}
		values[at] = e.Count
	}
	for at, n := range updates {
		if at.register == Plain {
			c.Updates += int(n)
			c.LostThere += int(max(0, n-values[at]))
		}
	}
}

// forever is a time that never comes.
const forever = math.MaxInt64
