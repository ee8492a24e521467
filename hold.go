package dlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// hold is one granted request of this client, shared by the leases that re-entered it. Its fields
// but c, req and token are guarded by c.mu.
//
// Trust in it ends at since + ttl − margin by the monotonic clock. Only a proof by the backend
// moves that on. Once it is over, it is over: a hold leaves the client's renewer for good, and is
// given back.
type hold struct {
	c     *Client
	req   driver.Request
	token Token

	waits  bool      // it is a request that is not granted yet; the rest is set when it is
	began  time.Time // when it was asked for, or granted
	over   bool
	told   bool     // the log has it that a request of this client waits for it
	leases []*Lease // those not given back

	since time.Time // before the call that proved it was sent
	wall  time.Time // the wall clock at that instant
	ttl   time.Duration
	until time.Time // the end of trust

	key  time.Time // of the heap of deadlines: never later than until
	heap int       // the place there; -1: none
	tick *ticker   // that renews it; nil: none
	slot int       // the place there

	next, prev *hold // of the same name
}

// margin is what the client stops trusting before the backend's clock can end the hold: for the
// difference in the clocks' rates, and for the time that it takes a holder to hear of the loss.
func margin(ttl time.Duration) time.Duration {
	return min(ttl/20+2*time.Millisecond, time.Second, ttl/2)
}

// errLate: the grant was over, or may have been, before it was seen.
var errLate = errors.New("late grant")

// hold makes a lease of a grant, with h if the request was watched. It fails with ErrClosed, and
// has the request given back, if the client was closed; with errLate if trust in the grant is over,
// or the backend reported it lost already.
func (c *Client) hold(h *hold, r driver.Request, g driver.Grant) (*Lease, error) {
	if h == nil {
		h = &hold{c: c, heap: -1}
	}
	l := &Lease{hold: h}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.req = r
	now := time.Now()
	h.prove(driver.Renewal{TTL: g.TTL, SentAt: g.SentAt}, now)
	lost := c.held.forget(r.ID)
	switch {
	case c.closed != nil:
		c.giveBack(r)
		return nil, ErrClosed
	case lost || !now.Before(h.until) || h.slept():
		return nil, errLate
	}
	h.token, h.leases, h.began, h.waits = g.Token, []*Lease{l}, now, false
	c.held.add(c, h)
	return l, nil
}

// prove takes note of a proof. Of two, the one sent later counts. c.mu is held.
func (h *hold) prove(p driver.Renewal, now time.Time) {
	// a fixed lease ends on time, however long the service keeps it
	if p.TTL == 0 || h.req.Fixed && p.TTL > h.req.TTL {
		p.TTL = h.req.TTL
	}
	if p.SentAt.Before(h.since) {
		return
	}
	h.since, h.ttl = p.SentAt, p.TTL
	// without the monotonic clocks, which may have stood still
	h.wall = h.c.wall().Add(p.SentAt.Round(0).Sub(now.Round(0)))
	h.until = p.SentAt.Add(p.TTL - margin(p.TTL))
}

// slept reports whether the wall clock says that the hold is over and the monotonic clock does not:
// then the machine was suspended, or its wall clock was set, and only the backend knows. c.mu is
// held.
func (h *hold) slept() bool {
	return !h.c.wall().Round(0).Before(h.wall.Round(0).Add(h.until.Sub(h.since)))
}

// check reports whether the hold can be trusted now, and asks the backend if the clocks disagree.
func (h *hold) check(ctx context.Context) error {
	if known, err := h.judge(); known {
		return err
	}
	return h.renew(ctx)
}

// judge is check as far as the clocks tell; known is false if they disagree.
func (h *hold) judge() (known bool, err error) {
	c := h.c
	c.mu.Lock()
	over, why, late, slept := h.over, c.overLocked(), !time.Now().Before(h.until), h.slept()
	c.mu.Unlock()
	switch {
	case over:
		return true, why
	case late:
		c.lose(h, h.overdue())
		return true, ErrLost
	}
	return !slept, nil
}

// overLocked returns why a hold that was not given back is over. c.mu is held.
func (c *Client) overLocked() error {
	if c.closed != nil {
		return ErrClosed
	}
	return ErrLost
}

// renew proves the hold with a call of its own.
func (h *hold) renew(caller context.Context) error {
	c := h.c
	ctx, err := c.begin(caller, noAnswer)
	if err != nil {
		return err
	}
	defer c.done(ctx)
	res := c.b.Renew(ctx, []driver.Request{h.req})
	if len(res) != 1 {
		return errors.New("the driver did not answer the renewal")
	}
	if c.apply(h, res[0]) {
		c.tell(loss{h, denied})
	}
	if res[0].Err != nil {
		return explain(ctx, res[0].Err)
	}
	c.mu.Lock()
	over := h.over || !time.Now().Before(h.until)
	c.mu.Unlock()
	if over {
		return ErrLost
	}
	return nil
}

// reenter adds a lease to the hold.
func (h *hold) reenter(ctx context.Context) (*Lease, error) {
	if err := h.check(ctx); err != nil {
		return nil, err
	}
	l := &Lease{hold: h}
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	if h.over {
		return nil, h.c.overLocked()
	}
	h.leases = append(h.leases, l)
	return l, nil
}

// leave takes a lease that is given back from the hold, and reports whether it was the last: then
// the hold is over. c.mu is held.
func (h *hold) leave(l *Lease) (last bool) {
	if i := slices.Index(h.leases, l); i >= 0 {
		h.leases = slices.Delete(h.leases, i, i+1)
	}
	if len(h.leases) > 0 || h.over {
		return false
	}
	h.c.held.remove(h)
	return true
}

// finish tells the leases that they are over. c.mu is not held.
func (h *hold) finish(why error) {
	h.c.mu.Lock()
	ls := h.leases
	h.leases = nil
	h.c.mu.Unlock()
	for _, l := range ls {
		l.finish(why)
	}
}

// loss is a hold that was just removed as lost, and why.
type loss struct {
	h   *hold
	why string
}

const (
	unproved = "trust in it ended before a renewal succeeded"
	denied   = "the backend does not have it any more"
	reported = "the backend reported it lost"
	timeUp   = "its fixed time is over"
)

// overdue says why trust in the hold is over.
func (h *hold) overdue() string {
	if h.req.Fixed {
		return timeUp
	}
	return unproved
}

// remove takes a lost hold from those held, and remembers its owner before anybody hears of it.
// c.mu is held.
func (c *Client) remove(h *hold) {
	c.held.remove(h)
	c.back.lose(h.req.Owner)
}

// lostOwner reports whether this client lost a hold of the owner on the name, and the service may
// still have it.
func (c *Client) lostOwner(name string, owner driver.ID) bool {
	c.mu.Lock()
	lost := c.back.lost[owner] > 0
	late := c.held.requests[owner] // trust in it may be over, and the timer late
	if late != nil && (late.over || late.req.Name != name || time.Now().Before(late.until)) {
		late = nil
	}
	c.mu.Unlock()
	if late != nil {
		c.lose(late, late.overdue())
	}
	return lost || late != nil
}

// lose ends the hold as lost.
func (c *Client) lose(h *hold, why string) {
	c.mu.Lock()
	over := h.over
	if !over {
		c.remove(h)
	}
	c.mu.Unlock()
	if !over {
		c.tell(loss{h, why})
	}
}

// tell tells of losses: all leases first; then the backend, so that a client that gave up wrongly
// blocks nobody; then the log, which is the program's own and may take its time.
func (c *Client) tell(ls ...loss) {
	c.end(ls)
	c.log(ls)
}

func (c *Client) end(ls []loss) {
	for _, l := range ls {
		l.h.finish(ErrLost) // before it is given back, and somebody else is in
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range ls {
		r := givingBack{l.h.req, true}
		if l.why == timeUp { // for its holder; it stands against others until its time
			c.giveBackAt(l.h.since.Add(l.h.ttl), r)
		} else {
			c.giveBackAs(r)
		}
	}
}

func (c *Client) log(ls []loss) {
	for _, l := range ls {
		level := slog.LevelWarn
		if l.why == timeUp { // as planned
			level = slog.LevelDebug
		}
		c.set.logger.Log(context.Background(), level, "dlock: lease lost", "name", l.h.req.Name, "backend", c.caps.Backend, "token", l.h.token, "why", l.why)
	}
}

// loseID is lose, for what the backend noticed. It may notice before the grant was seen here.
func (c *Client) loseID(id driver.ID) {
	c.mu.Lock()
	h, known := c.held.requests[id]
	if known && h == nil {
		c.held.requests[id] = &hold{over: true}
	}
	c.mu.Unlock()
	if h != nil {
		c.lose(h, reported)
	}
}

// apply takes note of what a renewal returned, and reports whether the hold was removed as lost:
// then the caller tells of it.
func (c *Client) apply(h *hold, p driver.Renewal) (lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case h.over:
	case errors.Is(p.Err, ErrLost):
		c.remove(h)
		return true
	case p.Err == nil:
		h.prove(p, time.Now())
		c.held.moved(c, h)
	}
	return false
}
