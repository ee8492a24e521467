package kit

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Line sends calls to a service, and bounds how many of them are under way.
//
// A call is sent at once, alone, on the goroutine of its caller, if fewer than Few are under way.
// Any other call is queued, and sent together with the others in the queue: when a call or a batch
// ends, or after Slow while fewer than Most are under way. Calls that have waited for Slow while
// Most were under way are sent when the next call or batch ends. An urgent call is sent at once
// while fewer than Most are under way, and is ahead of the others in the queue. A batch has at most
// one call with the same key; calls with one key are sent in order of arrival.
//
// A call whose caller leaves before it is sent is never sent. There is no goroutine while nothing
// is under way. The exported fields are set before the first Do and not changed. A Line is safe for
// concurrent use.
type Line[C any] struct {
	// Alone sends a call on the goroutine of its caller, and returns when it has ended. If it
	// returns false the call still has to be sent: by Together, unless ctx has ended. An attempt of
	// Alone that may have been sent has to be recorded in the call. Nil: Together sends every call.
	Alone func(ctx context.Context, c C) bool
	// Together sends the calls of a batch, and returns when all have ended.
	Together func(batch []C)
	// Late is called when a call ends that Together has sent and whose caller left meanwhile. Nil:
	// nothing is done.
	Late func(c C)
	// Key returns the same key for calls that must not be in one batch. Nil: there are no keys.
	Key func(c C) string
	// Fits reports whether a batch, which is not empty, has room for one more call. The Line is
	// locked meanwhile. Nil: it always has.
	Fits func(batch []C, next C) bool

	Few, Most int
	Slow      time.Duration // 0: only urgent calls exceed Few
	// Patience is how long the caller of a queued call may ignore ctx and closed, at most. If many
	// callers wait for these channels, which they share, each answer costs more than its way to the
	// service.
	Patience time.Duration

	mu       sync.Mutex
	underWay int // calls and batches; nothing is queued while those are fewer than Few
	turns    []*turn[C]
	ahead    int // how many turns, at the front, have an urgent first place
	keys     map[string]*turn[C]
	queued   int
	more     bool        // the last batch had no room for one that was queued
	overdue  bool        // the queued calls have waited for Slow, while Most were under way
	timer    *time.Timer // begins another batch; nil: nothing is queued, or Most are under way
	patient  []*place[C] // their callers wait only for the end, which may have come
}

// turn is the calls that are queued under one key, or a single call without a key.
type turn[C any] struct {
	key    string
	places []*place[C]  // never empty; the urgent ones first
	one    [1]*place[C] // memory for the first of them
}

func newTurn[C any](key string) *turn[C] {
	t := &turn[C]{key: key}
	t.places = t.one[:0]
	return t
}

// batch is calls that are sent together.
type batch[C any] struct {
	places []*place[C]
	calls  []C
}

// place is a call that is queued or was sent by Together.
type place[C any] struct {
	call   C
	urgent bool
	// receives true when the call has ended; before that, at most once, false: watch ctx and closed
	done chan bool

	// guarded by the Line's mu
	sent, over, left bool
}

// Fate is what became of a call.
type Fate int

const (
	Over   Fate = iota // Alone or Together has returned
	Left               // it is under way, and its caller has left
	Unsent             // it was not sent and never will be
)

// String returns the fate in words.
func (f Fate) String() string { return [...]string{"over", "left", "unsent"}[f] }

// Do sends a call and waits until the call has ended, ctx ends or closed is closed.
func (l *Line[C]) Do(ctx context.Context, closed <-chan struct{}, urgent bool, c C) Fate {
	select {
	case <-closed:
		return Unsent
	default:
	}
	if ctx.Err() != nil {
		return Unsent
	}
	l.mu.Lock()
	if l.Alone != nil && (l.underWay < l.Few || urgent && l.underWay < l.Most) {
		l.underWay++
		l.mu.Unlock()
		over := l.Alone(ctx, c)
		l.mu.Lock()
		l.underWay--
		if over || ctx.Err() != nil {
			l.goOn(true)
			l.mu.Unlock()
			if !over {
				return Unsent
			}
			return Over
		}
	}
	p := l.enqueue(c, urgent)
	l.goOn(false)
	l.mu.Unlock()
	return l.wait(ctx, closed, p)
}

// wait returns when a queued call has ended, or its caller leaves.
func (l *Line[C]) wait(ctx context.Context, closed <-chan struct{}, p *place[C]) Fate {
	over := l.Patience > 0 && <-p.done
	for end := false; !over && !end; {
		select {
		case over = <-p.done:
		case <-ctx.Done():
			end = true
		case <-closed:
			end = true
		}
	}
	if over {
		return Over
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.over {
		return Over
	}
	p.left = true
	if p.sent {
		return Left
	}
	return Unsent
}

// enqueue adds a call to the queue. mu is held, as in the functions below unless they say
// otherwise.
func (l *Line[C]) enqueue(c C, urgent bool) *place[C] {
	p := &place[C]{call: c, urgent: urgent, done: make(chan bool, 2)}
	l.queued++
	if l.Patience > 0 {
		if l.patient = append(l.patient, p); len(l.patient) == 1 {
			time.AfterFunc(l.Patience, l.impatient)
		}
	}
	var t *turn[C]
	if l.Key != nil {
		if l.keys == nil {
			l.keys = map[string]*turn[C]{}
		}
		key := l.Key(c)
		if t = l.keys[key]; t == nil {
			t = newTurn[C](key)
			l.keys[key] = t
		}
	} else {
		t = newTurn[C]("")
	}
	isNew := len(t.places) == 0
	ahead := urgent && (isNew || !t.places[0].urgent)
	if urgent {
		t.places = slices.Insert(t.places, urgentAmong(t.places), p)
	} else {
		t.places = append(t.places, p)
	}
	switch {
	case ahead && isNew:
		l.toFront(t)
	case ahead:
		at := slices.Index(l.turns, t)
		l.turns = slices.Delete(l.turns, at, at+1)
		l.toFront(t)
	case isNew:
		l.turns = append(l.turns, t)
	}
	return p
}

// impatient makes callers watch ctx and closed too. mu is not held.
func (l *Line[C]) impatient() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.patient {
		if !p.over {
			p.done <- false
		}
	}
	l.patient = nil
}

func urgentAmong[C any](ps []*place[C]) (n int) {
	for n < len(ps) && ps[n].urgent {
		n++
	}
	return n
}

// toFront puts an urgent turn behind the other urgent ones.
func (l *Line[C]) toFront(t *turn[C]) {
	l.turns = slices.Insert(l.turns, l.ahead, t)
	l.ahead++
}

// goOn begins a batch if it is time for one, and sets the timer for the rest.
func (l *Line[C]) goOn(over bool) {
	if l.isTime(over) {
		l.underWay++
		go l.run(batch[C]{})
	}
	if l.Slow > 0 && l.timer == nil && len(l.turns) > 0 && l.underWay < l.Most {
		l.timer = time.AfterFunc(l.Slow, l.another)
	}
}

// isTime reports whether the queued calls are sent now. over: a call or batch has just ended. If
// slow calls have raised the number under way, it is only replaced if the queue is crowded:
// otherwise the queue waits for more calls.
func (l *Line[C]) isTime(over bool) bool {
	return len(l.turns) > 0 && (l.underWay < l.Few || over && l.underWay < l.Most && l.crowded())
}

// crowded reports whether more is queued than fits into one batch, or has waited for long enough:
// otherwise urgent calls, which come at any time, could take every place that becomes free.
func (l *Line[C]) crowded() bool { return l.more || l.overdue || l.queued > len(l.turns) }

// another sends the calls that have been queued for Slow.
func (l *Line[C]) another() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	l.overdue = l.underWay >= l.Most
	for more := true; more && l.underWay < l.Most; more = l.more {
		if b := l.take(); len(b.calls) > 0 {
			l.underWay++
			go l.run(b)
		}
	}
	l.goOn(false)
}

// take takes a batch out of the queue.
func (l *Line[C]) take() (b batch[C]) {
	l.more, l.overdue = false, false
	n := min(len(l.turns), 64) // likely
	b.places, b.calls = make([]*place[C], 0, n), make([]C, 0, n)
	var later []*turn[C] // already have a call in this batch
	for len(l.turns) > 0 {
		t := l.turns[0]
		for len(t.places) > 0 && t.places[0].left {
			t.places = t.places[1:]
			l.queued--
		}
		if l.ahead > 0 && len(t.places) > 0 && !t.places[0].urgent { // no urgent one remains
			l.ahead--
			l.turns = slices.Insert(l.turns[1:], l.ahead, t)
			continue
		}
		if len(t.places) > 0 {
			p := t.places[0]
			if len(b.calls) > 0 && l.Fits != nil && !l.Fits(b.calls, p.call) {
				l.more = true
				break
			}
			p.sent = true
			b.places, b.calls = append(b.places, p), append(b.calls, p.call)
			t.places = t.places[1:]
			l.queued--
		}
		l.turns[0] = nil // otherwise its memory is kept as long as that of the others
		l.turns = l.turns[1:]
		l.ahead = max(0, l.ahead-1)
		switch {
		case len(t.places) > 0:
			later = append(later, t)
		case l.Key != nil:
			delete(l.keys, t.key)
		}
	}
	for _, t := range later {
		if t.places[0].urgent {
			l.toFront(t)
		} else {
			l.turns = append(l.turns, t)
		}
	}
	return b
}

// run sends a batch, or the queued calls if the batch is empty, and continues while it is time. It
// counts as under way. mu is not held.
func (l *Line[C]) run(b batch[C]) {
	if len(b.calls) == 0 {
		runtime.Gosched() // lets other callers run, which may have calls to send too
		l.mu.Lock()
		b = l.take()
		l.mu.Unlock()
	}
	for {
		l.send(b)
		l.mu.Lock()
		if len(b.calls) > 1 && !l.more {
			l.mu.Unlock()
			runtime.Gosched() // so may callers whose calls have ended
			l.mu.Lock()
		}
		l.underWay--
		if !l.isTime(true) {
			l.goOn(false)
			l.mu.Unlock()
			return
		}
		l.underWay++
		b = l.take()
		l.mu.Unlock()
	}
}

// send sends a batch, and wakes its callers. mu is not held.
func (l *Line[C]) send(b batch[C]) {
	if len(b.calls) == 0 {
		return
	}
	l.Together(b.calls)
	var left []C
	l.mu.Lock()
	for _, p := range b.places {
		p.over = true
		if p.left {
			left = append(left, p.call)
		}
	}
	l.mu.Unlock()
	for _, p := range b.places {
		p.done <- true
	}
	if l.Late != nil {
		for _, c := range left {
			l.Late(c)
		}
	}
}
