package zookeeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/zookeeper/internal/conn"
)

// withParents runs f, which creates the node at that path. If parents are missing it makes them and
// runs f again: as often as they vanish in between, until ctx ends.
func (s *session) withParents(ctx context.Context, at string, f func() error) error {
	for try := 0; ; try++ {
		err := retry(ctx, f)
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if try > 0 { // another client may remove them as quickly; a random pause ends that
			if err := kit.Pause(ctx, s.b.life.Closed(), rand.N(vanishPause)); err != nil {
				return err
			}
		}
		if err := s.mkdir(ctx, path.Dir(at)); err != nil {
			return err
		}
	}
}

// vanishPause bounds the pause before directories that vanished are made again.
const vanishPause = 10 * time.Millisecond

// mkdir makes a directory and what is missing above it. That of a name is a container (where the
// layout has such), which the server removes when it has been empty for a while. The root node says
// the format.
func (s *session) mkdir(ctx context.Context, dir string) error {
	if dir == "/" {
		return nil
	}
	data := []byte{}
	if dir == s.b.root {
		data = formatData()
	}
	container := s.b.layout.isContainer(dir)
	err := s.withParents(ctx, dir, func() error {
		if path.Dir(dir) == s.b.root { // another client may have made the root node again
			if _, err := s.checkFormat(ctx); err != nil {
				return err
			}
		}
		flags := int32(zk.FlagPersistent)
		if container && !s.b.noContainers.Load() {
			flags = zk.FlagContainer
		}
		err := s.Create(ctx, dir, data, flags, s.b.o.ACL)
		if flags == zk.FlagContainer && conn.IsUnimplemented(err) { // before ZooKeeper 3.5.3
			s.b.noContainers.Store(true)
			return zk.ErrConnectionClosed // again
		}
		return err
	})
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// removeSoon deletes a node of the session in the background. It tries until the node or the
// session is gone.
func (s *session) removeSoon(at string) {
	if !s.b.life.Go(func() { s.remove(at) }) {
		s.abandon(at)
	}
}

// remove is removeSoon in the foreground.
func (s *session) remove(at string) {
	removed := false
	kit.Repeat(s.b.life.Context(), func(ctx context.Context) error {
		w := s.sending()
		err := s.Delete(ctx, at, -1)
		if err == nil {
			s.recordWrite(w)
		}
		s.owned.isGone(at, err)
		if removed = isRemoved(err); removed || errors.Is(err, conn.ErrEnded) {
			return nil
		}
		return err
	})
	if !removed {
		s.abandon(at)
	}
}

// abandon leaves a node to the end of the session. A user's connection may still have the session,
// so there it is deleted.
func (s *session) abandon(at string) {
	if s.own == nil {
		go s.deleteAnywhere(at)
	}
}

// isRemoved reports whether a delete with that result need not be tried again: the node is gone, or
// may not be deleted. It is false for the refusal of an overloaded server, which passes.
func isRemoved(err error) bool {
	return err == nil || conn.Answered(err)
}

// queueChanged reports whether a transaction failed because a node has changed or is gone.
func queueChanged(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)
}

// each runs f for 0 to n-1, several at a time, and returns the first error. After an error it
// begins no more.
func each(n int, f func(int) error) error {
	const abreast = 64
	var next atomic.Int64
	var first error
	var failed sync.Once
	var wg sync.WaitGroup
	for range min(n, abreast) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					failed.Do(func() { first = err })
					next.Store(int64(n))
				}
			}
		})
	}
	wg.Wait()
	return first
}
