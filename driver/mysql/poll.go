package mysql

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	minPoll = time.Millisecond       // two polls are at least this far apart,
	maxPoll = 100 * time.Millisecond // and at most this, while somebody waits
	// maxNextPoll bounds the time between two polls of whoever is next and polls three times in
	// each move of the queue.
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
}

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
	q.head, q.moved = head, now
}

// due returns how long after the last poll the next is due for a waiter at that place. If own is
// set the client itself holds the lock alone: its own release will tell. Otherwise it is a
// twentieth of the time since the queue last moved. But nobody polls much more often than the queue
// moves, and who is not next leaves those ahead time for their turns.
func (q *queue) due(place int64, own bool) time.Duration {
	if own {
		return maxPoll
	}
	d := max(time.Since(q.moved)/20, min(q.turn/3, maxNextPoll))
	if ahead := place - q.head; ahead > 0 && q.head > 0 {
		d = max(d, time.Duration(min(ahead, 1000))*q.turn)
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
		d, name, clients := b.nextPoll()
		if clients == nil {
			return
		}
		// d counts from the last poll, so that a signal can only bring the next one nearer.
		if b.isSooner(time.Until(polled.Add(d))) {
			continue
		}
		polled = time.Now()
		expired, alive := polled.Sub(askedExpired) >= expiryPoll, polled.Sub(b.kept) >= keepAlive
		if expired {
			askedExpired = polled
		}
		if alive {
			b.kept = polled
		}
		for client, n := range clients {
			b.readGrants(client, name, expired)
			if alive {
				b.keepAlive(client, n)
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

// nextPoll returns when the next poll is due, for which name that is, and how many requests each
// client has waiting. If nobody waits clients is nil, and the polls end.
func (b *Backend) nextPoll() (d time.Duration, name string, clients map[driver.ID]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters.Len() == 0 || b.life.Over() {
		b.polling = false
		return 0, "", nil
	}
	d, clients = 2*maxPoll, map[driver.ID]int{}
	for n, g := range b.waiters.Groups() {
		if due := g.State.due(g.First().Request.place, b.exclusive[n] > 0); due < d {
			d, name = due, n
		}
		for _, w := range g.All() {
			clients[w.Request.Client]++
		}
	}
	return d, name, clients
}

// readGrants asks which requests of the client were granted and how far the queue of a name is,
// and, if expired is set, for which names a holder has expired.
func (b *Backend) readGrants(client driver.ID, name string, expired bool) {
	stmt := statement("look", b.prefix, client, b.o.GrantWindow, bin(name), expired)
	a, err := b.pool.ask(b.life.Context(), callTimeout, stmt)
	if err != nil || len(a.sets) < 2 {
		if expired {
			b.wakeFirst() // their calls learn what is wrong
		}
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, row := range a.sets[0] {
		var id driver.ID
		if id.UnmarshalText([]byte(row[0])) != nil {
			continue
		}
		if m, is := b.requests.Find(id); is {
			b.waiters.Notify(m)
		}
	}
	for _, row := range a.sets[1] {
		b.advance(name, row[0])
	}
	for _, set := range a.sets[2:] {
		for _, row := range set {
			name, _ := hex.DecodeString(row[0])
			if g := b.waiters.Group(string(name)); g != nil {
				g.First().Wake()
			}
		}
	}
}

// keepAlive keeps alive what the client has waiting, and removes some of the dead. If the server
// has less than n of what waits, some was dropped.
func (b *Backend) keepAlive(client driver.ID, n int) {
	a, err := b.pool.ask(b.life.Context(), callTimeout, statement("keep", client))
	if err != nil {
		return
	}
	if row, err := a.sets.single(1); err == nil {
		if have, _ := strconv.Atoi(row[0]); have < n {
			b.wakeFirst()
		}
	}
}
