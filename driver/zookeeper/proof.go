package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// proof is what a session knows of its own life. The session's mu guards it.
type proof struct {
	at       time.Time     // when the last successful write was sent
	keptFor  time.Duration // for how long the leader keeps the session from then on, at least
	ahead    time.Duration // how far the server's clock is ahead of this machine's
	version  int32         // of the session's own node
	data     string        // what was last written there
	unsure   bool          // it is not known whether that was executed
	sequence int           // the number of that write
}

// sending is when a write was sent, and the last sign of life that the leader knew of by then if
// the write succeeded.
type sending struct{ at, known time.Time }

func (s *session) sending() sending {
	now := time.Now()
	return sending{now, s.KnownAlive(now.Add(-s.Lag))}
}

// recordWrite records a write that succeeded: the session was alive when it was sent, and the
// follower was in touch with the leader. But the follower may not have reported that write as a
// sign of life yet, only those until a lag before.
func (s *session) recordWrite(w sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := &s.proof; w.at.After(p.at) {
		p.at, p.keptFor = w.at, s.Timeout-w.at.Sub(w.known)
	}
}

// trust returns when the session was last proved, and for how long a lease of that TTL may be
// trusted from then on: for less than the TTL if the session had been idle.
func (s *session) trust(ttl time.Duration) (proved time.Time, trusted time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proof.at, max(min(ttl, s.ttl, s.proof.keptFor), 1)
}

// recordClock records the server's clock, which stamped what was written between since and now.
func (s *session) recordClock(since time.Time, stat *zk.Stat) {
	s.recordTime(stat)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proof.ahead = time.UnixMilli(stat.Mtime).Sub(since.Add(time.Since(since) / 2))
}

// age returns how long ago the server's clock showed ms.
func (s *session) age(ms int64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(time.Now().Add(s.proof.ahead).Sub(time.UnixMilli(ms)), 0)
}

// register makes the session's own node. The session's writes to it prove the session; a write by
// another client means that a hold was broken.
func (s *session) register(ctx context.Context) error {
	data := fmt.Sprint(s.proof.sequence)
	return s.withParents(ctx, s.node, func() error {
		w := s.sending()
		var stat *zk.Stat
		res, err := s.Multi(ctx, nil,
			&zk.CreateRequest{Path: s.node, Data: []byte{}, Acl: s.b.o.ACL, Flags: zk.FlagEphemeral},
			&zk.SetDataRequest{Path: s.node, Data: []byte(data), Version: 0})
		switch {
		case err == nil:
			if stat = res[1].Stat; stat == nil {
				err = conn.ErrAnswer
			}
		case errors.Is(err, zk.ErrNodeExists): // an earlier attempt made it
			_, stat, err = s.Get(ctx, s.node)
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.proof.version, s.proof.data = stat.Version, data
		s.mu.Unlock()
		s.recordWrite(w)
		s.recordClock(w.at, stat)
		return nil
	})
}

// prove writes to the session's own node, which only a live session in touch with the leader can,
// and checks some holds in the same transaction: those given, or the next in turn. If holds turn
// out to be broken, prove marks them and returns nil.
func (s *session) prove(ctx context.Context, some ...*ownRequest) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.Ended():
		return conn.ErrEnded
	case <-s.b.life.Closed():
		return driver.ErrClosed
	}
	defer func() { <-s.turn }()
	var err error
	for range 3 {
		err = s.proveOnce(ctx, some)
		if !queueChanged(err) {
			return err
		}
		if err := s.audit(ctx); err != nil {
			return err
		}
	}
	return err
}

// proveSoon is prove in the background, unless one is under way.
func (s *session) proveSoon() {
	if len(s.turn) > 0 {
		return
	}
	s.b.life.Go(func() {
		ctx, cancel := context.WithTimeout(s.b.life.Context(), s.ttl/3)
		defer cancel()
		_ = s.prove(ctx) // monitor tries again
	})
}

func (s *session) proveOnce(ctx context.Context, some []*ownRequest) error {
	paths := s.choose(some)
	s.mu.Lock()
	p := &s.proof
	// A write whose outcome is unknown is sent again unchanged: one of the two is refused, and
	// either is ours.
	if !p.unsure {
		p.sequence++
		p.data = fmt.Sprint(p.sequence)
	}
	ops := []any{&zk.SetDataRequest{Path: s.node, Data: []byte(p.data), Version: p.version}}
	s.mu.Unlock()
	for _, at := range paths {
		ops = append(ops, &zk.CheckVersionRequest{Path: at, Version: 0})
	}
	w := s.sending()
	res, err := s.Multi(ctx, nil, ops...)
	if err == nil && res[0].Stat == nil {
		err = conn.ErrAnswer
	}
	s.mu.Lock()
	if err == nil {
		p.version, p.unsure = res[0].Stat.Version, false
	} else if !conn.Refused(err) {
		p.unsure = true
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.recordWrite(w)
	s.recordClock(w.at, res[0].Stat)
	return nil
}

// maxChecks is how many holds one proof checks beside the session's own node, if their paths are
// not too long for that ([Backend.checks]). A Break writes to the session's own node too, so these
// checks only detect nodes that were removed by hand.
const maxChecks = 32

// choose returns the paths of the holds to check.
func (s *session) choose(some []*ownRequest) []string {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if len(some) == 0 {
		n := min(len(s.holds), s.b.checks)
		for i := range n {
			some = append(some, s.holds[(s.next+i)%len(s.holds)])
		}
		s.next += n
	}
	var paths []string
	for _, req := range some {
		if req.granted && !req.broken && req.path != "" && !req.releasing && !req.deleteSent {
			paths = append(paths, req.path)
		}
	}
	return paths
}

// audit reads the session's own node after a proof was refused. If it is as our last write left it,
// the reply to that write was lost. If not, every hold is read.
func (s *session) audit(ctx context.Context) error {
	data, stat, err := s.Get(ctx, s.node)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		if err := s.enter(ctx); err != nil {
			return err
		}
		return s.auditRequests(ctx)
	case err != nil:
		return err
	}
	s.mu.Lock()
	ours := stat.Version == s.proof.version+1 && string(data) == s.proof.data
	s.mu.Unlock()
	if !ours {
		if err := s.auditRequests(ctx); err != nil {
			return err // the recorded version stays, so that the audit is made again
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proof.version, s.proof.unsure = stat.Version, false
	return nil
}

// auditRequests marks the requests whose nodes are not as they were made: also those that hold and
// do not know it yet, and the fixed ones whose sessions have ended.
func (s *session) auditRequests(ctx context.Context) error {
	var reqs []*ownRequest
	s.b.mu.Lock()
	s.audits++
	for _, req := range s.requests {
		if !req.releasing && req.path != "" {
			reqs = append(reqs, req)
		}
	}
	paths := s.readAt(reqs)
	s.b.mu.Unlock()
	if err := s.readRequests(ctx, reqs, paths); err != nil {
		return err
	}
	return s.auditAlone(ctx)
}

// readRequests reads the nodes of requests at their paths, marks those that are not as they were
// made, and reports the holds among them.
func (s *session) readRequests(ctx context.Context, reqs []*ownRequest, paths []string) error {
	return each(len(reqs), func(i int) error {
		stat, err := s.Stat(ctx, paths[i])
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if err == nil && s.isSound(stat) {
			return nil
		}
		s.b.mu.Lock()
		req := reqs[i]
		// a request that has another path by now stands elsewhere
		lost := req.path == paths[i] && !req.broken
		req.broken = req.broken || lost
		lost = lost && req.granted && !req.releasing
		s.b.mu.Unlock()
		if lost {
			s.b.life.Go(func() { s.b.reportLost([]driver.ID{req.ID}) })
		}
		return nil
	})
}

// isSound reports whether a request's node is as this session made it.
func (s *session) isSound(stat *zk.Stat) bool {
	return stat.Version == 0 && stat.EphemeralOwner == s.ID
}
