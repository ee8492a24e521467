package conn

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"
)

// verdict is what the driver does after an error, beside what it says of the call's outcome.
type verdict int

const (
	answer    verdict = iota // it is the answer: the state at the servers decided the call
	wait                     // the same call may succeed here later
	elsewhere                // the same call may succeed at another server
	never                    // no repetition helps: a setting, a version or a program is wrong
)

func (v verdict) String() string {
	return [...]string{"an answer", "wait and try again here", "try another member", "never"}[v]
}

// outcome says whether a call that failed was executed.
type outcome int

const (
	nothing outcome = iota // it was not executed
	unknown                // it may have been executed
)

// kind is how the driver classifies an error.
type kind struct {
	name string // the server's, or the library's
	code int32  // the server's; 0: it is the library's alone
	err  error  // the library's; nil: it has none for that code
	did  outcome
	then verdict
	says string // what it is, and what to do; "": it is never shown, or its own text suffices
}

// again reports whether the same call may succeed later.
func (k kind) again() bool { return k.then == wait || k.then == elsewhere }

const unexpected = "no call of dlock should get this answer: please report it"

// codes are the errors that ZooKeeper documents (KeeperException.Code, and the codes that only the
// C client knows). If a server returns one for several reasons the outcome is unknown.
var codes = []kind{
	{"SYSTEMERROR", -1, nil, unknown, wait, "the server failed; its log says why"},
	{"RUNTIMEINCONSISTENCY", -2, nil, nothing, wait, "another part of the transaction was refused"},
	{"DATAINCONSISTENCY", -3, nil, unknown, elsewhere, "the server's data is inconsistent: look at its log, and give it the data of another member"},
	{"CONNECTIONLOSS", -4, nil, unknown, wait, "the server lost its connection"},
	{"MARSHALLINGERROR", -5, nil, unknown, never, "the server could not process the request; its log says why"},
	{"UNIMPLEMENTED", -6, nil, nothing, never, "the server does not know the request: dlock needs ZooKeeper 3.5.3 or newer"},
	{"OPERATIONTIMEOUT", -7, nil, unknown, wait, "the servers took too long"},
	{"BADARGUMENTS", -8, zk.ErrBadArguments, nothing, never, "the server considers the request invalid: the chroot and the prefix must make a path that it allows"},
	{"INVALIDSTATE", -9, nil, nothing, never, unexpected},
	{"UNKNOWNSESSION", -12, nil, unknown, wait, "the server does not know the session yet"},
	{"NEWCONFIGNOQUORUM", -13, nil, nothing, never, unexpected},
	{"RECONFIGINPROGRESS", -14, nil, nothing, wait, "the ensemble is being reconfigured"},
	{"APIERROR", -100, zk.ErrAPIError, nothing, never, unexpected},
	{"NONODE", -101, zk.ErrNoNode, nothing, answer, ""},
	{"NOAUTH", -102, zk.ErrNoAuth, nothing, never, "the client lacks a right (docs/zookeeper.md lists those that suffice)"},
	{"BADVERSION", -103, zk.ErrBadVersion, nothing, answer, ""},
	{"NOCHILDRENFOREPHEMERALS", -108, zk.ErrNoChildrenForEphemerals, nothing, never, "a node on the path to the chroot or to dlock's own node is ephemeral, and can have no children: choose another chroot or prefix"},
	{"NODEEXISTS", -110, zk.ErrNodeExists, nothing, answer, ""},
	{"NOTEMPTY", -111, zk.ErrNotEmpty, nothing, answer, ""},
	{"SESSIONEXPIRED", -112, zk.ErrSessionExpired, unknown, answer, ""},
	{"INVALIDCALLBACK", -113, nil, nothing, never, unexpected},
	{"INVALIDACL", -114, zk.ErrInvalidACL, nothing, never, "the server refuses the ACL (creator-all needs credentials that it accepts)"},
	{"AUTHFAILED", -115, zk.ErrAuthFailed, nothing, never, "the server refuses the credentials, or does not support their kind (the authentication provider for digest is switched off)"},
	{"CLOSING", -116, zk.ErrClosing, unknown, never, "the connection was closed before its client: close the client first"},
	{"NOTHING", -117, zk.ErrNothing, nothing, never, unexpected},
	{"SESSIONMOVED", -118, zk.ErrSessionMoved, unknown, elsewhere, "the session has moved to another server"},
	{"NOTREADONLY", -119, nil, nothing, elsewhere, "the server is cut off from the ensemble, and is read-only"},
	{"EPHEMERALONLOCALSESSION", -120, nil, nothing, never, "the servers keep sessions local, and a local session cannot own nodes: set localSessionsUpgradingEnabled=true on all servers, or localSessionsEnabled=false"},
	{"NOWATCHER", -121, nil, nothing, never, unexpected},
	{"REQUESTTIMEOUT", -122, nil, unknown, wait, "the servers took too long"},
	{"RECONFIGDISABLED", -123, zk.ErrReconfigDisabled, nothing, never, unexpected},
	{"SESSIONCLOSEDREQUIRESASLAUTH", -124, nil, nothing, never, "the servers accept only clients that authenticate in a way that this client does not (enforce.auth.schemes, sessionRequireClientSASLAuth): give the URL a user and a password for digest, or a certificate for x509; dlock does not speak SASL"},
	{"QUOTAEXCEEDED", -125, nil, nothing, wait, "the quota of a node above dlock's is used up (setquota, enforceQuota): raise its count or bytes, or use fewer locks at a time"},
	{"THROTTLEDOP", -127, nil, nothing, wait, "the server is overloaded, and drops requests that waited for too long (throttledOpWaitTime)"},
	tooLarge,
}

// codeTooLarge is no server's code. It replaces an answer that is too large to be read.
const codeTooLarge = -1_000_000

var tooLarge = kind{"TOOLARGE", codeTooLarge, nil, unknown, never, "the answer is larger than this client reads in one piece (64 MiB, or the MaxBufferSize of a connection of your own): too many requests stand under one name, or too many names are in use"}

// library are the errors of the client library that have no code. Any other error is that of a
// network connection.
var library = []kind{
	{"ErrConnectionClosed", 0, zk.ErrConnectionClosed, unknown, wait, ""},
	{"ErrNoServer", 0, zk.ErrNoServer, unknown, wait, ""},
	{"ErrUnknown", 0, zk.ErrUnknown, unknown, never, unexpected},
	{"ErrInvalidPath", 0, zk.ErrInvalidPath, nothing, never, "the chroot and the prefix do not make a path that servers allow"},
	{"ErrInvalidFlags", 0, zk.ErrInvalidFlags, nothing, never, unexpected},
	{"ErrShortBuffer", 0, zk.ErrShortBuffer, nothing, never, "the request is larger than the buffer of the connection (MaxConnBufferSize of a connection of your own)"},
	{"ErrUnhandledFieldType", 0, zk.ErrUnhandledFieldType, nothing, never, unexpected},
	{"ErrPtrExpected", 0, zk.ErrPtrExpected, nothing, never, unexpected},
	{"ErrDeadlock", 0, zk.ErrDeadlock, nothing, never, unexpected},
	{"ErrNotLocked", 0, zk.ErrNotLocked, nothing, never, unexpected},
	{"ErrAnswer", 0, ErrAnswer, nothing, never, ""},
}

// network is the kind of any other error.
var network = kind{"", 0, nil, unknown, wait, ""}

// Error is a server's error for which the client library has no name. Its text says what it is and
// what to do.
type Error struct {
	Code int32
	kind kind
}

// Error implements error.
func (e *Error) Error() string {
	if e.Code == codeTooLarge {
		return e.kind.says
	}
	return fmt.Sprintf("zookeeper answers %s (%d): %s", e.kind.name, e.Code, e.kind.says)
}

// nameless begins the library's text of an error for which it has no name.
const nameless = "unknown error: "

// named returns err, or an [Error] if the library has no name for it.
func named(err error) error {
	if err == nil {
		return nil
	}
	text, is := strings.CutPrefix(err.Error(), nameless)
	code, bad := strconv.ParseInt(text, 10, 32)
	if !is || bad != nil {
		return err
	}
	for _, k := range codes {
		if k.code == int32(code) {
			return &Error{k.code, k}
		}
	}
	// A server that answers with an error has not executed the call, as far as is documented.
	return &Error{int32(code), kind{"an error", int32(code), nil, nothing, never, "this version of dlock does not know that code; the documentation of the servers' version (KeeperException) explains it"}}
}

// kindOf classifies an error.
func kindOf(err error) kind {
	var e *Error
	if errors.As(named(err), &e) {
		return e.kind
	}
	for _, ks := range [][]kind{codes, library} {
		for _, k := range ks {
			if k.err != nil && errors.Is(err, k.err) {
				return k
			}
		}
	}
	return network
}

// IsUnimplemented reports whether the server does not know the request.
func IsUnimplemented(err error) bool { return kindOf(err).name == "UNIMPLEMENTED" }

// IsTooLarge reports whether the answer was too large to be read.
func IsTooLarge(err error) bool { return kindOf(err).code == codeTooLarge }

// Explain adds to an error what it is and what to do, if its own text does not say that.
func Explain(err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	if k := kindOf(err); k.says != "" {
		return fmt.Errorf("%s: %w", k.says, err)
	}
	return err
}
