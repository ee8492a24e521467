package adapt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if err := b.check(r); err != nil {
		return driver.Grant{}, err
	}
	m, err := b.begin(r)
	if err != nil {
		return driver.Grant{}, err
	}
	var g driver.Grant
	switch {
	case m.hold != nil:
		g, err = b.join(ctx, m, r)
	case r.Wait && !r.Join():
		g, err = b.wait(ctx, m, r)
	default:
		g, err = b.attempt(ctx, m, r)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Over() {
		err = driver.ErrClosed // Close removes it
		m.Uncertain = m.Uncertain || m.trying != nil
	}
	if err == nil && (m.lost || m.released || !m.joins(m.hold)) {
		err = driver.ErrLost // meanwhile
	}
	if err = b.requests.End(m, err); err != nil {
		return driver.Grant{}, err
	}
	if m.hold != nil {
		m.hold.keep(m)
	}
	return g, nil
}

// check refuses what the lock cannot do.
func (b *Backend) check(r driver.Request) error {
	switch {
	case r.Semaphore():
		return fmt.Errorf("%w: %s (%s) has no semaphores", driver.ErrUnsupported, b.caps.Backend, b.caps.Format)
	case b.sharer != nil:
	case r.Mode == driver.Shared:
		return fmt.Errorf("%w: %s (%s) has exclusive locks only", driver.ErrUnsupported, b.caps.Backend, b.caps.Format)
	case r.Join() && !(r.Fixed && b.caps.FixedOutlives):
		return fmt.Errorf("%w: a hold on %s (%s) cannot be joined", driver.ErrUnsupported, b.caps.Backend, b.caps.Format)
	}
	if err := b.checkName(r.Name); err != nil {
		return err
	}
	return kit.CheckTTL(r.TTL, b.caps)
}

func (b *Backend) checkName(name string) error {
	if n, ok := b.calls.(Namer); ok {
		return n.CheckName(name)
	}
	return nil
}

// begin returns the record of a request.
func (b *Backend) begin(r driver.Request) (*ownRequest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Over() {
		return nil, driver.ErrClosed
	}
	m, is := b.requests.Find(r.ID)
	switch {
	case is && (m.lost || m.released):
		return nil, driver.Unsettled(driver.ErrLost)
	case is && m.Name != r.Name:
		return nil, fmt.Errorf("%w request: its ID is in use for another name", driver.ErrInvalid)
	case !is && b.tombstones.Has(r.ID, time.Now()):
		return nil, driver.ErrLost
	}
	var hold *ownRequest
	if r.Join() && b.sharer == nil {
		hold, is = b.requests.Find(r.Owner)
		if !is || hold.Name != r.Name || !hold.Granted() || !m.joins(hold) {
			return nil, fmt.Errorf("%w: the hold to join is not one of this client", driver.ErrLost)
		}
	}
	m = b.requests.Begin(r)
	m.hold = hold
	return m, nil
}

// attempt is an Acquire that does not wait. If others of this client wait, and the service said
// last that the lock is held, it is held for this request too, unless that is a join.
func (b *Backend) attempt(ctx context.Context, m *ownRequest, r driver.Request) (driver.Grant, error) {
	b.mu.Lock()
	g := b.waiters.Group(r.Name)
	ahead := g != nil && g.State.held != nil && !m.Granted() && !r.Join()
	var held error
	if ahead {
		held = g.State.held
	}
	b.mu.Unlock()
	if ahead {
		return driver.Grant{}, held
	}
	return b.try(ctx, m, r)
}

// try takes the lock, or extends the hold of a request that was granted before: that one is never
// taken again.
func (b *Backend) try(ctx context.Context, m *ownRequest, r driver.Request) (driver.Grant, error) {
	b.mu.Lock()
	resumed := m.Granted()
	b.mu.Unlock()
	if resumed {
		sentAt, err := b.extend(ctx, r, r.TTL)
		return b.grant(m, r, sentAt), err
	}
	var sentAt time.Time
	err := b.run(ctx, func(ctx context.Context) error {
		done, err := b.alone(ctx, m)
		if err != nil {
			return err
		}
		sentAt = time.Now()
		var token driver.Token
		if b.fencer != nil {
			token, err = b.fencer.TryFenced(ctx, r)
		} else {
			err = b.calls.Try(ctx, r)
		}
		b.tried(m, r, sentAt, token, err)
		close(done)
		return err
	})
	if err != nil {
		return driver.Grant{}, err
	}
	return b.grant(m, r, sentAt), nil
}

// grant returns the proof of a hold by a call that was sent then.
func (b *Backend) grant(m *ownRequest, r driver.Request, sentAt time.Time) driver.Grant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return driver.Grant{Token: m.token, TTL: r.TTL, SentAt: sentAt}
}

// alone waits until no other Try of the request is under way. The caller closes done after its own.
func (b *Backend) alone(ctx context.Context, m *ownRequest) (done chan struct{}, err error) {
	for {
		b.mu.Lock()
		other := m.trying
		if other == nil {
			m.trying = make(chan struct{})
			b.mu.Unlock()
			return m.trying, nil
		}
		b.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tried records the outcome of a Try, also if its caller has left.
func (b *Backend) tried(m *ownRequest, r driver.Request, sentAt time.Time, token driver.Token, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.trying = nil
	switch {
	case err == nil:
		m.Stands, m.token = true, token
		m.holds(sentAt, r.TTL)
		if m.late || !b.requests.Has(m) { // its release did not wait for this
			r.Uncertain = m.Uncertain
			b.life.Go(func() { kit.Repeat(b.life.Context(), func(ctx context.Context) error { return b.free(ctx, r) }) })
		}
	case driver.Refused(err):
		m.Stands = false
	default:
		m.Uncertain = true
	}
}

// free is a Release in the background, for a request that is not on record any more.
func (b *Backend) free(ctx context.Context, r driver.Request) error {
	if err := b.calls.Release(ctx, r, 0); err != nil && !errors.Is(err, driver.ErrLost) {
		return err
	}
	b.wakeLine(r.Name)
	return nil
}

// holds records the proof of a hold that lasts for ttl from sentAt. A hold is never shortened.
func (m *ownRequest) holds(sentAt time.Time, ttl time.Duration) {
	if until := sentAt.Add(ttl); until.After(m.Until) {
		m.Until = until
	}
}
