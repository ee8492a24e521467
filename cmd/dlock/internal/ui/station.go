package ui

import (
	"context"
	"sync"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

const (
	linger = 10 * time.Second // how long a station goes on watching after the last viewer has left
	again  = 2 * time.Second  // wait after a failure to open the backend
)

// station watches one backend for all of its viewers, and keeps the history.
type station struct {
	Backend
	index    int
	prefix   string
	interval time.Duration
	most     int
	breaks   watch.Breaks

	opening chan struct{} // of capacity 1: one call opens at a time
	opened  *dlock.Client // guarded by opening

	mu      sync.Mutex
	viewers int
	leaving *time.Timer        // ends the watching; nil: there are viewers, or it is not watched
	stop    context.CancelFunc // nil: it is not watched
	done    chan struct{}      // closed when the watching has ended
	now     *state             // nil: nothing since the watching began
	changed chan struct{}      // closed when now is replaced
	numbers int64              // of events
	history []event            // the last ones; slices that were passed on are not changed
	closed  bool
}

func newStation(index int, b Backend, o Options) *station {
	return &station{
		Backend: b, index: index, prefix: o.Prefix, interval: o.Interval, most: o.Most,
		opening: make(chan struct{}, 1), changed: make(chan struct{}),
	}
}

// client returns the client of the backend, and opens it if it is not open.
func (st *station) client(ctx context.Context) (*dlock.Client, error) {
	select {
	case st.opening <- struct{}{}:
		defer func() { <-st.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	st.mu.Lock()
	closed := st.closed
	st.mu.Unlock()
	if closed {
		return nil, dlock.ErrClosed
	}
	if st.opened != nil {
		return st.opened, nil
	}
	c, err := st.Open(ctx)
	if err == nil {
		st.opened = c
	}
	return c, err
}

// close ends the watching, and closes the client.
func (st *station) close() error {
	st.mu.Lock()
	st.closed = true
	done := st.done
	if st.stop != nil {
		st.stop()
	}
	st.mu.Unlock()
	if done != nil {
		<-done
	}
	st.opening <- struct{}{}
	defer func() { <-st.opening }()
	if st.opened == nil {
		return nil
	}
	return st.opened.Close()
}

// viewer is a viewer of a station.
type viewer struct{ *station }

// view adds a viewer, and leave removes it. The first viewer starts the watching.
func (st *station) view() viewer {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.viewers++
	if st.leaving != nil {
		st.leaving.Stop()
		st.leaving = nil
	}
	if st.stop == nil && !st.closed {
		st.begin()
	}
	return viewer{st}
}

func (v viewer) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.viewers--; v.viewers == 0 && v.stop != nil {
		v.leaving = time.AfterFunc(linger, v.idle)
	}
}

// idle ends the watching if no viewer has come.
func (st *station) idle() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.viewers > 0 || st.leaving == nil {
		return
	}
	st.stop()
	st.stop, st.leaving, st.now = nil, nil, nil
	st.note(watch.Event{At: time.Now(), Kind: unwatched})
}

// begin starts the watching. The caller holds st.mu.
func (st *station) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	before, done := st.done, make(chan struct{})
	st.stop, st.done = cancel, done
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		st.look(ctx)
	}()
}

// look watches until ctx ends. A new watcher compares nothing with snapshots from before a gap.
func (st *station) look(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := st.client(ctx)
		if err == nil {
			w := watch.New(c, st.prefix, st.most)
			w.Breaks = &st.breaks
			w.Run(ctx, st.interval, func(l *watch.Look, err error) { st.publish(ctx, l, err) })
			return
		}
		st.publish(ctx, nil, err)
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// publish makes a snapshot, or its error, the newest state.
func (st *station) publish(ctx context.Context, l *watch.Look, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if ctx.Err() != nil { // the watching was ended meanwhile
		return
	}
	v := view{Backend: st.index, Title: st.Title}
	if st.now != nil {
		v = st.now.view
		v.Error = ""
	}
	if err != nil {
		v.Error = err.Error()
	} else {
		v.take(l)
		st.note(l.Events...)
	}
	st.now = newState(v, st.history)
	close(st.changed)
	st.changed = make(chan struct{})
}

// note adds to the history. The caller holds st.mu.
func (st *station) note(events ...watch.Event) {
	if len(events) == 0 {
		return
	}
	history := append([]event{}, st.history...)
	for _, e := range events {
		st.numbers++
		history = append(history, event{Number: st.numbers, Event: e})
	}
	st.history = history[max(0, len(history)-mostEvents):]
}

// next returns the state of the station as soon as it is not last, or nil when ctx has ended.
func (v viewer) next(ctx context.Context, last *state) *state {
	for {
		v.mu.Lock()
		now, changed := v.now, v.changed
		v.mu.Unlock()
		if now != nil && now != last {
			return now
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}
