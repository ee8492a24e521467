package etcd

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want outcome
	}{
		{nil, answered}, {rpctypes.ErrGRPCLeaseNotFound, answered}, {rpctypes.ErrPermissionDenied, answered}, {rpctypes.ErrGRPCNoSpace, answered},
		{rpctypes.ErrTooManyRequests, refused}, {rpctypes.ErrInvalidAuthToken, refused}, {errNotSent, refused},
		{rpctypes.ErrGRPCNoLeader, unknown}, {rpctypes.ErrTimeout, unknown}, {rpctypes.ErrGRPCLeaderChanged, unknown}, {context.DeadlineExceeded, unknown},
		{status.Error(codes.Unavailable, "connection refused"), unknown}, {status.Error(codes.Canceled, "x"), unknown}, {errors.New("x"), unknown},
	} {
		if got := outcomeOf(c.err); got != c.want {
			t.Errorf("%v: got %d, want %d", c.err, got, c.want)
		}
	}
}
