package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// orphan is a node that this session made for a request by a create whose reply was lost.
type orphan struct {
	at    string
	czxid int64
}

// orphans returns the nodes of the request that belong to this session. A node of an earlier
// session has the same ID, and another owner.
func (s *session) orphans(ctx context.Context, name string, id driver.ID) ([]orphan, error) {
	l, err := s.list(ctx, name, true)
	if err != nil {
		return nil, err
	}
	v, err := l.view()
	if err != nil {
		return nil, err
	}
	var found []orphan
	for _, n := range v.byID[id] {
		at := s.b.dir(name) + "/" + n.name
		stat, err := s.Stat(ctx, at)
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if stat.EphemeralOwner == s.ID {
			found = append(found, orphan{at, stat.Czxid})
		}
	}
	return found, nil
}

// find looks for the request's node after a create whose reply was lost. Of several nodes the first
// counts.
func (s *session) find(ctx context.Context, req *ownRequest) error {
	found, err := s.orphans(ctx, req.Name, req.ID)
	if err != nil || len(found) == 0 {
		return err
	}
	s.b.mu.Lock()
	req.path, req.token = found[0].at, driver.Token(found[0].czxid)
	s.owned.add(req.path)
	if req.Join() {
		req.token = req.Token
	}
	s.b.mu.Unlock()
	return nil
}

// purgeDelay is when orphans are looked for again: a create whose reply was lost may itself be
// under way for that long.
const purgeDelay = 2 * time.Second

// purgeSoon removes, in the background, all nodes of the request except its known one: now, and
// again after purgeDelay. Until then room of that size is reserved for a node that a create made.
func (s *session) purgeSoon(req *ownRequest, size int) {
	ctx := s.b.life.Context()
	began := s.b.life.Go(func() {
		defer s.owned.free(size)
		s := s // another session may take its place
		late := time.Now().Add(purgeDelay)
		for done := false; !done; {
			began := time.Now()
			ok := s.purge(req)
			done = ok && began.After(late)
			wait := 50 * time.Millisecond
			if ok && !done {
				wait = time.Until(late) + time.Millisecond
			}
			if kit.Pause(ctx, nil, wait) != nil {
				s.purgeAfterClose(req.Name, req.ID)
				return
			}
			if !s.Over() {
				continue
			}
			if s.own != nil { // its nodes went with it
				return
			}
			// A user's connection may come back with the session that the driver took for lost, and
			// a call that was not sent in one session may be sent in the next.
			if next, err := s.b.anySession(ctx); err == nil {
				s = next
			}
		}
	})
	if !began {
		s.purgeAfterClose(req.Name, req.ID)
	}
}

// purge removes the orphans that exist now. It reports whether none are left.
func (s *session) purge(req *ownRequest) bool {
	found, err := s.orphans(s.b.life.Context(), req.Name, req.ID)
	if err != nil {
		return false
	}
	s.b.mu.Lock()
	at, gone := req.path, req.gone
	s.b.mu.Unlock()
	if at == "" && !gone { // its Acquire is about to find it
		return false
	}
	for _, o := range found {
		if o.at != at || gone {
			s.remove(o.at)
		}
	}
	return true
}

// purgeAfterClose is purgeSoon on a user's connection that outlives its client: it removes all
// nodes of the request, in whichever session of that connection. It ends soon, whatever the servers
// answer.
func (s *session) purgeAfterClose(name string, id driver.ID) {
	if s.own != nil {
		return
	}
	dir, began := s.b.dir(name), time.Now()
	go func() {
		for wait := 20 * time.Millisecond; time.Since(began) < purgeDelay+2*s.Timeout; wait = min(2*wait, time.Second) {
			late := time.Since(began) > purgeDelay
			_, err := s.Library().Sync(dir)
			var children []string
			if err == nil {
				children, _, err = s.Library().Children(dir)
			}
			for _, child := range children {
				if n, ok := s.b.layout.parse(name, child); ok && n.entry.ID == id {
					s.deleteAnywhere(dir + "/" + child)
				}
			}
			if errors.Is(err, zk.ErrClosing) || late && (err == nil || errors.Is(err, zk.ErrNoNode)) {
				return
			}
			time.Sleep(wait)
		}
	}()
}
