package mysql

import (
	"encoding/hex"
	"errors"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	minPoll = time.Millisecond       // two polls are at least this far apart,
	maxPoll = 100 * time.Millisecond // and at most this, while somebody waits
	// maxNextPoll bounds the time between two polls of whoever is next and polls six times in each
	// move of the queue.
	maxNextPoll = 20 * time.Millisecond
	// expiryPoll is the time between two polls that also ask for holders that have expired.
	expiryPoll = time.Second
	// keepAlive is the time between two signs of life of all that waits. dlock_keep gives it 10 s.
	keepAlive = 3 * time.Second
)

// queue is what is known of a queue while requests of this client wait in it.
type queue struct {
	head int64 // who waits is not below; 0: not known
	// moved is when the head last moved, or when the wait for other clients began.
	moved time.Time
	turn  time.Duration // how long the head takes to move by one; 0: not known
	// others: other clients wait here too, or hold.
	others bool
	// deaf is whose bell rang for nothing since the head last moved: it is not listened to.
	deaf driver.ID
}

// listens reports whether there is a bell to listen to for a request that waits here.
func (q *queue) listens(m *request) bool { return m.ahead != driver.ID{} && m.ahead != q.deaf }

// advance records the head.
func (q *queue) advance(head int64) {
	if head <= q.head {
		return
	}
	now := time.Now()
	if q.head > 0 {
		turn := now.Sub(q.moved) / time.Duration(head-q.head)
		if q.turn > 0 {
			turn = (3*q.turn + turn) / 4
		}
		q.turn = turn
	}
	q.head, q.moved, q.deaf = head, now, driver.ID{}
}

// due returns how long after the last poll the next is due for a waiter at that place. If own is
// set the client itself holds the lock alone: its own release will tell. Otherwise it is a
// twentieth of the time since the queue last moved. But nobody polls much more often than the queue
// moves, and who is not next leaves those ahead time for half of their turns: they may be shorter
// than the last ones.
func (q *queue) due(place int64, own bool) time.Duration {
	if own {
		return maxPoll
	}
	d := max(time.Since(q.moved)/20, min(q.turn/6, maxNextPoll))
	if ahead := place - q.head; ahead > 0 && q.head > 0 {
		d = max(d, time.Duration(min(ahead, 1000))*q.turn/2)
	}
	return min(max(d, minPoll), maxPoll)
}

// pollSoon makes the polls for a group frequent: its turn may be near. b.mu is held.
func (b *Backend) pollSoon(g *kit.Group[*request, queue]) {
	g.State.moved = time.Now()
	b.sooner.Set()
}

// poll reads, as long as somebody waits, what other clients granted, and keeps what waits alive.
func (b *Backend) poll() {
	polled, askedExpired := time.Now(), time.Now()
	for {
		d, name, places, clients := b.nextPoll()
		if clients == nil {
			return
		}
		// d counts from the last poll, so that a signal can only bring the next one nearer.
		if b.isSooner(time.Until(polled.Add(d))) {
			continue
		}
		polled = time.Now()
		rung := b.answerBell(name)
		expired, alive := polled.Sub(askedExpired) >= expiryPoll, polled.Sub(b.kept) >= keepAlive
		if expired {
			askedExpired = polled
		}
		if alive {
			b.kept = polled
		}
		for client, n := range clients {
			// before the look: what was granted in between is not missing
			complete := !alive || b.keepAlive(client, n)
			b.readGrants(client, name, places, rung)
			if expired {
				b.readExpired(client)
			}
			if !complete {
				b.wakeFirst()
			}
		}
	}
}

// isSooner waits for d, or until the client is closed. It reports true at once if the next poll may
// be due earlier.
func (b *Backend) isSooner(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-b.sooner:
		return true
	case <-t.C:
	case <-b.life.Closed():
	}
	return false
}

// nextPoll returns when the next poll is due, for which name that is, the places of the first two
// who wait there, and how many requests each client has waiting. If nobody waits clients is nil,
// and the polls end.
func (b *Backend) nextPoll() (d time.Duration, name string, places [2]int, clients map[driver.ID]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters.Len() == 0 || b.life.Over() {
		b.polling = false
		return 0, "", places, nil
	}
	d, clients = 2*maxPoll, map[driver.ID]int{}
	for n, g := range b.waiters.Groups() {
		first := waiting(g)[0].Request
		due := g.State.due(first.place, b.exclusive[n] > 0)
		switch {
		case b.bells.rung != driver.ID{} && b.bells.name == n:
			due = 0
		case first.ahead != driver.ID{} && first.ahead == b.bells.target: // it will hear
			due = maxPoll
		}
		if due < d {
			d, name = due, n
		}
		for _, w := range g.All() {
			clients[w.Request.Client]++
		}
	}
	for i, w := range waiting(b.waiters.Group(name)) {
		if i == len(places) {
			break
		}
		places[i] = int(w.Request.place)
	}
	return d, name, places, clients
}

// waiting returns who waits in the group, without those ahead of them that were granted and are
// about to leave; but at least the last.
func waiting(g *kit.Group[*request, queue]) []*kit.Waiter[*request] {
	all := g.All()
	for len(all) > 1 && all[0].Request.grant != nil {
		all = all[1:]
	}
	return all
}

// readGrants asks which requests of the client were granted, how far the queue of a name is, and
// who is ahead of the first who waits there. rung is whose bell is why, if one is.
func (b *Backend) readGrants(client driver.ID, name string, places [2]int, rung driver.ID) {
	stmt := statement("look", b.prefix, client, b.window(), bin(name), places[0], places[1])
	a, err := b.pool.ask(b.life.Context(), callTimeout, stmt)
	if err != nil || len(a.sets) < 2 {
		return
	}
	b.pool.looks.answered(a.sent)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, row := range a.sets[1] {
		b.find(row, a.sent)
	}
	for _, row := range a.sets[0] {
		b.advance(name, row[0])
		b.readAhead(name, row, rung)
	}
}

// readAhead reads from the first row of dlock_look who is ahead of one who waits: its place, and
// the id of whoever is next to it, if that is of another client and exclusive. b.mu is held.
func (b *Backend) readAhead(name string, row []string, rung driver.ID) {
	var ahead driver.ID
	if len(row) != 3 || row[2] != "" && ahead.UnmarshalText([]byte(row[2])) != nil {
		return
	}
	g := b.waiters.Group(name)
	b.answeredBell(g, rung, ahead)
	place, err := strconv.ParseInt(row[1], 10, 64)
	if g == nil || err != nil || place == 0 {
		return
	}
	for _, w := range g.All() {
		if w.Request.place == place {
			b.heardOf(g, w.Request, ahead)
		}
	}
}

// find reads a row of dlock_look: id and token of a request that was granted, and the time that it
// has left by the clock that the server read after the look was sent. If that is most of its TTL
// the request holds, as if a call had proved it earlier. Otherwise it was granted for a window, and
// its caller has to confirm that; so does the caller of a fixed one, which nobody renews. b.mu is
// held.
func (b *Backend) find(row []string, sentAt time.Time) {
	var id driver.ID
	if len(row) != 3 || id.UnmarshalText([]byte(row[0])) != nil {
		return
	}
	token, err1 := strconv.ParseUint(row[1], 10, 64)
	us, err2 := strconv.ParseInt(row[2], 10, 64)
	m, is := b.requests.Find(id)
	if !is || errors.Join(err1, err2) != nil {
		return
	}
	gone := m.TTL - time.Duration(us)*time.Microsecond
	if gone >= 0 && gone < m.TTL/4 && !m.Fixed && !m.Granted() {
		provedAt := sentAt.Add(-gone)
		b.holds(m, provedAt)
		m.grant = &driver.Grant{Token: driver.Token(token), TTL: m.TTL, SentAt: provedAt}
	}
	b.waiters.Notify(m)
}

// readExpired asks for which names a holder has expired, and wakes the first who waits there.
func (b *Backend) readExpired(client driver.ID) {
	a, err := b.pool.ask(b.life.Context(), callTimeout, statement("expired", b.prefix, client))
	if err != nil {
		b.wakeFirst() // their calls learn what is wrong
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, set := range a.sets {
		for _, row := range set {
			name, _ := hex.DecodeString(row[0])
			if g := b.waiters.Group(string(name)); g != nil {
				g.First().Wake()
			}
		}
	}
}

// keepAlive keeps alive what the client has waiting, and removes some of the dead. It reports false
// if the server has less than n of what waits: some was granted or dropped.
func (b *Backend) keepAlive(client driver.ID, n int) bool {
	a, err := b.pool.ask(b.life.Context(), callTimeout+time.Duration(n)*renewTime, statement("keep", client))
	if err != nil {
		return true
	}
	row, err := a.sets.single(1)
	if err != nil {
		return true
	}
	have, _ := strconv.Atoi(row[0])
	return have >= n
}
