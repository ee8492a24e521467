package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// mostToken is the greatest token to which a hold can be raised.
const mostToken = 1 << 62

// Raise implements [driver.Raiser]. The tokens of all names are then greater, since they come from
// one counter. The joins of the hold get the token too.
func (b *Backend) Raise(_ context.Context, r driver.Request, t driver.Token) error {
	if t > mostToken {
		return fmt.Errorf("%w token %d; the greatest to which a hold can be raised is %d", driver.ErrInvalid, t, uint64(mostToken))
	}
	s := b.begin()
	if s == nil {
		return driver.ErrClosed
	}
	defer s.mu.Unlock()
	q, e := b.find(&r, time.Now())
	if e == nil || !e.granted() || e.Broken {
		return driver.ErrLost
	}
	for last := tokens.Load(); last < uint64(t) && !tokens.CompareAndSwap(last, uint64(t)); {
		last = tokens.Load()
	}
	for _, h := range q.Holders() {
		if h.Owner == e.Owner {
			h.Token = max(h.Token, t)
		}
	}
	return nil
}
