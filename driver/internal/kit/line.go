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
// A call that finds fewer than Few under way goes at once, alone, on the goroutine of its caller.
// Any other is queued, and goes together with what else is queued: when a call or a batch is over,
// or after Slow while fewer than Most are under way. What has waited for Slow while Most were goes
// when the next is over. An urgent call goes at once while fewer than Most are under way, and is
// ahead of the others in the queue. Of the calls with one key a batch has one at most, in the order
// in which they came.
//
// A call whose caller leaves before it is sent is never sent. There is no goroutine while nothing
// is under way. The exported fields are set before the first Do and not changed. A Line is safe for
// concurrent use.
type Line[C any] struct {
	// Alone sends a call on the goroutine of its caller, and returns when it is over. If it returns
	// false the call still has to be sent: by Together, unless ctx has ended. What Alone may have
	// sent in vain is for the call to record. Nil: Together sends every call.
	Alone func(ctx context.Context, c C) bool
	// Together sends the calls of a batch, and returns when all are over.
	Together func(batch []C)
	// Late is called for a call that Together has sent and whose caller left meanwhile, when it is
	// over. Nil: nothing is done.
	Late func(c C)
	// Key is what calls have in common that must not travel in one batch. Nil: nothing.
	Key func(c C) string
	// Fits reports whether a batch, which is not empty, has room for one more call. The Line is
	// locked meanwhile. Nil: it always has.
	Fits func(batch []C, next C) bool

	Few, Most int
	Slow      time.Duration // 0: only urgent calls exceed Few
	// Patience is how long a call that is queued may take before its caller looks at ctx and closed
	// again, at most. While many wait for the channels that all of them share, each answer costs
	// more than what is between it and the service.
	Patience time.Duration

	mu       sync.Mutex
	underWay int // calls and batches; nothing is queued while those are fewer than Few
	turns    []*turn[C]
	ahead    int // of turns, at the front: whose first place is urgent
	keys     map[string]*turn[C]
	queued   int
	more     bool        // the last batch had no room for one that was queued
	overdue  bool        // what is queued has waited for Slow, while Most were under way
	timer    *time.Timer // begins another batch; nil: nothing is queued, or Most are under way
	patient  []*place[C] // have callers that only wait for the end, and may be over
}

// turn is what is queued under one key, or a single call that has none.
type turn[C any] struct {
	key    string
	places []*place[C]  // never empty; the urgent ones first
	one    [1]*place[C] // where the first of them stands
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
	// is given true when the call is over; before that, at most once, false: ctx and closed count
	done chan bool

	// the Line's mu guards what follows
	sent, over, left bool
}

// Fate is what became of a call.
type Fate int

const (
	Over   Fate = iota // Alone or Together has returned
	Left               // it is under way, and its caller does not wait for it
	Unsent             // it was not sent and never will be
)

// String returns the fate in words.
func (f Fate) String() string { return [...]string{"over", "left", "unsent"}[f] }

// Do sends a call and waits until it is over, ctx ends or closed is closed.
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

// wait returns when a call that was queued is over, or its caller leaves.
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

// enqueue gives a call its place in the queue. mu is held, as in what follows unless it says
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

// impatient has callers look at more than the end of their calls. mu is not held.
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

// toFront puts a turn behind those that are urgent too.
func (l *Line[C]) toFront(t *turn[C]) {
	l.turns = slices.Insert(l.turns, l.ahead, t)
	l.ahead++
}

// goOn begins a batch if it is time for one, and has the rest sent in time.
func (l *Line[C]) goOn(over bool) {
	if l.isTime(over) {
		l.underWay++
		go l.run(batch[C]{})
	}
	if l.Slow > 0 && l.timer == nil && len(l.turns) > 0 && l.underWay < l.Most {
		l.timer = time.AfterFunc(l.Slow, l.another)
	}
}

// isTime reports whether what is queued is sent now. When a call is over and slow ones have made
// those under way many, only what cannot travel with others takes its place: the rest waits for
// more.
func (l *Line[C]) isTime(over bool) bool {
	return len(l.turns) > 0 && (l.underWay < l.Few || over && l.underWay < l.Most && l.crowded())
}

// crowded reports whether more is queued than can travel together, or has waited for long enough:
// urgent calls, which come at any time, would take each place that gets free.
func (l *Line[C]) crowded() bool { return l.more || l.overdue || l.queued > len(l.turns) }

// another sends what has been queued for Slow.
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
	var later []*turn[C] // have had their place in this batch
	for len(l.turns) > 0 {
		t := l.turns[0]
		for len(t.places) > 0 && t.places[0].left {
			t.places = t.places[1:]
			l.queued--
		}
		if l.ahead > 0 && len(t.places) > 0 && !t.places[0].urgent { // its urgent ones were left
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
		l.turns[0] = nil // else it is kept as long as the others
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

// run sends a batch, or what is queued if that is empty, and goes on while it is time. It is
// counted as under way. mu is not held.
func (l *Line[C]) run(b batch[C]) {
	if len(b.calls) == 0 {
		runtime.Gosched() // other callers, who now run, may have something to send too
		l.mu.Lock()
		b = l.take()
		l.mu.Unlock()
	}
	for {
		l.send(b)
		l.mu.Lock()
		if len(b.calls) > 1 && !l.more {
			l.mu.Unlock()
			runtime.Gosched() // so may those whose calls are over
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

// send sends a batch, and ends the waiting of its callers. mu is not held.
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
