package conn

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// call runs f and returns its result, or the error of ctx, or [ErrEnded], or driver.ErrClosed. The
// library takes no context, so f runs in a goroutine of its own, which ends when the server answers
// or the network connection breaks. If call returns before f does, late receives the result of f;
// late may be nil.
func call[T any](ctx context.Context, s *Session, f func(*zk.Conn) (T, error), late func(T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, &kit.NotSent{Err: err}
	}
	if s.conn.isClosed() {
		return none, zk.ErrClosing
	}
	if !s.begin() {
		return none, &kit.NotSent{Err: ErrEnded}
	}
	type result struct {
		v   T
		err error
	}
	var taken atomic.Bool // set by the result, or by a caller that left
	done := make(chan result, 1)
	go func() {
		v, err := run(s, f)
		if taken.CompareAndSwap(false, true) {
			done <- result{v, err}
		} else if late != nil {
			late(v, err)
		}
	}()
	var err error
	select {
	case r := <-done:
		return r.v, s.verify(r.err)
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.ended:
		err = ErrEnded
	case <-s.listener.Stop:
		err = driver.ErrClosed
	}
	if !taken.CompareAndSwap(false, true) {
		r := <-done
		return r.v, s.verify(r.err)
	}
	return none, err
}

// run makes a call that begin has counted.
func run[T any](s *Session, f func(*zk.Conn) (T, error)) (T, error) {
	v, err := f(s.conn.library)
	s.calls.Done()
	if errors.Is(err, zk.ErrConnectionClosed) && s.conn.isClosed() {
		err = zk.ErrClosing
	}
	if err = named(err); err != nil && kindOf(err).then == elsewhere {
		s.conn.hangUp(time.Now()) // the library goes on to the next server
	}
	if errors.Is(err, zk.ErrSessionExpired) {
		s.listener.End()
		err = ErrEnded
	}
	return v, err
}

// begin reports whether a call may be made, and counts it then.
func (s *Session) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.shut {
		return false
	}
	s.calls.Add(1)
	return true
}

// verify refuses a result that may have come from another session of a user's connection.
func (s *Session) verify(err error) error {
	if err == nil && !s.conn.owned && s.conn.State().ID != s.ID {
		return zk.ErrConnectionClosed
	}
	return err
}

// simple is call for a function that returns only an error.
func (s *Session) simple(ctx context.Context, f func(*zk.Conn) error, late func(error)) error {
	then := func(_ struct{}, err error) {
		if late != nil {
			late(err)
		}
	}
	_, err := call(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, f(c) }, then)
	return err
}

// Create creates a node. The flags are zk.FlagPersistent or zk.FlagContainer.
func (s *Session) Create(ctx context.Context, path string, data []byte, flags int32, acl []zk.ACL) error {
	return s.simple(ctx, func(c *zk.Conn) (err error) {
		if flags == zk.FlagContainer {
			_, err = c.CreateContainer(path, data, flags, acl)
		} else {
			_, err = c.Create(path, data, flags, acl)
		}
		return denied(&zk.CreateRequest{Path: path}, err)
	}, nil)
}

// Delete deletes a node that has the version; -1: any.
func (s *Session) Delete(ctx context.Context, path string, version int32) error {
	return s.simple(ctx, func(c *zk.Conn) error { return denied(&zk.DeleteRequest{Path: path}, c.Delete(path, version)) }, nil)
}

// Stat returns the state of a node, or zk.ErrNoNode.
func (s *Session) Stat(ctx context.Context, path string) (*zk.Stat, error) {
	return call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		there, stat, err := c.Exists(path)
		if err == nil && !there {
			err = zk.ErrNoNode
		}
		return stat, cannotRead(path, err)
	}, nil)
}

// reply is what a read of a node returns.
type reply struct {
	data     []byte
	children []string
	stat     *zk.Stat
}

// Get returns the data and the state of a node.
func (s *Session) Get(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	r, err := call(ctx, s, func(c *zk.Conn) (r reply, err error) {
		r.data, r.stat, err = c.Get(path)
		return r, cannotRead(path, err)
	}, nil)
	return r.data, r.stat, err
}

// Children returns the names of a node's children, and its state.
func (s *Session) Children(ctx context.Context, path string) ([]string, *zk.Stat, error) {
	r, err := call(ctx, s, children(path), nil)
	return r.children, r.stat, err
}

// AwaitChildren is Children for a goroutine that has nothing else to do: it returns only when the
// server answers or the network connection ends, and starts no other goroutine.
func (s *Session) AwaitChildren(path string) ([]string, *zk.Stat, error) {
	if !s.begin() {
		return nil, nil, &kit.NotSent{Err: ErrEnded}
	}
	r, err := run(s, children(path))
	return r.children, r.stat, s.verify(err)
}

func children(path string) func(*zk.Conn) (reply, error) {
	return func(c *zk.Conn) (r reply, err error) {
		r.children, r.stat, err = c.Children(path)
		return r, cannotRead(path, err)
	}
}

// Watch asks for the next event of a node, or returns zk.ErrNoNode. The event goes to the
// [Listener]. If Watch returns before the server answers, late receives the result.
func (s *Session) Watch(ctx context.Context, path string, late func(error)) error {
	return s.simple(ctx, func(c *zk.Conn) error {
		_, _, err := c.Get(path + watchMark)
		return cannotRead(path, err)
	}, late)
}

// GetWatch is Get, and asks for the next event of the node, which goes to the [Listener].
func (s *Session) GetWatch(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	r, err := call(ctx, s, func(c *zk.Conn) (r reply, err error) {
		r.data, r.stat, err = c.Get(path + watchMark)
		return r, err
	}, nil)
	return r.data, r.stat, err
}

// Multi executes the operations as one transaction, and returns the result of each. If Multi
// returns before the server answers, late receives the result; late may be nil.
func (s *Session) Multi(ctx context.Context, late func([]zk.MultiResponse, error), ops ...any) ([]zk.MultiResponse, error) {
	return call(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return multi(c, ops) }, late)
}

func multi(c *zk.Conn, ops []any) ([]zk.MultiResponse, error) {
	res, err := c.Multi(ops...)
	for i := range res {
		if i < len(ops) {
			res[i].Error = denied(ops[i], named(res[i].Error))
		}
		if errors.Is(err, zk.ErrNoAuth) && errors.Is(res[i].Error, zk.ErrNoAuth) {
			err = res[i].Error
		}
	}
	if err == nil && len(res) != len(ops) {
		err = ErrAnswer
	}
	return res, err
}

// AwaitMulti is Multi as [Session.AwaitChildren] is Children.
func (s *Session) AwaitMulti(ops ...any) ([]zk.MultiResponse, error) {
	if !s.begin() {
		return nil, &kit.NotSent{Err: ErrEnded}
	}
	res, err := run(s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return multi(c, ops) })
	return res, s.verify(err)
}

// Sync makes the session's server catch up with the leader. Without it a server may show a past in
// which recent changes of other clients are missing. It always shows the session's own writes, and
// everything before them.
func (s *Session) Sync(ctx context.Context, path string) error {
	return s.simple(ctx, func(c *zk.Conn) error { _, err := c.Sync(path); return err }, nil)
}

// Authenticate gives the session the rights of a user: "user:password".
func (s *Session) Authenticate(ctx context.Context, credentials string) error {
	return s.simple(ctx, func(c *zk.Conn) error { return c.AddAuth("digest", []byte(credentials)) }, nil)
}
