package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// txnServer answers transactions when it may.
type txnServer struct {
	pb.KVClient
	mu    sync.Mutex
	calls []*pb.TxnRequest
	may   chan struct{}
	fail  func(*pb.TxnRequest) error
}

func (s *txnServer) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	s.mu.Lock()
	s.calls = append(s.calls, r)
	n := len(s.calls)
	s.mu.Unlock()
	select {
	case <-s.may:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.fail != nil {
		if err := s.fail(r); err != nil {
			return nil, err
		}
	}
	res := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: int64(n)}, Succeeded: true}
	for range r.Success {
		res.Responses = append(res.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: &pb.TxnResponse{Succeeded: true}}})
	}
	return res, nil
}

func (s *txnServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// TestBatch: what comes while others are under way travels together, one of each name, and is sent
// alone if the server refuses it together.
func TestBatch(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &txnServer{may: make(chan struct{})}
			if refuses {
				s.fail = func(r *pb.TxnRequest) error {
					if len(r.Success) > 1 {
						return rpctypes.ErrGRPCLeaseNotFound
					}
					return nil
				}
			}
			c := &batcher{kv: s, ctx: t.Context()}
			sends := func(want int) {
				t.Helper()
				if synctest.Wait(); s.count() != want {
					t.Fatalf("%d transactions were sent; want %d", s.count(), want)
				}
			}
			send := func(names ...string) {
				for _, name := range names {
					go func() {
						res, rev, _, err := c.send(t.Context(), time.Minute, name, false, &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp(name)}})
						if err != nil || !res.Succeeded || rev == 0 {
							t.Errorf("%s: %v, %d, %v", name, res, rev, err)
						}
					}()
				}
			}
			send("x", "y")
			sends(inFlight)
			send("a", "b", "c", "a")
			sends(inFlight)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, _, _, err := c.send(ctx, time.Minute, "left", false, nil); !errors.Is(err, errNotSent) || outcomeOf(err) != kit.NotDone {
				t.Errorf("who left before it was sent got %v", err)
			}
			s.may <- struct{}{}
			sends(inFlight + 1)
			s.mu.Lock()
			if n := len(s.calls[inFlight].Success); n != 3 {
				t.Errorf("%d went together", n)
			}
			s.mu.Unlock()
			time.Sleep(slowAnswer + slowAnswer/2) // the second a has waited for long
			sends(inFlight + 2)
			close(s.may)
			want := inFlight + 2
			if refuses {
				want += 3
			}
			sends(want)
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.calls != 0 || len(c.names) != 0 || len(c.queues) != 0 {
				t.Errorf("%d are under way and %d wait when all is done", c.calls, len(c.names))
			}
		})
	}
}

// TestBatchUrgent: what is urgent is sent at once beside what is under way, and ahead of what is
// queued if too much is. When slow calls have made them many, the next ones wait to travel
// together.
func TestBatchUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &txnServer{may: make(chan struct{})}
		c := &batcher{kv: s, ctx: t.Context()}
		send := func(urgent bool, name, key string) {
			go func() {
				if _, _, _, err := c.send(t.Context(), time.Minute, name, urgent, &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp(key)}}); err != nil && t.Context().Err() == nil {
					t.Error(key, err)
				}
			}()
			synctest.Wait()
		}
		sent := func(want int) {
			t.Helper()
			if synctest.Wait(); s.count() != want {
				t.Fatalf("%d transactions were sent; want %d", s.count(), want)
			}
		}
		send(false, "x", "x")
		send(false, "y", "y")
		send(false, "a", "a put")
		sent(inFlight)
		send(true, "a", "a release")
		sent(inFlight + 1)
		for c.calls < maxInFlight {
			send(false, "b", "b put")
			time.Sleep(2 * slowAnswer)
			synctest.Wait()
		}
		send(false, "c", "c put")
		send(true, "c", "c release")
		time.Sleep(2 * slowAnswer)
		sent(maxInFlight)
		s.may <- struct{}{}
		sent(maxInFlight + 1) // one name's do not travel together anyway
		s.may <- struct{}{}
		sent(maxInFlight + 1)
		time.Sleep(2 * slowAnswer)
		sent(maxInFlight + 2)
		if last := s.calls[maxInFlight].Success; len(last) == 0 || !strings.Contains(last[len(last)-1].String(), "c release") {
			t.Errorf("after what is urgent came %v", last)
		}
		close(s.may)
		synctest.Wait()
		if c.calls != 0 || len(c.names) != 0 {
			t.Errorf("%d are under way and %d wait when all is done", c.calls, len(c.names))
		}
	})
}

// TestBatchWithoutSpace: what was sent together may have been executed, and who asks again is
// sent alone.
func TestBatchWithoutSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &txnServer{may: make(chan struct{})}
		s.fail = func(r *pb.TxnRequest) error {
			time.Sleep(slowAnswer / 10)
			if len(r.Success) > 1 {
				return rpctypes.ErrGRPCNoSpace
			}
			return nil
		}
		c := &batcher{kv: s, ctx: t.Context()}
		var unsure atomic.Int64
		for _, name := range []string{"x", "y", "a", "b", "c", "d", "e", "f"} {
			go func() {
				send := func() error {
					_, _, _, err := c.send(t.Context(), time.Minute, name, false, &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp(name)}})
					return err
				}
				err := send()
				if outcomeOf(err) == kit.Unknown {
					unsure.Add(1)
					err = send()
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}()
			synctest.Wait()
		}
		close(s.may)
		time.Sleep(time.Second)
		if n := unsure.Load(); n != 6 || s.count() != inFlight+1+6 {
			t.Errorf("%d of 6 do not know what became of theirs; %d transactions were sent", n, s.count())
		}
	})
}
