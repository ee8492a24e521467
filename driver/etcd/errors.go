package etcd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// errNoAnswer: nobody knows what became of a call.
var errNoAnswer = errors.New("the server did not answer")

// noAnswer is the error of a call that nobody answered in a time.
func noAnswer(within time.Duration) error { return fmt.Errorf("%w within %s", errNoAnswer, within) }

// outcomeOf says what an error tells about a call.
func outcomeOf(err error) kit.Outcome {
	if err == nil || errors.Is(err, driver.ErrUnsupported) {
		return kit.Answered
	}
	if errors.Is(err, errNotSent) {
		return kit.NotDone
	}
	e := rpctypes.Error(err)
	switch {
	case errors.Is(e, rpctypes.ErrTooManyRequests), errors.Is(e, rpctypes.ErrAuthOldRevision), errors.Is(e, rpctypes.ErrInvalidAuthToken):
		return kit.NotDone
	case kit.IsContext(err):
		return kit.Unknown
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown, codes.Aborted:
		return kit.Unknown
	}
	return kit.Answered
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

// isFull reports whether the server says that it has no space. It also says so of the transaction
// that takes the last of it, and executes that.
func isFull(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) }

// plain says why a server could not be reached, without what gRPC puts around it. It matches no
// error of a context: those are for the caller's context.
func plain(err error) error {
	switch {
	case err == nil, errors.Is(err, errNoAnswer):
		return err
	case kit.IsContext(err):
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
