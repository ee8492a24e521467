package etcd

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver"
)

// cluster answers the parts of a proof.
type cluster struct {
	pb.KVClient
	pb.LeaseClient

	mu               sync.Mutex
	read, keep, list uint64 // the terms that each part is answered in
	// of the lease, as it was granted, 0: gone; and what is left of it, in whole seconds
	ttl, left int64
	hung      int64 // a lease that nothing is said of
	keys      []string
	granted   int64           // leases
	full      error           // the answer to who asks for one
	kept      int             // keep-alives
	deaf      bool            // nothing but keep-alives is answered
	slow      time.Duration   // before each answer
	dead      map[string]bool // parts of which the next call, or stream, is never answered
}

// hangs reports whether a call goes to a dead member. The next goes to another.
func (c *cluster) hangs(part string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	dead := c.dead[part]
	delete(c.dead, part)
	return dead
}

func (c *cluster) wait(ctx context.Context, part string) error {
	if c.hangs(part) {
		<-ctx.Done()
	}
	c.mu.Lock()
	slow, deaf := c.slow, c.deaf
	c.mu.Unlock()
	if deaf {
		<-ctx.Done()
	}
	return pause(ctx, slow+time.Microsecond)
}

func (c *cluster) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	if err := c.wait(ctx, "read"); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return &pb.RangeResponse{Header: &pb.ResponseHeader{RaftTerm: c.read}}, nil
}

func (c *cluster) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
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

func (c *cluster) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return &aliveStream{c: c, ctx: ctx, ids: make(chan int64, 100), dead: c.hangs("stream")}, nil
}

type aliveStream struct {
	grpc.ClientStream
	c    *cluster
	ctx  context.Context
	ids  chan int64
	dead bool
}

func (s *aliveStream) Send(r *pb.LeaseKeepAliveRequest) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.kept++
	s.ids <- r.ID
	return nil
}

func (s *aliveStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
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

// proving returns a backend of the cluster with one hold under one lease of 6 s.
func proving(t *testing.T, c *cluster) (*Backend, *lease, *mine) {
	b := &Backend{
		kv: c, leases: c, id: "0123456789abcdef", base: "dlock/", names: names{}, mine: map[driver.ID]*mine{}, buried: map[driver.ID]time.Time{},
		pools: map[int64]*pool{}, fixed: map[*lease]bool{}, graves: map[int64]*lease{}, keeper: true,
	}
	b.ctx, b.cancel = context.WithCancel(t.Context())
	b.alive.b, b.hub.b = b, b
	b.txns = combiner{kv: &server{let: make(chan struct{})}, ctx: b.ctx} // nothing is ever removed
	l := &lease{id: 7, ttl: 6 * time.Second, since: time.Now()}
	id := driver.NewID()
	m := &mine{r: driver.Request{Name: "n", ID: id, Owner: id, TTL: l.ttl}, wake: make(chan struct{}, 1), rev: 5, until: l.since.Add(l.ttl)}
	m.take(l)
	b.slot(m)
	b.mine[id] = m
	c.ttl, c.left, c.keys = 6, 6, []string{m.key}
	return b, l, m
}

func TestProofNeedsOneTerm(t *testing.T) {
	for _, c := range []struct {
		what             string
		read, keep, list uint64
		ttl, left        int64
		want             error
	}{
		{"all in one term", 3, 3, 3, 6, 6, nil},
		{"the lease's last second", 3, 3, 3, 6, 0, nil},
		{"a keep-alive by an old leader", 4, 3, 3, 6, 6, errTerm},
		{"a keep-alive alone by an old leader", 4, 3, 4, 6, 6, errTerm},
		{"an audit by an old leader", 4, 4, 3, 6, 6, errTerm},
		{"an old leader that does not know the lease", 4, 3, 3, 0, 0, errTerm},
		{"the lease is gone", 3, 3, 3, 0, 0, driver.ErrLost},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &cluster{read: c.read, keep: c.keep, list: c.list}
			b, l, m := proving(t, s)
			defer b.cancel()
			s.ttl, s.left = c.ttl, c.left
			time.Sleep(2 * time.Second)
			sent := time.Now()
			p := b.Renew(t.Context(), []driver.Request{m.r})[0]
			if !errors.Is(p.Err, c.want) || c.want == nil && p.Err != nil {
				t.Errorf("%s: %v; want %v", c.what, p.Err, c.want)
			}
			if c.want == nil && (!p.SentAt.Equal(sent) || !l.since.Equal(sent) || !m.until.Equal(sent.Add(l.ttl))) {
				t.Errorf("%s: trusted from %s after it was sent", c.what, p.SentAt.Sub(sent))
			}
			if c.want != nil && l.since.Equal(sent) {
				t.Errorf("%s: the lease is trusted", c.what)
			}
		})
	}
}

// TestAudit: what is missing is lost; what is strange goes when it is seen for the second time.
func TestAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &cluster{read: 1, keep: 1, list: 1}
		b, l, m := proving(t, s)
		defer b.cancel()
		told := make(chan driver.ID, 1)
		b.Notify(func(id driver.ID) { told <- id })
		stray, other := "dlock/n/s0123456789abcdef-9", "elsewhere"
		s.keys = append(s.keys, stray, other)
		used := func() bool { return b.names.uses(b, stray) }
		for i, want := range []bool{false, true} {
			if p := b.prove(t.Context(), []*lease{l})[0]; p.err != nil || used() != want {
				t.Errorf("audit %d: %v; the stray is being removed: %t", i+1, p.err, used())
			}
		}
		s.keys = []string{stray}
		if p := b.Renew(t.Context(), []driver.Request{m.r})[0]; !errors.Is(p.Err, driver.ErrLost) || <-told != m.r.ID {
			t.Errorf("a hold whose key is missing: %v", p.Err)
		}
	})
}

// TestRenewBesideRelease: what was removed is lost, although nobody has said so yet.
func TestRenewBesideRelease(t *testing.T) {
	for _, leaving := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, _, m := proving(t, &cluster{read: 1, keep: 1, list: 1})
			defer b.cancel()
			b.mu.Lock()
			m.leaving = leaving
			b.gone(m, time.Time{})
			b.mu.Unlock()
			if p := b.Renew(t.Context(), []driver.Request{m.r})[0]; !errors.Is(p.Err, driver.ErrLost) {
				t.Errorf("Renew: %v", p.Err)
			}
		})
	}
}

// TestLapsedLeaseIsAskedForFirst: a client that hears nothing must not keep alive what it cannot
// use.
func TestLapsedLeaseIsAskedForFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &cluster{read: 1, keep: 1, list: 1, deaf: true}
		b, l, _ := proving(t, s)
		defer b.cancel()
		round := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			return b.prove(ctx, []*lease{l})[0].err
		}
		kept := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.kept
		}
		if err := round(); err == nil || kept() == 0 {
			t.Errorf("within its time a lease is kept alive, come what may: %d keep-alives, %v", kept(), err)
		}
		time.Sleep(6 * time.Second)
		before := kept()
		if err := round(); err == nil || kept() != before {
			t.Errorf("a lapsed lease was kept alive blindly: %v", err)
		}
		s.mu.Lock()
		s.deaf = false
		s.mu.Unlock()
		if err := round(); err != nil || kept() == before {
			t.Errorf("a lapsed lease that is still there: %v", err)
		}
	})
}

// TestSlowAnswersAreWaitedFor: asking again does not give up what was asked first.
func TestSlowAnswersAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &cluster{read: 1, keep: 1, list: 1, slow: 1900 * time.Millisecond}
		b, l, _ := proving(t, s)
		defer b.cancel()
		ctx, cancel := context.WithTimeout(t.Context(), l.ttl/3)
		defer cancel()
		if p := b.prove(ctx, []*lease{l})[0]; p.err != nil {
			t.Errorf("answers that come after 1.9 s of a TTL of 6 s: %v", p.err)
		}
	})
}

// TestDeadMemberIsPassedOver: the second attempt, which reaches another, is in time for the
// renewal.
func TestDeadMemberIsPassedOver(t *testing.T) {
	for _, part := range []string{"read", "list", "stream"} {
		synctest.Test(t, func(t *testing.T) {
			s := &cluster{read: 1, keep: 1, list: 1, dead: map[string]bool{part: true}}
			b, l, _ := proving(t, s)
			defer b.cancel()
			ctx, cancel := context.WithTimeout(t.Context(), l.ttl/3)
			defer cancel()
			if p := b.prove(ctx, []*lease{l})[0]; p.err != nil {
				t.Errorf("the first %s goes to a dead member: %v", part, p.err)
			}
		})
	}
}

// TestLeasesOfOtherTTLs: one that nothing is said of, and that has time, keeps no other from being
// renewed.
func TestLeasesOfOtherTTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &cluster{read: 1, keep: 1, list: 1, hung: 8}
		b, l, _ := proving(t, s)
		defer b.cancel()
		start := time.Now()
		long := &lease{id: 8, ttl: 10 * time.Minute, since: start.Add(-5 * time.Minute), used: start, waiting: 1}
		l.waiting, l.since = 1, start.Add(-3*time.Second) // so that both are due
		b.pools[600] = &pool{leases: []*lease{long}, turn: make(chan struct{}, 1)}
		b.fixed[l] = true
		b.spawn(b.keep)
		time.Sleep(20 * time.Second)
		b.mu.Lock()
		defer b.mu.Unlock()
		if age := time.Since(l.since); age > l.ttl/2 {
			t.Errorf("a lease of %s was last renewed %s ago", l.ttl, age)
		}
	})
}
