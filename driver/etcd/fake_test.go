package etcd

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// fakeCluster answers the parts of a proof, and transactions as a test says.
type fakeCluster struct {
	pb.KVClient
	pb.LeaseClient
	txn func(*pb.TxnRequest) (*pb.TxnResponse, error) // nil: no transaction is answered

	mu               sync.Mutex
	read, keep, list uint64 // the terms in which the parts are answered
	// the lease's granted TTL (0: it is gone), and the time left, in whole seconds
	ttl, left int64
	hung      int64 // a lease for which calls are not answered
	keys      []string
	granted   int64           // leases
	full      error           // the answer to a call that grants one
	kept      int             // keep-alives
	mute      bool            // only keep-alives are received, and nothing is answered
	slow      time.Duration   // before each answer
	dead      map[string]bool // parts whose next call, or stream, is never answered
}

// oneTerm is a cluster that answers all calls in one term.
func oneTerm() *fakeCluster { return &fakeCluster{read: 1, keep: 1, list: 1} }

// hangs reports whether a call reaches a dead member. The next call reaches another one.
func (c *fakeCluster) hangs(part string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	dead := c.dead[part]
	delete(c.dead, part)
	return dead
}

func (c *fakeCluster) wait(ctx context.Context, part string) error {
	if c.hangs(part) {
		<-ctx.Done()
	}
	c.mu.Lock()
	slow, mute := c.slow, c.mute
	c.mu.Unlock()
	if mute {
		<-ctx.Done()
	}
	return kit.Pause(ctx, nil, slow+time.Microsecond)
}

func (c *fakeCluster) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	if c.txn == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.txn(r)
}

func (c *fakeCluster) Range(ctx context.Context, _ *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	if err := c.wait(ctx, "read"); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return &pb.RangeResponse{Header: &pb.ResponseHeader{RaftTerm: c.read}}, nil
}

func (c *fakeCluster) LeaseGrant(context.Context, *pb.LeaseGrantRequest, ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.granted++
	return &pb.LeaseGrantResponse{ID: 100 + c.granted, TTL: c.ttl}, c.full
}

func (c *fakeCluster) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
	if err := c.wait(ctx, "list"); err != nil {
		return nil, err
	}
	if r.ID == c.hung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	res := &pb.LeaseTimeToLiveResponse{Header: &pb.ResponseHeader{RaftTerm: c.list}, TTL: c.left, GrantedTTL: c.ttl}
	if c.ttl == 0 {
		res.TTL = -1
	}
	for _, k := range c.keys {
		res.Keys = append(res.Keys, []byte(k))
	}
	return res, nil
}

func (c *fakeCluster) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return &fakeKeepAlives{c: c, ctx: ctx, ids: make(chan int64, 100), dead: c.hangs("stream")}, nil
}

func (c *fakeCluster) Watch(ctx context.Context, _ ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	return &silentWatches{ctx: ctx}, nil
}

// healthy is a member that answers Status.
type healthy struct{ pb.MaintenanceClient }

func (healthy) Status(context.Context, *pb.StatusRequest, ...grpc.CallOption) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{}, nil
}

// silentWatches is a stream on which the server sends nothing.
type silentWatches struct {
	grpc.ClientStream
	ctx context.Context
}

func (s *silentWatches) Send(*pb.WatchRequest) error { return nil }

func (s *silentWatches) Recv() (*pb.WatchResponse, error) {
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

type fakeKeepAlives struct {
	grpc.ClientStream
	c    *fakeCluster
	ctx  context.Context
	ids  chan int64
	dead bool
}

func (s *fakeKeepAlives) Send(r *pb.LeaseKeepAliveRequest) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.kept++
	s.ids <- r.ID
	return nil
}

func (s *fakeKeepAlives) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case id := <-s.ids:
		if s.dead {
			<-s.ctx.Done()
		}
		if err := s.c.wait(s.ctx, ""); err != nil {
			return nil, err
		}
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		return &pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{RaftTerm: s.c.keep}, ID: id, TTL: s.c.ttl}, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// holding returns a backend of the cluster, which it has checked, with one hold under one lease of
// 6 s.
func holding(c *fakeCluster) (*Backend, *lease, *ownRequest) {
	b := &Backend{
		cluster: cluster{kv: c, lessor: c, watch: c, status: healthy{}, base: "dlock/", life: kit.NewLife()}, id: "0123456789abcdef",
		requests: map[driver.ID]*ownRequest{}, losses: map[driver.ID]*ownRequest{}, names: map[string]*nameState{},
		keeping: true,
	}
	b.makeLeases()
	b.watches = newWatches(&b.cluster)
	b.txns = newBatcher(b.life.Context(), c, b.suspect)
	b.verdict.Store(&verdict{})
	b.formatted.Store(true)
	l := &lease{of: b.leases, id: 7, ttl: 6 * time.Second, since: time.Now()}
	id := driver.NewID()
	rq := newOwnRequest(driver.Request{Name: "n", ID: id, Owner: id, TTL: l.ttl})
	rq.rev, rq.until = 5, l.since.Add(l.ttl)
	rq.lease, l.requests, l.used = l, 1, time.Now()
	b.assignKey(rq)
	b.requests[id] = rq
	c.ttl, c.left, c.keys = 6, 6, []string{rq.key}
	return b, l, rq
}
