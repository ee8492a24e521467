package driver

import "time"

// Queue has the unexpired requests under one name. This rule decides which of them hold the lock:
//
//  1. A join names an owner that holds the lock in a mode that covers the join's. It is granted at
//     once, so joins have no place in the order of arrival.
//  2. Any other request is an arrival, and goes to the end of the queue. It is granted as soon as
//     it is compatible with every join and with every arrival ahead of it, granted or not. Requests
//     of one owner are compatible. Requests of several owners are compatible if all of them are
//     Shared and there are no more owners than the smallest limit among the requests.
//  3. A waiter depends on the nearest arrival ahead that is not compatible with it, and on a join
//     only if there is no such arrival. If a limit blocks it, it depends on the nearest requests
//     that fill the limit, one of each owner. While all of those exist the waiter cannot be
//     granted. When one of them goes, the waiter has to check again.
//
// So a departure wakes one writer, or the readers between it and the next writer, or at most n
// waiters for permits, where n is the largest limit among them.
//
// A request blocks only requests behind it, and a join adds neither an owner nor a smaller limit
// ([Queue.Admit]). So a grant is never revoked. The granted arrivals are a prefix of Arrivals: an
// evaluation stops at the first that waits.
//
// The methods are pure functions of the queue. They are safe for concurrent use while the queue
// does not change.
type Queue struct {
	Joins    []*Entry // in any order
	Arrivals []*Entry // in order of arrival
}

// Entry is a request that stands in a queue. Its Token is set once it is granted.
type Entry struct {
	Request
	Broken bool // an operator ended the hold: it can be neither renewed nor joined
	// a request of other software, in a backend with [Capabilities.Format]. Its Label says what is
	// known of it; fields that are not known are zero. It is never changed, and Break of it fails
	// with ErrUnsupported
	Foreign bool
	Age     time.Duration // since it arrived, by the service's clock; set by Inspect
	// until it expires, by the service's clock, unless it is renewed; set by Inspect
	Left time.Duration
}

// Len returns how many requests stand in the queue.
func (q Queue) Len() int { return len(q.Joins) + len(q.Arrivals) }

// Holders returns the granted requests: arrivals in order, then joins.
func (q Queue) Holders() []*Entry {
	g := q.Granted()
	return append(append(make([]*Entry, 0, g+len(q.Joins)), q.Arrivals[:g]...), q.Joins...)
}

// Waiters returns the requests that wait, in order of arrival.
func (q Queue) Waiters() []*Entry { return q.Arrivals[q.Granted():] }

// Admit decides whether a new request may enter the queue. It returns the request as it has to be
// stored, or the reason why it is refused:
//
//   - [ErrConflict]: the name is already in use as the other kind, a lock or a semaphore.
//   - [ErrLost]: the request is a join, and its owner does not hold the lock.
//   - [ErrUpgrade]: the request is a join, and its owner holds the lock in a mode that does not
//     cover the request's.
//
// An admitted join is granted. An admitted arrival goes to the end of Arrivals; then
// [Queue.Granted] decides whether it is granted.
func (q Queue) Admit(r Request) (Request, error) {
	if r.Join() {
		return q.admitJoin(r)
	}
	if f := q.first(); f != nil && f.Semaphore() != r.Semaphore() {
		return r, ErrConflict
	}
	return r, nil
}

// first returns the request that decides whether the name is a lock or a semaphore.
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
// keeps the limit of the hold, even after all other requests of the hold have gone.
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

// Granted returns how many arrivals, from the first, are granted. It reads those and at most one
// more.
func (q Queue) Granted() int {
	a := q.ahead()
	for i, e := range q.Arrivals {
		if !a.admits(e) {
			return i
		}
		a.add(e)
	}
	return len(q.Arrivals)
}

// Depends returns the requests that arrival i waits for, the nearest first; none if it is granted.
func (q Queue) Depends(i int) []*Entry {
	r := q.Arrivals[i]
	for j := i - 1; j >= 0; j-- {
		if e := q.Arrivals[j]; e.Mode == Exclusive || r.Mode == Exclusive {
			return []*Entry{e}
		}
	}
	for _, e := range q.Joins {
		if e.Owner != r.Owner && (e.Mode == Exclusive || r.Mode == Exclusive) {
			return []*Entry{e}
		}
	}
	if r.Mode == Exclusive {
		return nil
	}
	return q.fills(i)
}

// fills is Depends for an arrival that only a limit can block. It returns the nearest requests that
// fill the smallest limit among theirs and its own. There may be a smaller limit farther ahead, but
// if every waiter depended on the request that set it, its departure would wake all of them.
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

// ahead is the sum of what can block the next arrival: every join, and the arrivals ahead.
type ahead struct {
	arrivals int         // how many arrivals, each of which is an owner
	joined   map[ID]bool // the owners of joins that are none of those; nil if there are no joins
	// one of all these is Exclusive; an arrival's own joins are Exclusive only if it is
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

// admits reports whether an arrival is compatible with all that is ahead. Its own joins do not
// count.
func (a *ahead) admits(e *Entry) bool {
	others := a.arrivals + len(a.joined)
	if a.joined[e.Owner] {
		others--
	}
	if others == 0 {
		return true
	}
	if e.Mode == Exclusive || a.exclusive {
		return false
	}
	limit := a.limit
	if e.Limit > 0 && (limit == 0 || e.Limit < limit) {
		limit = e.Limit
	}
	return limit == 0 || others < limit
}

func (a *ahead) add(e *Entry) {
	delete(a.joined, e.Owner)
	a.arrivals++
	a.count(e)
}

func (a *ahead) count(e *Entry) {
	a.exclusive = a.exclusive || e.Mode == Exclusive
	if e.Limit > 0 && (a.limit == 0 || e.Limit < a.limit) {
		a.limit = e.Limit
	}
}
