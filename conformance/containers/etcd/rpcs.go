package etcd

import (
	"bytes"
	"context"
	"maps"
	"path"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// rpcs records the calls of a client of etcd, which a proxy cannot read in HTTP/2: it counts, loses
// replies, and can repeat transactions. Methods are named without their service: "Txn", "Range",
// "LeaseGrant". On the streams "Watch" and "LeaseKeepAlive" each message of the client counts. The
// transaction that stores the format is "Format", and the watch and the reads of the notices of
// breaks are "Notices".
type rpcs struct {
	mu        sync.Mutex
	calls     map[string]int64
	lose      map[string]chan struct{} // closed when a reply was lost
	recording bool
	txns      []*pb.TxnRequest
	// called for messages of watches; an error breaks the stream
	spoil     func(*pb.WatchResponse) error
	watching  int64          // watches of names that the server confirmed
	cancelled int64          // watches that were cancelled
	notices   map[int64]bool // the IDs of watches of notices
	longest   time.Duration  // the longest time of a unary call
}

func newRPCs() *rpcs {
	return &rpcs{calls: map[string]int64{}, lose: map[string]chan struct{}{}, notices: map[int64]bool{}}
}

// options returns the dial options of the client's connection.
func (r *rpcs) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(r.unary), grpc.WithChainStreamInterceptor(r.stream)}
}

// counts returns the number of calls so far, by method.
func (r *rpcs) counts() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.calls)
}

// since returns the number of calls after the earlier counts, by method.
func (r *rpcs) since(before map[string]int64) map[string]int64 {
	now := r.counts()
	for method, n := range before {
		if now[method] -= n; now[method] == 0 {
			delete(now, method)
		}
	}
	return now
}

// total returns the number of messages that a client sent.
func total(calls map[string]int64) (n int64) {
	for _, c := range calls {
		n += c
	}
	return n
}

// promptly is less than the bound of the first attempt of a call in the driver.
const promptly = 400 * time.Millisecond

// prompted reports whether each unary call so far was answered so soon that the driver cannot have
// sent it again. (After a call that it sent again the driver leaves a tombstone, since a copy may
// be under way, and takes a missing key for its own deletion.)
func (r *rpcs) prompted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.longest < promptly
}

// watches returns the number of watches of names that the server confirmed so far.
func (r *rpcs) watches() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watching
}

// cancels returns the number of watches that were cancelled so far.
func (r *rpcs) cancels() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancelled
}

// loseReply loses the next reply to a unary method: the server executed the call, and the client
// does not learn the outcome. The result is closed when that has happened.
func (r *rpcs) loseReply(method string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := make(chan struct{})
	r.lose[method] = lost
	return lost
}

// record keeps copies of the transactions that are sent from now on. The result ends the recording,
// and returns them.
func (r *rpcs) record() (sent func() []*pb.TxnRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recording, r.txns = true, nil
	return func() []*pb.TxnRequest {
		r.mu.Lock()
		defer r.mu.Unlock()
		txns := r.txns
		r.recording, r.txns = false, nil
		return txns
	}
}

// methodOf returns the name of a unary call.
func methodOf(name string, req any) string {
	if read, ok := req.(*pb.RangeRequest); ok && ofNotices(read.Key) {
		return "Notices"
	}
	if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) > 0 {
		// all other transactions have one
		if put := txn.Success[0].GetRequestPut(); put != nil && put.Lease == 0 {
			return "Format"
		}
	}
	return path.Base(name)
}

func ofNotices(key []byte) bool { return bytes.Contains(key, []byte("%broken-")) }

func (r *rpcs) sees(method string, req any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[method]++
	if txn, ok := req.(*pb.TxnRequest); ok && r.recording && method == "Txn" {
		r.txns = append(r.txns, txn)
	}
}

func (r *rpcs) unary(ctx context.Context, name string, req, res any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	method := methodOf(name, req)
	r.sees(method, req)
	r.mu.Lock()
	lost := r.lose[method]
	delete(r.lose, method)
	r.mu.Unlock()
	start := time.Now()
	err := invoke(ctx, name, req, res, c, opts...)
	r.mu.Lock()
	if r.longest = max(r.longest, time.Since(start)); ctx.Err() != nil {
		r.longest = max(r.longest, promptly) // it was abandoned, perhaps before it was sent
	}
	r.mu.Unlock()
	if lost != nil {
		close(lost)
		return status.Error(codes.Unavailable, "the reply was lost")
	}
	return err
}

func (r *rpcs) stream(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, name string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, d, c, name, opts...)
	if err != nil {
		return nil, err
	}
	return &seenStream{s, r, path.Base(name)}, nil
}

type seenStream struct {
	grpc.ClientStream
	r      *rpcs
	method string
}

func (s *seenStream) SendMsg(m any) error {
	method := s.method
	if w, ok := m.(*pb.WatchRequest); ok {
		if create := w.GetCreateRequest(); create != nil && ofNotices(create.Key) {
			method = "Notices"
			s.r.mu.Lock()
			s.r.notices[create.WatchId] = true
			s.r.mu.Unlock()
		}
		if w.GetCancelRequest() != nil {
			s.r.mu.Lock()
			s.r.cancelled++
			s.r.mu.Unlock()
		}
	}
	s.r.sees(method, m)
	return s.ClientStream.SendMsg(m)
}

// spoilEvents calls f with the next message of a watch that has events, which f may change. If f
// returns an error, the client gets it, and its stream ends.
func (r *rpcs) spoilEvents(f func(*pb.WatchResponse) error) (done <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	spoilt := make(chan struct{})
	r.spoil = func(res *pb.WatchResponse) error {
		close(spoilt)
		return f(res)
	}
	return spoilt
}

// examined is the ID of the watch by which the driver checks the server, once.
const examined = 1 << 40

func (s *seenStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	res, ok := m.(*pb.WatchResponse)
	if ok && res.Created && !res.Canceled && res.WatchId != examined {
		s.r.mu.Lock()
		if !s.r.notices[res.WatchId] {
			s.r.watching++
		}
		s.r.mu.Unlock()
	}
	if !ok || len(res.Events) == 0 {
		return nil
	}
	s.r.mu.Lock()
	spoil := s.r.spoil
	s.r.spoil = nil
	s.r.mu.Unlock()
	if spoil == nil {
		return nil
	}
	return spoil(res)
}
