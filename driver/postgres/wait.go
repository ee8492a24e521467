package postgres

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	minPoll = 2 * time.Millisecond   // two polls for a name are at least this far apart,
	maxPoll = 100 * time.Millisecond // and at most this, if the client does not listen
	// listenPoll is the time between two polls while the client listens.
	listenPoll = 500 * time.Millisecond
	// keepAlive is the time between two signs of life of a waiting request. Each is good for 10 s.
	keepAlive = 3 * time.Second
	// keepAgain is the time after a sign of life that failed.
	keepAgain = time.Second
	// maxLooks is how many requests one poll is for, and maxOfName how many of them under one name.
	maxLooks  = 500
	maxOfName = 100
)

// nameState is what is known of a name while requests of this client wait for it.
type nameState struct {
	polled  time.Time // when it was last polled; zero: it is to be polled now
	head    int64     // as last read
	moved   time.Time // when the head last moved, or when the wait began
	visited time.Time // when the first one was last woken for a visit
}

// next is when the queue is to be polled. From soon on it may be polled together with others.
// Without LISTEN it is polled after an eighth of the time since it last moved.
func (q *nameState) next(subscribed bool) (soon, at time.Time) {
	pause := listenPoll
	switch {
	case q.polled.IsZero():
		return q.polled, q.polled
	case !subscribed:
		pause = min(max(time.Since(q.moved)/8, minPoll), maxPoll)
	}
	return q.polled.Add(pause / 2), q.polled.Add(pause)
}

// attach adds an Acquire to those that wait.
func (b *Backend) attach(m *ownRequest) *kit.Waiter[*ownRequest] {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, g, first := b.waiters.Add(m)
	if first {
		now := time.Now()
		g.State.moved, g.State.polled = now, now
	}
	if !b.polling {
		b.alive = time.Now()
		b.polling = b.life.Go(b.poll)
	}
	b.listenSoon()
	b.sooner.Set()
	return w
}

// detach removes an Acquire from those that wait.
func (b *Backend) detach(w *kit.Waiter[*ownRequest]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiters.Remove(w)
}

// mustWait records what the server says about a waiting request, and wakes the first one when the
// holder has expired, or one of several.
func (b *Backend) mustWait(m *ownRequest, p *position) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.waiters.Group(m.Name); g != nil {
		b.follow(g, p)
	}
}

// follow records the state of a queue in which requests of this client wait. b.mu is held.
func (b *Backend) follow(g *kit.Group[*ownRequest, nameState], p *position) {
	if p.head > g.State.head {
		if g.State.head > 0 {
			g.State.moved = time.Now()
		}
		g.State.head = p.head
	}
	expiry := p.soonest
	if p.held() {
		expiry = p.left
	}
	if expiry > 0 {
		g.WakeAfter(kit.AfterExpiry(expiry))
	}
}

// pollName makes the poll for a name due now, since something changed there.
func (b *Backend) pollName(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.waiters.Group(name); g != nil {
		g.State.polled, g.State.moved = time.Time{}, time.Now()
		b.sooner.Set()
	}
}

// notified makes the poll for the name of a request of this client due now: it was granted.
func (b *Backend) notified(id driver.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, is := b.requests.Find(id)
	if !is {
		return
	}
	if g := b.waiters.Group(m.Name); g != nil {
		g.State.polled = time.Time{}
		b.sooner.Set()
	}
	if m.Notified = true; m.grant == nil && b.waiters.Group(m.Name) == nil {
		b.waiters.Notify(m) // its Acquire is about to wait
	}
}

// pollPlan is the requests that a poll is for.
type pollPlan struct {
	ms []*ownRequest
}

// poll reads, while any request waits, what other clients granted, and keeps the requests alive.
func (b *Backend) poll() {
	for {
		d, wait, over := b.nextPoll()
		if over {
			return
		}
		if wait > 0 {
			t := time.NewTimer(wait)
			select {
			case <-b.sooner:
			case <-t.C:
			case <-b.life.Closed():
			}
			t.Stop()
			continue
		}
		b.keepSoon()
		if len(d.ms) > 0 {
			b.readPoll(d)
		}
	}
}

// nextPoll returns what is to be polled now, or for how long nothing is. It reports over if no
// request waits: then polling ends.
func (b *Backend) nextPoll() (d pollPlan, wait time.Duration, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters.Len() == 0 || b.life.Over() {
		b.polling = false
		return d, 0, true
	}
	now := time.Now()
	next := b.kept.Add(keepAlive)
	switch {
	case b.keeping:
		next = now.Add(maxPoll)
	case b.kept.IsZero():
		next = now
	}
	var along []*kit.Group[*ownRequest, nameState] // those that may be read now
	for _, g := range b.waiters.Groups() {
		soon, at := g.State.next(b.subscribed)
		if at.Before(next) {
			next = at
		}
		if !soon.After(now) {
			along = append(along, g)
		}
	}
	if next.After(now) {
		return d, next.Sub(now), false
	}
	if len(along) > maxLooks { // first those that were not polled for the longest time
		slices.SortFunc(along, func(x, y *kit.Group[*ownRequest, nameState]) int { return x.State.polled.Compare(y.State.polled) })
	}
	for _, g := range along {
		if len(d.ms) >= maxLooks {
			break
		}
		g.State.polled = now
		d.ms = append(d.ms, firstOf(g, maxOfName)...)
	}
	return d, 0, false
}

// firstOf returns the requests of the group that stand first in the queue, among those that are not
// granted yet.
func firstOf(g *kit.Group[*ownRequest, nameState], most int) []*ownRequest {
	var ms []*ownRequest
	for _, w := range g.All() {
		if m := w.Request; m.grant == nil {
			ms = append(ms, m)
		}
	}
	slices.SortFunc(ms, func(x, y *ownRequest) int { return int(min(max(x.place-y.place, -1), 1)) })
	return ms[:min(len(ms), most)]
}

// readPoll reads what became of requests. That grants those that it finds holding; others for which
// something is to be done are woken.
func (b *Backend) readPoll(d pollPlan) {
	names, ids := make([][]byte, len(d.ms)), make([][]byte, len(d.ms))
	for i, m := range d.ms {
		names[i], ids[i] = []byte(m.Name), m.ID[:]
	}
	seen := map[int]position{}
	sent, err := b.pool.call(b.life.Context(), callTimeout, &op{sql: look, args: []any{b.prefix, names, ids}, each: func(rows pgx.Rows) error {
		n, p, err := scanPosition(rows)
		p.sent = time.Time{}
		seen[n-1] = p
		return err
	}})
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, m := range d.ms {
		g := b.waiters.Group(m.Name)
		if g == nil {
			continue
		}
		p, is := seen[i]
		p.sent = sent
		if b.polled(g, m, p, is) && m.Mode == driver.Shared {
			g.State.polled = time.Time{} // more of them may hold
		}
	}
}

// polled handles what was read of a request that waits, and reports whether it was granted. b.mu is
// held.
func (b *Backend) polled(g *kit.Group[*ownRequest, nameState], m *ownRequest, p position, is bool) (granted bool) {
	wake := func() {
		for _, w := range g.All() {
			if w.Request == m {
				w.Wake()
			}
		}
	}
	if !is { // the lock's row was removed
		wake()
		return false
	}
	b.follow(g, &p)
	token, lasts := p.token, time.Duration(0)
	switch {
	case p.holder == m.ID && !p.broken:
		lasts = p.left
	case p.kind == "request" && m.Mode == driver.Shared && p.place <= p.head && !p.rowBroken:
		token, lasts = token-(p.head-p.place), p.expires
	}
	switch {
	case proves(&m.OwnRequest.Request, lasts, p.sent):
		if m.grant == nil && !m.Granted() {
			b.holds(m, p.sent, lasts)
			m.Stands = true
			m.grant = &driver.Grant{Token: driver.Token(token), TTL: min(lasts, m.TTL), SentAt: p.sent}
		}
		wake()
		return true
	case lasts > 0:
		m.found = &p
		wake()
		return true
	// it has gone, or has missed its turn
	case p.kind != "request" || p.place <= p.head || p.expires <= 0 || p.rowBroken:
		wake()
	case p.due() && (p.left <= 0 && !p.holder.IsZero() || time.Since(g.State.visited) > time.Second):
		g.State.visited = time.Now()
		wake()
	}
	return false
}

// proves reports whether what was read of a hold is proof enough: at least half of maxWait is left,
// or half of its TTL if that is less. Otherwise the hold is renewed first. So is a fixed one, since
// its time begins when its client learns of it. Hundreds of shared requests may be granted at once:
// half a second is enough for them, since their renewals follow in one statement.
func proves(r *driver.Request, left time.Duration, sent time.Time) bool {
	took, most := time.Since(sent), maxWait
	if r.Mode == driver.Shared {
		most = time.Second
	}
	return !r.Fixed && left-took >= max(4*took, min(r.TTL, most)/2)
}

// keepSoon keeps the waiting requests of the client alive, in the background, when that is due.
func (b *Backend) keepSoon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	lasts := maxWait // each sign of life
	for _, g := range b.waiters.Groups() {
		for _, w := range g.All() {
			if w.Request.Mode == driver.Shared {
				lasts = min(lasts, w.Request.TTL)
			}
		}
	}
	every := min(keepAlive, lasts/3)
	if b.keeping || time.Since(b.kept) < every {
		return
	}
	var ids [][]byte
	for _, g := range b.waiters.Groups() {
		for _, w := range g.All() {
			ids = append(ids, w.Request.ID[:])
		}
	}
	sweeps := b.sweepDue() // a client that waits for long makes no other calls
	begun := time.Now()
	b.kept = begun
	b.keeping = b.life.Go(func() {
		ok := true
		for some := range slices.Chunk(ids, renewMax) {
			_, err := b.pool.call(b.life.Context(), callTimeout+time.Duration(len(some))*renewTime, &op{sql: keep, args: []any{some}})
			ok = ok && err == nil
		}
		if sweeps { // over the same connection
			b.sweepNow()
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.keeping = false
		switch {
		case !ok:
			b.kept = time.Now().Add(keepAgain - every)
			b.waiters.WakeFirst() // their statements will show what is wrong
		case time.Since(b.alive) > lasts: // some may have expired: they arrive again
			b.waiters.WakeAll()
			fallthrough
		default:
			b.alive = begun
		}
	})
}
