package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// Release implements [driver.Backend].
func (b *Backend) Release(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	if r.Uncertain {
		b.bury(r)
	}
	m := b.mine[r.ID]
	if m == nil {
		b.mu.Unlock()
		return b.releaseUnknown(ctx, r)
	}
	s, at, broken := m.s, m.path, m.broken
	if at == "" || s == nil { // an Acquire is under way, and removes what it made
		b.bury(r)
		b.forget(m, true)
		b.mu.Unlock()
		return nil
	}
	m.leaving = true // no proof of the session looks at it any more
	b.mu.Unlock()
	version := int32(0)
	if broken {
		version = -1
	}
	err := s.delete(ctx, m, at, version)
	if errors.Is(err, zk.ErrBadVersion) { // it was broken
		broken = true
		err = s.delete(ctx, m, at, -1)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil, errors.Is(err, zk.ErrNoNode):
		doubt := m.deleted
		b.forget(m, false)
		if broken || err != nil && !doubt {
			return driver.ErrLost
		}
		return nil
	case errors.Is(err, errEnded):
		b.forget(m, true)
		return driver.ErrLost
	}
	m.leaving = false
	return b.explain(ctx, err)
}

// delete deletes the node of a request. On a broken line it is sent again; a node that is gone then
// was deleted by an earlier copy, as far as anybody can tell.
func (s *session) delete(ctx context.Context, m *mine, at string, version int32) error {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		sent := s.now()
		err := s.call(ctx, func(c *zk.Conn) error { return c.Delete(at, version) }, nil)
		if err == nil {
			s.wrote(sent)
		} else if !refused(err) {
			s.b.mu.Lock()
			m.deleted = true
			s.b.mu.Unlock()
		}
		if !brokenLine(err) {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// releaseUnknown releases a request that this client does not know (any more).
func (b *Backend) releaseUnknown(ctx context.Context, r driver.Request) error {
	s, err := b.some(ctx)
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
		err := s.call(ctx, func(c *zk.Conn) error { return c.Delete(b.dir(r.Name)+"/"+n.name, -1) }, nil)
		switch {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return b.explain(ctx, err)
		}
	}
	return driver.ErrLost
}
