package zookeeper

import (
	"time"

	"github.com/dlock-go/dlock/driver"
)

// request is a request of this client that may stand in a queue. The backend's mu guards it.
type request struct {
	r       driver.Request
	turn    chan struct{} // held by the one call of Acquire that acts; copies of it wait
	wake    chan struct{} // has a token in it if the waiter has to check its place
	callers int           // calls of Acquire under way

	s         *session // where it stands; nil: it was not sent yet
	path      string   // of its node; "": not known
	token     driver.Token
	uncertain bool // there may be a node of it that is not at path
	waited    bool // it waits in the queue, as a server has said; for who has the turn

	granted bool
	index   int       // among the session's holds
	expires time.Time // not before
	broken  bool      // its node is not as it was made: somebody ended the hold
	audited int       // the last audit of its session that read its node, or came before the node

	releasing  bool // a release is under way
	deleteSent bool // a delete of its node may have been executed
	gone       bool // it was released, or lost
}

func newRequest(r driver.Request) *request {
	return &request{r: r, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// forget removes a request that stands nowhere any more, or will not for long. b.mu is held.
func (b *Backend) forget(req *request, lost bool) {
	if b.requests[req.r.ID] == req {
		delete(b.requests, req.r.ID)
	}
	if lost || req.uncertain {
		b.addTombstone(req.r)
	}
	req.gone = true
	wake(req.wake)
	req.detach()
}

// detach takes a request out of its session. b.mu is held.
func (req *request) detach() {
	s := req.s
	if s == nil {
		return
	}
	if s.requests[req.r.ID] == req {
		delete(s.requests, req.r.ID)
	}
	if !req.granted {
		return
	}
	req.granted = false
	last := len(s.holds) - 1
	s.holds[req.index] = s.holds[last]
	s.holds[req.index].index = req.index
	s.holds[last] = nil
	s.holds = s.holds[:last]
}

// giveUp removes a request whose Acquire failed, in the background. b.mu is held.
func (b *Backend) giveUp(req *request) {
	s, at := req.s, req.path
	if b.requests[req.r.ID] != req && (at == "" || s == nil) {
		return
	}
	req.path = ""
	b.forget(req, false)
	if s != nil && at != "" {
		b.tasks.Go(func() { s.remove(at) })
	}
}

// A tombstone keeps a request from coming to life that was given up: this client sends it no more.
// What it sent before is found by orphan.go.

// hasTombstone reports whether the request must not come to life. b.mu is held.
func (b *Backend) hasTombstone(id driver.ID) bool {
	until, is := b.tombstones[id]
	return is && time.Now().Before(until)
}

// addTombstone keeps the request from coming to life, for as long as a copy of its Acquire may be
// under way in this process. b.mu is held.
func (b *Backend) addTombstone(r driver.Request) {
	now := time.Now()
	if now.Sub(b.purged) > time.Minute {
		b.purged = now
		for id, until := range b.tombstones {
			if now.After(until) {
				delete(b.tombstones, id)
			}
		}
	}
	b.tombstones[r.ID] = now.Add(max(2*r.TTL, 10*time.Second))
}
