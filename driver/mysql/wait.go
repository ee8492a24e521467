package mysql

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	soonest = time.Millisecond       // looks are at least this far apart,
	latest  = 100 * time.Millisecond // and at most this
	// whoever is next looks three times while the queue moves by one, or this often
	often   = 20 * time.Millisecond
	lookout = time.Second // between looks for holders that have expired
	// between signs of life of all that waits; dlock_keep gives it 10 s
	keep = 3 * time.Second
)

// group are the waiters of this client under one name, in order of arrival.
type group struct {
	waiters []*waiter
	head    int64 // of the queue, as last seen
	// when it was seen to move, or the wait for others began: there was none of this client to let
	// one in
	moved time.Time
	pace  time.Duration // how long it takes to move by one; 0: not known
	timer *time.Timer   // wakes the first when a holder expires; nil: never set
}

// waiter is an Acquire that waits.
type waiter struct {
	m     *mine
	place int64         // in the queue
	wake  chan struct{} // has a token in it if there is a reason to look
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// join puts an Acquire among those who wait.
func (b *Backend) join(m *mine) *waiter {
	w := &waiter{m: m, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.names[m.r.Name]
	if g == nil {
		g = &group{}
		b.names[m.r.Name] = g
		b.urge(g)
	}
	g.waiters = append(g.waiters, w)
	if m.told || m.given != nil { // since it asked
		w.poke()
	}
	if !b.watching && !b.closed {
		b.watching = true
		b.tasks.Go(b.watch)
	}
	return w
}

// urge makes the looks for a group frequent: its turn may be near. b.mu is held.
func (b *Backend) urge(g *group) {
	g.moved = time.Now()
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}

// waits takes note of what the server says to a waiter.
func (b *Backend) waits(w *waiter, a verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.place = a.place
	g := b.names[w.m.r.Name]
	if g == nil || g.waiters[0] != w {
		return
	}
	g.advance(a.head)
	if a.expiry > 0 {
		g.after(a.expiry+time.Millisecond+rand.N(20*time.Millisecond), b)
	}
	if a.fresh { // it was dropped, or all was: the others too
		for _, other := range g.waiters[1:] {
			other.poke()
		}
	}
}

// advance takes note of the head of a queue. b.mu is held.
func (b *Backend) advance(name, head string) {
	g := b.names[name]
	n, err := strconv.ParseInt(head, 10, 64)
	if g == nil || err != nil {
		return
	}
	g.advance(n)
	if w := g.waiters[0]; w.place > 0 && w.place < n { // it was let in and nobody told it
		w.poke()
	}
}

func (g *group) advance(head int64) {
	if head <= g.head {
		return
	}
	now := time.Now()
	if g.head > 0 {
		pace := now.Sub(g.moved) / time.Duration(head-g.head)
		if g.pace > 0 {
			pace = (3*g.pace + pace) / 4
		}
		g.pace = pace
	}
	g.head, g.moved = head, now
}

// due returns when to look again for a grant. While the client itself holds, its own release will
// tell. Else it is no later than a twentieth of the time since the queue last moved, but nobody
// asks much more often than the queue moves, and who is not next lets those ahead take their turns.
func (g *group) due(holds bool) time.Duration {
	if holds {
		return latest
	}
	d := max(time.Since(g.moved)/20, min(g.pace/3, often))
	if ahead := g.waiters[0].place - g.head; ahead > 0 && g.head > 0 {
		d = max(d, time.Duration(min(ahead, 1000))*g.pace)
	}
	return min(max(d, soonest), latest)
}

// after wakes the first waiter then.
func (g *group) after(d time.Duration, b *Backend) {
	if g.timer != nil {
		g.timer.Reset(d)
		return
	}
	g.timer = time.AfterFunc(d, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(g.waiters) > 0 {
			g.waiters[0].poke()
		}
	})
}

func (b *Backend) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := w.m.r.Name
	g := b.names[name]
	g.waiters = slices.DeleteFunc(g.waiters, func(x *waiter) bool { return x == w })
	if len(g.waiters) > 0 {
		return
	}
	if g.timer != nil {
		g.timer.Stop()
	}
	delete(b.names, name)
}

// sleep returns when there is a reason to ask the server, or the reply to another call granted the
// request.
func (w *waiter) sleep(ctx context.Context, stop <-chan struct{}) error {
	select {
	case <-w.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-stop:
		return driver.ErrClosed
	}
}

// hear takes note of whom a call granted. Those of the client that made it hold from then on;
// others have to confirm it.
func (b *Backend) hear(c *call, news string) {
	if news == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	parseNews(news, func(id driver.ID, token driver.Token, told bool) {
		m := b.mine[id]
		if m == nil {
			return
		}
		if told {
			b.holding(m, c.sent)
			m.given = &driver.Grant{Token: token, TTL: m.r.TTL, SentAt: c.sent}
		}
		b.tell(m)
	})
}

// tell wakes the Acquire that waits for a request. b.mu is held.
func (b *Backend) tell(m *mine) {
	m.told = true
	if g := b.names[m.r.Name]; g != nil {
		for _, w := range g.waiters {
			if w.m == m {
				w.poke()
			}
		}
	}
}

// wakeName makes all that wait under a name ask the server.
func (b *Backend) wakeName(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.names[name]; g != nil {
		for _, w := range g.waiters {
			w.poke()
		}
	}
}

// watch looks for grants by other clients as long as somebody waits, and keeps what waits alive.
func (b *Backend) watch() {
	looked, scanned := time.Now(), time.Now()
	for {
		d, name, clients := b.next()
		if clients == nil {
			return
		}
		// the time since the last look counts: so nudges only bring the next one nearer
		if b.nudged(time.Until(looked.Add(d))) {
			continue
		}
		looked = time.Now()
		names, alive := looked.Sub(scanned) >= lookout, looked.Sub(b.kept) >= keep
		if names {
			scanned = looked
		}
		if alive {
			b.kept = looked
		}
		for client, n := range clients {
			b.look(client, name, names)
			if alive {
				b.keep(client, n)
			}
		}
	}
}

// nudged waits for d, unless there is a nudge, or the client is closed.
func (b *Backend) nudged(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-b.nudge:
		return true
	case <-b.stop:
		return false
	}
}

// next returns when to look, for which name that is, and how many requests each client has waiting.
// The watch ends if nobody waits.
func (b *Backend) next() (d time.Duration, name string, clients map[driver.ID]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.names) == 0 || b.closed {
		b.watching = false
		return 0, "", nil
	}
	d, clients = 2*latest, map[driver.ID]int{}
	for n, g := range b.names {
		if due := g.due(b.holds[n] > 0); due < d {
			d, name = due, n
		}
		for _, w := range g.waiters {
			clients[w.m.r.Client]++
		}
	}
	return d, name, clients
}

// look asks which requests of the client were granted, how far the queue of a name is, and, if it
// is time, which names have an expired holder.
func (b *Backend) look(client driver.ID, name string, names bool) {
	a, err := b.pool.ask(b.ctx, callTimeout, statement("look", b.prefix, client, b.o.GrantWindow, bin(name), names))
	sets := a.sets
	if err != nil || len(sets) < 2 {
		if names {
			b.wakeFirst() // they learn what is wrong
		}
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, row := range sets[0] {
		var id driver.ID
		if id.UnmarshalText([]byte(row[0])) == nil && b.mine[id] != nil {
			b.tell(b.mine[id])
		}
	}
	for _, row := range sets[1] {
		b.advance(name, row[0])
	}
	for _, set := range sets[2:] {
		for _, row := range set {
			name, _ := hex.DecodeString(row[0])
			if g := b.names[string(name)]; g != nil {
				g.waiters[0].poke()
			}
		}
	}
}

// keep keeps alive what the client has waiting, and removes some of the dead. If the server has
// less than n of what waits, some was dropped.
func (b *Backend) keep(client driver.ID, n int) {
	a, err := b.pool.ask(b.ctx, callTimeout, statement("keep", client))
	if err != nil {
		return
	}
	if row, err := single(a.sets, 1); err == nil {
		if have, _ := strconv.Atoi(row[0]); have < n {
			b.wakeFirst()
		}
	}
}

// wakeFirst makes the first waiter of each name ask the server.
func (b *Backend) wakeFirst() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.names {
		g.waiters[0].poke()
	}
}
