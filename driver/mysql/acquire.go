package mysql

import (
	"cmp"
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
	if b.life.Over() {
		err = driver.ErrClosed // Close removes it
	}
	if err = b.requests.End(m, err); err != nil {
		if !b.requests.Has(m) {
			b.releaseWakeup(m)
		}
		return driver.Grant{}, err
	}
	b.sweepSoon(sweepTime)
	return g, nil
}

// acquire sends the request to the server, and checks on it whenever there is a reason to, until it
// is granted or refused.
func (b *Backend) acquire(ctx context.Context, m *ownRequest, r driver.Request) (driver.Grant, error) {
	var w *kit.Waiter[*ownRequest]
	defer func() {
		if w != nil {
			b.detach(w)
		}
	}()
	for {
		b.mu.Lock()
		grant, stood := m.grant, m.Stands
		m.Notified = false
		b.mu.Unlock()
		if grant != nil && w != nil {
			return *grant, nil
		}
		t := b.newTask(stood)
		if stood { // an outage that is shorter than its TTL does not end the wait
			t.stands, t.patience = true, max(patience, r.TTL)
		}
		g, err := run(ctx, t, b.life.Closed(), func() (*driver.Grant, error) {
			g, waits, err := b.enter(t, m, r)
			if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrConflict) {
				_, err2 := b.withdraw(t, m)
				err = cmp.Or(err2, err)
			}
			if err != nil || waits {
				return nil, err
			}
			return &g, nil
		})
		b.mu.Lock()
		// it is not known yet what it has made, or will make
		switch open := t.left.Load() && t.made.Load(); {
		case open && !m.Uncertain:
			m.left, m.leftUntil = t, time.Now().Add(2*callTimeout)
		case open || t.doubt.Load() > 0: // the end of an earlier call proves too little
			m.left = nil
		}
		m.Uncertain = m.Uncertain || t.doubt.Load() > 0 || m.left != nil
		switch {
		case kit.IsNo(err):
			m.Answer(err)
		case err == nil && g != nil:
			m.Answer(nil)
			b.holds(m, g.SentAt, g.TTL)
			if w != nil {
				b.idle.count = 0
			}
		}
		b.mu.Unlock()
		if err != nil {
			return driver.Grant{}, b.waitEnded(ctx, stood && t.failure.Load() == nil, err)
		}
		if g != nil {
			return *g, nil
		}
		if w == nil {
			w = b.attach(m)
		}
		if err := w.Sleep(ctx, b.life.Closed(), 0); err != nil {
			return driver.Grant{}, b.waitEnded(ctx, true, err)
		}
	}
}

// waitEnded returns the error of an Acquire that err ended. The error says so if err is the end of
// ctx, the request stands in the queue, and the server answers.
func (b *Backend) waitEnded(ctx context.Context, stands bool, err error) error {
	if ended := ctx.Err(); ended == nil || !errors.Is(err, ended) || !stands {
		return err
	}
	if failure := b.pool.failure.Load(); failure != nil {
		return fmt.Errorf("%w: %w", err, *failure)
	}
	return driver.Waited(ctx)
}

// enter makes the request, or goes on with one that was made. It returns the grant, or that the
// request waits.
func (b *Backend) enter(t *task, m *ownRequest, r driver.Request) (g driver.Grant, waits bool, err error) {
	b.mu.Lock()
	found := m.found
	m.found = nil
	place, held, crowded := m.place, m.Granted(), b.crowded(&r)
	b.mu.Unlock()
	switch {
	case r.Join():
		g, err = b.join(t, r, held)
		return g, false, err
	case held && r.Mode == driver.Exclusive: // it must not arrive again
		p, err := b.look(t, &r, false)
		if err == nil && (p.holder != r.ID || p.left <= 0 || p.broken) {
			err = driver.ErrLost
		}
		if err == nil {
			p.left = 0
			g, err = b.confirm(t, r, p)
		}
		return g, false, err
	case found != nil:
		if g, err = b.confirm(t, r, *found); !errors.Is(err, driver.ErrLost) {
			return g, false, err
		}
		return b.check(t, m, r, false)
	case place > 0:
		return b.check(t, m, r, false)
	case r.Mode == driver.Shared && crowded && r.Wait && !held:
		return b.queue(t, m, r)
	case r.Mode == driver.Shared:
		return b.enterBeside(t, m, r, held)
	case crowded && r.Wait: // the lock is not free
		return b.await(t, m, r, false)
	}
	for range maxTries {
		code, sent, err := b.take(t, r)
		switch {
		case err != nil:
			return g, false, err
		case code > lastCode:
			return driver.Grant{Token: driver.Token(code), TTL: r.TTL, SentAt: sent}, false, nil
		case code == isLost:
			return g, false, driver.ErrLost
		case code == isShared:
			return b.enterBeside(t, m, r, false)
		case r.Wait:
			return b.await(t, m, r, code == isHeld)
		case code == isHeld || code == isBehind:
			return g, false, driver.ErrHeld
		}
		l, _, err := b.advance(t, r.Name, driver.ID{}) // perhaps all requests there have expired
		if err != nil {
			return g, false, err
		}
		if l.first() != nil {
			return g, false, driver.ErrHeld
		}
	}
	return g, false, errBusy
}

// await makes an exclusive request wait. alone says that no other request waited: then the lock's
// row has to say that one does now, or the release would not check for waiters.
func (b *Backend) await(t *task, m *ownRequest, r driver.Request, alone bool) (g driver.Grant, waits bool, err error) {
	if err := b.arrive(t, r); err != nil {
		return g, false, err
	}
	b.stands(m)
	if alone { // raise writes the lock's row, so it waits for a grant that is not committed yet
		if _, err := t.send(b.raiseOf(r)); err != nil {
			return g, false, err
		}
	}
	return b.check(t, m, r, !alone)
}

// stands records that the request has a row.
func (b *Backend) stands(m *ownRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.Stands = true
}

// withdraw removes a request that is refused, if it has a row.
func (b *Backend) withdraw(t *task, m *ownRequest) (found bool, err error) {
	b.mu.Lock()
	r, stands := m.OwnRequest.Request, m.Stands
	b.mu.Unlock()
	if !stands {
		return false, nil
	}
	return b.release(t, r, false, false)
}

// check reads what became of a request that stands in the queue, and does what is due there. With
// lock, the read waits for a grant that is not committed yet.
func (b *Backend) check(t *task, m *ownRequest, r driver.Request, lock bool) (g driver.Grant, waits bool, err error) {
	for range maxTries {
		p, err := b.look(t, &r, lock)
		if err != nil {
			return g, false, err
		}
		b.mu.Lock()
		m.place, m.Stands = p.place, p.kind == "request" || p.holder == r.ID
		held := m.Granted()
		b.mu.Unlock()
		switch {
		case p.sent.IsZero(): // the row of the lock was removed
			if _, err := t.send(b.raiseOf(r)); err != nil {
				return g, false, err
			}
			continue
		case p.holder == r.ID && p.broken, p.rowBroken:
			return g, false, driver.ErrLost
		case p.holder == r.ID && p.left > 0:
			g, err = b.confirm(t, r, p)
			if errors.Is(err, driver.ErrLost) && !held { // it has expired, and will arrive again
				continue
			}
			return g, false, err
		case p.kind == "tombstone", held && (p.kind == "" || p.expires <= 0):
			return g, false, driver.ErrLost
		case p.kind == "" || p.expires <= 0 || p.place <= p.head && r.Mode == driver.Exclusive:
			// it was granted and has expired, or has missed its turn, or was not kept alive; it is
			// deleted in this place only, since it arrives again in another: a copy of the
			// statement that comes late must not delete it there
			if _, err := t.send(fill(leave+" AND place = :place", ":ids", hexID(r.ID), ":place", strconv.FormatInt(p.place, 10))); err != nil {
				return g, false, err
			}
			b.mu.Lock()
			m.place, m.Stands = 0, false
			b.mu.Unlock()
			if !r.Wait {
				return g, false, driver.ErrHeld
			}
			if p.place <= p.head {
				if _, err := t.send(b.skipTo(r, p.head)); err != nil {
					return g, false, err
				}
			}
			if r.Mode == driver.Shared {
				return b.enterBeside(t, m, r, false)
			}
			return b.await(t, m, r, false)
		case p.place <= p.head: // shared, and granted
			g, err = b.confirm(t, r, p)
			if errors.Is(err, driver.ErrLost) && !held {
				continue
			}
			return g, false, err
		case p.others == 0 || p.others == 1 && r.Mode == driver.Shared:
			_, err = t.send(b.raiseOf(r))
		case p.others == 1 && p.left <= 0:
			_, err = t.send(b.passOf(r.Name, expired))
		case p.others == 1, p.left > 0 && r.Wait && !r.Semaphore(): // its release decides
			b.mustWait(m, p.head, p.left, p.ahead)
			return g, true, nil
		default:
			return b.checkBeside(t, m, r, p)
		}
		if err != nil {
			return g, false, err
		}
	}
	return g, false, errBusy
}

// skipTo is the statement that makes places go on after the head.
func (b *Backend) skipTo(r driver.Request, head int64) string {
	return b.about(fill(skip, ":place", strconv.FormatInt(head, 10), ":new", hexID(driver.NewID())), &r)
}

// misplaced removes a shared request that was inserted at a place up to the head: it would seem to
// hold. That happens only if the table was emptied, or made again.
func (b *Backend) misplaced(t *task, m *ownRequest, r driver.Request, head int64) error {
	for _, stmt := range []string{fill(leave, ":ids", hexID(r.ID)), b.skipTo(r, head)} {
		if _, err := t.send(stmt); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m.Stands, m.place = false, 0
	return nil
}

// raiseOf is the statement that makes the lock's row say that r stands beside it.
func (b *Backend) raiseOf(r driver.Request) string {
	level := "1"
	if r.Mode == driver.Shared {
		level = "2"
	}
	return b.about(fill(raise, ":level", level), &r)
}

// checkBeside is check for a name with requests of any kind: it writes what is due.
func (b *Backend) checkBeside(t *task, m *ownRequest, r driver.Request, p position) (g driver.Grant, waits bool, err error) {
	l, _, err := b.advance(t, r.Name, driver.ID{})
	if err != nil {
		return g, false, err
	}
	own, first := l.find(r.ID), l.first()
	switch {
	case l.holder.ID == r.ID, own == nil && l.whole:
		// it is exclusive, and was granted; or it is not there any more
		return b.check(t, m, r, false)
	case own != nil && r.Mode == driver.Shared && own.place <= l.head && alive(&own.Entry):
		if g, err = b.confirm(t, r, position{token: l.token, head: l.head, place: own.place}); errors.Is(err, driver.ErrLost) {
			return b.check(t, m, r, false)
		}
		return g, false, err
	case first != nil && first.ID != r.ID && first.Semaphore() != r.Semaphore():
		// a request for the other kind of lock came at the same time
		return g, false, driver.ErrConflict
	case !r.Wait:
		return g, false, driver.ErrHeld
	}
	if own != nil {
		p.ahead = l.ahead(own)
	}
	b.mustWait(m, l.head, l.soonest(), p.ahead)
	return g, true, nil
}

// position is what look reads of a request.
type position struct {
	token, head int64
	others      int
	holder      driver.ID
	broken      bool
	left        time.Duration // of the holder
	kind        string        // of the request's row; "": there is none
	place       int64
	expires     time.Duration
	rowBroken   bool
	ahead       driver.ID // the waiter before it, or the exclusive holder; zero: neither
	sent        time.Time
}

func parsePosition(row []string) (p position, err error) {
	if len(row) != 12 {
		return p, fmt.Errorf("unexpected row %q", row)
	}
	num := func(i int) int64 { n, _ := strconv.ParseInt(row[i], 10, 64); return n }
	p = position{token: num(1), head: num(2), others: int(num(3)), broken: num(5) != 0, left: span(num(6)), kind: row[7], place: num(8), expires: span(num(9)), rowBroken: num(10) != 0}
	err = p.holder.UnmarshalText([]byte(row[4]))
	if p.ahead = p.holder; row[11] != "" {
		err = errors.Join(err, p.ahead.UnmarshalText([]byte(row[11])))
	}
	return p, err
}

// confirm returns the grant of a request that holds according to what was read. If that leaves it
// little time, it is renewed first, provided that it still holds with the token that was read: it
// may have expired since, and have been granted again.
func (b *Backend) confirm(t *task, r driver.Request, p position) (driver.Grant, error) {
	g := driver.Grant{Token: driver.Token(p.token), TTL: p.left, SentAt: p.sent}
	stmt := renewLocks + " AND token = " + strconv.FormatInt(p.token, 10)
	switch {
	case r.Join():
		g.TTL, stmt = p.expires, renewRequests
	case r.Mode == driver.Shared:
		g.Token, g.TTL = driver.Token(p.token-(p.head-p.place)), p.expires
		stmt = renewRequests + " AND place = " + strconv.FormatInt(p.place, 10)
	}
	if !p.rowBroken && proves(&r, g.TTL, p.sent) {
		g.TTL = min(g.TTL, r.TTL)
		return g, nil
	}
	stmt = b.about(fill(stmt, ":names", hexOf(r.Name), ":ids", hexID(r.ID)), &r)
	a, err := t.send(stmt)
	if err == nil && a.affected == 0 { // a KILL QUERY may have cut it short
		a, err = t.send(stmt)
	}
	if err == nil && a.affected == 0 {
		err = driver.ErrLost
	}
	g.TTL, g.SentAt = r.TTL, a.sent
	return g, err
}

// queue adds a shared request behind others of this client. It needs no decision of its own: the
// release that grants those ahead decides on it too.
func (b *Backend) queue(t *task, m *ownRequest, r driver.Request) (g driver.Grant, waits bool, err error) {
	b.mu.Lock()
	head, known := int64(0), false
	if others := b.waiters.Group(r.Name); others != nil {
		head, known = others.State.head, others.State.known
	}
	b.mu.Unlock()
	if !known {
		return b.enterBeside(t, m, r, false)
	}
	a, err := t.make(b.about(fill(admit, ":lasts", micros(min(r.TTL, maxWait))), &r))
	if isDuplicate(err) || err == nil && a.affected == 0 {
		return b.enterBeside(t, m, r, false)
	}
	if err != nil {
		return g, false, err
	}
	b.stands(m)
	if a.id <= head {
		if err := b.misplaced(t, m, r, head); err != nil {
			return g, false, err
		}
		return b.enterBeside(t, m, r, false)
	}
	b.mu.Lock()
	m.place = a.id
	b.mu.Unlock()
	return g, true, nil
}

// maxWait is how long a waiter keeps its place without a sign of life.
const maxWait = 10 * time.Second

// enterBeside is enter for a name with requests of any kind.
func (b *Backend) enterBeside(t *task, m *ownRequest, r driver.Request, held bool) (g driver.Grant, waits bool, err error) {
	for range maxTries {
		l, err := b.read(t, r.Name, (*lock).waits)
		if err != nil {
			return g, false, err
		}
		if l.others == 2 && l.dead() {
			if _, _, err := b.write(t, l, driver.ID{}); err != nil {
				return g, false, err
			}
			continue
		}
		q := l.queue()
		if own := l.find(r.ID); own != nil || l.holder.ID == r.ID {
			return b.check(t, m, r, false)
		}
		if held {
			return g, false, driver.ErrLost
		}
		if _, err := q.Admit(r); err != nil {
			return g, false, err
		}
		l.beside = append(l.beside, row{Entry: driver.Entry{Request: r, Left: r.TTL}, kind: "request", place: l.last() + 1})
		q = l.queue()
		free := q.Granted() == len(q.Arrivals)
		switch {
		case !free && !r.Wait:
			return g, false, driver.ErrHeld
		case r.Mode == driver.Exclusive:
			return b.await(t, m, r, false)
		case l.others < 2:
			raised, err := t.send(b.about(fill(raise, ":level", "2"), &r))
			if err != nil {
				return g, false, err
			}
			if l.others = 2; l.token == 0 && raised.affected == 1 { // the row is new
				l.token = int64(raised.id)
			}
		}
		lasts := min(r.TTL, maxWait)
		if free {
			lasts = r.TTL
		}
		a, err := t.make(b.about(fill(admit, ":lasts", micros(lasts)), &r))
		if isDuplicate(err) {
			return b.check(t, m, r, false)
		}
		if err != nil {
			return g, false, err
		}
		b.stands(m)
		if a.affected == 0 { // nothing stood beside the lock any more
			continue
		}
		if a.id <= l.head {
			if err := b.misplaced(t, m, r, l.head); err != nil {
				return g, false, err
			}
			continue
		}
		b.mu.Lock()
		m.place = a.id
		b.mu.Unlock()
		switch {
		case l.held(): // if it has gone and thousands hold, a look costs less than a read
			return b.check(t, m, r, false)
		case !free:
			return b.checkBeside(t, m, r, position{place: a.id})
		}
		// the decision may still be valid
		own := &l.beside[len(l.beside)-1]
		own.place = a.id
		l.whole = false
		if s := l.decide(driver.ID{}); s != nil {
			swapped, err := t.send(b.swap(l, s, driver.ID{}))
			if err != nil {
				return g, false, err
			}
			if swapped.affected > 0 {
				return driver.Grant{Token: l.tokenAt(a.id), TTL: r.TTL, SentAt: a.sent}, false, nil
			}
		}
		return b.check(t, m, r, false)
	}
	return g, false, errBusy
}

// join adds a request to a hold of its owner.
func (b *Backend) join(t *task, r driver.Request, held bool) (g driver.Grant, err error) {
	for range maxTries {
		l, err := b.readHeld(t, r.Name)
		if err != nil {
			return g, err
		}
		if own := l.find(r.ID); own != nil {
			if own.kind == "join" && alive(&own.Entry) && !own.Broken {
				return b.confirm(t, r, position{token: int64(own.Token)})
			}
			return g, driver.ErrLost
		}
		if held {
			return g, driver.ErrLost
		}
		admitted, err := l.queue().Admit(r)
		if err != nil {
			return g, err
		}
		if l.others < 2 {
			if _, err := t.send(b.about(fill(raise, ":level", "2"), &r)); err != nil {
				return g, err
			}
		}
		a, err := t.make(b.about(fill(join, ":sponsor", hexID(l.sponsor(&r))), &admitted))
		if isDuplicate(err) { // it stands beyond what was read
			p, err := b.look(t, &r, false)
			if err == nil && p.kind != "join" {
				err = driver.ErrLost
			}
			if err != nil {
				return g, err
			}
			return b.confirm(t, r, position{token: int64(admitted.Token)})
		}
		if err != nil {
			return g, err
		}
		if a.affected > 0 {
			return driver.Grant{Token: admitted.Token, TTL: r.TTL, SentAt: a.sent}, nil
		}
	}
	return g, errBusy
}
