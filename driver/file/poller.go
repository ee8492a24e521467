//go:build linux || darwin

package file

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	// tick is how often a guard asks whether the clients in the way live. So soon is free what a
	// killed process held. The bell tells of a grant at once.
	tick = 10 * time.Millisecond
	// fallback is after how many ticks every client checks the words of all its slots, and asks as
	// the guard does. It is for the case that a bell was not rung, or that a guard does not work.
	fallback = 25
	// abreast is how many clients are asked about in one tick, a random choice if there are more.
	abreast = 100
	// patience is for how many ticks in a row a slot may be unreadable before its waiters get an
	// error.
	patience = 100
)

// poller runs while a request waits, or holds and is watched: one goroutine and one pipe for all
// requests of the client. It checks a slot when the bell is rung for it, when a client in the way
// dies, and when a time is over. So waiting and holding cost next to nothing while nothing happens.
type poller struct {
	b        *Backend
	slots    map[int]*waitingSlot
	due      timetable
	near     blockers // the clients that are asked about every tick
	far      blockers // the clients that are asked about at every fallback
	fellBack int64
	todo     map[*waitingSlot]bool
	rung     map[int]bool // slots whose holders have to look
	verify   bool         // all of them have to
}

// blockers are the clients that are in the way of waiters, with the slots where they are.
type blockers map[sessionID]map[*waitingSlot]bool

func newPoller(b *Backend) *poller {
	return &poller{b: b, slots: map[int]*waitingSlot{}, near: blockers{}, far: blockers{}, todo: map[*waitingSlot]bool{}, rung: map[int]bool{}}
}

func (p *poller) run() {
	rings := make([]byte, 4096)
	for {
		now, err := p.b.clock()
		if err != nil {
			now = 0
		}
		p.b.session.bell.SetReadDeadline(time.Now().Add(p.pause(now)))
		n, err := p.b.session.bell.Read(rings)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(p.b.tick) // it goes on without a bell
		}
		if !p.collectNotified(rings[:n]) {
			return
		}
		if now, err = p.b.clock(); err != nil {
			continue
		}
		p.collectDue(now)
		p.checkHeld()
		for w := range p.todo {
			p.check(w, now)
		}
		clear(p.todo)
	}
}

// pause returns how long nothing has to be done unless the bell is rung.
func (p *poller) pause(now int64) time.Duration {
	d := fallback * p.b.tick
	if len(p.near) > 0 {
		d = p.b.tick
	}
	if len(p.due) > 0 {
		d = min(d, time.Duration(p.due[0].due-now))
	}
	return max(d, 0)
}

// collectNotified collects the slots that other clients and the client itself want checked. It
// returns false, and the poller ends, if no request waits or holds any more.
func (p *poller) collectNotified(rings []byte) bool {
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 && len(b.held) == 0 || b.closed {
		b.polling, b.notified = false, nil
		return false
	}
	for ; len(rings) >= 4; rings = rings[4:] {
		b.notified = append(b.notified, int(binary.NativeEndian.Uint32(rings)))
	}
	for _, slot := range b.notified {
		w := b.waiting[slot]
		if old := p.slots[slot]; old != nil && old != w {
			p.forget(old)
		}
		if b.held[slot] != nil {
			p.rung[slot] = true
		}
		if w == nil {
			continue
		}
		if p.slots[slot] == nil {
			p.slots[slot] = w
			heap.Push(&p.due, w)
		}
		p.todo[w] = true
	}
	b.notified = b.notified[:0]
	return true
}

func (p *poller) forget(w *waitingSlot) {
	delete(p.slots, w.slot)
	delete(p.todo, w)
	heap.Remove(&p.due, w.index)
	p.removeBlockers(w)
}

// collectDue collects the slots that have to be checked although the bell was not rung.
func (p *poller) collectDue(now int64) {
	for len(p.due) > 0 && p.due[0].due <= now {
		w := p.due[0]
		p.todo[w] = true
		p.plan(w, now+int64(p.b.tick)) // in case that the check fails
	}
	p.ask(p.near, abreast, now)
	if now-p.fellBack < int64(fallback*p.b.tick) {
		return
	}
	p.fellBack, p.verify = now, true
	p.ask(p.far, fallback*abreast, now)
	for _, w := range p.slots {
		word, err := load(p.b.table.word(w.slot))
		if err != nil || w.state == nil || word != w.state.word {
			p.todo[w] = true
		}
	}
}

// checkHeld reports what is lost.
func (p *poller) checkHeld() {
	if p.verify {
		if err := p.b.table.moved(); errors.Is(err, errMoved) {
			p.b.loseAll(err)
		}
	}
	// States are read beside the poller, so that no waiter expires meanwhile, and one after the
	// other: what has come by then is looked at when that ends.
	changed := slices.DeleteFunc(p.b.watched(p.rung, p.verify), p.b.unchanged)
	if len(changed) > 0 {
		p.b.unverified.Store(true)
		if !p.b.verifying.CompareAndSwap(false, true) {
			return
		}
		p.b.unverified.Store(false)
		p.b.calls.Go(func() {
			p.b.verifyHeld(changed)
			p.b.verifying.Store(false)
			if p.b.unverified.Swap(false) {
				p.b.session.ringSelf()
			}
		})
	}
	clear(p.rung)
	p.verify = false
}

// ask asks about clients, and collects the slots where a dead one is in the way.
func (p *poller) ask(clients blockers, most int, now int64) {
	for s, slots := range clients {
		if most--; most < 0 {
			return
		}
		if lives, err := p.b.table.cells.lives(s, now); err == nil && lives {
			continue
		}
		for w := range slots {
			p.todo[w] = true
		}
	}
}

// check does what there is to do in a slot, and plans the next check.
func (p *poller) check(w *waitingSlot, now int64) {
	p.b.at("check")
	due, current := p.keepAlive(w, now)
	if !current {
		p.forget(w)
		return
	}
	next, err := p.checkWaiters(w, due, now)
	if err == nil {
		w.faults = 0
	} else if w.faults++; w.faults >= patience {
		p.b.failAll(w, err)
	}
	if err != nil {
		next = now + int64(p.b.tick)
	}
	p.b.mu.Lock()
	next = min(next, w.touch)
	p.b.mu.Unlock()
	p.plan(w, next)
}

// keepAlive keeps alive the waiters whose time has come, and with them those whose time comes soon.
// It returns them, and whether somebody still waits there.
func (p *poller) keepAlive(w *waitingSlot, now int64) (due []*ownRequest, current bool) {
	p.b.mu.Lock()
	current = p.b.waiting[w.slot] == w
	if current && now >= w.touch {
		w.touch = math.MaxInt64
		for _, own := range w.requests {
			if now-own.touched >= int64(own.ttl)/4 {
				own.touched = now
				due = append(due, own)
			}
			w.touch = min(w.touch, own.touched+int64(own.ttl)/3)
		}
	}
	p.b.mu.Unlock()
	for _, own := range due {
		own.touch(now)
	}
	return due, current
}

// touch keeps a waiting request alive.
func (own *ownRequest) touch(now int64) {
	own.mu.Lock()
	defer own.mu.Unlock()
	if !own.over && raise(own.word, uint64(now)) == nil {
		own.armed = max(own.armed, now)
	}
}

// checkWaiters wakes the waiters of a slot that were granted or are gone, and drops the requests in
// the way that are over. It returns when the next of those will be over.
func (p *poller) checkWaiters(w *waitingSlot, due []*ownRequest, now int64) (next int64, err error) {
	b := p.b
	word, err := load(b.table.word(w.slot))
	if err != nil {
		return 0, err
	}
	if w.state == nil || w.state.word != word {
		if err := p.readState(w); err != nil {
			return 0, err
		}
	}
	s := w.state
	if len(due) > 0 { // seldom enough to see who of them does not stand there any more
		there := map[driver.ID]bool{}
		for i := range s.queues {
			for e := range s.queues[i].all() {
				there[e.ID] = true
			}
		}
		for _, own := range due {
			if !there[own.id] {
				b.decide(own.id, nil)
			}
		}
	}
	next = math.MaxInt64
	for i := range s.queues {
		over, err := b.blockedUntil(&s.queues[i], now)
		if err != nil {
			return 0, err
		}
		if over <= now {
			return now + int64(b.tick), b.update(context.Background(), w.slot, nil)
		}
		next = min(next, over)
	}
	if !w.guard && next < math.MaxInt64 {
		next += rand.Int64N(int64(fallback * b.tick)) // the guard does it first
	}
	return next, nil
}

// readState reads the state of a slot, wakes those who were granted, and finds out which clients
// are in the way now.
func (p *poller) readState(w *waitingSlot) error {
	s, err := p.b.read(w.slot)
	if err != nil {
		return err
	}
	p.removeBlockers(w)
	w.state, w.guard = s, false
	for i := range s.queues {
		q := &s.queues[i]
		g := q.guard()
		w.guard = w.guard || g == p.b.session.id || g == 0 // without a guard everybody is one
		granted, first := q.granted()
		for _, e := range granted {
			p.b.decide(e.ID, nil)
		}
		for _, e := range append(granted, first...) {
			if e.session != 0 && e.session != p.b.session.id {
				w.blocking = append(w.blocking, e.session)
			}
		}
	}
	clients := p.blockers(w)
	for _, s := range w.blocking {
		if clients[s] == nil {
			clients[s] = map[*waitingSlot]bool{}
		}
		clients[s][w] = true
	}
	return nil
}

func (p *poller) blockers(w *waitingSlot) blockers {
	if w.guard {
		return p.near
	}
	return p.far
}

func (p *poller) removeBlockers(w *waitingSlot) {
	clients := p.blockers(w)
	for _, s := range w.blocking {
		delete(clients[s], w)
		if len(clients[s]) == 0 {
			delete(clients, s)
		}
	}
	w.blocking = w.blocking[:0]
}

// blockedUntil returns when an update would grant a request. Only the holders and the first waiter
// matter: all other waiters wait for that one, whether they live or not.
func (b *Backend) blockedUntil(q *queue, now int64) (at int64, err error) {
	granted, first := q.granted()
	if len(granted) == 0 {
		return now, nil
	}
	at = math.MaxInt64
	for _, e := range append(granted, first...) {
		cell, dead, err := b.life(e, now)
		if err != nil {
			return 0, err
		}
		if dead || e.Broken && e.until == 0 {
			return now, nil
		}
		at = min(at, e.expires(cell))
	}
	return at, nil
}

// guard returns the client that has to ask whether the clients in the way live. It is the client of
// the first who waits, unless that client holds there too: both would end with the same process. 0:
// there is none near the head.
func (q *queue) guard() sessionID {
	granted, _ := q.granted()
	holds := func(s sessionID) bool {
		return slices.ContainsFunc(granted, func(e *entry) bool { return e.session == s })
	}
	const near = 64
	first := q.waiting()
	for _, e := range q.arrivals[first:min(first+near, len(q.arrivals))] {
		if !holds(e.session) {
			return e.session
		}
	}
	return 0
}

// plan sets when a slot is checked whatever happens.
func (p *poller) plan(w *waitingSlot, due int64) {
	w.due = due
	heap.Fix(&p.due, w.index)
}

// timetable is a heap of slots, ordered by when they are due.
type timetable []*waitingSlot

func (t timetable) Len() int           { return len(t) }
func (t timetable) Less(i, j int) bool { return t[i].due < t[j].due }
func (t timetable) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

// Push implements [heap.Interface].
func (t *timetable) Push(x any) {
	w := x.(*waitingSlot)
	w.index = len(*t)
	*t = append(*t, w)
}

// Pop implements [heap.Interface].
func (t *timetable) Pop() any {
	n := len(*t) - 1
	w := (*t)[n]
	*t = (*t)[:n]
	return w
}
