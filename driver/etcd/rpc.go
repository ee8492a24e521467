package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver"
)

const (
	firstTry = 500 * time.Millisecond // for one attempt of a call; each that follows gets twice as long,
	lastTry  = 4 * time.Second        // up to this
	patience = 10 * time.Second       // for a call that nobody answers
)

// callOptions let answers be as large as the server makes them.
var callOptions = []grpc.CallOption{grpc.MaxCallRecvMsgSize(math.MaxInt32)}

// errTerm: the answers to the parts of a proof come from different terms of the cluster.
var errTerm = errors.New("the cluster's leader changed meanwhile")

// errNoAnswer: nobody knows what became of a call.
var errNoAnswer = errors.New("the server did not answer")

// outcome is what an error tells about a call.
type outcome int

const (
	answered outcome = iota // it was executed, or refused for good
	refused                 // it did nothing, and may succeed if it is sent again
	unknown                 // nobody knows
)

func judge(err error) outcome {
	if err == nil {
		return answered
	}
	if errors.Is(err, errNotSent) {
		return refused
	}
	e := rpctypes.Error(err)
	switch {
	case errors.Is(e, rpctypes.ErrTooManyRequests), errors.Is(e, rpctypes.ErrAuthOldRevision), errors.Is(e, rpctypes.ErrInvalidAuthToken):
		return refused
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return unknown
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown, codes.Aborted:
		return unknown
	}
	return answered
}

func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

// isGone reports whether the server says that a lease does not exist.
func isGone(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }

// isFull reports whether the server says that it has no space. What took the last of it was executed.
func isFull(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) }

// repeat calls f until it is answered, ctx ends, or patience is over. Attempts get longer: a slow server is not a dead one.
func (b *Backend) repeat(ctx context.Context, f func(ctx context.Context) error) error {
	over := time.Now().Add(patience)
	wait := 2 * time.Millisecond
	for try := firstTry; ; try = min(2*try, lastTry) {
		err := b.attempt(ctx, try, f)
		if try == firstTry { // from now on a member without a leader refuses at once, so that the next attempt goes to another
			ctx = clientv3.WithRequireLeader(ctx)
		}
		switch {
		case err == nil:
			return nil
		case b.ctx.Err() != nil:
			return driver.ErrClosed
		case ctx.Err() != nil:
			return ctx.Err()
		case judge(err) == answered, time.Now().After(over):
			return explain(err)
		}
		b.rest(ctx, wait)
		wait = min(2*wait, 500*time.Millisecond)
	}
}

// attempt calls f with a bound, which Close cuts short. The bound is a timer, not a deadline: gRPC would tell a deadline to the server, where it costs more than here.
func (b *Backend) attempt(parent context.Context, bound time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	timer := time.AfterFunc(bound, cancel)
	defer context.AfterFunc(b.ctx, cancel)()
	err := f(ctx)
	if !timer.Stop() && err != nil && parent.Err() == nil && b.ctx.Err() == nil {
		return fmt.Errorf("%w within %s", errNoAnswer, bound)
	}
	return err
}

// rest lets some time pass, until ctx or Close.
func (b *Backend) rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-b.ctx.Done():
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// explain says what a user can do about an error of the server.
func explain(err error) error {
	e := rpctypes.Error(err)
	switch {
	case errors.Is(e, rpctypes.ErrPermissionDenied):
		return &Error{"the user lacks a right: it needs readwrite on all keys with dlock's prefix (docs/etcd.md has the role)", e}
	case errors.Is(e, rpctypes.ErrUserEmpty), errors.Is(e, rpctypes.ErrAuthFailed):
		return &Error{"the server wants a user and a password, and did not take these", e}
	case errors.Is(e, rpctypes.ErrNoSpace):
		return &Error{"the server's database is full: compact it, defragment it, and disarm its alarm", e}
	}
	return e
}

// Error is an error of the server with what to do about it.
type Error struct {
	Advice string
	Err    error // as the client of etcd returns it
}

// Error returns the advice and the server's words.
func (e *Error) Error() string { return e.Advice + ": " + e.Err.Error() }

// Unwrap returns the server's error.
func (e *Error) Unwrap() error { return e.Err }

// get reads one name's keys, linearizably, and returns them with the revision of the read.
func (b *Backend) get(ctx context.Context, prefix string) (*pb.RangeResponse, error) {
	var res *pb.RangeResponse
	err := b.repeat(ctx, func(ctx context.Context) (err error) {
		res, err = b.kv.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end(prefix)}, callOptions...)
		return err
	})
	return res, err
}

// The parts of a transaction.

func putOp(key, value string, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}}}
}

func deleteOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
}

// keyOp reads one key, rangeOp all with a prefix.
func keyOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key)}}}
}

func rangeOp(prefix string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(prefix), RangeEnd: end(prefix)}}}
}

// absent: the key does not exist. is: it has that mod revision.
func absent(key string) *pb.Compare { return is(key, 0) }

func is(key string, mod int64) *pb.Compare {
	return &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_MOD, Key: []byte(key), TargetUnion: &pb.Compare_ModRevision{ModRevision: mod}}
}

// unchanged: no key with the prefix was put after that revision.
func unchanged(prefix string, rev int64) *pb.Compare {
	return &pb.Compare{Result: pb.Compare_LESS, Target: pb.Compare_MOD, Key: []byte(prefix), RangeEnd: end(prefix), TargetUnion: &pb.Compare_ModRevision{ModRevision: rev + 1}}
}

// rangeIn returns the last read of a transaction's answer.
func rangeIn(res *pb.TxnResponse) *pb.RangeResponse {
	for i := len(res.Responses) - 1; i >= 0; i-- {
		if r := res.Responses[i].GetResponseRange(); r != nil {
			return r
		}
	}
	return &pb.RangeResponse{}
}
