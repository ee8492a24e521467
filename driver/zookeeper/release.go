package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// Release implements [driver.Backend]. The node is deleted on condition that the hold was not
// broken. If it was, Release deletes the node all the same and returns ErrLost.
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.life.Over() {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	if r.Uncertain {
		b.addTombstone(r)
	}
	req, is := b.requests.Find(r.ID)
	if !is {
		b.mu.Unlock()
		return b.releaseUnknown(ctx, r)
	}
	s, at, broken, kept := req.s, req.path, req.broken, req.kept.last()
	if s == nil && req.isKept() {
		b.mu.Unlock()
		return b.releaseKept(ctx, req)
	}
	if at == "" || s == nil {
		defer b.mu.Unlock()
		return b.releaseUnplaced(ctx, req, r)
	}
	// if it had to wait, others are likely to wait behind it
	urgent := req.granted && req.Stands
	req.releasing = true // proofs of the session no longer check it
	b.mu.Unlock()
	version := int32(0)
	if broken {
		version = -1
	}
	err := s.deleteRequest(ctx, req, at, version, urgent)
	if errors.Is(err, zk.ErrBadVersion) { // it was broken, and no proof has detected that yet
		broken = true
		err = s.deleteRequest(ctx, req, at, -1, urgent)
	}
	b.mu.Lock()
	if req.isKept() && errors.Is(err, conn.ErrEnded) {
		b.mu.Unlock()
		return b.releaseKept(ctx, req)
	}
	defer b.mu.Unlock()
	switch {
	case err == nil, errors.Is(err, zk.ErrNoNode):
		ours := err == nil || req.deleteSent
		// no keep or renewal made another kept node meanwhile, and all nodes went at once
		if err == nil && req.isKept() && req.kept.last() == kept && req.Asking == 0 && !req.apart {
			req.kept = nil
		}
		b.forget(req, false)
		if broken || !ours {
			return driver.ErrLost
		}
		return nil
	case errors.Is(err, conn.ErrEnded):
		b.forget(req, true)
		return driver.ErrLost
	}
	req.releasing = false
	return b.explain(ctx, err)
}

// releaseUnplaced releases a request of which no node is known. b.mu is held, except during calls.
func (b *Backend) releaseUnplaced(ctx context.Context, req *ownRequest, r driver.Request) error {
	err := error(nil)
	switch {
	case req.Asking > 0: // the Acquire under way removes what it made
	case !req.Uncertain:
		err = driver.ErrLost
	default: // purgeSoon removes a node that is made later
		b.mu.Unlock()
		err = b.releaseUnknown(ctx, r)
		b.mu.Lock()
		if !errors.Is(err, driver.ErrLost) {
			return err
		}
	}
	b.addTombstone(r)
	b.forget(req, true)
	return err
}

// deleteRequest deletes the node of a request, with its kept node. After a disconnect it sends the
// delete again: a node that is gone then was deleted by the earlier copy, as far as can be known.
// If some of the kept nodes do not exist the node is deleted alone, and forget removes the rest. An
// urgent delete does not wait for others to be sent with it.
func (s *session) deleteRequest(ctx context.Context, req *ownRequest, at string, version int32, urgent bool) error {
	s.b.mu.Lock()
	kept := req.kept.paths()
	s.b.mu.Unlock()
	ops := []any{&zk.DeleteRequest{Path: at, Version: version}}
	for _, p := range kept {
		ops = append(ops, &zk.DeleteRequest{Path: p, Version: -1})
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		w := s.sending()
		res, err := s.execute(ctx, req.Name, urgent, nil, ops...)
		if errors.Is(err, zk.ErrNoNode) && len(ops) > 1 && refusedAt(res) > 0 { // it had expired
			s.b.mu.Lock()
			req.apart = true
			s.b.mu.Unlock()
			ops = ops[:1]
			continue
		}
		if err == nil {
			s.recordWrite(w)
		} else if !conn.Refused(err) {
			s.b.mu.Lock()
			req.deleteSent = true
			s.b.mu.Unlock()
		}
		s.owned.isGone(at, err)
		if !conn.Disconnected(err) {
			return err
		}
		if err := kit.Pause(ctx, nil, wait); err != nil {
			return err
		}
	}
}

// releaseUnknown releases a request that this client does not know, or no longer knows.
func (b *Backend) releaseUnknown(ctx context.Context, r driver.Request) error {
	if b.layout.admitsName(r.Name) != nil {
		return driver.ErrLost // it was never sent
	}
	s, err := b.anySession(ctx)
	if err != nil {
		return b.explain(ctx, err)
	}
	ns, err := s.nodes(ctx, r.Name, true)
	if err != nil {
		return b.explain(ctx, err)
	}
	for _, n := range ns {
		if n.entry.ID != r.ID {
			continue
		}
		if is, err := s.isForeign(ctx, n); err != nil {
			return b.explain(ctx, err)
		} else if is {
			continue
		}
		err := s.Delete(ctx, b.dir(r.Name)+"/"+n.name, -1)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return b.explain(ctx, err)
		}
	}
	return driver.ErrLost
}

// isForeign reports whether a node is a peer's, or gone.
func (s *session) isForeign(ctx context.Context, n *node) (bool, error) {
	if s.b.caps.Format == "" {
		return false, nil
	}
	d, err := s.readNodes(ctx, n.entry.Name, []*node{n})
	return len(d.there) == 0 || n.entry.Foreign, err
}
