package redlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
	"github.com/dlock-go/dlock/internal/background"
)

// Release implements [driver.Backend]. It returns when a majority has answered. The release is sent
// to the other masters again in the background.
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	results := make(chan result, len(b.masters))
	asked, removed, missing := 0, 0, 0
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	q := b.requests[r.ID]
	if q != nil && q.expired() {
		delete(b.requests, r.ID)
		b.mu.Unlock()
		return driver.ErrLost
	}
	if q == nil { // it is not one of this client's, and may stand anywhere
		q = &ownRequest{r: r, votes: slices.Repeat([]vote{granted}, len(b.masters))}
	}
	q.ended = true
	anywhere := r.Uncertain && q.failed.IsZero() // after an Acquire that failed, the votes say more
	for i, v := range q.votes {
		open := v == unknown || v == sent && !q.failed.IsZero()
		switch {
		case anywhere || open || v == granted:
			b.queueRelease(i, q, anywhere || open, results)
			asked++
		case v == released: // by an earlier copy of this release
			removed++
		case v == absent:
			missing++
		}
	}
	b.mu.Unlock()
	timeout := b.timeout(r.TTL)
	why := b.unanswered(timeout)
	certain := func() bool { return removed >= b.majority || b.impossible(missing) }
	var err error
	if !certain() {
		err = collect(ctx, b, asked, timeout, results, func(a result) bool {
			why.record(a.master, b.explain(r.Name, a.err))
			switch {
			case a.err != nil:
			case a.removed:
				removed++
			default:
				missing++
			}
			return certain()
		})
	}
	switch {
	case certain():
	case err != nil:
		return err
	default:
		return why
	}
	b.mu.Lock()
	delete(b.requests, r.ID)
	b.mu.Unlock()
	if removed < b.majority {
		return driver.ErrLost
	}
	return nil
}

// expired reports whether the request must have expired: its Acquire failed, or its last known hold
// ended, long enough ago. If both happened, the later one counts. The backend's mu is held.
func (q *ownRequest) expired() bool {
	last := q.failed
	if q.until.After(last) {
		last = q.until
	}
	return !last.IsZero() && time.Since(last) > kit.SurelyExpired(q.r.TTL)
}

// pendingRelease is a release that a master has not answered yet. All releases of Redlock are sent
// this way. Each master has one goroutine that sends them, only while there are any, until the
// master answers or the request must have expired. So a master that was down or hung when a request
// ended gets the release when it is back.
type pendingRelease struct {
	q         *ownRequest
	tombstone bool      // a copy of the acquire may be under way
	copies    int       // how often it was sent
	until     time.Time // by then the request has expired on the master
	results   []chan<- result
}

// result is the answer of a master to a release.
type result struct {
	master  int
	removed bool // by this copy or an earlier one
	err     error
}

// releaseMax is how many releases go in one pipeline.
const releaseMax = 256

// queueRelease queues a release of the request on the master. The outcome of the next attempt is
// sent to results, which must have room for it. mu is held.
func (b *Backend) queueRelease(i int, q *ownRequest, tombstone bool, results chan<- result) {
	m := b.masters[i]
	p := m.pending[q.r.ID]
	if p == nil {
		p = &pendingRelease{q: q, until: time.Now().Add(kit.SurelyExpired(q.r.TTL))}
		m.pending[q.r.ID] = p
	}
	p.tombstone = p.tombstone || tombstone
	if results != nil {
		p.results = append(p.results, results)
	}
	switch {
	case b.life.Over(): // Close sends it
	case !m.releasing:
		m.releasing = true
		b.life.Go(func() { b.sendReleases(i) })
	default:
		m.wake.Set()
	}
}

// sendReleases sends the pending releases of the master until there are none. A new release ends
// the pause after a failure, since it may be answered.
func (b *Backend) sendReleases(i int) {
	m := b.masters[i]
	loop := background.Loop{Min: 20 * time.Millisecond, Max: 2 * time.Second, Wake: m.wake}
	loop.Run(b.life.Context(), func(context.Context) background.Step {
		b.mu.Lock()
		m.releasing = len(m.pending) > 0
		more := m.releasing
		b.mu.Unlock()
		switch {
		case !more:
			return background.Done
		case b.sendSomeReleases(i, b.o.NodeTimeout):
			return background.Next
		}
		return background.Failed
	})
}

// sendSomeReleases sends one pipeline, and reports whether all of it was answered.
func (b *Backend) sendSomeReleases(i int, timeout time.Duration) bool {
	type attempt struct {
		*pendingRelease
		*script.Call
		id        driver.ID
		tombstone bool
		results   []chan<- result
	}
	m := b.masters[i]
	var attempts []attempt
	var calls []*script.Call
	b.mu.Lock()
	now := time.Now()
	for id, p := range m.pending {
		if now.After(p.until) {
			delete(m.pending, id)
			continue
		}
		if len(attempts) == releaseMax {
			break
		}
		tombstone := 0
		if p.tombstone {
			tombstone = 1
		}
		p.copies++
		c := b.call(b.layout.release, p.q.r.Name, id.String(), millis(p.q.r.TTL), tombstone)
		if !p.tombstone {
			c = withoutTombstone(c)
		}
		attempts, calls = append(attempts, attempt{p, c, id, p.tombstone, p.results}), append(calls, c)
		p.results = nil
	}
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	b.exec(ctx, m, calls)
	b.mu.Lock()
	defer b.mu.Unlock()
	all := true
	for _, a := range attempts {
		p, res := a.pendingRelease, result{master: i, err: a.Err}
		switch found, _ := a.Reply.(int64); {
		case a.Err != nil:
			all = false
			if !fault.Unknown(a.Err) {
				p.copies--
			}
		default:
			q := p.q
			// Before the request can have expired, only an earlier copy can have removed it.
			res.removed = found == 1 || q.votes[i] == released || p.copies > 1 && q.votes[i] == granted && time.Now().Before(q.until)
			if res.removed {
				q.votes[i] = released
			} else {
				q.votes[i] = absent
			}
			// It stays if its result or a tombstone was requested since it was sent.
			if a.tombstone == p.tombstone && m.pending[a.id] == p && len(p.results) == 0 {
				delete(m.pending, a.id)
			}
		}
		for _, r := range a.results {
			r <- res
		}
	}
	return all
}

// releaseAll is the last attempt of a client that is closed. It sends the pending releases, and
// releases all requests that still stand, on all masters at once.
func (b *Backend) releaseAll() {
	b.mu.Lock()
	for id, q := range b.requests {
		fixed := q.r.Fixed && !q.until.IsZero() && !q.ended
		for i, v := range q.votes {
			if fixed && v == granted {
				continue // it lasts for its full time
			}
			if v == granted || v == unknown || v == sent {
				b.queueRelease(i, q, v != granted, nil)
			}
		}
		delete(b.requests, id)
	}
	b.mu.Unlock()
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for i, m := range b.masters {
		wg.Go(func() {
			for more := true; more && time.Now().Before(end); {
				if !b.sendSomeReleases(i, time.Second) {
					return
				}
				b.mu.Lock()
				more = len(m.pending) > 0
				b.mu.Unlock()
			}
		})
	}
	kit.Within(time.Until(end)+time.Second, wg.Wait)
}
