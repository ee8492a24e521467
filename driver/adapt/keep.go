package adapt

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// join has a fixed request join the hold that m.hold began: the hold is extended to the time of the
// request. With a Sharer there are no such requests: a join is a member like any other.
func (b *Backend) join(ctx context.Context, m *ownRequest, r driver.Request) (driver.Grant, error) {
	sentAt, err := b.extend(ctx, m.hold.Request, r.TTL)
	if err != nil {
		return driver.Grant{}, err
	}
	b.mu.Lock()
	m.Stands, m.token = true, m.hold.token
	m.holds(sentAt, r.TTL)
	b.mu.Unlock()
	return b.grant(m, r, sentAt), nil
}

// joins reports whether the request may join the hold, or be resumed after it joined. A nil hold is
// that of an arrival. mu is held.
func (m *ownRequest) joins(hold *ownRequest) bool {
	return hold == nil || !hold.lost && (!hold.released || hold.joined[m])
}

// keep records that a request joined the hold. mu is held.
func (m *ownRequest) keep(join *ownRequest) {
	if m.joined == nil {
		m.joined = map[*ownRequest]bool{}
	}
	m.joined[join] = true
}

// kept returns for how long the hold stays for the requests that joined it. mu is held.
func (m *ownRequest) kept() time.Duration {
	left := time.Duration(0)
	for join := range m.joined {
		left = max(left, time.Until(join.Until))
	}
	return left
}

// releaseJoin releases a request that joined a hold. The last one releases the hold, if the request
// that began it was released before.
func (b *Backend) releaseJoin(ctx context.Context, m *ownRequest) error {
	b.mu.Lock()
	hold := m.hold
	stood := hold.joined[m] && !hold.lost && time.Now().Before(m.Until)
	before := hold.kept()
	delete(hold.joined, m)
	after := hold.kept()
	ends := hold.released && (after == 0 || after < before)
	b.mu.Unlock()
	var err error
	if ends {
		err = b.releaseHold(ctx, hold)
	} else if !stood {
		err = driver.ErrLost
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil || errors.Is(err, driver.ErrLost) {
		b.requests.Remove(m)
	}
	return err
}
