package etcd

import (
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ofName is the listener of a name's watch. It keeps the name's queue up to date, and wakes the
// waiters of this client for which there is news.
type ofName struct {
	b *Backend
	n *nameState
}

// under calls do with the backend's mu held, unless the name has another watch by now.
func (l ofName) under(w *watch, do func()) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.n.watch == w {
		do()
	}
}

func (l ofName) found(w *watch, kvs []*mvccpb.KeyValue, rev int64) {
	l.under(w, func() {
		l.n.queue, l.n.rev = l.b.newQueue(l.n.name, kvs), rev
		for _, rq := range slices.Collect(maps.Values(l.n.waiting)) {
			l.b.checkStands(l.n, rq)
		}
		l.n.wakeGranted()
	})
}

func (l ofName) changed(w *watch, events []*mvccpb.Event) {
	l.under(w, func() {
		l.b.apply(l.n, events)
		l.n.wakeGranted()
	})
}

func (l ofName) unknown(w *watch) {
	l.under(w, func() {
		if l.n.queue = nil; len(l.n.waiting) == 0 {
			l.b.endWatch(l.n)
		}
	})
}

func (l ofName) refused(w *watch, err error) { l.under(w, func() { l.n.refuse(err) }) }

// checkStands sends a request whose key does not stand any more back to the end of the queue. b.mu
// is held.
func (b *Backend) checkStands(n *nameState, rq *ownRequest) {
	if r := n.queue.records[rq.inQueue()]; rq.rev <= n.rev && (r == nil || r.tombstone || r.rev != rq.rev) {
		b.vanished(rq)
	}
}

// wakeGranted wakes the waiters of this client that are granted or refused, and no others. The
// backend's mu is held.
func (n *nameState) wakeGranted() {
	if n.queue == nil || len(n.waiting) == 0 {
		return
	}
	n.unchecked = slices.DeleteFunc(n.unchecked, func(rq *ownRequest) bool {
		switch {
		case n.waiting[rq.inQueue()] != rq:
			return true
		case rq.rev > n.rev:
			return false
		}
		if _, err := n.queue.admit(rq.Request, rq.rev); err != nil {
			rq.refusal = err
			rq.wake.Set()
		}
		rq.checked = true
		return true
	})
	for _, r := range n.queue.arrivals[:n.queue.rule.Granted()] {
		if rq := n.waiting[r.key]; rq != nil && rq.rev == r.rev && rq.checked && !rq.granted {
			rq.granted = true
			rq.wake.Set()
		}
	}
}

// apply brings a name's queue up to date. b.mu is held.
func (b *Backend) apply(n *nameState, events []*mvccpb.Event) {
	read := n.rev // there may be several events of one revision
	for _, e := range events {
		if e.Kv.ModRevision <= read {
			continue
		}
		n.rev = max(n.rev, e.Kv.ModRevision)
		key := string(e.Kv.Key)
		if e.Type == clientv3.EventTypePut {
			n.queue.put(b.readQueued(n.name, e.Kv))
		} else {
			n.queue.drop(key)
		}
		if rq := n.waiting[key]; rq != nil {
			b.checkStands(n, rq)
		}
	}
}

// refuse ends the waits for a name. The backend's mu is held.
func (n *nameState) refuse(err error) {
	for _, rq := range n.waiting {
		rq.refusal = err
		rq.wake.Set()
	}
}
