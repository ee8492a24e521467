package memory

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Space is a set of queues that its clients share: the service of this driver. The zero value is an
// empty space. It is safe for concurrent use and must not be copied.
type Space struct {
	mu         sync.Mutex // held briefly: nothing that waits is called under it
	serial     uint64     // distinguishes spaces; 0 until the first client
	queues     map[string]*queue
	requests   map[driver.ID]*entry
	tombstones tombstones
}

// Both outlive every space, so the tokens of a name grow even if its space was removed and made
// again.
var tokens, serials atomic.Uint64

// queue is the queue of one name. It is in its space only as long as it has a request.
type queue struct {
	driver.Queue
	name    string
	granted int         // how many of Arrivals are granted; the others wait
	next    time.Time   // no hold expires earlier
	fires   time.Time   // when the timer fires, or fired
	timer   *time.Timer // nil until a request had to wait
}

// entry is an entry of a queue, with fields that the rule does not need.
type entry struct {
	driver.Entry
	client  *Backend
	arrived time.Time
	expires time.Time // zero until it is granted: Acquire keeps a waiting request alive
	wait    *wait     // while Acquire waits for it
	left    bool      // its Acquire has ended without a grant
}

func (r *entry) granted() bool { return !r.expires.IsZero() }

// begin makes the maps of a zero Space.
func (s *Space) begin() {
	if s.serial == 0 {
		s.serial = serials.Add(1)
		s.queues, s.requests = map[string]*queue{}, map[driver.ID]*entry{}
	}
}

// current returns the queue of the name without expired requests, which it removes; nil if there is
// no request.
func (s *Space) current(name string, now time.Time) *queue {
	q := s.queues[name]
	if q == nil || now.Before(q.next) {
		return q
	}
	q.next = time.Time{}
	for _, e := range q.Holders() {
		if r := s.requests[e.ID]; now.Before(r.expires) {
			q.mayExpire(r.expires)
		} else {
			s.lose(q, r, now)
		}
	}
	s.evaluate(q, now)
	return s.queues[name]
}

// left returns the time until the last hold expires, unless it is renewed or released.
func (s *Space) left(now time.Time) (left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		left = max(left, r.expires.Sub(now))
	}
	return left
}

// add puts an admitted request into its queue, and grants it if the rule does.
func (s *Space) add(q *queue, r *entry, now time.Time) {
	s.queues[q.name], s.requests[r.ID] = q, r
	if r.Join() {
		q.Joins = append(q.Joins, &r.Entry)
		q.renew(r, r.TTL, now)
	} else {
		q.Arrivals = append(q.Arrivals, &r.Entry)
	}
	s.evaluate(q, now)
}

// remove removes a request from its queue. An Acquire that waits for it returns why. A call of
// evaluate has to follow.
func (s *Space) remove(q *queue, r *entry, why error) {
	delete(s.requests, r.ID)
	if r.Join() {
		q.Joins = without(q.Joins, slices.Index(q.Joins, &r.Entry))
	} else {
		i := slices.Index(q.Arrivals, &r.Entry)
		q.Arrivals = without(q.Arrivals, i)
		if i < q.granted {
			q.granted--
		}
	}
	r.answer(driver.Grant{}, why)
}

// without removes element i and moves up those ahead of it, so that the cost of a holder's
// departure does not depend on the number of waiters.
func without(es []*driver.Entry, i int) []*driver.Entry {
	copy(es[1:i+1], es[:i])
	es[0] = nil
	return es[1:]
}

// lose removes a request that its client still relies on, and notifies the client. The tombstone
// keeps late copies of the request out.
func (s *Space) lose(q *queue, r *entry, now time.Time) {
	s.remove(q, r, driver.ErrLost)
	s.tombstones.add(r.ID, now.Add(r.TTL))
	if r.client.lost != nil {
		go r.client.lost(r.ID)
	}
}

// evaluate applies the rule after an arrival or a departure: it grants what the rule grants now,
// and wakes only those requests.
func (s *Space) evaluate(q *queue, now time.Time) {
	for n := q.Granted(); q.granted < n; q.granted++ {
		r := s.requests[q.Arrivals[q.granted].ID]
		r.Token = driver.Token(tokens.Add(1))
		q.renew(r, r.TTL, now)
		r.answer(driver.Grant{Token: r.Token, TTL: r.TTL, SentAt: now}, nil)
	}
	if q.Len() > 0 {
		s.setTimer(q, now)
		return
	}
	delete(s.queues, q.name)
	if q.timer != nil {
		q.timer.Stop()
	}
}

// setTimer sets the timer for the waiters.
func (s *Space) setTimer(q *queue, now time.Time) {
	if q.granted == len(q.Arrivals) || q.fires.Equal(q.next) {
		return
	}
	q.fires = q.next
	if q.timer == nil {
		q.timer = time.AfterFunc(q.next.Sub(now), func() { s.expire(q.name) })
	} else {
		q.timer.Reset(q.next.Sub(now))
	}
}

// expire is called by a timer. If the timer fires late, after the queue was removed or used, there
// is nothing to do.
func (s *Space) expire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current(name, time.Now())
}

// renew begins the TTL of a granted request again. A call of setTimer has to follow, since the TTL
// may be shorter than before.
func (q *queue) renew(r *entry, ttl time.Duration, now time.Time) {
	r.TTL, r.expires = ttl, now.Add(ttl)
	q.mayExpire(r.expires)
}

// mayExpire lowers q.next. Only current raises it: a renewal does not, which costs one unnecessary
// check.
func (q *queue) mayExpire(at time.Time) {
	if q.next.IsZero() || at.Before(q.next) {
		q.next = at
	}
}
