package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// giveBacks are requests that may still stand in the backend although nobody here counts on them:
// releases with an unknown outcome, lost holds, grants that came too late. One goroutine, alive
// only while there are any, sends their releases until each is settled or the client is closed. It
// is guarded by the client's mu.
type giveBacks struct {
	queue   []givingBack
	running bool
	// owners of holds that were lost and are not given back yet: this client must not join them
	lost map[driver.ID]int
}

type givingBack struct {
	driver.Request
	lost bool // it was a hold
}

// lose takes note that a hold of the owner was lost.
func (g *giveBacks) lose(owner driver.ID) {
	if g.lost == nil {
		g.lost = map[driver.ID]int{}
	}
	g.lost[owner]++
}

// settled ends that.
func (g *giveBacks) settled(r givingBack) {
	if !r.lost {
		return
	}
	if g.lost[r.Owner]--; g.lost[r.Owner] == 0 {
		delete(g.lost, r.Owner)
	}
}

const (
	giveBackMin = 20 * time.Millisecond // the pause after the first failure in a row
	giveBackMax = 5 * time.Second
)

// giveBack has the request released in the background. c.mu is held.
func (c *Client) giveBack(r driver.Request) { c.giveBackAs(givingBack{Request: r}) }

func (c *Client) giveBackAs(r givingBack) {
	r.Uncertain = true
	c.back.queue = append(c.back.queue, r)
	if !c.back.running && c.closed == nil {
		c.back.running = true
		c.calls.Go(c.giveAllBack) // Close waits for it, and sends what is left
	}
}

// giveBackAt is giveBackAs at that time. If the client is closed before, it is left to the service.
func (c *Client) giveBackAt(at time.Time, r givingBack) {
	time.AfterFunc(time.Until(at), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed == nil {
			c.giveBackAs(r)
		}
	})
}

func (g *giveBacks) clear() []driver.Request {
	var rs []driver.Request
	for _, r := range g.queue {
		rs = append(rs, r.Request)
	}
	g.queue = nil
	return rs
}

func (c *Client) giveAllBack() {
	wait := giveBackMin
	for {
		c.mu.Lock()
		if len(c.back.queue) == 0 || c.closed != nil {
			c.back.running = false
			c.mu.Unlock()
			return
		}
		r := c.back.queue[0]
		c.back.queue[0] = givingBack{}
		c.back.queue = c.back.queue[1:]
		c.mu.Unlock()

		ctx, cancel := context.WithTimeout(c.ctx, grace)
		err := c.b.Release(ctx, r.Request)
		cancel()
		if err == nil || errors.Is(err, ErrLost) {
			c.mu.Lock()
			c.back.settled(r)
			c.mu.Unlock()
			wait = giveBackMin
			continue
		}
		c.set.logger.Debug("dlock: giving back failed; trying again", "name", r.Name, "backend", c.caps.Backend, "err", err)
		c.mu.Lock()
		// behind the others: one that always fails holds up none
		c.back.queue = append(c.back.queue, r)
		c.mu.Unlock()
		pause(c.ctx, wait)
		wait = min(2*wait, giveBackMax)
	}
}
