package mysql

import (
	"sync/atomic"
	"time"
)

const (
	// paceTrips is how many answers a grant mostly needs to be found and confirmed: of a poll that
	// has just begun (keep, look, expired), the look, a connection that is opened (3), a call of
	// the same name under way, and the one that confirms.
	paceTrips = 9
	// maxWindow is the most that the window becomes by that. Who waits gives a sign of life each 3
	// s, so with this one nearly everybody who lives was heard of, and needs no window.
	maxWindow = 5 * time.Second
)

// pace is the time (ns) in which the server answers a client; 0: not known. It falls at once, and
// grows by a quarter of what an answer is slower: a call that waits for a row, or has much to do,
// says little about the server.
type pace struct{ ns atomic.Int64 }

// answered records that the answer to what was sent then is there.
func (p *pace) answered(sent time.Time) { p.took(time.Since(sent)) }

func (p *pace) took(d time.Duration) {
	for ns := max(int64(d), 1); ; {
		old := p.ns.Load()
		now := ns
		if old > 0 {
			now = min(ns, (3*old+ns)/4)
		}
		if p.ns.CompareAndSwap(old, now) {
			return
		}
	}
}

// window is how long a waiter that was not heard of for so long has to confirm its grant: what the
// options say, or longer where the server is too slow for that. Else such a waiter would lose its
// place when its turn comes. Looks and calls count apart: a server that reads at once may commit
// slowly.
func (b *Backend) window() time.Duration {
	slow := time.Duration(max(b.pool.looks.ns.Load(), b.pool.calls.ns.Load()))
	return max(b.o.GrantWindow, min(paceTrips*slow, maxWindow))
}
