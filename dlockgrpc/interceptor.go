// Package dlockgrpc puts a lock around the handlers of a gRPC server, as package dlockhttp does for
// HTTP.
//
// If the lock is not granted, the handler does not run, and the status is
//
//	ABORTED            the lock is held, or its name is in use as another kind of lock
//	UNAVAILABLE        with RetryInfo: the lock service failed, or the dlock client is closed
//	DEADLINE_EXCEEDED  the call's deadline passed during the wait
//	CANCELLED          the caller canceled the call
//	INVALID_ARGUMENT   the name, which comes from the request, is not valid
//	INTERNAL           a mistake in this program
//
// ABORTED is the code for conflicts: the client may restart its whole operation, which then reads
// what the other client changed. FAILED_PRECONDITION would mean not to retry at all, ALREADY_EXISTS
// is for entities to be created, and UNAVAILABLE asks for the same call again, which many clients
// repeat automatically. That is right when the service has failed, but would cause a storm of calls
// when a lock is merely held.
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

// Options configure interceptors. The zero value is ready to use.
type Options struct {
	// RetryAfter is the delay in RetryInfo; 0: one second. If it is negative, which is a mistake,
	// every call fails with INTERNAL.
	RetryAfter time.Duration

	// OnRefused is called with the error when a call does not get to its handler. It must be safe
	// for concurrent use. nil: the errors behind UNAVAILABLE and INTERNAL are logged to
	// slog.Default. The client never sees them.
	OnRefused func(ctx context.Context, method string, err error)
}

// UnaryServerInterceptor returns an interceptor that runs the handler under the lock that pick
// returns for the call, and releases the lock before the call ends. If pick returns nil, the
// handler runs without a lock. If pick is nil, every call fails with INTERNAL.
//
// The context of the handler ends with the lease, with cause [dlock.ErrLost] if the lease is lost;
// what the handler returns is up to the handler in that case. A Lock of the same name under the
// context re-enters. The context carries the lease's mark ([fence.FromContext]), if it has one.
//
// Calls wait for the lock in the order of their arrival, until their deadlines, unless the lock was
// made with [dlock.Wait]. The package comment lists the statuses of calls that do not get the lock.
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

var errNil = &dlock.Error{Op: "intercept", Err: fmt.Errorf("%w: the pick function is nil, or RetryAfter is negative", dlock.ErrInvalid)}

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
	// if the release fails, dlock logs it and sends it again
	return under, func() { lease.Unlock(ctx) }, nil
}

// refuse returns the status of a call that does not get to its handler.
func (o Options) refuse(ctx context.Context, method string, err error) error {
	s := o.statusOf(ctx, err)
	switch {
	case o.OnRefused != nil:
		o.OnRefused(ctx, method, err)
	case s.Code() == codes.Unavailable || s.Code() == codes.Internal:
		slog.WarnContext(ctx, "dlockgrpc: call refused", "method", method, "code", s.Code().String(), "err", err)
	}
	return s.Err()
}

func (o Options) statusOf(ctx context.Context, err error) *status.Status {
	switch refusal.Of(ctx, err) {
	case refusal.Held:
		return status.New(codes.Aborted, "the lock is held")
	case refusal.WaitedOut:
		return status.New(status.FromContextError(ctx.Err()).Code(), "the call ended while it waited for the lock")
	case refusal.BadRequest:
		return status.New(codes.InvalidArgument, "the name of the lock is not valid")
	case refusal.Mistake:
		return status.New(codes.Internal, "the lock cannot be taken because of a mistake in the server")
	}
	after := o.RetryAfter
	if after == 0 {
		after = time.Second
	}
	s := status.New(codes.Unavailable, "the lock service is not available")
	if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil {
		return with
	}
	return s
}
