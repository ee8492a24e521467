package driver

import "time"

// Queue is what stands under one name, as the rule sees it: nothing that has expired. It decides
// who holds the lock.
//
//  1. A join names an owner that holds the lock in a mode that covers the join's. It is granted at
//     once, wherever it stands. So joins have no place in the order of arrival.
//  2. Any other request is a stranger, and stands at the end. It is granted as soon as it is
//     compatible with every join and with every stranger ahead of it, granted or not. Requests of
//     one owner are compatible. Others are compatible if all of them are Shared, and if their
//     owners, counted once each, are no more than the smallest limit among them.
//  3. A waiter depends on the nearest stranger ahead that is not compatible with it, and on a join
//     only if there is none. If a limit stands against it, it depends on the nearest requests that
//     fill the limit, one of each owner. While those exist its answer cannot change. When one of
//     them goes it has to check again.
//
// So a departure wakes one writer, or the readers between it and the next writer, or at most n
// waiters for permits, where n is the largest limit among them.
//
// A request stands only against those behind it, and a join adds neither an owner nor a smaller
// limit ([Queue.Admit]). So a grant is never taken back. And the granted strangers are the first
// ones of the queue: an evaluation stops at the first that waits.
//
// The methods are pure functions of the queue. They are safe for concurrent use while nobody
// changes the queue.
type Queue struct {
	Joins    []*Entry // in any order
	Arrivals []*Entry // in order of arrival
}

// Entry is a request as it stands in a queue. Its Token is set once it is granted.
type Entry struct {
	Request
	Broken bool          // an operator ended the hold: it can be neither renewed nor joined
	Age    time.Duration // since it arrived, by the service's clock; set by Inspect
	// until it expires, by the service's clock, unless it is renewed; set by Inspect
	Left time.Duration
}

// Len returns how many requests stand in the queue.
func (q Queue) Len() int { return len(q.Joins) + len(q.Arrivals) }

// Holders returns the granted requests: strangers in order of arrival, then joins.
func (q Queue) Holders() []*Entry {
	g := q.Granted()
	return append(append(make([]*Entry, 0, g+len(q.Joins)), q.Arrivals[:g]...), q.Joins...)
}

// Waiters returns the requests that wait, in order of arrival.
func (q Queue) Waiters() []*Entry { return q.Arrivals[q.Granted():] }

// Admit decides whether a request that arrives may stand in the queue. It returns the request as it
// has to be stored, or why it is refused:
//
//   - [ErrConflict]: the name is in use as the other kind, which came first.
//   - [ErrLost]: the request is a join, and its owner does not hold the lock.
//   - [ErrUpgrade]: the request is a join, and its owner holds the lock in a mode that does not
//     cover the request's.
//
// An admitted join is granted. An admitted stranger goes to the end of Arrivals; then
// [Queue.Granted] says whether it is granted.
func (q Queue) Admit(r Request) (Request, error) {
	if r.Join() {
		return q.admitJoin(r)
	}
	if f := q.first(); f != nil && f.Semaphore() != r.Semaphore() {
		return r, ErrConflict
	}
	return r, nil
}

// first returns the request that decides which kind of lock the name is.
func (q Queue) first() *Entry {
	if len(q.Joins) > 0 {
		return q.Joins[0]
	}
	if len(q.Arrivals) > 0 {
		return q.Arrivals[0]
	}
	return nil
}

// admitJoin gives a join the token and the smallest limit of the hold that it joins. So the join
// stands for the same limit as the hold, also after all other requests of the hold have gone.
func (q Queue) admitJoin(r Request) (Request, error) {
	held, covered, broken, limit := false, false, false, r.Limit
	visit := func(e *Entry) {
		if e.Owner != r.Owner {
			return
		}
		broken = broken || e.Broken
		if !held {
			held, limit, r.Token = true, e.Limit, e.Token
		}
		if e.Limit > 0 && (limit == 0 || e.Limit < limit) {
			limit = e.Limit
		}
		covered = covered || e.Mode.Covers(r.Mode)
	}
	for _, e := range q.Arrivals[:q.Granted()] {
		visit(e)
	}
	for _, e := range q.Joins {
		visit(e)
	}
	switch f := q.first(); {
	case !held || broken:
		return r, ErrLost
	case f.Semaphore() != r.Semaphore():
		return r, ErrConflict
	case !covered:
		return r, ErrUpgrade
	}
	r.Limit = limit
	return r, nil
}

// Granted returns how many strangers, from the first, are granted. It reads at most one more than
// those.
func (q Queue) Granted() int {
	a := q.ahead()
	for i, s := range q.Arrivals {
		if !a.admits(s) {
			return i
		}
		a.add(s)
	}
	return len(q.Arrivals)
}

// Depends returns the requests for which stranger i waits, the nearest first; none if it is
// granted.
func (q Queue) Depends(i int) []*Entry {
	s := q.Arrivals[i]
	for j := i - 1; j >= 0; j-- {
		if e := q.Arrivals[j]; e.Mode == Exclusive || s.Mode == Exclusive {
			return []*Entry{e}
		}
	}
	for _, e := range q.Joins {
		if e.Owner != s.Owner && (e.Mode == Exclusive || s.Mode == Exclusive) {
			return []*Entry{e}
		}
	}
	if s.Mode == Exclusive {
		return nil
	}
	return q.fills(i)
}

// fills is Depends for a stranger against which only a limit can stand. It returns the nearest
// requests that fill the smallest limit among theirs and its own. A smaller limit may stand farther
// ahead, but if everybody waited for the request that set it, its departure would wake all of them.
func (q Queue) fills(i int) []*Entry {
	limit, owners := q.Arrivals[i].Limit, map[ID]bool{q.Arrivals[i].Owner: true}
	var deps []*Entry
	fill := func(e *Entry) bool {
		lowers := e.Limit > 0 && (limit == 0 || e.Limit < limit)
		if lowers {
			limit = e.Limit
		}
		if lowers || !owners[e.Owner] {
			owners[e.Owner] = true
			deps = append(deps, e)
		}
		return limit > 0 && len(owners) > limit
	}
	for j := i - 1; j >= 0; j-- {
		if fill(q.Arrivals[j]) {
			return deps
		}
	}
	for _, e := range q.Joins {
		if fill(e) {
			return deps
		}
	}
	return nil
}

// ahead is the sum of what stands against the next stranger: every join, and the strangers ahead.
type ahead struct {
	strangers int         // how many strangers, each of which is an owner
	joined    map[ID]bool // the owners of joins that are none of those; nil if there are no joins
	// one of them all is Exclusive; a stranger's own joins are so only if it is
	exclusive bool
	limit     int // the smallest limit; 0: none
}

func (q Queue) ahead() ahead {
	var a ahead
	if len(q.Joins) > 0 {
		a.joined = make(map[ID]bool, len(q.Joins))
	}
	for _, j := range q.Joins {
		a.joined[j.Owner] = true
		a.count(j)
	}
	return a
}

// admits reports whether s is compatible with all that is ahead. Its own joins do not count.
func (a *ahead) admits(s *Entry) bool {
	others := a.strangers + len(a.joined)
	if a.joined[s.Owner] {
		others--
	}
	if others == 0 {
		return true
	}
	if s.Mode == Exclusive || a.exclusive {
		return false
	}
	limit := a.limit
	if s.Limit > 0 && (limit == 0 || s.Limit < limit) {
		limit = s.Limit
	}
	return limit == 0 || others < limit
}

func (a *ahead) add(s *Entry) {
	delete(a.joined, s.Owner)
	a.strangers++
	a.count(s)
}

func (a *ahead) count(e *Entry) {
	a.exclusive = a.exclusive || e.Mode == Exclusive
	if e.Limit > 0 && (a.limit == 0 || e.Limit < a.limit) {
		a.limit = e.Limit
	}
}
