package etcd

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want kit.Outcome
	}{
		{nil, kit.Answered}, {rpctypes.ErrGRPCLeaseNotFound, kit.Answered}, {rpctypes.ErrPermissionDenied, kit.Answered}, {rpctypes.ErrGRPCNoSpace, kit.Answered},
		{rpctypes.ErrTooManyRequests, kit.NotDone}, {rpctypes.ErrInvalidAuthToken, kit.NotDone}, {errNotSent, kit.NotDone},
		{rpctypes.ErrGRPCNoLeader, kit.Unknown}, {rpctypes.ErrTimeout, kit.Unknown}, {rpctypes.ErrGRPCLeaderChanged, kit.Unknown}, {context.DeadlineExceeded, kit.Unknown},
		{status.Error(codes.Unavailable, "connection refused"), kit.Unknown}, {status.Error(codes.Canceled, "x"), kit.Unknown}, {errors.New("x"), kit.Unknown},
	} {
		if got := outcomeOf(c.err); got != c.want {
			t.Errorf("%v: got %d, want %d", c.err, got, c.want)
		}
	}
}
