package etcd

import (
	"context"
	"errors"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// refusals answers calls in place of the servers.
type refusals struct {
	err   error
	times int // how many first calls and streams of each method it refuses

	mu   sync.Mutex
	seen map[string]int
}

func refusing(err error, times int) *refusals {
	return &refusals{err: err, times: times, seen: map[string]int{}}
}

func (r *refusals) next(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[path.Base(name)]++; r.seen[path.Base(name)] > r.times {
		return nil
	}
	return r.err
}

// calls returns how many calls of a method there were.
func (r *refusals) calls(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[method]
}

func (r *refusals) options(c *clientv3.Config) {
	c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, name string, req, res any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := r.next(name); err != nil {
				return err
			}
			return invoke(ctx, name, req, res, conn, opts...)
		}), grpc.WithChainStreamInterceptor(
		func(ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, name string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, d, conn, name, opts...)
			if err != nil {
				return nil, err
			}
			return &refusedStream{s, r.next(name)}, nil
		}))
}

type refusedStream struct {
	grpc.ClientStream
	err error
}

func (s *refusedStream) RecvMsg(m any) error {
	if s.err != nil {
		return s.err
	}
	return s.ClientStream.RecvMsg(m)
}

// etcdErrors: an error that is temporary, or that another member may not return, ends no call and
// no wait; an error that every member returns ends both at once.
func etcdErrors(t *testing.T, s *service.Server) {
	other := etcdSideOf(t, s)
	for _, err := range []error{
		rpctypes.ErrGRPCNotSupportedForLearner, rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNotLeader, rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCUnhealthy,
		rpctypes.ErrGRPCTimeoutDueToConnectionLost, rpctypes.ErrGRPCTimeoutWaitAppliedIndex, rpctypes.ErrGRPCRequestTooManyRequests,
		rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail, rpctypes.ErrGRPCInvalidAuthToken,
		rpctypes.ErrGRPCAuthOldRevision, status.Error(codes.Unavailable, "a proxy is away"), status.Error(codes.Unknown, "raft proposal dropped"),
	} {
		t.Run(strings.TrimPrefix(rpctypes.ErrorDesc(err), "etcdserver: "), func(t *testing.T) {
			t.Parallel()
			r := refusing(err, 3)
			b := etcdSideOf(t, s, r.options)
			name := "errors/" + driver.NewID().String()
			held, waits := steps.Asked(other, name, time.Minute), steps.Waiting(b, name, time.Minute)
			steps.Acquired(t, other, held)
			got := steps.Acquiring(b, waits)
			await.That(t, "one waits", func() bool { return steps.Queue(t, other, name).Len() == 2 })
			await.That(t, "it listens", func() bool { return b.rpcs.watches() > 0 })
			steps.Released(t, other, held)
			if err := await.From(t, got); err != nil {
				t.Fatalf("Acquire of the waiter: %v", err)
			}
			if err := steps.Renewed(b, waits); err != nil {
				t.Errorf("Renew: %v", err)
			}
			if n := steps.Queue(t, b, name).Len(); n != 1 {
				t.Errorf("%d requests stand", n)
			}
			steps.Released(t, b, waits)
			for _, method := range []string{"Txn", "Range", "LeaseGrant", "LeaseTimeToLive", "LeaseKeepAlive", "Watch"} {
				if n := r.calls(method); n < 4 {
					t.Errorf("%s was refused %d times: too few to test anything", method, n)
				}
			}
		})
	}
	for _, err := range []error{
		rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCCorrupt, rpctypes.ErrGRPCNotCapable, status.Error(codes.Unimplemented, "unknown service"),
	} {
		t.Run(rpctypes.ErrorDesc(err), func(t *testing.T) {
			t.Parallel()
			name := "errors/" + driver.NewID().String()
			for _, times := range []int{1, 1000} {
				r := refusing(err, times)
				b := etcdSideOf(t, s, r.options)
				start, stood := time.Now(), steps.MeasureStalls()
				_, got := steps.Acquire(await.Bounded(t, time.Minute), b, steps.Waiting(b, name, time.Minute))
				if took, still := time.Since(start), stood(); took > 3*time.Second+still {
					t.Errorf("the error came after %s: %v", took, got)
				}
				var e rpctypes.EtcdError
				if errors.As(rpctypes.Error(err), &e) && !errors.Is(got, e) || got == nil && times > 1 || got != nil && errors.Is(got, driver.ErrHeld) {
					t.Errorf("refused %d times: %v", times, got)
				}
			}
		})
	}
}
