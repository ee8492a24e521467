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
	// tick is how often a guard tests whether the clients in the way are alive. It bounds how long
	// the locks of a killed process stay held. A grant wakes its waiter at once, by the pipe.
	tick = 10 * time.Millisecond
	// fallback is the number of ticks after which every client checks the words of all its slots,
	// and tests as the guard does, in case a wake-up was lost or a guard does not work.
	fallback = 25
	// abreast is how many clients are tested in one tick, a random choice if there are more.
	abreast = 100
	// patience is for how many ticks in a row a slot may be unreadable before its waiters get an
	// error.
	patience = 100
)

// poller runs while a request waits, or holds and is watched: one goroutine and one pipe for all
// requests of the client. It checks a slot when the slot's number arrives in the pipe, when a
// client in the way dies, and when a time has come. So waiting and holding cost next to nothing
// while nothing happens.
type poller struct {
	b        *Backend
	slots    map[int]*waitingSlot
	due      timetable
	near     blockers // the clients that are tested every tick
	far      blockers // the clients that are tested at every fallback
	fellBack int64
	todo     map[*waitingSlot]bool
	toVerify map[int]bool // slots whose holds have to be verified
	verify   bool         // the holds of all slots have to be
}

// blockers are the clients that are in the way of waiters, with the slots where they are.
type blockers map[sessionID]map[*waitingSlot]bool

func newPoller(b *Backend) *poller {
	return &poller{b: b, slots: map[int]*waitingSlot{}, near: blockers{}, far: blockers{}, todo: map[*waitingSlot]bool{}, toVerify: map[int]bool{}}
}

func (p *poller) run() {
	messages := make([]byte, 4096)
	for {
		now, err := p.b.clock()
		if err != nil {
			now = 0
		}
		p.b.session.pipe.SetReadDeadline(time.Now().Add(p.pause(now)))
		n, err := p.b.session.pipe.Read(messages)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(p.b.tick) // it continues without the pipe
		}
		if !p.collectNotified(messages[:n]) {
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

// pause returns how long nothing has to be done unless a message arrives.
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

// collectNotified collects the slots that other clients and this client have asked it to check. It
// returns false, and the poller ends, if no request waits or holds any more.
func (p *poller) collectNotified(messages []byte) bool {
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 && len(b.held) == 0 || b.closed {
		b.polling, b.notified = false, nil
		return false
	}
	for ; len(messages) >= 4; messages = messages[4:] {
		b.notified = append(b.notified, int(binary.NativeEndian.Uint32(messages)))
	}
	for _, slot := range b.notified {
		w := b.waiting[slot]
		if old := p.slots[slot]; old != nil && old != w {
			p.forget(old)
		}
		if b.held[slot] != nil {
			p.toVerify[slot] = true
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

// collectDue collects the slots that have to be checked without a message.
func (p *poller) collectDue(now int64) {
	for len(p.due) > 0 && p.due[0].due <= now {
		w := p.due[0]
		p.todo[w] = true
		p.plan(w, now+int64(p.b.tick)) // in case the check fails
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

// checkHeld reports holds that are lost.
func (p *poller) checkHeld() {
	if p.verify {
		if err := p.b.table.moved(); errors.Is(err, errMoved) {
			p.b.loseAll(err)
		}
	}
	// States are read outside the poller, so that no waiter expires meanwhile, and in one
	// goroutine: slots that are added meanwhile are verified when it ends.
	changed := slices.DeleteFunc(p.b.watched(p.toVerify, p.verify), p.b.unchanged)
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
				p.b.session.wakeSelf()
			}
		})
	}
	clear(p.toVerify)
	p.verify = false
}

// ask tests whether clients are alive, and collects the slots where a dead one is in the way.
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
// It returns them, and whether any request still waits there.
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

// checkWaiters wakes the waiters of a slot that were granted or are gone, and drops dead or expired
// requests in the way. It returns when the next of those expires.
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
	if len(due) > 0 { // rare enough to find those that are not in the queue any more
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

// readState reads the state of a slot, wakes the granted waiters, and finds the clients that are in
// the way now.
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
		w.guard = w.guard || g == p.b.session.id || g == 0 // without a guard every client is one
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
// matter: all other waiters wait for that one, whether they are alive or not.
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

// guard returns the client that has to test whether the clients in the way are alive. It is the
// client of the first waiter, unless that client holds there too: both would end with the same
// process. 0: there is none near the head.
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

// plan sets the time at which a slot is checked at the latest.
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
