package kit

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Waiters are the calls of Acquire of one client that wait, by name. R is the driver's type of a
// request, S its record of a queue while a request waits there. The lock of the backend guards
// them.
type Waiters[R Record, S any] struct {
	mu     sync.Locker
	every  time.Duration
	groups map[string]*Group[R, S]
}

// Group is the waiters for one name, in the order in which they began to wait.
type Group[R Record, S any] struct {
	State   S // the driver's
	all     *Waiters[R, S]
	name    string
	waiters []*Waiter[R]
	timer   *time.Timer // wakes the first; nil: it was never set
}

// Waiter is a call of Acquire that waits.
type Waiter[R Record] struct {
	Request R
	wake    Signal
}

// wakesMax is how many first waiters are woken a second, however many names there are.
const wakesMax = 1000

// NewWaiters returns an empty set of waiters that the given lock guards. If every is not 0, the
// first waiter of each name is woken that often, in case news was lost. For more than wakesMax
// names that is less often, in proportion: the service has other things to do.
func NewWaiters[R Record, S any](mu sync.Locker, every time.Duration) Waiters[R, S] {
	return Waiters[R, S]{mu, every, map[string]*Group[R, S]{}}
}

// Add adds a call of Acquire. It is woken at once if there was news of its request since the
// service was last queried. first reports whether it is the first for its name: then its group is
// new.
func (ws *Waiters[R, S]) Add(m R) (w *Waiter[R], g *Group[R, S], first bool) {
	r := m.record()
	if g = ws.groups[r.Name]; g == nil {
		g, first = &Group[R, S]{all: ws, name: r.Name}, true
		ws.groups[r.Name] = g
		if ws.every > 0 {
			g.WakeAfter(ws.pause())
		}
	}
	w = &Waiter[R]{m, NewSignal()}
	g.waiters = append(g.waiters, w)
	if r.Notified {
		w.Wake()
	}
	return w, g, first
}

// pause is the time until the first waiter of a name is woken again, if every is not 0.
func (ws *Waiters[R, S]) pause() time.Duration {
	every := max(ws.every, time.Duration(len(ws.groups))*time.Second/wakesMax)
	return Jitter(every, every/5)
}

// Remove removes a call of Acquire that no longer waits.
func (ws *Waiters[R, S]) Remove(w *Waiter[R]) {
	name := w.Request.record().Name
	g := ws.groups[name]
	g.waiters = slices.DeleteFunc(g.waiters, func(x *Waiter[R]) bool { return x == w })
	if len(g.waiters) > 0 {
		return
	}
	if g.timer != nil {
		g.timer.Stop()
	}
	delete(ws.groups, name)
}

// Group returns the waiters for a name; nil if there are none.
func (ws *Waiters[R, S]) Group(name string) *Group[R, S] { return ws.groups[name] }

// Groups returns the groups of all names, in no order.
func (ws *Waiters[R, S]) Groups() iter.Seq2[string, *Group[R, S]] { return maps.All(ws.groups) }

// Len returns the number of names with waiters.
func (ws *Waiters[R, S]) Len() int { return len(ws.groups) }

// Notify records that there is news of a request, and wakes the calls that wait for it.
func (ws *Waiters[R, S]) Notify(m R) {
	r := m.record()
	r.Notified = true
	if g := ws.groups[r.Name]; g != nil {
		for _, w := range g.waiters {
			if w.Request.record() == r {
				w.Wake()
			}
		}
	}
}

// WakeName wakes all waiters for a name.
func (ws *Waiters[R, S]) WakeName(name string) {
	if g := ws.groups[name]; g != nil {
		g.WakeAll()
	}
}

// WakeFirst wakes the first waiter of each name.
func (ws *Waiters[R, S]) WakeFirst() {
	for _, g := range ws.groups {
		g.First().Wake()
	}
}

// WakeAll wakes all waiters.
func (ws *Waiters[R, S]) WakeAll() {
	for _, g := range ws.groups {
		g.WakeAll()
	}
}

// First returns the first waiter.
func (g *Group[R, S]) First() *Waiter[R] { return g.waiters[0] }

// All returns all waiters, in order. The caller must not change the slice.
func (g *Group[R, S]) All() []*Waiter[R] { return g.waiters }

// WakeAll wakes all waiters of the group.
func (g *Group[R, S]) WakeAll() {
	for _, w := range g.waiters {
		w.Wake()
	}
}

// WakeAfter wakes the first waiter of the group after d. It replaces an earlier WakeAfter.
func (g *Group[R, S]) WakeAfter(d time.Duration) {
	if g.timer == nil {
		g.timer = time.AfterFunc(d, g.expire)
	} else {
		g.timer.Reset(d)
	}
}

// WakeWithin is WakeAfter, but sooner if d is longer than the interval at which the first waiter of
// each name is woken.
func (g *Group[R, S]) WakeWithin(d time.Duration) {
	if g.all.every > 0 {
		d = min(d, g.all.pause())
	}
	g.WakeAfter(d)
}

// expire is called by the timer.
func (g *Group[R, S]) expire() {
	ws := g.all
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.groups[g.name] != g {
		return
	}
	g.First().Wake()
	if ws.every > 0 {
		g.timer.Reset(ws.pause())
	}
}

// Wake makes the call query the service.
func (w *Waiter[R]) Wake() { w.wake.Set() }

// Sleep returns nil when the call is woken, or after most if that is not 0. It returns the error of
// ctx when ctx ends, and [driver.ErrClosed] when closed is closed.
func (w *Waiter[R]) Sleep(ctx context.Context, closed <-chan struct{}, most time.Duration) error {
	var over <-chan time.Time
	if most > 0 {
		t := time.NewTimer(most)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-w.wake:
	case <-over:
	case <-ctx.Done():
		return ctx.Err()
	case <-closed:
		return driver.ErrClosed
	}
	return nil
}
