package adapt

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Renew implements [driver.Backend]. It extends the holds one by one, at most 16 at a time.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	indexes := make([]int, len(rs))
	for i := range rs {
		indexes[i] = i
	}
	inParallel(indexes, func(i int) {
		r := rs[i]
		if res[i].Err = b.renewable(r); res[i].Err == nil {
			res[i].SentAt, res[i].Err = b.extend(ctx, r, r.TTL)
		}
		if res[i].Err == nil {
			res[i].TTL = r.TTL
		}
	})
	return res
}

// renewable returns why a request cannot be renewed, without a call.
func (b *Backend) renewable(r driver.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, is := b.requests.Find(r.ID)
	switch {
	case b.life.Over():
		return driver.ErrClosed
	case is && (m.lost || m.released), !is && b.tombstones.Has(r.ID, time.Now()), !is && r.Join() && b.sharer == nil:
		return driver.ErrLost
	case is && m.hold != nil && m.hold.lost:
		return driver.ErrLost
	case is && !m.Granted():
		return driver.ErrNotHeld
	}
	return nil
}

// extend makes the hold that r began or joined last for at least ttl; with a Sharer, r's own part
// of it.
func (b *Backend) extend(ctx context.Context, r driver.Request, ttl time.Duration) (sentAt time.Time, err error) {
	if r.Join() && b.sharer == nil { // its hold is that of the request that began it
		r.ID = r.Owner
	}
	sentAt = time.Now()
	err = b.run(ctx, func(ctx context.Context) error {
		err := b.calls.Extend(ctx, r, ttl)
		b.extended(r.ID, sentAt, ttl, err)
		return err
	})
	return sentAt, err
}

// extended records the outcome of an Extend, also if its caller has left.
func (b *Backend) extended(id driver.ID, sentAt time.Time, ttl time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, is := b.requests.Find(id)
	switch {
	case !is:
	case err == nil:
		m.holds(sentAt, ttl)
	case errors.Is(err, driver.ErrLost):
		b.lose(m)
	}
}

// lose records that a hold is lost for good. mu is held.
func (b *Backend) lose(m *ownRequest) {
	m.lost, m.Stands = true, false
	b.tombstones.Add(m.ID, time.Now().Add(m.TTL))
}
