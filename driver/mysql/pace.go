package mysql

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// paceTrips is how many answers the window of a grant leaves time for. A poll may just have
	// begun (keep, look and expired), then a look finds the grant, and a call confirms it, behind
	// another of its name.
	paceTrips = 6
	// maxWindow is the most that the window becomes by that: for as long dlock_keep lets who waits
	// live.
	maxWindow = 10 * time.Second
)

// pace is the time (ns) in which the server answers a client, at its slowest of late. It grows at
// once, and falls by a quarter of what an answer is quicker.
type pace struct{ ns atomic.Int64 }

// answered records that an answer took d.
func (p *pace) answered(d time.Duration) {
	for {
		old := p.ns.Load()
		if p.ns.CompareAndSwap(old, max(int64(d), (3*old+int64(d))/4)) {
			return
		}
	}
}

// window is how long a waiter that was not heard of for so long has to confirm its grant: what the
// options say, or longer where the server is too slow for that. Else each client that waits would
// lose its place when its turn comes.
func (b *Backend) window() time.Duration {
	slow := time.Duration(b.pool.pace.ns.Load())
	return max(b.o.GrantWindow, min(paceTrips*slow, maxWindow))
}

// timed is ask for a statement of which the answer's time is that of the server.
func (p *pool) timed(ctx context.Context, limit time.Duration, stmt string) (answer, error) {
	begun := time.Now()
	a, err := p.ask(ctx, limit, stmt)
	if err == nil {
		p.pace.answered(time.Since(begun))
	}
	return a, err
}
