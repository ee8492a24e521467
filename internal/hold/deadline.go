package hold

import (
	"container/heap"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// deadlines orders the holds by the end of trust in them, and the waiting requests by the time at
// which to check what they wait for. One timer fires at the earliest of them, independently of any
// call, so that a call that hangs does not delay the notice of a loss.
//
// After a renewal a deadline is earlier than the end of trust: it is corrected when it comes. So a
// renewal of ten thousand holds touches none of them here.
type deadlines struct {
	heap  []*Hold
	timer *time.Timer
	armed time.Time // when the timer fires; zero: it is not running
}

// setDeadline sets the deadline of h. s.mu is locked.
func (s *Set) setDeadline(h *Hold, at time.Time) {
	d := &s.deadlines
	if h.deadline = at; h.place < 0 {
		heap.Push(d, h)
	} else {
		heap.Fix(d, int(h.place))
	}
	s.arm()
}

// remove removes h, if it is there.
func (d *deadlines) remove(h *Hold) {
	if h.place >= 0 {
		heap.Remove(d, int(h.place))
	}
}

// arm makes the timer fire by the earliest deadline. It may fire earlier, which does no harm. s.mu
// is locked.
func (s *Set) arm() {
	d := &s.deadlines
	if len(d.heap) == 0 {
		return
	}
	at := d.heap[0].deadline
	switch {
	case d.timer == nil:
		d.timer = time.AfterFunc(time.Until(at), s.expire)
	case d.armed.IsZero() || at.Before(d.armed):
		d.timer.Reset(time.Until(at))
	default:
		return
	}
	d.armed = at
}

// stop removes all deadlines and stops the timer.
func (d *deadlines) stop() {
	for _, h := range d.heap {
		h.place = -1
	}
	d.heap = nil
	if d.timer != nil {
		d.timer.Stop()
	}
}

// expire handles the deadlines that have come. A hold is lost if trust in it has ended. If a
// request waits for a hold of the same client and both have lasted for a TTL, that is logged once
// for each hold: the caller may be waiting for itself.
func (s *Set) expire() {
	var (
		losses []loss
		waits  []wait
	)
	s.mu.Lock()
	d, now := &s.deadlines, s.now()
	d.armed = time.Time{}
	for len(d.heap) > 0 && !now.Before(d.heap[0].deadline) {
		h := d.heap[0]
		switch {
		case !h.granted:
			if by := s.against(&h.req, now.Add(-h.req.TTL)); by != nil && !by.warned {
				by.warned = true
				d.remove(h)
				waits = append(waits, wait{h.req, by.req.Label, by.advice(&h.req), now.Sub(h.began), now.Sub(by.began)})
				continue
			}
			h.deadline = now.Add(h.req.TTL)
			heap.Fix(d, 0)
		case h.late(now):
			losses = append(losses, s.lost(h, h.overdue()))
		default: // it was renewed in the meantime
			h.deadline = h.until
			heap.Fix(d, 0)
		}
	}
	if !s.closed {
		s.arm()
	}
	s.mu.Unlock()
	s.tell(losses...)
	for _, w := range waits {
		s.log.Warn("dlock: Lock waits for a hold of the same client", "advice", "if this code holds it, "+w.advice, "name", w.req.Name,
			"backend", s.name, "holder", w.holder, "held", w.held, "waits", w.waits)
	}
}

// wait describes a request that waits for a hold of the same client.
type wait struct {
	req         driver.Request
	holder      string // its label
	advice      string
	waits, held time.Duration
}

// Len implements heap.Interface.
func (d *deadlines) Len() int { return len(d.heap) }

// Less implements heap.Interface.
func (d *deadlines) Less(i, j int) bool { return d.heap[i].deadline.Before(d.heap[j].deadline) }

// Swap implements heap.Interface.
func (d *deadlines) Swap(i, j int) {
	d.heap[i], d.heap[j] = d.heap[j], d.heap[i]
	d.heap[i].place, d.heap[j].place = int32(i), int32(j)
}

// Push implements heap.Interface.
func (d *deadlines) Push(x any) {
	h := x.(*Hold)
	h.place = int32(len(d.heap))
	d.heap = append(d.heap, h)
}

// Pop implements heap.Interface.
func (d *deadlines) Pop() any {
	last := len(d.heap) - 1
	h := d.heap[last]
	d.heap[last] = nil
	d.heap = d.heap[:last]
	h.place = -1
	return h
}
