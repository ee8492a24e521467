package watch

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
)

const mostBreaks = 300 // are kept, the last ones

// Breaks ends holds, and records the holds it has ended for a [Watcher]: a holder may release a
// broken hold before a snapshot can show it. The zero value is ready.
type Breaks struct {
	mu    sync.Mutex
	tried []*ending
}

// ending is a break that was tried.
type ending struct {
	name, owner, label string
	at                 time.Time // when it was done; zero: it is under way, or has failed
	recorded           bool      // the hold's end has its event, from this break or another
}

// Break is [dlock.Client.Break]. Its success is an event of the next snapshot, unless the hold was
// broken before, or a snapshot has shown it as broken meanwhile. After an error there is an event
// only if a snapshot shows the hold as broken all the same.
func (b *Breaks) Break(ctx context.Context, c *dlock.Client, name string, t dlock.Token, opts ...dlock.BreakOption) error {
	q, err := c.Inspect(ctx, name) // no snapshot may have the hold yet
	if err != nil {
		return err
	}
	e := &ending{name: name}
	for _, h := range q.Holders {
		if h.Token == t {
			e.owner, e.label, e.recorded = h.Owner, h.Label, h.Broken
			break
		}
	}
	b.mu.Lock()
	for _, o := range b.tried {
		if o.ends(name, e.owner) { // it knows whether the end of the hold has its event
			e.recorded = o.recorded
		}
	}
	b.tried = append(b.tried[max(0, len(b.tried)+1-mostBreaks):], e)
	b.mu.Unlock()
	err = c.Break(ctx, name, t, opts...)
	if err == nil {
		b.mu.Lock()
		e.at = time.Now()
		b.mu.Unlock()
	}
	return err
}

func (e *ending) ends(name, owner string) bool { return e.name == name && e.owner == owner }

// record notes that the end of a hold has its event. The caller holds b.mu.
func (b *Breaks) record(name, owner string) {
	for _, e := range b.tried {
		e.recorded = e.recorded || e.ends(name, owner)
	}
}

// unseen returns the events of successful breaks, of names with the prefix, that are not recorded
// yet. It marks their holds as broken in the queues of the last snapshot and in the given ones:
// these may have been read before the break, and a later snapshot must not record it again. The
// caller holds w.Breaks.mu.
func (w *Watcher) unseen(queues map[string]Queue) (events []Event) {
	for _, e := range w.Breaks.tried {
		if e.recorded || e.at.IsZero() || !strings.HasPrefix(e.name, w.prefix) {
			continue
		}
		w.Breaks.record(e.name, e.owner)
		events = append(events, Event{At: e.at, Name: e.name, Kind: Broken, From: e.label, Count: 1})
		w.total.Breaks++
		if was := w.names[e.name]; was != nil {
			was.Breaks++
			was.Queue = was.broken(e.owner)
		}
		if q, read := queues[e.name]; read {
			queues[e.name] = q.broken(e.owner)
		}
	}
	return events
}
