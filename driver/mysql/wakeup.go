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
	// wakeupPool is the least size of a pool whose client uses wake-up locks: they take up to two
	// connections.
	wakeupPool = 8
	// wakeupSize is what a wake-up lock takes in a statement, in bytes.
	wakeupSize = 56
	// maxWakeups is how many wake-up locks a client has at most.
	maxWakeups = 500
	// listenTime is for how long (s) the server lets a client wait for a wake-up lock.
	listenTime = 1
	// minRest and maxRest bound the time for which a client listens to nothing after a wake-up lock
	// that was free without need, or that was not free when it should have been. The time doubles
	// with each of them.
	minRest = 10 * time.Millisecond
	maxRest = 10 * time.Second
)

// wakeups are the wake-up locks that a client has for its requests, and the one that it listens to.
// A wake-up lock is a named lock of the server. The client of a request has it while the request
// stands; the client of the next waiter listens to it, that is, tries to take it. Once that
// succeeds the request ahead has gone, and a poll is due. The backend's mu guards the fields.
type wakeups struct {
	own     map[driver.ID]bool // for own requests; true: the server was asked for it
	gone    []driver.ID        // requests whose wake-up locks are to be released
	changed kit.Signal         // there is something to take or to release
	runs    bool               // keepWakeups runs
	soon    bool               // it is not to wait for more to do
	last    time.Time          // when it last sent a statement

	target driver.ID // the request whose wake-up lock is listened to; zero: none
	listen bool      // listener runs
	freed  driver.ID // the request whose wake-up lock was freed: the queue of name is to be polled
	name   string
	rest   time.Duration
	until  time.Time // before this nothing is listened to
}

// wakeupOf is the wake-up lock of a request, as it stands in a statement. It has letters, digits
// and a dot.
func wakeupOf(id driver.ID) string { return "'dlock." + id.String() + "'" }

// spareForWakeups reports whether the pool has connections to spare.
func (p *pool) spareForWakeups() bool {
	s := p.db.Stats()
	return s.MaxOpenConnections == 0 || s.MaxOpenConnections >= wakeupPool && s.InUse < s.MaxOpenConnections
}

// takeWakeup takes the wake-up lock of a request that waits in a queue where other clients wait
// too. b.mu is held.
func (b *Backend) takeWakeup(m *ownRequest) {
	x := &b.wakeups
	if _, is := x.own[m.ID]; is || len(x.own) >= maxWakeups || !b.requests.Has(m) {
		return
	}
	x.own[m.ID] = false
	if !x.runs && len(x.own) > 0 && b.pool.spareForWakeups() {
		x.runs = b.life.Go(b.keepWakeups)
	}
	if g := b.waiters.Group(m.Name); !b.idle.spent() && (g == nil || time.Since(g.State.moved) < maxPoll) {
		x.soon = true
	}
	b.wakeups.changed.Set()
}

// releaseWakeup releases the wake-up lock of a request that goes, at once if it held the lock. b.mu
// is held.
func (b *Backend) releaseWakeup(m *ownRequest) {
	asked, is := b.wakeups.own[m.ID]
	delete(b.wakeups.own, m.ID)
	if is && asked {
		b.wakeups.gone = append(b.wakeups.gone, m.ID)
		b.wakeups.soon = b.wakeups.soon || m.Granted()
		b.wakeups.changed.Set()
	}
}

// keepWakeups takes and releases the client's wake-up locks, in a session that it keeps while there
// are any. If the session breaks, or the pool needs it, all of them are released, and are not taken
// again at once.
func (b *Backend) keepWakeups() {
	var conn *sql.Conn
	defer func() {
		if conn != nil {
			discard(conn) // which releases the wake-up locks, if it has any
			conn.Close()
		}
	}()
	for {
		stmt, wait, over := b.wakeupStmt()
		switch {
		case over && conn != nil: // it has no wake-up locks any more
			conn.Close()
			conn = nil
			return
		case over:
			return
		case stmt == "":
			select {
			case <-b.wakeups.changed:
				continue
			case <-b.life.Closed():
				return
			case <-time.After(wait):
				if b.pool.spareForWakeups() {
					continue
				}
				b.dropWakeups()
				return
			}
		}
		var err error
		if conn, err = b.pool.onWakeups(b.life.Context(), conn, stmt); err != nil {
			b.dropWakeups()
			return
		}
	}
}

// dropWakeups records that the session of the wake-up locks is closed.
func (b *Backend) dropWakeups() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.wakeups.own)
	b.wakeups.gone, b.wakeups.runs = nil, false
}

// wakeupStmt returns the statement that releases and takes the wake-up locks that are due, as many
// as a packet has room for; "" if none is for a while. It reports over if the client has none.
func (b *Backend) wakeupStmt() (stmt string, wait time.Duration, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x := &b.wakeups
	if since := time.Since(x.last); !x.soon && since < maxPoll {
		x.runs = len(x.own)+len(x.gone) > 0
		return "", maxPoll - since, !x.runs
	}
	var do []string
	most := b.pool.room() / wakeupSize
	n := min(len(x.gone), most)
	for _, id := range x.gone[:n] {
		do = append(do, "RELEASE_LOCK("+wakeupOf(id)+")")
	}
	x.gone = slices.Delete(x.gone, 0, n)
	for id, asked := range x.own {
		if !asked && len(do) < most {
			do = append(do, "GET_LOCK("+wakeupOf(id)+", 0)")
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

// onWakeups executes a statement in the session that has the wake-up locks: on conn, or a new one
// if that is nil. After an error there is none.
func (p *pool) onWakeups(ctx context.Context, conn *sql.Conn, stmt string) (*sql.Conn, error) {
	within, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var err error
	if conn == nil {
		if conn, err = p.db.Conn(within); err != nil {
			return nil, err
		}
		// a transaction that was left open ends here, not with the last wake-up lock
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

// judgeWakeup records which request was found ahead by a poll that was sent because the wake-up
// lock of the request freed was free. g is nil if nothing waits there any more. b.mu is held.
func (b *Backend) judgeWakeup(g *kit.Group[*ownRequest, nameState], freed, ahead driver.ID) {
	switch freed {
	case driver.ID{}:
	case ahead: // it was free without need, and is still: a request that never waited has none
		if g != nil {
			g.State.ignored = ahead
		}
		b.restFromWakeups()
	default:
		b.wakeups.rest = 0
	}
}

// follow records which request of another client is ahead of one of the group; zero: that is not
// known. From then on the client listens, and takes wake-up locks for its own requests. b.mu is
// held.
func (b *Backend) follow(g *kit.Group[*ownRequest, nameState], m *ownRequest, ahead driver.ID) {
	m.ahead = ahead
	x := &b.wakeups
	if ahead != (driver.ID{}) && !g.State.others {
		g.State.others = true
		for _, w := range g.All() {
			b.takeWakeup(w.Request)
		}
	}
	if g.State.others {
		b.takeWakeup(m)
	}
	if g.State.listens(m) && !x.listen && !time.Now().Before(x.until) && b.pool.spareForWakeups() {
		x.listen = b.life.Go(b.listener)
	}
}

// listens reports whether there is a wake-up lock to listen to for a request that waits here.
func (q *nameState) listens(m *ownRequest) bool {
	return m.ahead != driver.ID{} && m.ahead != q.ignored
}

// restFromWakeups makes the client listen to nothing for a while. b.mu is held.
func (b *Backend) restFromWakeups() {
	x := &b.wakeups
	x.rest = min(max(2*x.rest, minRest), maxRest)
	x.until = time.Now().Add(x.rest)
}

// listener listens to the wake-up lock of the request ahead, in the queue that moved last, as long
// as there is one.
func (b *Backend) listener() {
	for {
		id, name := b.nextListen()
		if id == (driver.ID{}) {
			return // until a poll or a look finds a request ahead
		}
		stmt := "SELECT GET_LOCK(" + wakeupOf(id) + ", " + strconv.Itoa(listenTime) + "), RELEASE_LOCK(" + wakeupOf(id) + ")"
		a, err := b.pool.ask(b.life.Context(), callTimeout, stmt, false)
		b.mu.Lock()
		b.wakeups.target = driver.ID{}
		b.sooner.Set() // polls are due by other times
		if err == nil {
			b.listened(id, name, a)
		} else {
			b.restFromWakeups()
		}
		b.mu.Unlock()
	}
}

// nextListen returns the request whose wake-up lock is listened to next, and in which queue; the ID
// is zero if there is none.
func (b *Backend) nextListen() (id driver.ID, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var moved time.Time
	if b.waiters.Group(b.wakeups.name) == nil {
		b.wakeups.freed = driver.ID{} // nothing waits there any more
	}
	if b.wakeups.freed == (driver.ID{}) && !time.Now().Before(b.wakeups.until) && !b.life.Over() && b.pool.spareForWakeups() {
		for n, g := range b.waiters.Groups() {
			if m := firstOf(g); g.State.listens(m) && g.State.moved.After(moved) {
				id, name, moved = m.ahead, n, g.State.moved
			}
		}
	}
	b.wakeups.target, b.wakeups.listen = id, id != driver.ID{}
	return id, name
}

// listened records the outcome of listening. A wake-up lock that was free makes the client poll.
// One that was not, although its request has gone, is not to be relied upon. b.mu is held.
func (b *Backend) listened(id driver.ID, name string, a answer) {
	g := b.waiters.Group(name)
	row, err := a.single(2)
	stands := g != nil && slices.ContainsFunc(g.All(), func(w *kit.Waiter[*ownRequest]) bool { return w.Request.ahead == id })
	switch {
	case err == nil && row[0] == "1" && !stands: // nothing waits behind it any more
	case err == nil && row[0] == "0" && stands && time.Since(a.sent) > listenTime*time.Second/2:
		// not yet
	case err != nil || row[0] != "1":
		b.restFromWakeups()
	default:
		for _, w := range g.All() {
			if w.Request.ahead == id {
				w.Request.ahead = driver.ID{}
			}
		}
		b.wakeups.freed, b.wakeups.name = id, name
		g.State.polled = time.Time{}
		b.sooner.Set()
	}
}
