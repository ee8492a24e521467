package zookeeper

import (
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// ownRequest is what the client records of one of its own requests. The backend's mu guards it. It
// is Uncertain if there may be a node of it that is not at path.
type ownRequest struct {
	kit.OwnRequest
	turn chan struct{} // held by the one call of Acquire that acts; copies of it wait
	wake kit.Signal    // set if the waiter has to check its place

	s     *session // where it stands; nil: it was not sent yet
	path  string   // of its node; "": not known
	token driver.Token
	kept  *kept // of a fixed request: what outlives its session; nil: nothing yet

	granted bool
	index   int  // among the session's holds
	broken  bool // its node is not as it was made: the hold was broken
	audited int  // the last audit of its session that read its node, or came before the node

	releasing  bool // a release is under way
	deleteSent bool // a delete of its node may have been executed
	apart      bool // that delete was sent without the kept node
	gone       bool // it was released or lost
}

func newOwnRequest(r kit.OwnRequest) *ownRequest {
	return &ownRequest{OwnRequest: r, turn: make(chan struct{}, 1), wake: kit.NewSignal()}
}

// forget removes a request whose nodes are gone, or about to be removed. b.mu is held.
func (b *Backend) forget(req *ownRequest, lost bool) {
	b.requests.Remove(req)
	if lost || req.Uncertain {
		b.addTombstone(req.OwnRequest.Request)
	}
	req.gone = true
	req.wake.Set()
	req.detach()
	if k := req.kept; k != nil {
		req.kept = nil
		b.removeKeptSoon(k)
	}
}

// detach takes a request out of its session. b.mu is held.
func (req *ownRequest) detach() {
	s := req.s
	if s == nil {
		return
	}
	if s.requests[req.ID] == req {
		delete(s.requests, req.ID)
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

// leave takes a request that has no node out of its session, so that it goes to another one. It
// reports false if it was in none.
func (b *Backend) leave(req *ownRequest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := req.s != nil
	req.leave()
	return in
}

// leave takes a request out of its session. b.mu is held.
func (req *ownRequest) leave() {
	req.detach()
	req.s, req.path, req.broken, req.Stands = nil, "", false, false
}

// addTombstone keeps the request from being revived in this process: an Acquire of it returns
// ErrLost. Copies that were sent before are found by purgeSoon. b.mu is held.
func (b *Backend) addTombstone(r driver.Request) {
	b.tombstones.Add(r.ID, time.Now().Add(kit.SurelyExpired(r.TTL)))
}
