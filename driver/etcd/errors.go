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

// errNoAnswer: the outcome of a call is not known.
var errNoAnswer = errors.New("the server did not answer")

// noAnswer is the error of a call that no server answered within a time.
func noAnswer(within time.Duration) error { return fmt.Errorf("%w within %s", errNoAnswer, within) }

// handling is the reaction to an error of a call.
type handling uint8

const (
	// answer: the server refuses this call, and the caller handles the refusal.
	answer handling = iota
	// again: wait a little, and send the call again.
	again
	// another: this member refuses the call, and another one may take it. The next attempt goes
	// there.
	another
	// later: no member takes the call until an operator acts. A call returns the error at once; a
	// Lock that waits goes on, as in an outage.
	later
	// never: no member takes the call, and the user has to act. Waits end too.
	never
)

// String returns the name, for tests and logs.
func (h handling) String() string {
	return [...]string{"answer", "again", "another", "later", "never"}[h]
}

// reading is the classification of an error: what to do, and whether the call may have been
// executed.
type reading struct {
	handling
	outcome kit.Outcome
}

// The readings of errors. A call that timed out, or failed at a member without a leader, may have
// been executed; a call that the server examined and refused was not.
var (
	refused    = reading{answer, kit.Answered}
	notNow     = reading{again, kit.NotDone}
	unknown    = reading{again, kit.Unknown}
	notHere    = reading{another, kit.NotDone}
	lostThere  = reading{another, kit.Unknown}
	noMore     = reading{later, kit.Answered}
	notAllowed = reading{never, kit.Answered}
)

// readings classifies the errors of etcd's servers by their texts: their codes differ between
// versions. A test compares it with the library's list.
var readings = map[string]reading{}

func init() {
	for r, errs := range map[reading][]error{
		refused: {
			rpctypes.ErrGRPCEmptyKey, rpctypes.ErrGRPCKeyNotFound, rpctypes.ErrGRPCValueProvided, rpctypes.ErrGRPCLeaseProvided,
			rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCDuplicateKey, rpctypes.ErrGRPCInvalidClientAPIVersion, rpctypes.ErrGRPCInvalidSortOption,
			rpctypes.ErrGRPCCompacted, rpctypes.ErrGRPCFutureRev, rpctypes.ErrGRPCRequestTooLarge,
			rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCLeaseExist, rpctypes.ErrGRPCLeaseTTLTooLarge,
			// of calls that the driver does not make
			rpctypes.ErrGRPCMemberExist, rpctypes.ErrGRPCPeerURLExist, rpctypes.ErrGRPCMemberNotEnoughStarted, rpctypes.ErrGRPCMemberBadURLs,
			rpctypes.ErrGRPCMemberNotFound, rpctypes.ErrGRPCMemberNotLearner, rpctypes.ErrGRPCLearnerNotReady, rpctypes.ErrGRPCTooManyLearners,
			rpctypes.ErrGRPCUserAlreadyExist, rpctypes.ErrGRPCRoleAlreadyExist, rpctypes.ErrGRPCRoleNotFound, rpctypes.ErrGRPCRoleEmpty,
			rpctypes.ErrGRPCRoleNotGranted, rpctypes.ErrGRPCPermissionNotGiven, rpctypes.ErrGRPCPermissionNotGranted, rpctypes.ErrGRPCInvalidAuthMgmt,
			rpctypes.ErrGRPCRootUserNotExist, rpctypes.ErrGRPCRootRoleNotExist, rpctypes.ErrGRPCBadLeaderTransferee,
			rpctypes.ErrGRPCWrongDowngradeVersionFormat, rpctypes.ErrGRPCInvalidDowngradeTargetVersion, rpctypes.ErrGRPCClusterVersionUnavailable,
			rpctypes.ErrGRPCDowngradeInProcess, rpctypes.ErrGRPCNoInflightDowngrade,
		},
		// the client gets another token, or the server catches up
		notNow: {rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision},
		unknown: {
			rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail,
			rpctypes.ErrGRPCWatchCanceled, rpctypes.ErrGRPCCanceled, rpctypes.ErrGRPCDeadlineExceeded,
		},
		notHere: {rpctypes.ErrGRPCNotSupportedForLearner},
		lostThere: {
			rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCNotLeader, rpctypes.ErrGRPCStopped, rpctypes.ErrGRPCUnhealthy,
			rpctypes.ErrGRPCTimeoutDueToConnectionLost, rpctypes.ErrGRPCTimeoutWaitAppliedIndex,
		},
		noMore: {rpctypes.ErrGRPCNoSpace},
		notAllowed: {
			rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCUserEmpty, rpctypes.ErrGRPCUserNotFound, rpctypes.ErrGRPCAuthNotEnabled,
			rpctypes.ErrGRPCCorrupt, rpctypes.ErrGRPCClusterIDMismatch, rpctypes.ErrGRPCNotCapable,
		},
	} {
		for _, err := range errs {
			readings[rpctypes.ErrorDesc(err)] = r
		}
	}
}

// codeReadings classifies errors of gRPC itself, or of a proxy between client and server.
var codeReadings = [...]reading{
	codes.OK:                 refused,
	codes.Canceled:           unknown,
	codes.Unknown:            unknown,
	codes.InvalidArgument:    refused,
	codes.DeadlineExceeded:   unknown,
	codes.NotFound:           refused,
	codes.AlreadyExists:      refused,
	codes.PermissionDenied:   notAllowed,
	codes.ResourceExhausted:  refused, // a message that is too large
	codes.FailedPrecondition: refused,
	codes.Aborted:            unknown,
	codes.OutOfRange:         refused,
	codes.Unimplemented:      notAllowed,
	codes.Internal:           unknown,
	codes.Unavailable:        lostThere,
	codes.DataLoss:           notAllowed,
	codes.Unauthenticated:    notAllowed,
}

// read classifies an error of a call.
func read(err error) reading {
	switch {
	case err == nil, errors.Is(err, driver.ErrUnsupported):
		return refused
	case errors.Is(err, errNotSent):
		return notNow
	}
	var e rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &e) {
		if r, ok := readings[e.Error()]; ok {
			return r
		}
		return codeReadings[min(int(e.Code()), len(codeReadings)-1)]
	}
	if kit.IsContext(err) {
		return unknown
	}
	s, _ := status.FromError(err)
	if r, ok := readings[s.Message()]; ok {
		return r
	}
	return codeReadings[min(int(s.Code()), len(codeReadings)-1)]
}

// outcomeOf returns the outcome of a call that returned an error.
func outcomeOf(err error) kit.Outcome { return read(err).outcome }

// isGone reports whether the server's error says that a lease does not exist.
func isGone(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }

// isFull reports whether the server's error says that it has no space. The transaction that takes
// the last of the space returns it too, although it is executed.
func isFull(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) }

// isTooLarge reports whether the server, or a proxy before it, allows fewer operations or bytes
// than a call has. Such a call was not executed.
func isTooLarge(err error) bool {
	e := rpctypes.Error(err)
	return errors.Is(e, rpctypes.ErrTooManyOps) || errors.Is(e, rpctypes.ErrRequestTooLarge) ||
		status.Code(err) == codes.ResourceExhausted && strings.Contains(status.Convert(err).Message(), "larger than max")
}

// plain returns the error of a server that could not be reached, without the text that gRPC puts
// around it. It matches no error of a context: only the end of the caller's context does.
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
	if _, known := readings[text]; known {
		return explain(err)
	}
	if _, inner, ok := strings.Cut(text, "desc = "); ok {
		if inner, bad := strconv.Unquote(inner); bad == nil {
			text = strings.TrimPrefix(strings.TrimPrefix(inner, "transport: "), "Error while dialing: ")
		}
	}
	return &unreached{text, rpctypes.Error(err)}
}

// unreached is an error of the connection, with a shorter text.
type unreached struct {
	text string
	err  error
}

func (u *unreached) Error() string { return u.text }
func (u *unreached) Unwrap() error { return u.err }

// explain adds advice to an error of the server.
func explain(err error) error {
	e := rpctypes.Error(err)
	switch {
	case errors.Is(e, rpctypes.ErrPermissionDenied):
		return &Error{"the user lacks a right: it needs readwrite on all keys with dlock's prefix (see the role in docs/etcd.md)", e}
	case errors.Is(e, rpctypes.ErrUserEmpty), errors.Is(e, rpctypes.ErrAuthFailed):
		return &Error{"the server requires a user and a password, and refused these", e}
	case isTooLarge(err):
		return &Error{"the server's limits are below what one lock needs: raise --max-request-bytes and --max-txn-ops to their defaults, or shorten root, prefix, name and label", e}
	case errors.Is(e, rpctypes.ErrCorrupt):
		return &Error{"the data of one member differ from the others', and the cluster refuses all calls: replace that member, and disarm its alarm", e}
	case errors.Is(e, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)):
		return &Error{"only learners were reached, which cannot serve locks: give the addresses of members that vote", e}
	case status.Code(err) == codes.Unimplemented:
		return &Error{"the server is no etcd 3, or a proxy that does not forward all of its calls: give the addresses of the members", e}
	case errors.Is(e, rpctypes.ErrNoSpace):
		return &Error{"the server's database is full: compact it, defragment it, and disarm its alarm", e}
	}
	return e
}

// Error is an error of the server, with its cause and advice.
type Error struct {
	Advice string // the cause, and what to do
	Err    error  // as etcd's client library returns it
}

// Error returns the advice and the server's text.
func (e *Error) Error() string { return e.Advice + ": " + e.Err.Error() }

// Unwrap returns the server's error.
func (e *Error) Unwrap() error { return e.Err }
