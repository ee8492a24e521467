package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
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
	// for one attempt of a call; each that follows gets twice as long,
	firstTry = 500 * time.Millisecond
	lastTry  = 4 * time.Second // up to this
	// for a call that nobody answers; package dlock has no more than 10 s
	patience = 8 * time.Second
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
	if err == nil || errors.Is(err, driver.ErrUnsupported) {
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

// isFull reports whether the server says that it has no space. What took the last of it was
// executed.
func isFull(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) }

// repeat calls f until it is answered, ctx ends, or patience is over. Attempts get longer: a slow
// server is not a dead one.
func (b *Backend) repeat(ctx context.Context, f func(ctx context.Context) error) error {
	return b.again(ctx, func(ctx context.Context, try time.Duration) (line time.Duration, err error) {
		return 0, b.attempt(ctx, try, f)
	})
}

// again is repeat of what bounds its attempts itself, and says how long each stood in line before
// it was sent: that is no silence of the server's.
func (b *Backend) again(ctx context.Context, f func(ctx context.Context, try time.Duration) (line time.Duration, err error)) error {
	over := time.Now().Add(patience)
	wait := 2 * time.Millisecond
	var why error // nobody answered, in words
	for try := firstTry; ; try = min(2*try, lastTry) {
		line, err := f(ctx, min(try, time.Until(over)))
		// from now on a member without a leader refuses at once, so that the next attempt goes to
		// another
		if over = over.Add(line); try == firstTry {
			ctx = clientv3.WithRequireLeader(ctx)
		}
		// that an attempt was cut short says nothing
		if last := plain(err); why == nil || last != errNoAnswer {
			why = last
		}
		switch {
		case err == nil:
			return nil
		case b.ctx.Err() != nil:
			return driver.ErrClosed
		case ctx.Err() != nil:
			return &ended{ctx.Err(), why}
		case judge(err) == answered:
			return explain(err)
		case time.Until(over) < firstTry:
			return &unanswered{why}
		}
		b.rest(ctx, wait)
		wait = min(2*wait, 250*time.Millisecond)
	}
}

// outlast calls f for a request. If that waits, and nobody answers, it calls f until it is
// answered, ctx ends, or nobody did for a TTL: an outage that is shorter ends no wait, be it in the
// queue or on the way there. Package dlock bounds a join by itself, as all that do not wait.
func outlast(ctx context.Context, r driver.Request, f func() error) error {
	over := time.Now().Add(r.TTL)
	for {
		err := f()
		var silence *unanswered
		if !r.Wait || r.Join() || !errors.As(err, &silence) || ctx.Err() != nil || time.Until(over) < firstTry {
			return err
		}
	}
}

// attempt calls f with a bound, which Close cuts short.
func (b *Backend) attempt(ctx context.Context, bound time.Duration, f func(ctx context.Context) error) error {
	return attempt(ctx, b.ctx, bound, b.suspect, f)
}

// attempt calls f with a bound, which the end of the second context cuts short, and calls late if
// that was over. The bound is a timer, not a deadline: gRPC would tell a deadline to the server,
// where it costs more than here.
func attempt(parent, closed context.Context, bound time.Duration, late func(), f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	timer := time.AfterFunc(bound, cancel)
	defer context.AfterFunc(closed, cancel)()
	err := f(ctx)
	if !timer.Stop() && err != nil && parent.Err() == nil && closed.Err() == nil {
		late()
		return noAnswer(bound)
	}
	return err
}

// noAnswer is the error of a call that nobody answered in a time.
func noAnswer(within time.Duration) error { return fmt.Errorf("%w within %s", errNoAnswer, within) }

// unanswered is the error of a call that nobody answered for as long as patience goes: it may
// succeed if it is sent again.
type unanswered struct{ error }

func (u *unanswered) Unwrap() error { return u.error }

// ended is the error of a call whose context ended. It says what kept the call from ending sooner:
// the rest is said by who knows whose context it was.
type ended struct{ err, why error }

func (e *ended) Error() string { return e.why.Error() }

// Unwrap returns the context's error alone: the other is for people.
func (e *ended) Unwrap() error { return e.err }

// plain says why a server could not be reached, without what gRPC puts around it, and is no error
// of a context, which is for the caller's.
func plain(err error) error {
	switch {
	case err == nil, errors.Is(err, errNoAnswer):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return errNoAnswer
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Canceled:
		return errNoAnswer
	case codes.Unavailable:
	default:
		return explain(err)
	}
	text := status.Convert(err).Message()
	if _, inner, ok := strings.Cut(text, "desc = "); ok {
		if inner, bad := strconv.Unquote(inner); bad == nil {
			text = strings.TrimPrefix(strings.TrimPrefix(inner, "transport: "), "Error while dialing: ")
		}
	}
	return &unreached{text, rpctypes.Error(err)}
}

// unreached is an error of the connection, in fewer words.
type unreached struct {
	text string
	err  error
}

func (u *unreached) Error() string { return u.text }
func (u *unreached) Unwrap() error { return u.err }

// turn waits for one's turn to ask what one asks for all, no longer than for an answer: if those
// before get none, everybody learns that at once, and not one after the other.
func (b *Backend) turn(ctx context.Context, turn chan struct{}) error {
	over := time.NewTimer(patience)
	defer over.Stop()
	select {
	case turn <- struct{}{}:
		return nil
	case <-over.C:
		return &unanswered{noAnswer(patience)}
	case <-ctx.Done():
		return ctx.Err()
	case <-b.ctx.Done():
		return driver.ErrClosed
	}
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
