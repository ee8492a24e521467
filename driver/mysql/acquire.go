package mysql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if err := kit.CheckTTL(r.TTL, b.caps); err != nil {
		return driver.Grant{}, err
	}
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.Grant{}, driver.ErrClosed
	}
	m := b.requests.Begin(r)
	b.mu.Unlock()
	g, err := b.acquire(ctx, m, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	closed := b.life.Over() // then Close removes the request
	b.requests.End(m, err == nil && !closed)
	switch {
	case closed:
		return driver.Grant{}, driver.ErrClosed
	case err != nil:
		b.giveUp(m)
		return driver.Grant{}, explain(err)
	}
	return g, nil
}

// acquire asks the server for the request, and asks again whenever there is a reason to, until the
// request is granted or refused.
func (b *Backend) acquire(ctx context.Context, m *request, r driver.Request) (driver.Grant, error) {
	var w *kit.Waiter[*request]
	defer func() {
		if w != nil {
			b.detach(w)
		}
	}()
	for {
		b.mu.Lock()
		wait := bit(r.Wait)
		if m.Granted() { // it may have expired since: then it must not arrive again
			wait = -1
		}
		grant, notified, stood := m.grant, m.Notified, m.Stands
		m.Notified = false
		b.mu.Unlock()
		if grant != nil && w != nil {
			return *grant, nil
		}
		c := newCall("acquire", b.prefix, bin(r.Name), r.ID, r.Owner, r.Client, r.Mode == driver.Shared, r.Limit,
			r.TTL, r.Fixed, wait, b.window(), text(r.Label))
		if w == nil && wait >= 0 && !r.Join() {
			c.simple = simpleAcquire(b.prefix, r)
		}
		if stood { // an outage shorter than its TTL ends no wait
			c.stands, c.patience = true, max(patience, r.TTL)
		}
		err := b.send(ctx, b.life.Closed(), r.Name, notified, c)
		var a verdict
		if err == nil {
			a, err = parseVerdict(c.sets)
			b.receive(c, a.grants)
		}
		b.mu.Lock()
		m.Uncertain = m.Uncertain || c.doubt.Load() > 0
		switch {
		case kit.IsNo(err):
			m.Stands = false
		case err == nil:
			m.Stands = true
			if a.granted {
				b.holds(m, c.sent)
			}
		}
		b.mu.Unlock()
		if err != nil {
			return driver.Grant{}, b.waitEnded(ctx, stood && c.failure.Load() == nil, err)
		}
		if a.granted {
			return driver.Grant{Token: a.token, TTL: r.TTL, SentAt: c.sent}, nil
		}
		if w == nil {
			w = b.attach(m)
			a.arrived = false // it did so for the first time: nothing was dropped
		}
		b.mustWait(w, a)
		if err := w.Sleep(ctx, b.life.Closed(), 0); err != nil {
			return driver.Grant{}, b.waitEnded(ctx, true, err)
		}
	}
}

// waitEnded is the error of an Acquire that err ended. If that is the end of ctx, while the request
// stands in the queue, as the server said, and the server answers, the error says so.
func (b *Backend) waitEnded(ctx context.Context, stands bool, err error) error {
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) || !stands {
		return err
	}
	if failure := b.pool.failure.Load(); failure != nil {
		return fmt.Errorf("%w: %w", err, *failure)
	}
	return driver.Waited(ctx)
}

// verdict is what dlock_acquire says to a request that it did not refuse.
type verdict struct {
	granted bool
	token   driver.Token
	grants  string // whom the call granted

	// of a request that waits:
	arrived bool // it did not stand in the queue before
	place   int64
	head    int64         // of the queue: who waits is not below
	expiry  time.Duration // until the next of those who hold expires
	ahead   driver.ID     // as in request; of one that arrived
}

// refusals are what dlock_acquire says, as errors.
var refusals = map[string]error{
	"granted": nil, "arrived": nil, "waiting": nil,
	"held": driver.ErrHeld, "lost": driver.ErrLost, "upgrade": driver.ErrUpgrade, "conflict": driver.ErrConflict,
}

// parseVerdict reads the answer to dlock_acquire.
func parseVerdict(sets results) (verdict, error) {
	row, err := sets.single(7)
	if err != nil {
		return verdict{}, err
	}
	no, known := refusals[row[0]]
	if !known {
		return verdict{}, fmt.Errorf("unexpected answer %q", row[0])
	}
	token, _ := strconv.ParseUint(row[1], 10, 64)
	expiry, _ := strconv.ParseInt(row[2], 10, 64)
	place, _ := strconv.ParseInt(row[3], 10, 64)
	head, _ := strconv.ParseInt(row[4], 10, 64)
	var ahead driver.ID
	if row[6] != "" {
		_ = ahead.UnmarshalText([]byte(row[6])) // else nobody is listened to
	}
	return verdict{
		granted: row[0] == "granted", token: driver.Token(token), grants: row[5],
		arrived: row[0] == "arrived", place: place, head: head, expiry: time.Duration(expiry) * time.Microsecond,
		ahead: ahead,
	}, no
}
