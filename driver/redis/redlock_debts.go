package redis

import (
	"context"
	_ "embed"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var (
	//go:embed lua/redlock_release.lua
	redlockReleaseLua string

	redlockRelease = newScript(whenFull + redlockLua + redlockReleaseLua)
)

// debt is a release that a master has to be told. All releases of Redlock go this way: each master
// has one goroutine that sends them, alive only while there are any, until the master answers or
// what is owed must have expired. So a master that was down or hung when a request was given up
// hears of it when it is back.
type debt struct {
	m         *ballot
	tombstone bool      // a copy of the acquire may be under way
	copies    int       // how often it was sent
	until     time.Time // whatever stands there has expired by then
	tell      []chan<- returned
}

// returned is what a master said to a release.
type returned struct {
	node    int
	removed bool // by this copy or an earlier one
	err     error
}

const (
	debtsMax = 256 // releases in one pipeline
	payMin   = 20 * time.Millisecond
	payMax   = 2 * time.Second
)

// owe has the request released on the master. What the next attempt comes to is sent to tell, which
// has room for it. mu is held.
func (b *Redlock) owe(i int, m *ballot, tombstone bool, tell chan<- returned) {
	n := b.nodes[i]
	d := n.debts[m.r.ID]
	if d == nil {
		d = &debt{m: m, until: time.Now().Add(2*m.r.TTL + 10*time.Second)}
		n.debts[m.r.ID] = d
	}
	d.tombstone = d.tombstone || tombstone
	if tell != nil {
		d.tell = append(d.tell, tell)
	}
	switch {
	case b.closed: // Close pays
	case !n.paying:
		n.paying = true
		b.tasks.Go(func() { b.pay(i) })
	default:
		select {
		case n.kick <- struct{}{}:
		default:
		}
	}
}

// pay sends what is owed to the master until nothing is.
func (b *Redlock) pay(i int) {
	n, wait := b.nodes[i], payMin
	for {
		b.mu.Lock()
		if len(n.debts) == 0 || b.closed {
			n.paying = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		if b.payOnce(i, b.o.NodeTimeout) {
			wait = payMin
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-n.kick: // what was sent just now may be answered
		case <-b.stop:
		}
		t.Stop()
		wait = min(2*wait, payMax)
	}
}

// payOnce sends one pipeline, and reports whether all of it was answered.
func (b *Redlock) payOnce(i int, timeout time.Duration) bool {
	type bill struct {
		*debt
		*call
		id        driver.ID
		tombstone bool
		tell      []chan<- returned
	}
	n := b.nodes[i]
	var bills []bill
	var calls []*call
	b.mu.Lock()
	now := time.Now()
	for id, d := range n.debts {
		if now.After(d.until) {
			delete(n.debts, id)
			continue
		}
		if len(bills) == debtsMax {
			break
		}
		ttl := int64(0)
		if d.tombstone {
			ttl = millis(d.m.r.TTL)
		}
		d.copies++
		c := b.call(redlockRelease, d.m.r.Name, id.String(), ttl)
		bills, calls = append(bills, bill{d, c, id, d.tombstone, d.tell}), append(calls, c)
		d.tell = nil
	}
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	exec(ctx, n.rdb, calls)
	b.mu.Lock()
	defer b.mu.Unlock()
	all := true
	for _, p := range bills {
		r := returned{node: i, err: p.err}
		switch found, _ := p.reply.(int64); {
		case p.err != nil:
			all = false
			if refused(p.err) || unsent(p.err) {
				p.debt.copies--
			}
		default:
			m := p.m
			// If an earlier copy got through, nothing else can have removed it before its time.
			r.removed = found == 1 || m.votes[i] == left || p.debt.copies > 1 && m.votes[i] == yes && time.Now().Before(m.until)
			if r.removed {
				m.votes[i] = left
			} else {
				m.votes[i] = none
			}
			if p.tombstone == p.debt.tombstone && n.debts[p.id] == p.debt && len(p.debt.tell) == 0 {
				delete(n.debts, p.id)
			}
		}
		for _, t := range p.tell {
			t <- r
		}
	}
	return all
}

// payAll is the last attempt: all that is owed, and all that still stands, to all masters at once.
// The client is closed.
func (b *Redlock) payAll() {
	b.mu.Lock()
	for id, m := range b.ballots {
		granted := m.r.Fixed && !m.until.IsZero() && !m.over
		for i, v := range m.votes {
			if granted && v == yes {
				continue // it stands until its time
			}
			if v == yes || v == maybe || v == sent {
				b.owe(i, m, v != yes, nil)
			}
		}
		delete(b.ballots, id)
	}
	b.mu.Unlock()
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for i, n := range b.nodes {
		wg.Go(func() {
			for owing := true; owing && time.Now().Before(end); {
				if !b.payOnce(i, time.Second) {
					return
				}
				b.mu.Lock()
				owing = len(n.debts) > 0
				b.mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(time.Until(end) + time.Second):
	}
}
