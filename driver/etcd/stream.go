package etcd

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// outbox feeds a stream, so that nobody waits for a server that does not read.
type outbox[T any] struct {
	mu    sync.Mutex
	items []T
	wake  chan struct{}
}

func newOutbox[T any]() *outbox[T] { return &outbox[T]{wake: make(chan struct{}, 1)} }

func (o *outbox[T]) add(item T) {
	o.mu.Lock()
	o.items = append(o.items, item)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run sends what is added until ctx or the stream ends.
func (o *outbox[T]) run(ctx context.Context, send func(T) error) {
	for {
		o.mu.Lock()
		items := o.items
		o.items = nil
		o.mu.Unlock()
		for _, item := range items {
			if send(item) != nil {
				return
			}
		}
		if len(items) > 0 {
			continue
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return
		}
	}
}

// keepAlives is the one stream of keep-alives. It is opened when it is needed, and anew after any
// fault.
type keepAlives struct {
	b  *Backend
	mu sync.Mutex
	s  *keepStream // nil: none
}

type keepStream struct {
	out    *outbox[*pb.LeaseKeepAliveRequest]
	cancel context.CancelFunc
	broken chan struct{} // closed when it has ended
	err    error         // why
	asking int           // those who wait for an answer
	// the server answers those of one lease in the order in which they came
	pending map[int64][]chan *pb.LeaseKeepAliveResponse
}

// keep sends a keep-alive and returns the answer. It goes over a stream that was not tried for it
// before, which may lead to another member. k.mu guards tried.
func (k *keepAlives) keep(ctx context.Context, id int64, tried map[*keepStream]bool) (*pb.LeaseKeepAliveResponse, error) {
	answer := make(chan *pb.LeaseKeepAliveResponse, 1)
	k.mu.Lock()
	s := k.s
	if s == nil || tried[s] { // the last that waits for that one ends it
		s = k.open()
	}
	tried[s] = true
	s.asking++
	s.pending[id] = append(s.pending[id], answer)
	s.out.add(&pb.LeaseKeepAliveRequest{ID: id})
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if s.asking--; k.s != s && s.asking == 0 { // nobody will use it again
			s.cancel()
		}
	}()
	select {
	case res := <-answer:
		return res, nil
	case <-s.broken:
		return nil, s.err
	case <-ctx.Done(): // others may still be answered; who comes next gets another
		k.mu.Lock()
		if k.s == s {
			k.s = nil
		}
		k.mu.Unlock()
		return nil, ctx.Err()
	}
}

// open starts a stream. k.mu is held.
func (k *keepAlives) open() *keepStream {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(k.b.ctx))
	s := &keepStream{
		out: newOutbox[*pb.LeaseKeepAliveRequest](), cancel: cancel, broken: make(chan struct{}),
		pending: map[int64][]chan *pb.LeaseKeepAliveResponse{},
	}
	k.s = s
	begun := k.b.spawn(func() {
		err := k.run(ctx, s)
		cancel()
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.s == s {
			k.s = nil
		}
		s.err = err
		close(s.broken)
	})
	if !begun {
		k.s, s.err = nil, driver.ErrClosed
		close(s.broken)
	}
	return s
}

func (k *keepAlives) run(ctx context.Context, s *keepStream) error {
	stream, err := k.b.leases.LeaseKeepAlive(ctx, callOptions...)
	if err != nil {
		return err
	}
	k.b.spawn(func() { s.out.run(ctx, stream.Send) })
	for {
		res, err := stream.Recv()
		if err != nil {
			return err
		}
		k.mu.Lock()
		if p := s.pending[res.ID]; len(p) > 0 {
			p[0] <- res
			if s.pending[res.ID] = p[1:]; len(p) == 1 {
				delete(s.pending, res.ID)
			}
		}
		k.mu.Unlock()
	}
}
