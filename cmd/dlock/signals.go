package main

import (
	"os"
	"os/signal"
	"sync"

	"github.com/dlock-go/dlock"
)

// relay passes on events of this process: signals, whose receiver changes over time, and renewals
// of its lock.
type relay struct {
	signals chan os.Signal
	done    chan struct{}
	renewed chan struct{} // has a value after a renewal

	mu sync.Mutex
	to func(os.Signal)
}

// newRelay catches signals from now on, except those that this process was started to ignore.
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

// hand runs f, and passes signals from then on to the function that f returned, if it is not nil.
// Signals that come meanwhile wait.
func (r *relay) hand(f func() func(os.Signal)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if to := f(); to != nil {
		r.to = to
	}
}

// noteRenewal notes that the lock was renewed, unless the outcome is unknown, or it was lost.
func (r *relay) noteRenewal(n dlock.Renewal) {
	if n.Unknown+n.Lost == n.Holds {
		return
	}
	select {
	case r.renewed <- struct{}{}:
	default:
	}
}

// stop gives signals their default effect again.
func (r *relay) stop() {
	signal.Stop(r.signals)
	close(r.done)
}
