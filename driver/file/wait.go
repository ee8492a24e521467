//go:build linux

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
	// tick is how often a guard asks whether those in the way live: that soon is free what a
	// process held that was killed. Of a grant the bell tells at once.
	tick = 10 * time.Millisecond
	// glance is after how many ticks everybody looks at all words, and who is no guard asks too:
	// for the case that a bell was not rung, or that a guard does not do its work.
	glance = 25
	// abreast is how many clients are asked about in one tick, drawn by lot if there are more.
	abreast = 100
	// patience is for how many ticks in a row a slot may be unreadable before its waiters are told.
	patience = 100
)

// waits are this client's waiters in one slot.
type waits struct {
	slot int

	// Guarded by Backend.mu.
	holds map[driver.ID]*hold
	touch int64 // when the first of them is to be kept alive

	// Of the poller alone.
	state  *state      // the last that was looked at
	faults int         // how often in a row it could not be
	due    int64       // when to look again, whatever happens
	index  int         // in the heap
	guard  bool        // it is this client that asks every tick
	way    []sessionID // the other clients that are in the way
}

// join makes the poller look after a waiting request.
func (b *Backend) join(h *hold) {
	h.mu.Lock()
	armed := h.armed
	h.mu.Unlock()
	b.mu.Lock()
	h.waiting++
	w := b.waits[h.slot]
	if w == nil {
		w = &waits{slot: h.slot, holds: map[driver.ID]*hold{}, touch: math.MaxInt64}
		b.waits[h.slot] = w
	}
	w.holds[h.id] = h
	h.touched = max(h.touched, armed)
	w.touch = min(w.touch, h.touched+int64(h.ttl)/3)
	if !b.polling {
		b.polling = true
		b.calls.Go(newPoller(b).run)
	}
	b.mu.Unlock()
	b.poke(h.slot)
}

// poke makes the poller look at a slot now.
func (b *Backend) poke(slot int) {
	b.mu.Lock()
	first := len(b.news) == 0
	poke := b.polling && !b.closed && b.waits[slot] != nil
	if poke {
		b.news = append(b.news, slot)
	}
	b.mu.Unlock()
	if poke && first {
		b.session.poke()
	}
}

// part undoes a join.
func (b *Backend) part(h *hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.waiting--; h.waiting > 0 {
		return
	}
	if w := b.waits[h.slot]; w != nil {
		delete(w.holds, h.id)
		if len(w.holds) == 0 {
			delete(b.waits, h.slot)
		}
	}
}

// decide makes those who wait for the request look at it: it is granted or gone, or nothing can be
// known (err).
func (b *Backend) decide(id driver.ID, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.mine[id]; h != nil {
		h.decide(err)
	}
}

// decide is guarded by Backend.mu.
func (h *hold) decide(err error) {
	select {
	case <-h.decided:
	default:
		h.fault = err
		close(h.decided)
	}
}

// poller runs while somebody waits: one goroutine and one pipe for all. It looks at a slot when its
// bell is rung, when one of those in the way dies, and when a time is over; so what waits idly
// costs next to nothing.
type poller struct {
	b       *Backend
	slots   map[int]*waits
	due     timetable
	near    watch // clients that are asked about every tick
	far     watch // and those at every glance
	glanced int64
	todo    map[*waits]bool
}

// watch is in which slots the clients are in the way.
type watch map[sessionID]map[*waits]bool

func newPoller(b *Backend) *poller {
	return &poller{b: b, slots: map[int]*waits{}, near: watch{}, far: watch{}, todo: map[*waits]bool{}}
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
			time.Sleep(p.b.tick) // without a bell, then
		}
		if !p.begin(rings[:n]) {
			return
		}
		if now, err = p.b.clock(); err != nil {
			continue
		}
		p.notice(now)
		for w := range p.todo {
			p.look(w, now)
		}
		clear(p.todo)
	}
}

// pause is how long nothing has to be done unless the bell is rung.
func (p *poller) pause(now int64) time.Duration {
	d := glance * p.b.tick
	if len(p.near) > 0 {
		d = p.b.tick
	}
	if len(p.due) > 0 {
		d = min(d, time.Duration(p.due[0].due-now))
	}
	return max(d, 0)
}

// begin takes what the rings and the client itself want looked at. It returns false, and the poller
// ends, if nobody waits any more.
func (p *poller) begin(rings []byte) bool {
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waits) == 0 || b.closed {
		b.polling, b.news = false, nil
		return false
	}
	for ; len(rings) >= 4; rings = rings[4:] {
		b.news = append(b.news, int(binary.NativeEndian.Uint32(rings)))
	}
	for _, slot := range b.news {
		w := b.waits[slot]
		if old := p.slots[slot]; old != nil && old != w {
			p.forget(old)
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
	b.news = b.news[:0]
	return true
}

func (p *poller) forget(w *waits) {
	delete(p.slots, w.slot)
	delete(p.todo, w)
	heap.Remove(&p.due, w.index)
	p.unwatch(w)
}

// notice finds what there is to do without a ring.
func (p *poller) notice(now int64) {
	for len(p.due) > 0 && p.due[0].due <= now {
		w := p.due[0]
		p.todo[w] = true
		p.plan(w, now+int64(p.b.tick)) // until it is looked at
	}
	p.ask(p.near, abreast, now)
	if now-p.glanced < int64(glance*p.b.tick) {
		return
	}
	p.glanced = now
	p.ask(p.far, glance*abreast, now)
	for _, w := range p.slots {
		word, err := load(p.b.table.word(w.slot))
		if err != nil || w.state == nil || word != w.state.word {
			p.todo[w] = true
		}
	}
}

// ask looks for the dead.
func (p *poller) ask(clients watch, most int, now int64) {
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

// look does what there is to do in a slot.
func (p *poller) look(w *waits, now int64) {
	p.b.at("look")
	due, current := p.keepAlive(w, now)
	if !current {
		p.forget(w)
		return
	}
	next, err := p.attend(w, due, now)
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

// keepAlive touches the waiters whose time has come, and those whose time comes soon with them, and
// returns them. It reports whether somebody waits there still.
func (p *poller) keepAlive(w *waits, now int64) (due []*hold, current bool) {
	p.b.mu.Lock()
	current = p.b.waits[w.slot] == w
	if current && now >= w.touch {
		w.touch = math.MaxInt64
		for _, h := range w.holds {
			if now-h.touched >= int64(h.ttl)/4 {
				h.touched = now
				due = append(due, h)
			}
			w.touch = min(w.touch, h.touched+int64(h.ttl)/3)
		}
	}
	p.b.mu.Unlock()
	for _, h := range due {
		h.touch(now)
	}
	return due, current
}

// touch keeps a waiting request alive.
func (h *hold) touch(now int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over && raise(h.word, uint64(now)) == nil {
		h.armed = max(h.armed, now)
	}
}

// attend tells the waiters of a slot that were granted or are gone, and drops those who stand in
// the way and are over. It returns when the next of those will be.
func (p *poller) attend(w *waits, due []*hold, now int64) (next int64, err error) {
	b := p.b
	word, err := load(b.table.word(w.slot))
	if err != nil {
		return 0, err
	}
	if w.state == nil || w.state.word != word {
		if err := p.see(w); err != nil {
			return 0, err
		}
	}
	s := w.state
	there := map[string]map[driver.ID]bool{}
	for _, h := range due { // now and then: who of them does not stand there any more?
		if there[h.name] == nil {
			there[h.name] = s.ids(h.name)
		}
		if !there[h.name][h.id] {
			b.decide(h.id, nil)
		}
	}
	next = math.MaxInt64
	for i := range s.queues {
		over, err := b.over(&s.queues[i], now)
		if err != nil {
			return 0, err
		}
		if over <= now {
			return now + int64(b.tick), b.update(context.Background(), w.slot, nil)
		}
		next = min(next, over)
	}
	if !w.guard && next < math.MaxInt64 {
		next += rand.Int64N(int64(glance * b.tick)) // the guard comes first
	}
	return next, nil
}

// see reads the state of a slot, tells those that it grants, and finds out who is in the way now.
func (p *poller) see(w *waits) error {
	s, err := p.b.read(w.slot)
	if err != nil {
		return err
	}
	p.unwatch(w)
	w.state, w.guard = s, false
	for i := range s.queues {
		q := &s.queues[i]
		g := q.guard()
		w.guard = w.guard || g == p.b.session.id || g == 0 // where there is none everybody is
		granted, first := q.granted()
		for _, e := range granted {
			p.b.decide(e.ID, nil)
		}
		for _, e := range append(granted, first...) {
			if e.session != 0 && e.session != p.b.session.id {
				w.way = append(w.way, e.session)
			}
		}
	}
	clients := p.watch(w)
	for _, s := range w.way {
		if clients[s] == nil {
			clients[s] = map[*waits]bool{}
		}
		clients[s][w] = true
	}
	return nil
}

func (p *poller) watch(w *waits) watch {
	if w.guard {
		return p.near
	}
	return p.far
}

func (p *poller) unwatch(w *waits) {
	clients := p.watch(w)
	for _, s := range w.way {
		delete(clients[s], w)
		if len(clients[s]) == 0 {
			delete(clients, s)
		}
	}
	w.way = w.way[:0]
}

// over returns when an update would let somebody in. Only those who hold and the first who waits
// matter: the others wait for that one whether they live or not.
func (b *Backend) over(q *queue, now int64) (at int64, err error) {
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

// guard returns the client that watches over the queue: that of the first who waits and has not
// been granted something there too, for with that process both would die. 0: there is none near the
// head.
func (q *queue) guard() sessionID {
	granted, _ := q.granted()
	holds := func(s sessionID) bool {
		return slices.ContainsFunc(granted, func(e *entry) bool { return e.session == s })
	}
	for _, e := range q.strangers {
		if e.Token == 0 && !holds(e.session) {
			return e.session
		}
	}
	if len(q.tail) == 0 {
		return 0
	}
	const far = 64
	tail := q.tail
	for range far {
		text, rest := cutLine(tail)
		if s := sessionOf(text); s != 0 && !holds(s) {
			return s
		}
		tail = rest
	}
	return 0
}

// failAll tells the waiters of a slot that nothing can be known.
func (b *Backend) failAll(w *waits, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range w.holds {
		h.decide(err)
	}
}

// plan sets when a slot is looked at whatever happens.
func (p *poller) plan(w *waits, due int64) {
	w.due = due
	heap.Fix(&p.due, w.index)
}

// timetable is a heap of slots by when they are due.
type timetable []*waits

func (t timetable) Len() int           { return len(t) }
func (t timetable) Less(i, j int) bool { return t[i].due < t[j].due }
func (t timetable) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

// Push implements [heap.Interface].
func (t *timetable) Push(x any) {
	w := x.(*waits)
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
