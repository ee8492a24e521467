// Package dlockgrpc puts a lock around the handlers of a gRPC server, as package dlockhttp does for
// HTTP.
//
// If the lock is not got the handler does not run, and the status is
//
//	ABORTED            somebody else has the lock
//	UNAVAILABLE        with RetryInfo: the service of the locks failed, or this server stops
//	DEADLINE_EXCEEDED  the call's own deadline was over while it waited
//	CANCELLED          the caller went away
//	INVALID_ARGUMENT   the name is not valid: the client sent what it was made of
//	INTERNAL           a mistake of this program
//
// ABORTED is the code of conflicts: the client may begin again with what it does as a whole, having
// looked what the other one changed. FAILED_PRECONDITION would tell it not to try again at all,
// ALREADY_EXISTS speaks of what it wanted to create, and UNAVAILABLE asks it to send the same call
// again, which clients do by themselves: right where the service failed, a storm where a lock is
// merely held.
package dlockgrpc

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/refusal"
)

// Options configure interceptors. The zero value is useful.
type Options struct {
	// RetryAfter is what RetryInfo says; 0: one second. A negative one is a mistake: every call is
	// INTERNAL.
	RetryAfter time.Duration

	// Refused is told why a call did not get to its handler. nil: the reason of UNAVAILABLE and
	// INTERNAL goes to slog.Default. The client never sees it.
	Refused func(ctx context.Context, method string, err error)
}

// UnaryServerInterceptor returns an interceptor that runs the handler under the lock that pick
// returns for the call, and gives it back before the call is over. If pick returns nil, the handler
// runs without a lock.
//
// The context of the handler ends with the lease: with cause [dlock.ErrLost] if it is lost, and
// what the handler returns then is its own affair. A Lock of the same name under it re-enters. It
// carries the lease's mark ([fence.FromContext]), if it has one.
//
// Calls wait for the lock in the order of their arrival, until their deadlines, unless the lock was
// made with [dlock.Wait]. The package says what they get if they do not get the lock.
func UnaryServerInterceptor(pick func(ctx context.Context, req any, info *grpc.UnaryServerInfo) dlock.Mutex, o Options) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if pick == nil {
			return nil, o.refuse(ctx, info.FullMethod, errNil)
		}
		under, unlock, err := o.lock(ctx, info.FullMethod, pick(ctx, req, info))
		if err != nil {
			return nil, err
		}
		defer unlock()
		return handler(under, req)
	}
}

// StreamServerInterceptor is UnaryServerInterceptor for streams. The lock is held for as long as
// the stream lasts, and picked before the first message is read.
func StreamServerInterceptor(pick func(ctx context.Context, info *grpc.StreamServerInfo) dlock.Mutex, o Options) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := stream.Context()
		if pick == nil {
			return o.refuse(ctx, info.FullMethod, errNil)
		}
		under, unlock, err := o.lock(ctx, info.FullMethod, pick(ctx, info))
		if err != nil {
			return err
		}
		defer unlock()
		return handler(srv, lockedStream{stream, under})
	}
}

// lockedStream is a stream whose context ends with a lease.
type lockedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context that ends with the lease.
func (s lockedStream) Context() context.Context { return s.ctx }

var errNil = &dlock.Error{Op: "intercept", Err: fmt.Errorf("%w: the function that picks the lock is nil, or RetryAfter is negative", dlock.ErrInvalid)}

// lock takes the lock. Its error is the status of the call.
func (o Options) lock(ctx context.Context, method string, m dlock.Mutex) (under context.Context, unlock func(), err error) {
	if o.RetryAfter < 0 {
		return nil, nil, o.refuse(ctx, method, errNil)
	}
	if m == nil {
		return ctx, func() {}, nil
	}
	lease, err := m.Lock(ctx)
	if err != nil {
		return nil, nil, o.refuse(ctx, method, err)
	}
	under = lease.Context(ctx)
	if mark, err := fence.Of(lease); err == nil {
		under = fence.NewContext(under, mark)
	}
	// The log of dlock says what became of a lease that could not be given back.
	return under, func() { lease.Unlock(ctx) }, nil
}

// refuse returns the status of a call that does not get to its handler.
func (o Options) refuse(ctx context.Context, method string, err error) error {
	s := o.statusOf(ctx, err)
	switch {
	case o.Refused != nil:
		o.Refused(ctx, method, err)
	case s.Code() == codes.Unavailable || s.Code() == codes.Internal:
		slog.WarnContext(ctx, "dlockgrpc: a call was refused", "method", method, "code", s.Code().String(), "error", err)
	}
	return s.Err()
}

func (o Options) statusOf(ctx context.Context, err error) *status.Status {
	switch refusal.Of(ctx, err) {
	case refusal.Held:
		return status.New(codes.Aborted, "the lock is held")
	case refusal.WaitedOut:
		return status.New(status.FromContextError(ctx.Err()).Code(), "the call ended while it waited for a lock")
	case refusal.BadRequest:
		return status.New(codes.InvalidArgument, "this is no name of a lock")
	case refusal.Mistake:
		return status.New(codes.Internal, "the lock cannot be had")
	}
	after := o.RetryAfter
	if after == 0 {
		after = time.Second
	}
	s := status.New(codes.Unavailable, "the service of the locks does not answer")
	if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil {
		return with
	}
	return s
}
