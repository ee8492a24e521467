package dlock

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// renewer keeps the holds of a client: it renews them in batches and ends those whose trust runs
// out. It is guarded by the client's mu.
//
// Beside its holds it watches those that wait, for one that waits for a hold of this same client:
// they stand among the deadlines.
//
// It has no goroutine of its own. Holds of one TTL share a ticker, which renews all of them with
// one call each TTL/3. Independently of any call, one timer fires at the earliest deadline, so that
// no hung call can delay the news of a loss.
type renewer struct {
	requests  map[driver.ID]*hold // all that are under way or held; nil: its grant was not seen yet
	named     map[string]*hold    // the holds of each name, linked by next
	tickers   map[time.Duration]*ticker
	deadlines deadlines
	timer     *time.Timer
	armed     time.Time // when the timer fires; zero: it does not
}

// ticker renews the holds of one TTL.
type ticker struct {
	ttl   time.Duration
	holds []*hold
	timer *time.Timer
	// when the timer fires; while a renewal is under way, what was added since wants; zero: nothing
	due   time.Time
	busy  bool // a renewal is under way
	fails bool // the last renewal left something unknown
}

// retryShare is the part of a TTL after which a renewal that failed is tried again; one that
// succeeded, after a third.
const retryShare = 12

// expect takes note of a request that is about to be sent.
func (r *renewer) expect(id driver.ID) {
	if r.requests == nil {
		r.requests = map[driver.ID]*hold{}
	}
	r.requests[id] = nil
}

// forget is the end of that, and reports whether the backend reported it lost meanwhile.
func (r *renewer) forget(id driver.ID) (lost bool) {
	lost = r.requests[id] != nil
	delete(r.requests, id)
	return lost
}

func (r *renewer) add(c *Client, h *hold) {
	r.requests[h.req.ID] = h
	r.link(h)
	r.due(c, h, h.until)
	if !h.req.Fixed {
		r.tick(c, h)
	}
}

// due has the deadline of h at that time.
func (r *renewer) due(c *Client, h *hold, at time.Time) {
	if h.key = at; h.heap < 0 {
		heap.Push(&r.deadlines, h)
	} else {
		heap.Fix(&r.deadlines, h.heap)
	}
	r.arm(c)
}

// drop takes h from the deadlines.
func (r *renewer) drop(h *hold) {
	if h.heap >= 0 {
		heap.Remove(&r.deadlines, h.heap)
	}
}

func (r *renewer) link(h *hold) {
	if r.named == nil {
		r.named = map[string]*hold{}
	}
	if h.next = r.named[h.req.Name]; h.next != nil {
		h.next.prev = h
	}
	r.named[h.req.Name] = h
}

func (r *renewer) unlink(h *hold) {
	switch {
	case h.prev != nil:
		h.prev.next = h.next
	case h.next != nil:
		r.named[h.req.Name] = h.next
	default:
		delete(r.named, h.req.Name)
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	h.prev, h.next = nil, nil
}

// against returns a hold of this client, held since then at least, that stands against a stranger's
// request; nil if there is none among the newest. That the look is bounded costs a warning where a
// client has very many readers or permits of one name, and keeps its calls cheap there.
func (r *renewer) against(q *driver.Request, since time.Time) *hold {
	const most = 128
	limit, owners := q.Limit, 0
	for h, seen := r.named[q.Name], 0; h != nil && seen < most; h, seen = h.next, seen+1 {
		if h.began.After(since) {
			continue
		}
		if h.req.Mode == driver.Exclusive || q.Mode == driver.Exclusive {
			return h
		}
		if h.req.Limit > 0 && !h.req.Join() {
			limit = min(limit, h.req.Limit)
			if owners++; owners >= limit {
				return h
			}
		}
	}
	return nil
}

// tick has the hold renewed, each third of its TTL.
func (r *renewer) tick(c *Client, h *hold) {
	t := r.tickers[h.ttl]
	if t == nil {
		if r.tickers == nil {
			r.tickers = map[time.Duration]*ticker{}
		}
		t = &ticker{ttl: h.ttl}
		r.tickers[h.ttl] = t
	}
	t.want(c, h.since.Add(h.ttl/3))
	h.tick, h.slot = t, len(t.holds)
	t.holds = append(t.holds, h)
}

// want sees to it that a renewal starts by then.
func (t *ticker) want(c *Client, by time.Time) {
	if !t.due.IsZero() && !by.Before(t.due) {
		return
	}
	t.due = by
	switch {
	case t.busy:
	case t.timer == nil:
		t.timer = time.AfterFunc(time.Until(by), func() { c.renew(t) })
	default:
		t.timer.Reset(time.Until(by))
	}
}

// remove ends the hold's part in everything here, for good.
func (r *renewer) remove(h *hold) {
	h.over = true
	r.drop(h)
	r.unlink(h)
	delete(r.requests, h.req.ID)
	r.untick(h)
}

func (r *renewer) untick(h *hold) {
	if t := h.tick; t != nil {
		last := len(t.holds) - 1
		t.holds[h.slot] = t.holds[last]
		t.holds[h.slot].slot = h.slot
		t.holds[last] = nil
		t.holds = t.holds[:last]
		h.tick = nil
	}
}

// moved takes note of a new deadline. A later one needs nothing: the heap finds out when the old
// one comes. A TTL that is a little longer or shorter than before is no reason to leave the batch.
func (r *renewer) moved(c *Client, h *hold) {
	if h.until.Before(h.key) {
		h.key = h.until
		heap.Fix(&r.deadlines, h.heap)
		r.arm(c)
	}
	if t := h.tick; t != nil && (h.ttl < t.ttl/3*2 || h.ttl > t.ttl*2) {
		r.untick(h)
		r.tick(c, h)
	}
}

// clear removes and returns all holds, and stops the timers.
func (r *renewer) clear() []*hold {
	var hs []*hold
	for _, h := range slices.Clone(r.deadlines) {
		if h.waits {
			r.drop(h)
			continue
		}
		r.remove(h)
		hs = append(hs, h)
	}
	for _, t := range r.tickers {
		t.timer.Stop()
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.tickers = nil
	return hs
}

// arm sees to it that the timer fires by the earliest deadline. It may fire earlier for nothing.
func (r *renewer) arm(c *Client) {
	if len(r.deadlines) == 0 {
		return
	}
	at := r.deadlines[0].key
	switch {
	case r.timer == nil:
		r.timer = time.AfterFunc(time.Until(at), c.expire)
	case r.armed.IsZero() || at.Before(r.armed):
		r.timer.Reset(time.Until(at))
	default:
		return
	}
	r.armed = at
}

// expire ends the holds whose trust has run out, and looks after those that have waited for long.
func (c *Client) expire() {
	var (
		lost []loss
		own  []wait
	)
	c.mu.Lock()
	r, now := &c.held, time.Now()
	r.armed = time.Time{}
	for len(r.deadlines) > 0 && !now.Before(r.deadlines[0].key) {
		h := r.deadlines[0]
		if h.waits {
			if by := r.against(&h.req, now.Add(-h.req.TTL)); by != nil && !by.told {
				by.told = true
				r.drop(h)
				own = append(own, wait{h.req, by.req.Label, now.Sub(h.began), now.Sub(by.began)})
			} else {
				h.key = now.Add(h.req.TTL)
				heap.Fix(&r.deadlines, 0)
			}
			continue
		}
		if now.Before(h.until) {
			h.key = h.until
			heap.Fix(&r.deadlines, 0)
			continue
		}
		c.remove(h)
		lost = append(lost, loss{h, h.overdue()})
	}
	if c.closed == nil {
		r.arm(c)
	}
	c.mu.Unlock()
	c.tell(lost...)
	for _, w := range own {
		c.set.logger.Warn("dlock: Lock waits for a hold of this same client; if this code holds it, pass lease.Context", "name", w.req.Name,
			"backend", c.caps.Backend, "holder", w.label, "held", w.held, "waits", w.waits)
	}
}

// wait is one of this client's for a hold of this client, and for how long.
type wait struct {
	req         driver.Request
	label       string // the holder's
	waits, held time.Duration
}

// batch returns the holds of a renewal that starts now, the oldest proof first, and the time that
// it has: it ends before the trust in one of them does, as far as that leaves it TTL/12. So a
// renewal of more holds than the service can do in its time goes on where it ended, and what it
// proved before it was held up is known in time.
func (t *ticker) batch(now time.Time) ([]*hold, time.Duration) {
	hs, left := slices.Clone(t.holds), t.ttl/3
	for _, h := range hs {
		left = min(left, h.until.Sub(now)-t.ttl/retryShare/2)
	}
	slices.SortFunc(hs, func(a, b *hold) int { return a.since.Compare(b.since) })
	return hs, max(left, t.ttl/retryShare)
}

// renew is one tick: all holds of one TTL in one call.
func (c *Client) renew(t *ticker) {
	c.mu.Lock()
	if t.busy { // its timer was set anew while it fired
		c.mu.Unlock()
		return
	}
	if c.closed != nil || len(t.holds) == 0 {
		if c.held.tickers[t.ttl] == t {
			delete(c.held.tickers, t.ttl)
		}
		c.mu.Unlock()
		return
	}
	start := time.Now()
	hs, left := t.batch(start)
	t.busy, t.due = true, time.Time{}
	c.mu.Unlock()
	rs := make([]driver.Request, len(hs))
	for i, h := range hs {
		rs[i] = h.req
	}

	ctx, cancel := context.WithTimeout(c.ctx, left)
	res := c.b.Renew(ctx, rs)
	cancel()
	var (
		unknown error
		lost    []loss
	)
	for i, h := range hs {
		p := driver.Renewal{Err: errors.New("the driver did not answer")}
		if i < len(res) {
			p = res[i]
		}
		if c.apply(h, p) {
			lost = append(lost, loss{h, denied})
		} else if p.Err != nil && !errors.Is(p.Err, ErrLost) {
			unknown = p.Err
		}
	}
	c.end(lost)
	if c.again(t, start, unknown != nil) {
		c.set.logger.Warn("dlock: renewal failed; trying again", "backend", c.caps.Backend, "ttl", t.ttl, "err", unknown)
	}
	c.log(lost)
}

// again sets the ticker for the next renewal after one that began at start, and reports whether
// this is the first in a row to fail.
func (c *Client) again(t *ticker, start time.Time, fails bool) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = fails && !t.fails
	t.busy, t.fails = false, fails
	if c.closed != nil {
		return false
	}
	next := t.ttl / 3
	if fails {
		next = t.ttl / retryShare
	}
	due := start.Add(next)
	if soonest := time.Now().Add(t.ttl / retryShare / 2); due.Before(soonest) {
		due = soonest // after a slow renewal, not at once again
	}
	if !t.due.IsZero() && t.due.Before(due) {
		due = t.due
	}
	t.due = due
	t.timer.Reset(time.Until(due))
	return first
}

// deadlines is a heap of holds by key.
type deadlines []*hold

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].key.Before(d[j].key) }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].heap, d[j].heap = i, j
}

// Push is heap.Interface's.
func (d *deadlines) Push(x any) {
	h := x.(*hold)
	h.heap = len(*d)
	*d = append(*d, h)
}

// Pop is heap.Interface's.
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	h := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	h.heap = -1
	return h
}
