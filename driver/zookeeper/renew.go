package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// checks is how many holds one proof looks at beside the session's own node: whoever breaks a hold
// writes to that too, so this only finds what was removed by hand.
const checks = 32

// Renew implements [driver.Backend]: one transaction for each session.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	errs := map[*session]error{}
	ms := make([]*mine, len(rs))
	b.mu.Lock()
	for i, r := range rs {
		m := b.mine[r.ID]
		switch {
		case b.closed:
			res[i].Err = driver.ErrClosed
		case m == nil:
			res[i].Err = driver.ErrLost
		case !m.granted:
			res[i].Err = driver.ErrNotHeld
		default:
			ms[i] = m
			errs[m.s] = nil
		}
	}
	b.mu.Unlock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var ss []*session
	for s := range errs {
		ss = append(ss, s)
	}
	prove := func(s *session) {
		var some []*mine
		if len(rs) <= checks {
			for _, m := range ms {
				if m != nil && m.s == s {
					some = append(some, m)
				}
			}
		}
		err := s.prove(ctx, some...)
		mu.Lock()
		defer mu.Unlock()
		errs[s] = err
	}
	for _, s := range ss {
		if len(ss) == 1 {
			prove(s)
		} else {
			wg.Go(func() { prove(s) })
		}
	}
	wg.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, m := range ms {
		if m == nil {
			continue
		}
		switch err := errs[m.s]; {
		case m.gone || m.broken || errors.Is(err, errEnded) || errors.Is(err, zk.ErrSessionExpired):
			res[i].Err = driver.ErrLost
		case err != nil:
			res[i].Err = b.explain(ctx, err)
		default:
			since, ttl := m.s.lives(m.r.TTL)
			res[i] = driver.Renewal{TTL: ttl, SentAt: since}
			m.until = since.Add(ttl)
		}
	}
	return res
}

// prove writes to the session's own node, which only a live session in touch with the leader can,
// and checks some holds in the same transaction: those given, or the next in turn. It is nil also
// if holds turned out to be broken: they are marked.
func (s *session) prove(ctx context.Context, some ...*mine) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ended:
		return errEnded
	case <-s.b.stop:
		return driver.ErrClosed
	}
	defer func() { <-s.turn }()
	var err error
	for range 3 {
		err = s.proveOnce(ctx, some)
		if !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) {
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
	s.b.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.b.ctx, s.ttl/3)
		defer cancel()
		_ = s.prove(ctx) // the next look at the session tries again
	})
}

func (s *session) proveOnce(ctx context.Context, some []*mine) error {
	paths := s.choose(some)
	s.mu.Lock()
	// else what was sent is sent again: one of the two is refused, and either is ours
	if !s.unsure {
		s.count++
		s.sent = fmt.Sprint(s.count)
	}
	version, data := s.version, s.sent
	s.mu.Unlock()
	sent := s.now()
	var stat *zk.Stat
	err := s.call(ctx, func(c *zk.Conn) error {
		ops := make([]any, 0, 1+len(paths))
		ops = append(ops, &zk.SetDataRequest{Path: s.node, Data: []byte(data), Version: version})
		for _, at := range paths {
			ops = append(ops, &zk.CheckVersionRequest{Path: at, Version: 0})
		}
		res, err := c.Multi(ops...)
		if err != nil {
			return err
		}
		if len(res) == 0 || res[0].Stat == nil {
			return errAnswer
		}
		stat = res[0].Stat
		return nil
	}, nil)
	s.mu.Lock()
	if err == nil {
		s.version, s.unsure = stat.Version, false
	} else if !refused(err) {
		s.unsure = true
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.wrote(sent)
	s.clock(sent.sent, stat)
	return nil
}

// choose returns the paths of the holds to be checked.
func (s *session) choose(some []*mine) []string {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if len(some) == 0 {
		n := min(len(s.holds), checks)
		for i := range n {
			some = append(some, s.holds[(s.next+i)%len(s.holds)])
		}
		s.next += n
	}
	var paths []string
	for _, m := range some {
		if m.granted && !m.broken && m.path != "" && !m.leaving && !m.deleted {
			paths = append(paths, m.path)
		}
	}
	return paths
}

// audit looks at the session's own node, and at every hold unless that is as our last write left
// it.
func (s *session) audit(ctx context.Context) error {
	var data []byte
	var stat *zk.Stat
	err := s.call(ctx, func(c *zk.Conn) (err error) {
		data, stat, err = c.Get(s.node)
		return err
	}, nil)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		if err := s.enrol(ctx); err != nil {
			return err
		}
		stat = nil
	case err != nil:
		return err
	default:
		s.mu.Lock()
		ours := stat.Version == s.version+1 && string(data) == s.sent
		s.mu.Unlock()
		if ours { // the reply to it was lost
			s.mu.Lock()
			s.version, s.unsure = stat.Version, false
			s.mu.Unlock()
			return nil
		}
	}
	if err := s.auditHolds(ctx); err != nil {
		return err
	}
	if stat != nil { // only now: an audit that failed is made again
		s.mu.Lock()
		s.version, s.unsure = stat.Version, false
		s.mu.Unlock()
	}
	return nil
}

// auditHolds marks the requests whose nodes are not as they were: also those that hold by now and
// do not know it yet.
func (s *session) auditHolds(ctx context.Context) error {
	var holds []*mine
	var paths []string
	s.b.mu.Lock()
	s.audits++
	for _, m := range s.mine {
		if !m.leaving && m.path != "" {
			m.audited = s.audits
			holds, paths = append(holds, m), append(paths, m.path)
		}
	}
	s.b.mu.Unlock()
	return each(len(holds), func(i int) error {
		m := holds[i]
		stat, err := s.stat(ctx, paths[i])
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		switch {
		case m.path != paths[i]: // it stands elsewhere by now
		case err != nil || !s.sound(stat):
			m.broken = true
		}
		return nil
	})
}

// sound reports whether a request's node is as this session made it.
func (s *session) sound(stat *zk.Stat) bool {
	return stat.Version == 0 && stat.EphemeralOwner == s.id
}
