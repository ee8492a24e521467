package mysql

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	minPoll = time.Millisecond       // two polls for a name are at least this far apart,
	maxPoll = 100 * time.Millisecond // and at most this
	// freePolls is how many polls in a row may find nothing new before a client polls each maxPoll.
	freePolls = 40
	// maxPause is the longest time between two polls for a name, however many other names there
	// are: a granted request has a second to find its grant.
	maxPause = 500 * time.Millisecond
	// maxNextPoll bounds the time between two polls of the next waiter, which polls six times for
	// each move of the queue.
	maxNextPoll = 20 * time.Millisecond
	// keepAlive is the time between two signs of life of a waiting request. Each is good for 10 s.
	keepAlive = 3 * time.Second
	// keepAgain is the time after a sign of life that failed.
	keepAgain = time.Second
	// maxNames is how many names one poll is for, if a packet has room for them.
	maxNames   = 200
	polledSize = 2*255 + 120 // bytes that each takes there, at most
)

// nameState is what is known of a name while requests of this client wait for it.
type nameState struct {
	polled time.Time     // when it was last polled; zero: it is to be polled now
	swept  time.Time     // when expired rows there were last looked for
	head   int64         // as last read,
	known  bool          // if it was
	moved  time.Time     // when the head last moved, or when the wait for other clients began
	turn   time.Duration // how long the head takes to move; 0: not known
	// far: another waiter is ahead of the first one of this client, and the two are not granted
	// together.
	far bool
	// others: other clients wait here too, or hold.
	others bool
	// ignored is the request whose wake-up lock was free without need since the head last moved: it
	// is not listened to.
	ignored driver.ID
}

// idle counts the statements of a client that found nothing new. A wait that has just begun is
// polled often, since the lock may be free in a moment. A client that begins many waits in vain is
// to cost no more than one that waits. The grant of a waiter sets the count back to zero.
type idle struct {
	count float64
	at    time.Time
}

// spend counts one more.
func (x *idle) spend() {
	x.spent()
	x.count++
}

// spent reports whether the client has asked often enough. It may ask once more each maxPoll.
func (x *idle) spent() bool {
	now := time.Now()
	x.count, x.at = max(x.count-float64(now.Sub(x.at))/float64(maxPoll), 0), now
	return x.count >= freePolls
}

// advance records the head, and reports whether it moved.
func (q *nameState) advance(head int64) bool {
	if head <= q.head {
		return false
	}
	now, moved := time.Now(), q.head > 0
	if moved {
		turn := now.Sub(q.moved)
		if q.turn > 0 {
			turn = (3*q.turn + turn) / 4
		}
		q.turn = turn
	}
	q.head, q.moved, q.ignored = head, now, driver.ID{}
	return moved
}

// pause is the time between two polls: an eighth of the time since the queue last moved, but at
// least a sixth of the time that it takes to move (20 ms at most), or all of that time if it has to
// move twice.
func (q *nameState) pause() time.Duration {
	least := min(q.turn/6, maxNextPoll)
	if q.far {
		least = q.turn
	}
	return min(max(time.Since(q.moved)/8, least, minPoll), maxPoll)
}

// next is when the queue is to be polled: seldom, while the client listens to the wake-up lock of
// the request ahead. From soon on it may be polled together with others.
func (q *nameState) next(seldom bool) (soon, at time.Time) {
	pause := maxPoll
	switch {
	case q.polled.IsZero():
		return q.polled, q.polled
	case !seldom:
		pause = q.pause()
	}
	return q.polled.Add(pause / 2), q.polled.Add(pause)
}

// crowded reports whether a request of this client waits under the name, for the same kind of lock.
// b.mu is held.
func (b *Backend) crowded(r *driver.Request) bool {
	g := b.waiters.Group(r.Name)
	return g != nil && g.First().Request.Semaphore() == r.Semaphore()
}

// attach adds an Acquire to those that wait.
func (b *Backend) attach(m *ownRequest) *kit.Waiter[*ownRequest] {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, g, first := b.waiters.Add(m)
	if first {
		now := time.Now()
		g.State.moved, g.State.polled, g.State.swept = now, now, now
		b.follow(g, m, m.ahead)
	}
	if !b.polling {
		b.alive = time.Now()
		b.polling = b.life.Go(b.poll)
	}
	b.sooner.Set()
	return w
}

// detach removes an Acquire from those that wait.
func (b *Backend) detach(w *kit.Waiter[*ownRequest]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiters.Remove(w)
}

// mustWait records what the server says about a waiting request: the head, the time until a holder
// expires, and which request is ahead.
func (b *Backend) mustWait(m *ownRequest, head int64, expiry time.Duration, ahead driver.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.ahead, m.behind = b.foreign(ahead)
	ahead = m.ahead
	g := b.waiters.Group(m.Name)
	if g == nil {
		return
	}
	b.follow(g, m, ahead)
	if g.First().Request == m {
		b.moved(g, head)
		if expiry > 0 {
			g.WakeAfter(kit.AfterExpiry(expiry))
		}
	}
}

// foreign returns the request id as ahead if it is another client's, and otherwise as behind. b.mu
// is held.
func (b *Backend) foreign(id driver.ID) (ahead, behind driver.ID) {
	if _, own := b.requests.Find(id); own {
		return driver.ID{}, id
	}
	return id, driver.ID{}
}

// moved records the head of a queue. b.mu is held.
func (b *Backend) moved(g *kit.Group[*ownRequest, nameState], head int64) {
	g.State.known = true
	if g.State.advance(head) {
		b.idle.count = 0
	}
}

// pollName makes the poll for a name due now, since something changed there. An exclusive request
// behind one of another client is not granted by that; it relies on the wake-up lock.
func (b *Backend) pollName(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.waiters.Group(name)
	if g == nil {
		return
	}
	if first := firstOf(g); first.Mode == driver.Shared || first.ahead.IsZero() {
		g.State.polled, g.State.moved = time.Time{}, time.Now()
		b.sooner.Set()
	}
}

// due are the names that a poll is for.
type due struct {
	names  []string
	first  []driver.ID // the first waiter
	places []int64     // its place
	freed  map[string]driver.ID
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
		if len(d.names) > 0 {
			b.readPoll(d)
		}
	}
}

// nextPoll returns what is to be polled now, or for how long nothing is. It reports over if no
// request waits: then polling ends.
func (b *Backend) nextPoll() (d due, wait time.Duration, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters.Len() == 0 || b.life.Over() {
		b.polling = false
		return d, 0, true
	}
	now := time.Now()
	next := b.kept.Add(keepAlive) // or sooner, with the next poll
	switch {
	case b.keeping:
		next = now.Add(maxPoll)
	case b.kept.IsZero():
		next = now
	}
	most := min(maxNames, b.pool.room()/polledSize)
	d.freed = map[string]driver.ID{}
	spent, tick := b.idle.spent(), b.ticked.Add(maxPoll)
	var along []*kit.Group[*ownRequest, nameState] // those that may be read now
	names := map[*kit.Group[*ownRequest, nameState]]string{}
	for name, g := range b.waiters.Groups() {
		first := firstOf(g)
		_, own := b.requests.Find(first.behind) // its release makes a poll due
		soon, at := g.State.next(own || first.ahead != driver.ID{} && first.ahead == b.wakeups.target)
		if spent && !at.IsZero() {
			at = earlier(tick, g.State.polled.Add(maxPause))
			soon = earlier(soon, at)
		}
		if next = earlier(next, at); !soon.After(now) {
			along, names[g] = append(along, g), name
		}
	}
	if next.After(now) {
		return d, next.Sub(now), false
	}
	if len(along) > most { // first those that were not polled for the longest time
		slices.SortFunc(along, func(x, y *kit.Group[*ownRequest, nameState]) int { return x.State.polled.Compare(y.State.polled) })
		along = along[:most]
	}
	for _, g := range along {
		first, name := firstOf(g), names[g]
		g.State.polled = now
		d.names, d.places, d.first = append(d.names, name), append(d.places, first.place), append(d.first, first.ID)
		if b.wakeups.name == name {
			d.freed[name], b.wakeups.freed = b.wakeups.freed, driver.ID{}
		}
	}
	if len(d.names) > 0 {
		b.idle.spend() // until it finds something
		if !tick.After(now) {
			b.ticked = now
		}
	}
	return d, 0, false
}

func earlier(x, y time.Time) time.Time {
	if y.Before(x) {
		return y
	}
	return x
}

// firstOf returns the request of the group that stands first in the queue, among those that are not
// granted yet. Requests that arrive at the same time may stand in another order than they began to
// wait.
func firstOf(g *kit.Group[*ownRequest, nameState]) *ownRequest {
	var first *ownRequest
	for _, w := range g.All() {
		m := w.Request
		if first == nil || first.grant != nil || m.grant == nil && m.place < first.place {
			first = m
		}
	}
	return first
}

// readPoll reads how far the queues of names are. That grants a request of this client that it
// finds holding; others for which something is to be done are woken.
func (b *Backend) readPoll(d due) {
	a, err := b.pool.call(b.life.Context(), callTimeout, b.pollOf(d), false)
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := map[string]bool{}
	if err == nil {
		for _, row := range a.rows {
			if len(row) != 10 {
				continue
			}
			name, _ := hex.DecodeString(row[0])
			seen[string(name)] = true
			if row[9] != "0" { // many expired rows make statements slow
				b.sweepSoon(deadTime)
			}
			b.polled(string(name), row, a.sent, d)
		}
	}
	for _, name := range d.names {
		g := b.waiters.Group(name)
		if g == nil {
			continue
		}
		if err == nil && !seen[name] {
			g.First().Wake() // the lock's row was removed
		}
	}
}

// pollOf returns the statement that reads the queues.
func (b *Backend) pollOf(d due) string {
	rows := make([]string, len(d.names))
	about := func(stmt string, i int) string {
		return fill(stmt, ":name", hexOf(d.names[i]), ":place", strconv.FormatInt(d.places[i], 10), ":first", hexID(d.first[i]))
	}
	stmt := fill(poll, ":dead", anyDead, ":prefix", b.prefix)
	if len(rows) == 1 {
		return about(fill(stmt, ":from", ""), 0)
	}
	for i := range rows {
		rows[i] = about(pollRow, i)
	}
	from := fill(pollFrom, ":list", strings.Join(rows, " UNION ALL "))
	return fill(stmt, ":from", from, ":name", "p.name", ":place", "p.place", ":first", "p.first")
}

// polled handles what was read of a name. b.mu is held.
func (b *Backend) polled(name string, row []string, sent time.Time, d due) {
	var holder, ahead driver.ID
	num := func(i int) int64 { n, _ := strconv.ParseInt(row[i], 10, 64); return n }
	_ = holder.UnmarshalText([]byte(row[3])) // it is 16 bytes
	if ahead = holder; row[7] != "" {
		_ = ahead.UnmarshalText([]byte(row[7]))
	}
	ahead, behind := b.foreign(ahead)
	g := b.waiters.Group(name)
	b.judgeWakeup(g, d.freed[name], ahead)
	if g == nil {
		return
	}
	head, others, left := num(1), num(2), span(num(5))
	b.moved(g, head)
	first := firstOf(g)
	for _, w := range g.All() {
		m := w.Request
		token, lasts := num(6), time.Duration(0)
		own := span(num(8))
		switch {
		case m.ID == holder && num(4) == 0:
			lasts = left
		case m.Mode == driver.Shared && m.place > 0 && m.place <= head && slices.Contains(d.first, m.ID):
			token, lasts = token-(head-m.place), own
		}
		switch {
		case proves(&m.OwnRequest.Request, lasts, sent):
			if m.grant == nil && !m.Granted() {
				b.holds(m, sent, lasts)
				m.Stands, b.idle.count = true, 0
				m.grant = &driver.Grant{Token: driver.Token(token), TTL: min(lasts, m.TTL), SentAt: sent}
			}
			w.Wake()
		case m.ID == holder && num(4) == 0, m.Mode == driver.Shared && m.place > 0 && m.place <= head:
			m.found = &position{token: num(6), head: head, place: m.place}
			w.Wake()
		case m.place > 0 && m.place <= head, m.ID == holder:
			w.Wake()
		case own <= 0 && slices.Contains(d.first, m.ID): // its row has gone
			w.Wake()
		}
	}
	if others == 0 || others == 1 && left <= 0 && holder != first.ID {
		g.First().Wake()
	}
	if others == 2 && time.Since(g.State.swept) > time.Second {
		g.State.swept = time.Now()
		g.First().Wake()
	}
	if g.State.far = false; slices.Contains(d.first, first.ID) {
		first.behind, g.State.far = behind, row[7] != "" && (first.Mode == driver.Exclusive || first.Limit > 0)
	} else { // ahead was read for another request
		ahead = first.ahead
	}
	b.follow(g, first, ahead)
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
	var rs []driver.Request
	for _, g := range b.waiters.Groups() {
		for _, w := range g.All() {
			rs = append(rs, w.Request.OwnRequest.Request)
		}
	}
	begun := time.Now()
	b.kept = begun
	b.keeping = b.life.Go(func() {
		ok := b.keep(rs)
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

// keep keeps waiting requests alive, and reports whether it succeeded.
func (b *Backend) keep(rs []driver.Request) bool {
	places, res := make([]int, len(rs)), make([]driver.Renewal, len(rs))
	for i := range rs {
		places[i] = i
		rs[i].Mode = driver.Shared // all are rows of dlock_requests
	}
	b.inPieces(b.life.Context(), rs, res, places, func(t *task, rs []driver.Request) ([]driver.Renewal, error) {
		ids := make([]driver.ID, len(rs))
		for i, r := range rs {
			ids[i] = r.ID
		}
		t.patience = 0 // it is due again soon
		_, err := t.send(fill(keep, ":ids", hexIDs(ids)))
		return make([]driver.Renewal, len(rs)), err
	})
	return !slices.ContainsFunc(res, func(r driver.Renewal) bool { return r.Err != nil })
}
