package steps

import (
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/driver"
)

// Held is a name that many clients take at random, and what they saw of its holds. Two that exclude
// each other fail the test, and so does a token that does not grow.
type Held struct {
	Name    string
	Readers bool // half of the requests are shared
	Limit   int  // of permits; 0: no permits

	mu        sync.Mutex
	exclusive int // how many hold so
	shared    int
	token     driver.Token // the greatest of those that held exclusively
	last      driver.Token // the greatest of all
	grants    int
	granted   time.Time
	pause     time.Duration
	abandoned time.Time // until then a hold that was not released may stand
}

// rests records that the name may not be granted for that time.
func (n *Held) rests(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.abandoned = time.Now().Add(d)
}

// Enter records a grant.
func (n *Held) Enter(t testing.TB, r driver.Request, g driver.Grant) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.granted.Before(n.abandoned) { // the time of a hold that was not released does not count
		n.granted = n.abandoned
	}
	if !n.granted.IsZero() {
		n.pause = max(n.pause, now.Sub(n.granted))
	}
	n.granted = now
	n.grants++
	if r.Mode == driver.Exclusive {
		n.exclusive++
	} else {
		n.shared++
	}
	if n.exclusive > 1 || n.exclusive == 1 && n.shared > 0 || n.Limit > 0 && n.shared > n.Limit {
		service.Strict(t).Errorf("%s is held by %d exclusively, and by %d others", n.Name, n.exclusive, n.shared)
	}
	if before := n.last; r.Mode == driver.Exclusive && g.Token <= before || g.Token <= n.token {
		service.Strict(t).Errorf("%s: token %d of %s after %d, %d", n.Name, g.Token, r.Mode, n.token, before)
	}
	n.last = max(n.last, g.Token)
	if r.Mode == driver.Exclusive {
		n.token = g.Token
	}
}

// Exit records that a holder is about to release.
func (n *Held) Exit(r driver.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.Mode == driver.Exclusive {
		n.exclusive--
	} else {
		n.shared--
	}
}

// Grants returns how often the name was granted, and the longest time between two grants.
func (n *Held) Grants() (grants int, pause time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.grants, n.pause
}
