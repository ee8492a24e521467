package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// ring is what stands in the bell of a session. That is an ephemeral node, which the session
// watches, and into which only a Break of its holds writes. So the watch costs nothing until
// then, and one is enough for all holds.
type ring struct {
	Dir   string   `json:"dir"`   // of the name, below locks/
	Nodes []string `json:"nodes"` // those that the transaction broke
}

// bell returns the path of a session's bell.
func (b *Backend) bell(session string) string { return b.root + "/sessions/" + session + ":bell" }

// ringOp is the operation that tells a session which nodes of a name the transaction breaks.
func (b *Backend) ringOp(session, dir string, nodes []string) (*zk.SetDataRequest, error) {
	data, err := json.Marshal(ring{path.Base(dir), nodes})
	return &zk.SetDataRequest{Path: b.bell(session), Data: data, Version: -1}, err
}

// The pause before the session looks for its bell again grows.
const bellPause, longBellPause = 50 * time.Millisecond, 2 * time.Second

// listen hears the bell, from the beginning of the session to its end. Where it cannot the session
// learns of what was broken by its next proof.
func (s *session) listen() {
	ctx, at := s.b.life.Context(), s.b.bell(s.name())
	const unknown = -1
	heard, made := int32(0), false
	for pause := bellPause; ; pause = min(2*pause, longBellPause) {
		data, stat, err := s.GetWatch(ctx, at)
		switch {
		case err == nil:
			if v := stat.Version; v != heard {
				err = s.answer(data, heard != unknown && v == heard+1)
				if err == nil {
					heard = v
				}
			}
		case errors.Is(err, zk.ErrNoNode):
			err = s.withParents(ctx, at, func() error { return s.Create(ctx, at, nil, zk.FlagEphemeral, s.b.o.ACL) })
			if err == nil || errors.Is(err, zk.ErrNodeExists) {
				heard = 0
				audit := s.auditAlone      // those that it renewed before it had a bell
				if s.owned.add(at); made { // it was removed, and what rang before is not known
					audit = s.auditRequests
				}
				if err = audit(ctx); err != nil {
					heard = unknown
				}
				if made = true; err == nil {
					continue
				}
			}
		}
		if err == nil {
			select {
			case <-s.rang:
				pause = bellPause / 2
				continue
			case <-s.Ended():
			case <-s.b.life.Closed():
			}
			return
		}
		if s.Over() || s.b.life.Over() || conn.Answered(err) || errors.Is(err, driver.ErrUnsupported) {
			return
		}
		if kit.Pause(ctx, s.Ended(), pause) != nil {
			return
		}
	}
}

// answer reads the nodes that the bell tells of, as they are now; all of the session's, if it rang
// more than once since it was heard.
func (s *session) answer(data []byte, once bool) error {
	var r ring
	if !once || json.Unmarshal(data, &r) != nil {
		return s.auditRequests(s.b.life.Context())
	}
	name, _ := decode(r.Dir)
	var reqs, alone []*ownRequest
	s.b.mu.Lock()
	s.audits++ // a request whose node is not known yet has it read before it is granted
	for _, child := range r.Nodes {
		n, ok := parseNode(name, child)
		if !ok {
			continue
		}
		if req := s.requests[n.entry.ID]; req != nil && req.path != "" && !req.releasing {
			reqs = append(reqs, req)
		} else if req, is := s.b.requests.Find(n.entry.ID); is && n.kept && req.s == nil && req.isKept() {
			alone = append(alone, req)
		}
	}
	paths := s.readAt(reqs)
	s.b.mu.Unlock()
	if err := s.readRequests(s.b.life.Context(), reqs, paths); err != nil {
		return err
	}
	return s.readAlone(s.b.life.Context(), alone)
}

// auditAlone is auditRequests for the fixed requests whose sessions have ended: whichever session
// renewed one, no proof of its own tells that it was broken.
func (s *session) auditAlone(ctx context.Context) error {
	var reqs []*ownRequest
	s.b.mu.Lock()
	for req := range s.b.requests.All() {
		if req.s == nil && req.isKept() {
			reqs = append(reqs, req)
		}
	}
	s.b.mu.Unlock()
	return s.readAlone(ctx, reqs)
}

// readAlone is readRequests for fixed requests whose sessions have ended.
func (s *session) readAlone(ctx context.Context, reqs []*ownRequest) error {
	return each(len(reqs), func(i int) error {
		req := reqs[i]
		s.b.mu.Lock()
		k := req.kept
		s.b.mu.Unlock()
		if k == nil {
			return nil
		}
		stat, err := s.Stat(ctx, k.at)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		s.b.mu.Lock()
		// One that is gone may have been renewed.
		lost := req.kept == k && !req.broken && !req.gone && !req.releasing
		lost = lost && (err == nil && stat.Version != 0 || err != nil && k.next == nil)
		req.broken = req.broken || lost
		s.b.mu.Unlock()
		if lost {
			s.b.life.Go(func() { s.b.tellLost([]driver.ID{req.ID}) })
		}
		return nil
	})
}

// readAt returns the paths of requests that are about to be read. s.b.mu is held.
func (s *session) readAt(reqs []*ownRequest) (paths []string) {
	for _, req := range reqs {
		req.audited = s.audits
		paths = append(paths, req.path)
	}
	return paths
}

// tellLost reports holds that were broken.
func (b *Backend) tellLost(ids []driver.ID) {
	b.mu.Lock()
	notify := b.notify
	if b.closed {
		notify = nil
	}
	b.mu.Unlock()
	if notify == nil {
		return
	}
	for _, id := range ids {
		notify(id)
	}
}
