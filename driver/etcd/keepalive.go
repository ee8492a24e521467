package etcd

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/driver"
)

// keepAlives is the one stream of keep-alives. It is opened when it is needed, and again after any
// fault. The client library's own keep-alive has a schedule of its own, and reports neither when an
// answered keep-alive was sent nor in which term it was answered: a proof needs both
// (TestProofNeedsOneTerm, and "a leader that slept" of TestEtcdCluster).
type keepAlives struct {
	c  *cluster
	mu sync.Mutex
	s  *keepStream // nil: none
}

type keepStream struct {
	out    *outbox[*pb.LeaseKeepAliveRequest]
	cancel context.CancelFunc
	broken chan struct{} // closed when the stream has ended
	err    error         // why it ended
	asking int           // callers that wait for an answer
	// by lease; the server answers the keep-alives of one lease in order
	pending map[int64][]chan *pb.LeaseKeepAliveResponse
}

// send sends a keep-alive and returns the answer. It uses a stream that is not in tried: a new
// stream may reach another member. k.mu guards tried.
func (k *keepAlives) send(ctx context.Context, id int64, tried map[*keepStream]bool) (*pb.LeaseKeepAliveResponse, error) {
	answer := make(chan *pb.LeaseKeepAliveResponse, 1)
	k.mu.Lock()
	s := k.s
	if s == nil || tried[s] {
		if s != nil && s.asking == 0 { // otherwise the last caller that waits on it ends it
			s.cancel()
		}
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
		if s.asking--; k.s != s && s.asking == 0 { // it is not used again
			s.cancel()
		}
	}()
	select {
	case res := <-answer:
		return res, nil
	case <-s.broken:
		return nil, s.err
	case <-ctx.Done(): // other callers may still get an answer; the next call opens another stream
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
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(k.c.life.Context()))
	s := &keepStream{
		out: newOutbox[*pb.LeaseKeepAliveRequest](), cancel: cancel, broken: make(chan struct{}),
		pending: map[int64][]chan *pb.LeaseKeepAliveResponse{},
	}
	k.s = s
	begun := k.c.life.Go(func() {
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

// run opens the stream at the server, and passes answers on until it ends.
func (k *keepAlives) run(ctx context.Context, s *keepStream) error {
	stream, err := k.c.lessor.LeaseKeepAlive(ctx, callOptions...)
	if err != nil {
		return err
	}
	k.c.life.Go(func() { s.out.run(ctx, stream.Send) })
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
