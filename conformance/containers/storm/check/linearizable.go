package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dlock-go/dlock/conformance/containers/storm/history"
)

const (
	// mostOps is how many calls of one name are checked together. The history of a name is cut
	// where no call is under way and nothing is held; a part that is longer is not searched.
	mostOps = 6000
	// oneCheck bounds the search for a linearization, which is exponential if there is none.
	oneCheck = 20 * time.Second
)

// step is an operation of the model.
type step struct {
	what what
	op   *history.Op
}

type what uint8

const (
	acquire what = iota
	release
	refuse // TryLock found the lock held
)

// lock is a state of the model: the leases of one name, and the greatest token of an exclusive one.
// It is never changed.
type lock struct {
	leases []*history.Op // in the order of their IDs
	last   uint64
}

// linearizable checks a name. A lease is acquired between the call and the return of Lock, and
// released between those of Unlock. If its release was not confirmed, it is released at any time
// from the end of trust on: the backend expires it then, or a release that was sent arrives.
func (c *checker) linearizable(ops []*history.Op) {
	var last uint64
	doubts := c.doubts(ops)
	for part := range quiet(ops) {
		if len(part) > mostOps {
			c.Unsearched += len(part)
		} else {
			c.linearizes(part, last, doubts)
		}
		for _, o := range part {
			if o.Held() && !o.Shared {
				last = max(last, o.Token)
			}
		}
	}
}

// quiet cuts the calls where nothing is under way or held by a client. A lease that was lost there
// may still stand at the backend; what follows does not depend on it.
func quiet(ops []*history.Op) func(yield func([]*history.Op) bool) {
	return func(yield func([]*history.Op) bool) {
		joined := map[string]int64{} // the last call that shares each owner's hold
		for _, o := range ops {
			if o.Held() {
				joined[o.Owner] = o.Called
			}
		}
		from, until := 0, int64(0)
		for i, o := range ops {
			if o.Called > until && i > from {
				if !yield(ops[from:i]) {
					return
				}
				from = i
			}
			until = max(until, over(o), joined[o.Owner])
		}
		if len(ops) > from {
			yield(ops[from:])
		}
	}
}

// over returns when a call, and the lease that it returned, had ended for the client.
func over(o *history.Op) int64 {
	switch {
	case !o.Held():
		return max(o.Called, o.Returned)
	case o.Released():
		return o.Unlocked
	}
	return max(o.Returned, o.End())
}

// linearizes checks a part. If it has no order, and windows touch it, then what they
// do not touch needs one.
func (c *checker) linearizes(part []*history.Op, last uint64, doubts map[*history.Op]bool) {
	result, at := c.search(part, last, doubts)
	if rest := c.outside(part); result != porcupine.Ok && len(rest) < len(part) {
		if result == porcupine.Illegal {
			c.Excluded = append(c.Excluded, c.unordered(part, at))
		}
		c.Touched += len(part) - len(rest)
		part = rest
		result, at = c.search(part, last, doubts)
	}
	if result == porcupine.Unknown {
		c.Unsearched += len(part)
		return
	}
	c.Linearized += len(part)
	if result == porcupine.Illegal {
		c.Violations = append(c.Violations, c.unordered(part, at))
	}
}

// unordered is the violation of a part whose search did not get beyond a call.
func (c *checker) unordered(part []*history.Op, o *history.Op) Violation {
	return Violation{Linearizable, fmt.Sprintf("the calls of %s, from %s to %s, are not those of one lock; not beyond %s",
		o.Name, c.at(part[0].Called), c.at(part[len(part)-1].Called), c.by(o)), o.Returned, []uint64{o.ID}}
}

// search looks for an order of the calls. Without one it returns the call that it did not get
// beyond.
func (c *checker) search(part []*history.Op, last uint64, doubts map[*history.Op]bool) (porcupine.CheckResult, *history.Op) {
	var ops []porcupine.Operation
	for _, o := range part {
		switch {
		case o.Held():
			ops = append(ops, porcupine.Operation{Input: step{acquire, o}, Call: o.Called, Return: o.Returned})
			r := porcupine.Operation{Input: step{release, o}, Call: o.End(), Return: forever}
			if o.Released() {
				r.Return = o.Unlocked
			}
			ops = append(ops, r)
		case o.Try && o.Class == history.Held && o.Arrival() && !doubts[o]:
			ops = append(ops, porcupine.Operation{Input: step{refuse, o}, Call: o.Called, Return: o.Returned})
		}
	}
	if len(ops) == 0 {
		return porcupine.Ok, nil
	}
	m := porcupine.Model{
		Init:  func() any { return lock{last: last} },
		Step:  func(s, in, _ any) (bool, any) { return c.step(s.(lock), in.(step)) },
		Equal: func(a, b any) bool { return a.(lock).equal(b.(lock)) },
	}
	result, info := porcupine.CheckOperationsVerbose(m, ops, oneCheck)
	if result != porcupine.Illegal {
		return result, nil
	}
	return result, stuck(ops, info)
}

// stuck returns the call at which the longest linearization ends.
func stuck(ops []porcupine.Operation, info porcupine.LinearizationInfo) *history.Op {
	done := map[step]bool{}
	for _, partial := range info.PartialLinearizationsOperations() {
		for _, line := range partial {
			if len(line) > len(done) {
				clear(done)
				for _, o := range line {
					done[o.Input.(step)] = true
				}
			}
		}
	}
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	for _, o := range ops {
		if s := o.Input.(step); !done[s] {
			return s.op
		}
	}
	return ops[0].Input.(step).op
}

// doubts returns the refusals that may be due to a request of which the model knows nothing: one
// that waited, or may have, or what is left of a lease whose release was not confirmed.
func (c *checker) doubts(ops []*history.Op) map[*history.Op]bool {
	doubts := map[*history.Op]bool{}
	until := int64(-1) // the latest time at which one of the earlier requests may stand there
	for i, o := range ops {
		// a promoted replica may still have a request whose end it was not sent
		lost := c.failedOver(o.Called-int64(c.Storm.Patience), o.Returned)
		doubts[o] = lost || until >= o.Called || i+1 < len(ops) && ops[i+1].Called <= o.Returned
		switch {
		case o.Returned == 0:
			until = max(until, o.Called+int64(c.Storm.Patience))
		case o.Held() && !o.Released():
			until = max(until, o.Returned, o.End()+int64(c.Storm.Patience))
		case o.Held() || o.Class == history.Held:
			until = max(until, o.Returned)
		case o.Class == history.Cancelled: // its request is removed in the background
			until = max(until, o.Returned+2*int64(c.Storm.TTL))
		default:
			until = max(until, o.Returned+int64(c.Storm.Patience))
		}
	}
	return doubts
}

// step is the lock.
func (c *checker) step(l lock, s step) (bool, lock) {
	o := s.op
	switch s.what {
	case release:
		i := slices.Index(l.leases, o)
		if i < 0 {
			return false, l
		}
		return true, lock{slices.Delete(slices.Clone(l.leases), i, i+1), l.last}
	case refuse:
		return !c.admits(l, o), l
	}
	if !o.Arrival() {
		// it shares the hold, which has to stand, in a mode that covers its own
		if !slices.ContainsFunc(l.leases, func(q *history.Op) bool { return q.Owner == o.Owner && (!q.Shared || o.Shared) }) {
			return false, l
		}
		return true, l.with(o)
	}
	if !c.admits(l, o) {
		return false, l
	}
	if c.Storm.Fencing && o.Limit == 0 && o.Token <= l.last {
		return false, l
	}
	n := l.with(o)
	if !o.Shared {
		n.last = o.Token
	}
	return true, n
}

// admits reports whether a request is compatible with what is held.
func (c *checker) admits(l lock, o *history.Op) bool {
	owners, limit := map[string]bool{o.Owner: true}, c.limit(o)
	for _, q := range l.leases {
		if excludes(o, q) {
			return false
		}
		owners[q.Owner] = true
		limit = least(limit, c.limit(q))
	}
	return limit == 0 || len(owners) <= limit
}

func (l lock) with(o *history.Op) lock {
	i, _ := slices.BinarySearchFunc(l.leases, o, func(a, b *history.Op) int { return cmp.Compare(a.ID, b.ID) })
	return lock{slices.Insert(slices.Clone(l.leases), i, o), l.last}
}

func (l lock) equal(o lock) bool { return l.last == o.last && slices.Equal(l.leases, o.leases) }
