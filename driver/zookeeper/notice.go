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

// notice is the data of the notice node of a session. That is an ephemeral node, which the session
// watches, and to which only a Break of its holds writes. So the watch costs nothing until then,
// and one is enough for all holds.
type notice struct {
	Dir   string   `json:"dir"`   // of the name, below locks/
	Nodes []string `json:"nodes"` // those that the transaction broke
}

// noticeSuffix follows the name of a session's own node in that of its notice node. Other clients
// write to it, so it is part of the format.
const noticeSuffix = ":notice"

// noticeNode returns the path of a session's notice node.
func (b *Backend) noticeNode(session string) string {
	return b.root + "/sessions/" + session + noticeSuffix
}

// noticeOp is the operation that notifies a session of the nodes of a name that the transaction
// breaks.
func (b *Backend) noticeOp(session, dir string, nodes []string) (*zk.SetDataRequest, error) {
	data, err := json.Marshal(notice{path.Base(dir), nodes})
	return &zk.SetDataRequest{Path: b.noticeNode(session), Data: data, Version: -1}, err
}

// The pause before the session reads its notice node again grows.
const noticePause, longNoticePause = 50 * time.Millisecond, 2 * time.Second

// watchNotices watches the notice node, from the beginning of the session to its end. Where it
// cannot, the session detects broken holds by its next proof.
func (s *session) watchNotices() {
	ctx, at := s.b.life.Context(), s.b.noticeNode(s.name())
	const unknown = -1
	seen, made := int32(0), false // the version that was last acted on; the node was made before
	for pause := noticePause; ; pause = min(2*pause, longNoticePause) {
		data, stat, err := s.GetWatch(ctx, at)
		switch {
		case err == nil:
			if v := stat.Version; v != seen {
				err = s.readNotice(data, seen != unknown && v == seen+1)
				if err == nil {
					seen = v
				}
			}
		case errors.Is(err, zk.ErrNoNode):
			err = s.withParents(ctx, at, func() error { return s.Create(ctx, at, nil, zk.FlagEphemeral, s.b.o.ACL) })
			if err == nil || errors.Is(err, zk.ErrNodeExists) {
				seen = 0
				audit := s.auditAlone      // those that it renewed before it had a notice node
				if s.owned.add(at); made { // it was removed, and earlier notices may be missed
					audit = s.auditRequests
				}
				if err = audit(ctx); err != nil {
					seen = unknown
				}
				if made = true; err == nil {
					continue
				}
			}
		}
		if err == nil {
			select {
			case <-s.noticed:
				pause = noticePause / 2
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

// readNotice reads the nodes that a notice names, as they are now; all nodes of the session, if
// more than one notice was written since the last that was read.
func (s *session) readNotice(data []byte, once bool) error {
	var news notice
	if !once || json.Unmarshal(data, &news) != nil {
		return s.auditRequests(s.b.life.Context())
	}
	var reqs, alone []*ownRequest
	s.b.mu.Lock()
	s.audits++ // the node of a request that is not known yet is read before the grant
	for _, child := range news.Nodes {
		n, ok := s.b.layout.parse("", child)
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

// auditAlone is auditRequests for the fixed requests whose sessions have ended: the proofs of the
// session that renewed one do not detect that it was broken.
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
		// a kept node that is gone may have been renewed
		lost := req.kept == k && !req.broken && !req.gone && !req.releasing
		lost = lost && (err == nil && stat.Version != 0 || err != nil && k.next == nil)
		req.broken = req.broken || lost
		s.b.mu.Unlock()
		if lost {
			s.b.life.Go(func() { s.b.reportLost([]driver.ID{req.ID}) })
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

// reportLost reports holds that were broken.
func (b *Backend) reportLost(ids []driver.ID) {
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
