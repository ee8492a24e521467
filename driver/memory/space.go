package memory

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Space is a set of queues that its clients share. The zero value is an empty space. It is safe for
// concurrent use and must not be copied.
type Space struct {
	mu       sync.Mutex // held for moments: nothing that waits is called under it
	serial   uint64     // tells spaces apart; 0 until the first client
	queues   map[string]*queue
	requests map[driver.ID]*request
	tombs    tombs
}

// Both outlive every space, so that the tokens of a name grow although its space was forgotten and
// made again.
var tokens, serials atomic.Uint64

// queue is what stands under one name. It is in its space as long as a request stands in it, and no
// longer.
type queue struct {
	driver.Queue
	name    string
	granted int         // how many of Arrivals are; the others wait
	next    time.Time   // nothing expires before it
	armed   time.Time   // when the timer fires, or fired
	timer   *time.Timer // nil until somebody had to wait
}

// request is an entry of a queue, with what the rule does not need to know.
type request struct {
	driver.Entry
	client  *Backend
	arrived time.Time
	expires time.Time // zero until it is granted: a request that waits is kept alive by its Acquire
	wait    *wait     // while Acquire waits for it
}

// wait is where a waiting Acquire finds its answer: whoever grants or removes the request sets it,
// and closes done.
type wait struct {
	done  chan struct{}
	grant driver.Grant
	err   error
}

func (r *request) granted() bool { return !r.expires.IsZero() }

func (r *request) answer(g driver.Grant, err error) {
	if w := r.wait; w != nil {
		r.wait, w.grant, w.err = nil, g, err
		close(w.done)
	}
}

// touch returns the queue of the name without what has expired by now; nil if nothing stands there.
func (s *Space) touch(name string, now time.Time) *queue {
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
	s.settle(q, now)
	return s.queues[name]
}

// left returns how long the last of the holds stands, unless it is renewed or given back.
func (s *Space) left(now time.Time) (left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		left = max(left, r.expires.Sub(now))
	}
	return left
}

// add puts an admitted request into its queue, and grants it if the rule does.
func (s *Space) add(q *queue, r *request, now time.Time) {
	s.queues[q.name], s.requests[r.ID] = q, r
	if r.Join() {
		q.Joins = append(q.Joins, &r.Entry)
		q.keep(r, r.TTL, now)
	} else {
		q.Arrivals = append(q.Arrivals, &r.Entry)
	}
	s.settle(q, now)
}

// remove takes a request out of its queue; an Acquire that waits for it returns why. Settle has to
// follow.
func (s *Space) remove(q *queue, r *request, why error) {
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

// without drops element i and moves up those ahead of it: what a holder's departure costs does not
// depend on the waiters.
func without(es []*driver.Entry, i int) []*driver.Entry {
	copy(es[1:i+1], es[:i])
	es[0] = nil
	return es[1:]
}

// lose removes a request that its client still counts on, tells the client, and lets no copy of it
// come back.
func (s *Space) lose(q *queue, r *request, now time.Time) {
	s.remove(q, r, driver.ErrLost)
	s.tombs.add(r.ID, r.TTL, now)
	if r.client.lost != nil {
		go r.client.lost(r.ID)
	}
}

// settle brings a queue to rest after a request came or went: it grants what the rule grants now,
// and wakes just those.
func (s *Space) settle(q *queue, now time.Time) {
	for n := q.Granted(); q.granted < n; q.granted++ {
		r := s.requests[q.Arrivals[q.granted].ID]
		r.Token = driver.Token(tokens.Add(1))
		q.keep(r, r.TTL, now)
		r.answer(driver.Grant{Token: r.Token, TTL: r.TTL, SentAt: now}, nil)
	}
	if q.Len() > 0 {
		s.watch(q, now)
		return
	}
	delete(s.queues, q.name)
	if q.timer != nil {
		q.timer.Stop()
	}
}

// watch sets the timer for those who wait.
func (s *Space) watch(q *queue, now time.Time) {
	if q.granted == len(q.Arrivals) || q.armed.Equal(q.next) {
		return
	}
	q.armed = q.next
	if q.timer == nil {
		q.timer = time.AfterFunc(q.next.Sub(now), func() { s.expire(q.name) })
	} else {
		q.timer.Reset(q.next.Sub(now))
	}
}

// expire is the timer's. What fires too late, on a queue that is gone or was looked at meanwhile,
// finds nothing to do.
func (s *Space) expire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touch(name, time.Now())
}

// keep arms the TTL of a granted request anew. Watch has to follow, in case that it is shorter than
// it was.
func (q *queue) keep(r *request, ttl time.Duration, now time.Time) {
	r.TTL, r.expires = ttl, now.Add(ttl)
	q.mayExpire(r.expires)
}

// mayExpire lowers q.next, which only touch raises: a renewal leaves it where it is, and costs one
// look for nothing.
func (q *queue) mayExpire(at time.Time) {
	if q.next.IsZero() || at.Before(q.next) {
		q.next = at
	}
}

// tombs are the IDs that must not come (back) to life, and until when.
type tombs struct {
	until map[driver.ID]time.Time
	limit int // of the size, at which the old ones are swept out
}

func (t *tombs) add(id driver.ID, ttl time.Duration, now time.Time) {
	if t.until == nil {
		t.until = map[driver.ID]time.Time{}
	}
	if until := now.Add(ttl); until.After(t.until[id]) {
		t.until[id] = until
	}
	if len(t.until) <= t.limit {
		return
	}
	for id, until := range t.until {
		if until.Before(now) {
			delete(t.until, id)
		}
	}
	// so the sweeps cost little for each tomb, and at most half of the tombs are old
	t.limit = 2*len(t.until) + 64
}

func (t *tombs) has(id driver.ID, now time.Time) bool { return now.Before(t.until[id]) }
