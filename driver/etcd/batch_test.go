package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// txnServer answers transactions when the test allows it.
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

// TestBatch: transactions that come while others are under way travel together, one of each name.
// If the server refuses a batch they are sent alone.
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
			c := newBatcher(t.Context(), s, func() {})
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
				t.Errorf("a caller that stopped waiting before its transaction was sent got %v", err)
			}
			s.may <- struct{}{}
			sends(inFlight + 1)
			s.mu.Lock()
			if n := len(s.calls[inFlight].Success); n != 3 {
				t.Errorf("%d went together", n)
			}
			s.mu.Unlock()
			time.Sleep(slowAnswer + slowAnswer/2) // the second a has waited for long enough
			sends(inFlight + 2)
			close(s.may)
			want := inFlight + 2
			if refuses {
				want += 3
			}
			sends(want)
		})
	}
}

// TestBatchUrgent: an urgent transaction is sent at once, beside those that are under way; if too
// many are, it goes ahead of the queue. If calls are slow and many are under way, further ones wait
// to travel together.
func TestBatchUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &txnServer{may: make(chan struct{})}
		c := newBatcher(t.Context(), s, func() {})
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
		for s.count() < maxInFlight {
			send(false, "b", "b put")
			time.Sleep(2 * slowAnswer)
			synctest.Wait()
		}
		send(false, "c", "c put")
		send(true, "c", "c release")
		time.Sleep(2 * slowAnswer)
		sent(maxInFlight)
		s.may <- struct{}{}
		sent(maxInFlight + 1) // those on one name never travel together
		s.may <- struct{}{}
		sent(maxInFlight + 1)
		time.Sleep(2 * slowAnswer)
		sent(maxInFlight + 2)
		if last := s.calls[maxInFlight].Success; len(last) == 0 || !strings.Contains(last[len(last)-1].String(), "c release") {
			t.Errorf("after the urgent ones came %v", last)
		}
		close(s.may)
		synctest.Wait()
	})
}

// TestBatchPatience: a transaction stays queued for longer than a call may take while the server
// answers others, and is abandoned if the server answers none. The time of a call begins when it is
// sent.
func TestBatchPatience(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const n, bound = 200, lastTry / 2
			s := &txnServer{may: make(chan struct{})}
			if answers {
				close(s.may)
				s.fail = func(*pb.TxnRequest) error { time.Sleep(time.Second); return nil }
			}
			var late, left, longest atomic.Int64
			c := newBatcher(t.Context(), s, func() { late.Add(1) })
			var wg sync.WaitGroup
			came := time.Now()
			for range n {
				wg.Go(func() {
					_, _, wait, err := c.send(t.Context(), bound, "one", false, &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp("one")}})
					after := time.Since(came)
					switch {
					case err == nil && answers:
						longest.Store(max(longest.Load(), int64(wait)))
					case errors.Is(err, errNotSent) && wait == 0 && after == patience && !answers:
						left.Add(1)
					case outcomeOf(err) == kit.Unknown && after-wait == bound && !answers:
					default:
						t.Errorf("after %s, of which it was queued %s: %v", after, wait, err)
					}
				})
			}
			wg.Wait()
			if answers && (time.Duration(longest.Load()) <= patience || late.Load() > 0) {
				t.Errorf("the last was queued for %s, and %d were late", time.Duration(longest.Load()), late.Load())
			}
			if !answers && (left.Load() == 0 || left.Load()+late.Load() != n) {
				t.Errorf("of %d transactions %d were abandoned before they were sent, and %d were late", n, left.Load(), late.Load())
			}
		})
	}
}

// TestBatchStandstill: after a pause of the process an attempt may have no time left. It ends when
// it was sent, and until then its alarm rings as rarely as any other: otherwise this test hangs.
func TestBatchStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &txnServer{may: make(chan struct{})}
		c := newBatcher(t.Context(), s, func() {})
		req := &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp("one")}}
		for range maxInFlight { // the limit rises, since none is answered
			go c.send(t.Context(), time.Minute, "one", false, req)
			time.Sleep(2 * slowAnswer)
		}
		came := time.Now()
		_, _, wait, err := c.send(t.Context(), -time.Second, "one", false, req)
		if after := time.Since(came); outcomeOf(err) != kit.Unknown || wait != after || after > lastTry {
			t.Errorf("after %s, of which it was queued %s: %v", after, wait, err)
		}
		close(s.may)
	})
}

// TestBatchLeftAtDeparture: a transaction that is abandoned just before its batch is sent was
// queued for no time, not for a negative one.
func TestBatchLeftAtDeparture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &txnServer{may: make(chan struct{})}
		c := newBatcher(t.Context(), s, func() {})
		departs := make(chan struct{})
		c.line.Together = func(batch []*txn) { <-departs; c.sendBatch(batch) }
		req := &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp("one")}}
		for range inFlight {
			go c.send(t.Context(), time.Minute, "one", false, req)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, wait, err := c.send(ctx, time.Minute, "one", false, req); wait != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it was queued for %s: %v", wait, err)
		}
		close(departs)
		close(s.may)
	})
}

// TestBatchClosed: transactions that are queued when the client is closed are not sent, and end at
// once.
func TestBatchClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &txnServer{may: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		c := newBatcher(ctx, s, func() { t.Error("one was late") })
		const n = 200
		errs := make(chan error, n)
		for range n {
			go func() {
				_, _, _, err := c.send(t.Context(), time.Minute, "one", false, &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp("one")}})
				errs <- err
			}()
		}
		time.Sleep(time.Second)
		sent := s.count()
		cancel()
		synctest.Wait()
		unsent := 0
		for range len(errs) {
			if errors.Is(<-errs, errNotSent) {
				unsent++
			}
		}
		if s.count() != sent || unsent != n-sent {
			t.Errorf("%d had been sent of %d, then %d more; %d were reported as not sent", sent, n, s.count()-sent, unsent)
		}
	})
}

// TestBatchTooLarge: if a server allows less, batches get smaller, but not because of a transaction
// that is too large by itself.
func TestBatchTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const allowed = 5
		s := &txnServer{may: make(chan struct{})}
		close(s.may)
		s.fail = func(r *pb.TxnRequest) error {
			time.Sleep(10 * slowAnswer)
			ops := 0
			for _, op := range r.Success {
				ops += max(1, len(op.GetRequestTxn().GetSuccess()))
			}
			if ops > allowed {
				return rpctypes.ErrGRPCTooManyOps
			}
			return nil
		}
		c := newBatcher(t.Context(), s, func() {})
		send := func(n int, large bool) (refused int) {
			var wg sync.WaitGroup
			var failed atomic.Int64
			for i := range n {
				req := &pb.TxnRequest{Success: []*pb.RequestOp{deleteOp("a")}}
				if large && i == 2 {
					req.Success = slices.Repeat(req.Success, allowed+1)
				}
				wg.Go(func() {
					if _, _, _, err := c.send(t.Context(), time.Minute, fmt.Sprint(i), false, req); isTooLarge(err) {
						failed.Add(1)
					} else if err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
			return int(failed.Load())
		}
		if refused := send(inFlight+3, true); refused != 1 || c.most != maxBatch {
			t.Errorf("%d were refused beside one that is too large, and a batch has %d", refused, c.most)
		}
		if refused := send(inFlight+20, false); refused != 0 || c.most != 20/2 {
			t.Errorf("%d were refused in a batch of 20, and the next has %d", refused, c.most)
		}
	})
}

// TestBatchWithoutSpace: a batch may have been executed, and its transactions are sent again alone.
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
		c := newBatcher(t.Context(), s, func() {})
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
			t.Errorf("%d of 6 have an unknown outcome; %d transactions were sent", n, s.count())
		}
	})
}
