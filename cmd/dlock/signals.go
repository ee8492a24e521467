package main

import (
	"os"
	"os/signal"
	"sync"

	"github.com/dlock-go/dlock"
)

// relay hands on what this process hears while it runs: signals, to whom, changes with the time;
// and that its lock was renewed.
type relay struct {
	signals chan os.Signal
	done    chan struct{}
	renewed chan struct{} // has a value after a renewal

	mu sync.Mutex
	to func(os.Signal)
}

// newRelay catches signals from now on, but those that this process was started to ignore.
func newRelay(to func(os.Signal)) *relay {
	r := &relay{signals: make(chan os.Signal, 16), done: make(chan struct{}), renewed: make(chan struct{}, 1), to: to}
	for _, s := range passedOn {
		if !signal.Ignored(s) {
			signal.Notify(r.signals, s)
		}
	}
	go func() {
		for {
			select {
			case s := <-r.signals:
				r.mu.Lock()
				r.to(s)
				r.mu.Unlock()
			case <-r.done:
				return
			}
		}
	}()
	return r
}

// hand runs f, and then hands signals to what f returned, if it is not nil. Those that come
// meanwhile wait for it.
func (r *relay) hand(f func() func(os.Signal)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if to := f(); to != nil {
		r.to = to
	}
}

// tellRenewed says that the lock was renewed, unless the outcome is unknown, or it was lost.
func (r *relay) tellRenewed(n dlock.Renewal) {
	if n.Unknown+n.Lost == n.Holds {
		return
	}
	select {
	case r.renewed <- struct{}{}:
	default:
	}
}

// stop lets signals do what they do by default.
func (r *relay) stop() {
	signal.Stop(r.signals)
	close(r.done)
}
