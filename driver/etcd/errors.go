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

// handling is what is done about an error of a call.
type handling uint8

const (
	// answer: the server refuses this call, and its caller knows what that means.
	answer handling = iota
	// again: wait a little, and send it again.
	again
	// another: this member does not take it, and another one may. The next attempt goes there.
	another
	// later: no member takes it until an operator has done something. A call returns that at once;
	// a Lock that waits goes on, as in an outage.
	later
	// never: no member takes it, and it is for the user to do something. Waits end too.
	never
)

// String names it, for tests and logs.
func (h handling) String() string {
	return [...]string{"answer", "again", "another", "later", "never"}[h]
}

// reading is what an error says: what to do, and whether the call may have been executed.
type reading struct {
	handling
	outcome kit.Outcome
}

// The readings of errors. What comes too late, or from a member that did not know, may have been
// executed; what the server looked at and refused was not.
var (
	refused    = reading{answer, kit.Answered}
	notNow     = reading{again, kit.NotDone}
	unknown    = reading{again, kit.Unknown}
	notHere    = reading{another, kit.NotDone}
	lostThere  = reading{another, kit.Unknown}
	noMore     = reading{later, kit.Answered}
	notAllowed = reading{never, kit.Answered}
)

// readings has what etcd's servers say, by their words: their codes differ between versions. A test
// compares it with the library's list.
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

// codeReadings has what gRPC says by itself, or whatever stands between client and server.
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

// read reads an error of a call.
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

// outcomeOf says what an error tells about a call.
func outcomeOf(err error) kit.Outcome { return read(err).outcome }

// isGone reports whether the server says that a lease does not exist.
func isGone(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }

// isFull reports whether the server says that it has no space. It also says so of the transaction
// that takes the last of it, and executes that.
func isFull(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) }

// isTooLarge reports whether the server, or what stands before it, allows fewer operations or bytes
// than a call has. It executed nothing.
func isTooLarge(err error) bool {
	e := rpctypes.Error(err)
	return errors.Is(e, rpctypes.ErrTooManyOps) || errors.Is(e, rpctypes.ErrRequestTooLarge) ||
		status.Code(err) == codes.ResourceExhausted && strings.Contains(status.Convert(err).Message(), "larger than max")
}

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
	case isTooLarge(err):
		return &Error{"the server takes less in one request than a lock needs: raise --max-request-bytes and --max-txn-ops to their defaults, or shorten root, prefix, name and label", e}
	case errors.Is(e, rpctypes.ErrCorrupt):
		return &Error{"a member's data differ from the others', and the cluster refuses everything: replace that member, and disarm its alarm", e}
	case errors.Is(e, rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)):
		return &Error{"only learners were reached, which serve no locks: give the addresses of members that vote", e}
	case status.Code(err) == codes.Unimplemented:
		return &Error{"what answers there is no etcd 3, or a proxy that does not pass all of it on: give the addresses of the members", e}
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
