package mysql

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

const (
	// bellPool is how many connections a pool may have at least for its client to use bells: they
	// take up to two.
	bellPool = 8
	// bellSize is what a bell takes in a statement.
	bellSize = 56
	// maxBells is how many bells a client holds at most.
	maxBells = 500
	// listenTime is for how long (s) the server lets a client wait for a bell.
	listenTime = 1
	// minRest and maxRest are for how long a client listens to nothing after a bell that rang
	// without need, or should have rung and did not. The time doubles with each that does so.
	minRest = 10 * time.Millisecond
	maxRest = 10 * time.Second
)

// bells are what a client rings when its requests go, and what it listens to. The backend's mu
// guards them.
type bells struct {
	own  map[driver.ID]bool // the bells of own requests; true: the server was asked for it
	gone []driver.ID        // those to ring
	ring kit.Signal         // there is something to hang or to ring
	runs bool               // ringer runs
	soon bool               // that is not to wait for more of it
	last time.Time          // when that was last done

	target driver.ID // whose bell is listened to; zero: none
	listen bool      // listener runs
	rung   driver.ID // whose bell rang: the queue of this name is to be looked at now
	name   string
	rest   time.Duration
	until  time.Time // before this nothing is listened to
}

// bellOf is the named lock of a request, which its client's session has as long as the request
// stands. It has letters, digits and a dot.
func bellOf(id driver.ID) string { return "'dlock." + id.String() + "'" }

// spareBells reports whether the pool has connections to spare.
func (p *pool) spareBells() bool {
	s := p.db.Stats()
	return s.MaxOpenConnections == 0 || s.MaxOpenConnections >= bellPool && s.InUse < s.MaxOpenConnections
}

// hangBell makes a bell for a request that waits in a queue where other clients wait too. b.mu is
// held.
func (b *Backend) hangBell(m *ownRequest) {
	x := &b.bells
	if _, is := x.own[m.ID]; is || len(x.own) >= maxBells || !b.requests.Has(m) {
		return
	}
	x.own[m.ID] = false
	if !x.runs && len(x.own) > 0 && b.pool.spareBells() {
		x.runs = b.life.Go(b.ringer)
	}
	if g := b.waiters.Group(m.Name); !b.idle.spent() && (g == nil || time.Since(g.State.moved) < maxPoll) {
		x.soon = true
	}
	b.bells.ring.Set()
}

// ringBell rings the bell of a request that goes, at once if it held. b.mu is held.
func (b *Backend) ringBell(m *ownRequest) {
	asked, is := b.bells.own[m.ID]
	delete(b.bells.own, m.ID)
	if is && asked {
		b.bells.gone = append(b.bells.gone, m.ID)
		b.bells.soon = b.bells.soon || m.Granted()
		b.bells.ring.Set()
	}
}

// ringer hangs the client's bells and rings them, in a session that has them as long as there are
// any. If it breaks, or the pool needs it, they all ring, and are not hung again.
func (b *Backend) ringer() {
	var conn *sql.Conn
	defer func() {
		if conn != nil {
			discard(conn) // and its bells ring, if it has any
			conn.Close()
		}
	}()
	for {
		stmt, wait, over := b.nextRing()
		switch {
		case over && conn != nil: // it has no bells any more
			conn.Close()
			conn = nil
			return
		case over:
			return
		case stmt == "":
			select {
			case <-b.bells.ring:
				continue
			case <-b.life.Closed():
				return
			case <-time.After(wait):
				if b.pool.spareBells() {
					continue
				}
				b.dropBells()
				return
			}
		}
		var err error
		if conn, err = b.pool.onBells(b.life.Context(), conn, stmt); err != nil {
			b.dropBells()
			return
		}
	}
}

// dropBells records that the session of the bells is closed.
func (b *Backend) dropBells() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.bells.own)
	b.bells.gone, b.bells.runs = nil, false
}

// nextRing returns the statement that rings and hangs what is to be, or as much of that as a packet
// has room for; "" if nothing is for a while. It reports over if the client has no bells.
func (b *Backend) nextRing() (stmt string, wait time.Duration, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := &b.bells
	if since := time.Since(x.last); !x.soon && since < maxPoll {
		x.runs = len(x.own)+len(x.gone) > 0
		return "", maxPoll - since, !x.runs
	}
	var do []string
	most := b.pool.room() / bellSize
	n := min(len(x.gone), most)
	for _, id := range x.gone[:n] {
		do = append(do, "RELEASE_LOCK("+bellOf(id)+")")
	}
	x.gone = slices.Delete(x.gone, 0, n)
	for id, asked := range x.own {
		if !asked && len(do) < most {
			do = append(do, "GET_LOCK("+bellOf(id)+", 0)")
			x.own[id] = true
		}
	}
	if len(do) > 0 {
		x.last = time.Now()
		b.idle.spend() // until something comes of it
		return "SELECT " + strings.Join(do, ", "), 0, false
	}
	x.runs, x.soon = len(x.own) > 0, false
	return "", time.Second, !x.runs
}

// onBells executes a statement in the session that has the bells: on conn, or a new one if that is
// nil. After an error there is none.
func (p *pool) onBells(ctx context.Context, conn *sql.Conn, stmt string) (*sql.Conn, error) {
	within, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var err error
	if conn == nil {
		if conn, err = p.db.Conn(within); err != nil {
			return nil, err
		}
		// a transaction that was left open ends here, not with the last bell
		_, err = conn.ExecContext(within, "ROLLBACK AND NO CHAIN NO RELEASE")
	}
	if err == nil {
		_, err = query(within, conn, stmt)
	}
	if err != nil {
		discard(conn)
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// answeredBell records which request a poll found ahead that was sent because that bell had rung.
// g is nil if nothing waits there any more. b.mu is held.
func (b *Backend) answeredBell(g *kit.Group[*ownRequest, nameState], rung, ahead driver.ID) {
	switch rung {
	case driver.ID{}:
	case ahead: // it rang without need, and would again: one that never waited has none
		if g != nil {
			g.State.deaf = ahead
		}
		b.restFromBells()
	default:
		b.bells.rest = 0
	}
}

// hear records which request is ahead of one of the group: one of another client; zero: that is not
// known. From then on the client listens, and hangs bells for its own requests. b.mu is held.
func (b *Backend) hear(g *kit.Group[*ownRequest, nameState], m *ownRequest, ahead driver.ID) {
	m.ahead = ahead
	x := &b.bells
	if ahead != (driver.ID{}) && !g.State.others {
		g.State.others = true
		for _, w := range g.All() {
			b.hangBell(w.Request)
		}
	}
	if g.State.others {
		b.hangBell(m)
	}
	if g.State.listens(m) && !x.listen && !time.Now().Before(x.until) && b.pool.spareBells() {
		x.listen = b.life.Go(b.listener)
	}
}

// listens reports whether there is a bell to listen to for a request that waits here.
func (q *nameState) listens(m *ownRequest) bool { return m.ahead != driver.ID{} && m.ahead != q.deaf }

// restFromBells makes the client listen to nothing for a while. b.mu is held.
func (b *Backend) restFromBells() {
	x := &b.bells
	x.rest = min(max(2*x.rest, minRest), maxRest)
	x.until = time.Now().Add(x.rest)
}

// listener listens to the bell of the request ahead, in the liveliest of the queues, as long as
// there is one.
func (b *Backend) listener() {
	for {
		id, name := b.nextBell()
		if id == (driver.ID{}) {
			return // until a look finds a request ahead
		}
		stmt := "SELECT GET_LOCK(" + bellOf(id) + ", " + strconv.Itoa(listenTime) + "), RELEASE_LOCK(" + bellOf(id) + ")"
		a, err := b.pool.ask(b.life.Context(), callTimeout, stmt, false)
		b.mu.Lock()
		b.bells.target = driver.ID{}
		b.sooner.Set() // polls are due by other times
		if err == nil {
			b.heard(id, name, a)
		} else {
			b.restFromBells()
		}
		b.mu.Unlock()
	}
}

// nextBell returns whose bell is listened to next, and in which queue; the ID is zero if there is
// none.
func (b *Backend) nextBell() (id driver.ID, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var moved time.Time
	if b.waiters.Group(b.bells.name) == nil {
		b.bells.rung = driver.ID{} // nothing waits there any more
	}
	if b.bells.rung == (driver.ID{}) && !time.Now().Before(b.bells.until) && !b.life.Over() && b.pool.spareBells() {
		for n, g := range b.waiters.Groups() {
			if m := firstOf(g); g.State.listens(m) && g.State.moved.After(moved) {
				id, name, moved = m.ahead, n, g.State.moved
			}
		}
	}
	b.bells.target, b.bells.listen = id, id != driver.ID{}
	return id, name
}

// heard records what became of listening. A bell that rang makes the client look. One that did not,
// although its request has gone, is not to be relied upon. b.mu is held.
func (b *Backend) heard(id driver.ID, name string, a answer) {
	g := b.waiters.Group(name)
	row, err := a.single(2)
	stands := g != nil && slices.ContainsFunc(g.All(), func(w *kit.Waiter[*ownRequest]) bool { return w.Request.ahead == id })
	switch {
	case err == nil && row[0] == "1" && !stands: // nothing waits behind it any more
	case err == nil && row[0] == "0" && stands && time.Since(a.sent) > listenTime*time.Second/2:
		// not yet
	case err != nil || row[0] != "1":
		b.restFromBells()
	default:
		for _, w := range g.All() {
			if w.Request.ahead == id {
				w.Request.ahead = driver.ID{}
			}
		}
		b.bells.rung, b.bells.name = id, name
		g.State.polled = time.Time{}
		b.sooner.Set()
	}
}
