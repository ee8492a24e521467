package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// errEnded: the session ended while the call was under way. Its outcome is unknown, but what it
// created dies with the session.
var errEnded = errors.New("the session with ZooKeeper ended")

// call runs f and returns its error, or that of ctx, or errEnded. The library takes no context, so
// f runs in a goroutine of its own, which ends when the server answers, or the connection breaks.
// If call returns before f, what f returns is given to late, if there is one. What f sets may be
// read only if call returned f's error, or in late.
func (s *session) call(ctx context.Context, f func(*zk.Conn) error, late func(error)) error {
	if err := ctx.Err(); err != nil {
		return notSent{err}
	}
	var taken atomic.Bool // by the caller, who went away, or by the result
	s.mu.Lock()
	if s.over || s.shut {
		s.mu.Unlock()
		return notSent{errEnded}
	}
	s.calls.Add(1)
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		err := f(s.conn)
		s.calls.Done()
		if errors.Is(err, zk.ErrSessionExpired) {
			s.end()
			err = errEnded
		}
		if taken.CompareAndSwap(false, true) {
			done <- err
		} else if late != nil {
			late(err)
		}
	}()
	var err error
	select {
	case err = <-done:
		return s.verify(err)
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.ended:
		err = errEnded
	case <-s.b.stop:
		err = driver.ErrClosed
	}
	if !taken.CompareAndSwap(false, true) {
		return s.verify(<-done)
	}
	return err
}

// verify refuses a result that another session of the user's connection may have brought.
func (s *session) verify(err error) error {
	if err == nil && !s.own && s.line.state().id != s.id {
		return zk.ErrConnectionClosed
	}
	return err
}

// notSent is an error of a call that was never sent.
type notSent struct{ error }

// Unwrap returns the reason.
func (e notSent) Unwrap() error { return e.error }

// noes are the answers by which a server refuses. After any other error the outcome is unknown.
var noes = []error{zk.ErrAPIError, zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrInvalidACL, zk.ErrAuthFailed,
	zk.ErrBadArguments, zk.ErrInvalidPath, errAnswer}

// refused reports whether err says that the server did nothing.
func refused(err error) bool {
	var unsent notSent
	if errors.As(err, &unsent) {
		return true
	}
	return slices.ContainsFunc(noes, func(no error) bool { return errors.Is(err, no) }) ||
		// the library does not know what the server answered: a quota, a throttle
		err != nil && strings.HasPrefix(err.Error(), "unknown error: ")
}

// finals are what settles a call as a whole, whatever the connection does.
var finals = []error{errEnded, zk.ErrSessionExpired, context.Canceled, context.DeadlineExceeded, driver.ErrClosed, driver.ErrHeld, driver.ErrLost, driver.ErrNotHeld,
	driver.ErrUpgrade, driver.ErrConflict}

// brokenLine reports whether err is the connection's: the same call may succeed on the next.
func brokenLine(err error) bool {
	return err != nil && !refused(err) && !slices.ContainsFunc(finals, func(f error) bool { return errors.Is(err, f) })
}

// explain says what a user can do about an error of the server, and why no server answered a call
// whose context ended.
func (b *Backend) explain(ctx context.Context, err error) error {
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
		if cause := b.fault.get(); cause != nil {
			return fmt.Errorf("%w; %w", ctx.Err(), cause)
		}
		return ctx.Err()
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("the client lacks a right (docs/zookeeper.md lists those that suffice): %w", err)
	case errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("the server refuses the ACL (creator-all needs credentials that it accepts): %w", err)
	}
	return err
}

// plain is an error that matches no context's: the deadline in it was the driver's, and the
// caller's lives.
func plain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errors.New(err.Error())
	}
	return err
}

// withParents runs f, which creates the node at path, and if its parents are missing makes them and
// runs it again.
func (s *session) withParents(ctx context.Context, at string, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		switch {
		case brokenLine(err):
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return err
			}
			continue
		case !errors.Is(err, zk.ErrNoNode) || try > 10:
			// what vanishes again and again is made again, but not for ever
			return err
		}
		if err := s.mkdir(ctx, path.Dir(at)); err != nil {
			return err
		}
	}
}

// mkdir makes a directory and what is missing above it. That of a name is a container, which the
// server removes when it has been empty for a while.
func (s *session) mkdir(ctx context.Context, dir string) error {
	if dir == "/" {
		return nil
	}
	container := strings.HasPrefix(dir, s.b.root+"/locks/")
	err := s.withParents(ctx, dir, func() error {
		err := s.call(ctx, func(c *zk.Conn) (err error) {
			if container && !s.b.plain.Load() {
				_, err = c.CreateContainer(dir, []byte{}, zk.FlagContainer, s.b.o.ACL)
			} else {
				_, err = c.Create(dir, []byte{}, zk.FlagPersistent, s.b.o.ACL)
			}
			return err
		}, nil)
		// unimplemented: before ZooKeeper 3.5.3
		if container && err != nil && strings.Contains(err.Error(), "unknown error: -6") {
			s.b.plain.Store(true)
			return zk.ErrConnectionClosed // again
		}
		return err
	})
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// remove deletes a node of the session in the background's time: until it is gone, or the session
// is.
func (s *session) remove(at string) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		sent := s.now()
		err := s.call(s.b.ctx, func(c *zk.Conn) error { return c.Delete(at, -1) }, nil)
		if err == nil {
			s.wrote(sent)
		}
		if removed(err) {
			return
		}
		if errors.Is(err, errEnded) || pause(s.b.ctx, wait) != nil {
			if !s.own { // over for the driver; the user's connection may have it yet
				go s.clear(at)
			}
			return
		}
	}
}

// removed reports whether a delete with that result need not be tried again: the node is gone, or
// it may not be deleted. A server that has too much to do refuses too, for now.
func removed(err error) bool {
	return err == nil || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth)
}

// parse makes requests of a name's children, in order of arrival.
func (s *session) parse(ctx context.Context, name string, children []string) (ns []*node, err error) {
	ns = make([]*node, 0, len(children))
	for _, child := range children {
		if n, ok := parseNode(name, child); ok {
			ns = append(ns, n)
		}
	}
	if worn(ns) {
		if ns, err = s.date(ctx, s.b.dir(name), ns); err != nil {
			return nil, err
		}
	}
	sortNodes(ns)
	return ns, nil
}

// sync makes the server catch up with its leader: without it a server shows a past in which what
// other clients did has not happened yet. What this session wrote itself it sees in any case, and
// all that came before that.
func (s *session) sync(ctx context.Context, at string) error {
	return s.call(ctx, func(c *zk.Conn) error {
		_, err := c.Sync(at)
		return err
	}, nil)
}

// date reads when the strangers arrived, and returns what is still there.
func (s *session) date(ctx context.Context, dir string, ns []*node) ([]*node, error) {
	err := each(len(ns), func(i int) error {
		if ns[i].entry.Join() {
			return nil
		}
		stat, err := s.stat(ctx, dir+"/"+ns[i].name)
		if errors.Is(err, zk.ErrNoNode) {
			ns[i] = nil
			return nil
		}
		if err == nil {
			ns[i].czxid = stat.Czxid
		}
		return err
	})
	var there []*node
	for _, n := range ns {
		if n != nil {
			there = append(there, n)
		}
	}
	return there, err
}

func (s *session) stat(ctx context.Context, at string) (*zk.Stat, error) {
	var stat *zk.Stat
	err := s.call(ctx, func(c *zk.Conn) error {
		there, st, err := c.Exists(at)
		if err == nil && !there {
			return zk.ErrNoNode
		}
		stat = st
		return err
	}, nil)
	if err != nil {
		return nil, err
	}
	return stat, nil
}

// each runs f for 0 to n-1, several at a time, and returns the first error.
func each(n int, f func(int) error) error {
	const abreast = 16
	errs := make(chan error, n)
	next := atomic.Int64{}
	for range min(n, abreast) {
		go func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs <- f(i)
			}
		}()
	}
	var first error
	for range n {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}
