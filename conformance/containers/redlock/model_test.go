package redlock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// model is what one master has of a lock, in Go. The rule of driver.Queue decides. Times are in ms.
type model struct {
	now        int64
	members    []*member
	main       driver.ID // the first of the members
	alien      string    // the value of the key, if it is of none of the members
	until      int64     // when the key expires
	tombstones map[driver.ID]int64
}

type member struct {
	driver.Entry
	ttl, until, since int64
}

func newModel(now int64) *model { return &model{now: now, tombstones: map[driver.ID]int64{}} }

// pass removes what has expired.
func (m *model) pass(now int64) {
	m.now = now
	m.members = slices.DeleteFunc(m.members, func(e *member) bool { return e.until <= now })
	if m.until <= now {
		m.alien = ""
	}
	for id, until := range m.tombstones {
		if until <= now {
			delete(m.tombstones, id)
		}
	}
}

func (m *model) find(id driver.ID) *member {
	for _, e := range m.members {
		if e.ID == id {
			return e
		}
	}
	return nil
}

// queue is the lock as package driver has it.
func (m *model) queue() (q driver.Queue) {
	for _, e := range m.members {
		if e.Join() {
			q.Joins = append(q.Joins, &e.Entry)
		} else {
			q.Arrivals = append(q.Arrivals, &e.Entry)
		}
	}
	return q
}

func keptFor(ttl int64) int64 { return ((ttl+3)*100 + 98) / 99 }

func (m *model) begin(e *member, ttl int64) {
	e.ttl, e.until = ttl, m.now+keptFor(ttl)
	if e.Join() && e.Fixed {
		e.until = m.now + ttl + 1
	}
	m.wrote()
}

// wrote sets the expiry of the key.
func (m *model) wrote() {
	m.until = 0
	for _, e := range m.members {
		m.until = max(m.until, e.until)
	}
}

// acquire returns nil, ErrHeld, ErrLost or ErrUpgrade.
func (m *model) acquire(r driver.Request, ttl int64) error {
	if m.tombstones[r.ID] > 0 {
		return driver.ErrLost
	}
	if e := m.find(r.ID); e != nil {
		if e.Broken {
			return driver.ErrLost
		}
		m.begin(e, ttl)
		return nil
	}
	if m.extendOrphan(r.ID, ttl) {
		return nil
	}
	q := m.queue()
	admitted, err := q.Admit(r)
	if err != nil {
		return err
	}
	if !r.Join() {
		if slices.ContainsFunc(m.members, func(e *member) bool { return e.Owner == r.ID }) {
			return driver.ErrLost
		}
		q.Arrivals = append(q.Arrivals, &driver.Entry{Request: admitted})
		if m.alien != "" || q.Granted() < len(q.Arrivals) {
			return driver.ErrHeld
		}
	}
	e := &member{Entry: driver.Entry{Request: r}, since: m.now}
	m.members = append(m.members, e)
	m.begin(e, ttl)
	return nil
}

func (m *model) renew(id driver.ID, ttl int64) bool {
	if e := m.find(id); e != nil && !e.Broken {
		m.begin(e, ttl)
		return true
	}
	return m.extendOrphan(id, ttl)
}

// extendOrphan extends the key of a request of which everything else is lost.
func (m *model) extendOrphan(id driver.ID, ttl int64) bool {
	if m.alien != id.String() {
		return false
	}
	m.until = max(m.until, m.now+keptFor(ttl))
	return true
}

func (m *model) release(id driver.ID, ttl int64, tombstone bool) bool {
	if tombstone {
		m.tombstones[id] = m.now + ttl
	}
	if e := m.find(id); e != nil {
		m.members = slices.DeleteFunc(m.members, func(e *member) bool { return e.ID == id })
		m.wrote()
		return !e.Broken
	}
	if m.alien == id.String() {
		m.alien += " released"
		return true
	}
	return false
}

// end is a break. It returns how many members it found.
func (m *model) end(owner driver.ID, force bool) (n int) {
	ttl := int64(1)
	for _, e := range m.members {
		if e.Owner == owner {
			n++
			e.Broken, ttl = true, max(ttl, e.ttl)
		}
	}
	if n > 0 && force {
		m.tombstones[owner] = m.now + ttl
		m.members = slices.DeleteFunc(m.members, func(e *member) bool { return e.Owner == owner })
	}
	if n > 0 {
		m.wrote()
	}
	return n
}

// claim is a request in the histories of TestMajorities.
type claim struct {
	driver.Request
	ttl     int64
	asked   []int64 // by master: when it granted, at the latest; 0: it does not have it
	trusted int64   // until then its client trusts it
	ended   bool    // its client has released it, or has learned that it is lost
}

// message is a call that is under way to a master. It may be executed twice, and at any time.
type message struct {
	to   int
	what string
	c    *claim
	sent int64
}

// TestMajorities has requests of several owners on masters in Go, which the differential test holds
// equal to the scripts. Messages overtake each other, are lost and repeated, and masters forget no
// more than they may. Never do two requests hold that exclude each other, whatever stands on a
// minority.
func TestMajorities(t *testing.T) {
	seed := setting(t, "DLOCK_SEED", rand.Uint64())
	t.Logf("DLOCK_SEED=%d", seed)
	var seen [5]int // what happened
	for number := range size.Longer(3000) {
		if err := majorities(rand.New(rand.NewPCG(seed, uint64(number))), &seen); err != nil {
			t.Fatalf("history %d: %v", number, err)
		}
	}
	t.Logf("granted %d, readers together %d, joins %d, of which after their owner %d, broken %d", seen[0], seen[1], seen[2], seen[3], seen[4])
	for i, n := range seen {
		if n < 100 {
			t.Errorf("%d of these happened only %d times", i, n)
		}
	}
}

func majorities(r *rand.Rand, seen *[5]int) error {
	n := []int{3, 5}[r.IntN(2)]
	masters, now := make([]*model, n), int64(1)
	for i := range masters {
		masters[i] = newModel(now)
	}
	var claims []*claim
	forced := map[driver.ID]bool{}
	var under []message
	send := func(what string, c *claim) {
		for i := range masters {
			under = append(under, message{i, what, c, now})
		}
	}
	holds := func(c *claim) bool { return !c.ended && c.trusted > now }
	for range 120 {
		now += r.Int64N(40)
		for _, m := range masters {
			m.pass(now)
		}
		switch k := r.IntN(10); {
		case k < 2: // a new request
			c := &claim{ttl: 200 + r.Int64N(2000), asked: make([]int64, n)}
			c.ID = driver.NewID()
			c.Owner, c.Mode = c.ID, driver.Mode(r.IntN(2))
			if len(claims) > 0 && r.IntN(2) == 0 {
				c.Owner = claims[r.IntN(len(claims))].Owner
			}
			claims = append(claims, c)
			send("acquire", c)
		case k == 2 && len(claims) > 0:
			send([]string{"renew", "release", "break", "force"}[r.IntN(4)], claims[r.IntN(len(claims))])
			if m := under[len(under)-1]; m.what == "release" {
				m.c.ended = true
			}
		case len(under) > 0: // most messages arrive, some twice, some much later
			i := r.IntN(len(under))
			msg := under[i]
			if r.IntN(10) > 0 {
				under = slices.Delete(under, i, i+1)
			}
			m, c := masters[msg.to], msg.c
			var yes bool
			switch msg.what {
			case "acquire":
				yes = m.acquire(c.Request, c.ttl) == nil
			case "renew":
				yes = m.renew(c.ID, c.ttl)
			case "release":
				m.release(c.ID, c.ttl, true)
				c.asked[msg.to] = 0
			default:
				seen[4] += m.end(c.Owner, msg.what == "force")
				forced[c.Owner] = forced[c.Owner] || msg.what == "force"
			}
			if yes {
				c.asked[msg.to] = max(c.asked[msg.to], msg.sent)
			}
			// the client counts the answers that it has: a majority proves its hold from when the
			// earliest of them was sent
			proofs := slices.Sorted(slices.Values(c.asked))
			if since := proofs[n-(n/2+1)]; yes && since > 0 && since+c.ttl > now && !c.ended {
				if !holds(c) {
					seen[0]++
					if c.Join() {
						seen[2]++
						if !slices.ContainsFunc(claims, func(o *claim) bool { return o.ID == c.Owner && holds(o) }) {
							seen[3]++
						}
					}
				}
				c.trusted = max(c.trusted, since+c.ttl)
			}
		}
		// what is broken stands until its time, unless by force: then another may be in at once
		for i, a := range claims {
			for _, b := range claims[:i] {
				if !holds(a) || !holds(b) || a.Owner == b.Owner || forced[a.Owner] || forced[b.Owner] {
					continue
				}
				if a.Mode == driver.Exclusive || b.Mode == driver.Exclusive {
					return fmt.Errorf("%s of %s and %s of %s hold together", a.ID, a.Owner, b.ID, b.Owner)
				}
				seen[1]++
			}
		}
		for i, m := range masters {
			if q := m.queue(); q.Granted() < len(q.Arrivals) {
				return errors.New(fmt.Sprint("master ", i, " has members that exclude each other"))
			}
		}
	}
	return nil
}
