// Package driver is the contract between dlock and the drivers of the services that hold its locks.
//
// Users of dlock work with the types of the root package, which are implemented once. A driver
// implements something smaller: a [Backend], which keeps a queue of requests under each name. The
// queue alone decides which requests are granted, by the rule of [Queue]. The terms are those of
// lock managers in database textbooks.
//
// A request is identified by 128 random bits. To send it twice is to send it once. Every call that
// changes a queue has one of three outcomes:
//
//   - yes: the error is nil.
//   - no: the error is one of the sentinels of this package.
//   - unknown: any other error. The client sends the same request again to find out. It never
//     guesses.
//
// # Time
//
// Requests expire by the service's clock. The client's monotonic clock can only make the client
// stop sooner. The times that a driver reports ([Grant.SentAt], [Renewal.SentAt]) are readings of
// [time.Now], taken before it sends the call that proves the hold. Wall clocks of different
// machines are never compared.
//
// # For authors of drivers
//
//  1. Implement [Backend].
//  2. Implement the optional interfaces that the service makes possible: [Capable], [Breaker],
//     [Notifier], [Explainer], [Lister], [Raiser].
//  3. Call [Register] in an init function.
//  4. Run the suite of package conformance on the real service.
//
// CONTRIBUTING.md has the checklist.
package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Backend keeps the queues of one service (one Redis, one directory …) for one client. All methods
// are safe for concurrent use. After Close every other method returns an error that matches
// [ErrClosed].
//
// Every method returns within 100 ms of the end of its context, whatever the network does. Calls to
// the service that are still under way then continue in the background.
type Backend interface {
	// Acquire adds r to the queue of r.Name and returns its grant. If a request with r.ID already
	// stands in the queue, Acquire resumes that one.
	//
	// There are two kinds of requests:
	//
	//   - An arrival has r.Owner == r.ID. It may have to wait for requests that arrived earlier. If
	//     r.Wait is not set it does not wait: the error matches [ErrHeld], and is a [*HeldError]
	//     where the service reports the holder. The request then leaves nothing behind.
	//   - A join has another owner, and never waits. It is granted, or fails with [ErrLost] if the
	//     owner does not hold the lock, or with [ErrUpgrade].
	//
	// A request for a lock on a name that is in use as a semaphore, or the reverse, fails with
	// [ErrConflict].
	//
	// A resumed request begins its TTL again, or its grant reports the rest of the TTL. The token
	// is the same each time. A request that has expired, was ended by force, or was released with
	// Uncertain set is never resumed: the error is [ErrLost]. The caller does not reuse the ID of a
	// request that ended normally.
	//
	// While a request waits, the driver keeps it alive. That costs the same however many wait: one
	// push channel, watch stream or batched poll for the whole client. Waiters are granted in the
	// order of arrival.
	//
	// If ctx ends after the service has confirmed that the request waits in the queue, the error is
	// that of [Waited] or [WaitedFor]. If ctx ends without such an answer, the error matches the
	// context's error and does not match [ErrHeld]. Before ctx ends, no error matches
	// [context.DeadlineExceeded] or [context.Canceled], even if the driver has deadlines of its
	// own.
	//
	// A TTL below MinTTL or above MaxTTL of the Capabilities (for a Fixed request, MaxFixed) fails
	// with [ErrInvalid]. Any other TTL is kept in full.
	//
	// Expired requests do not pile up behind live ones: each call purges some of them, wherever
	// they stand in the queue.
	//
	// After a refusal (see [Refused]) nothing of the request is left: it is not in the queue, and
	// no copy of the call is under way. If that is not certain, the driver wraps the refusal in
	// [Unsettled].
	//
	// After any other error, the end of ctx included, the request may stand in the queue and may be
	// granted. The caller removes it. It repeats Release until that returns nil or [ErrLost], with
	// Uncertain set unless the error is that of [Waited] or [WaitedFor]. The driver does nothing in
	// the background for that. Until then it keeps its record of the request: after Waited, only
	// the driver knows whether a copy is under way, and if nothing was sent the Release costs no
	// call.
	//
	// A driver that cannot queue lets clients wait in no order, and tries again from time to time.
	// Or it returns a [*RetryError] for a request that would have to wait; the caller then waits
	// and sends a new request.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew proves that the requests still hold, and begins their TTLs again. It sends them in
	// batches, so that the number of round trips does not grow with each request. The result has
	// one element for each request, in the same order.
	//
	// It never revives a request that has expired, was released or was broken. Such a request fails
	// with [ErrLost], which is final. A request that still waits fails with [ErrNotHeld].
	Renew(ctx context.Context, rs []Request) []Renewal

	// Release removes the request, granted or waiting, and grants the requests that are next. It
	// returns nil if this call or an earlier copy of it removed the request, as far as the driver
	// knows. It returns [ErrLost] if the request was not there any more, or was broken: its release
	// removes what is left of a broken hold. It never changes another request.
	//
	// If r.Uncertain is set, a copy of the request's Acquire may still be under way. Then, for at
	// least r.TTL from now, an Acquire with that ID creates nothing and returns ErrLost. The
	// exception is a driver whose own Acquire of the request has failed, and which knows that no
	// copy is under way.
	//
	// The caller repeats a Release whose outcome is unknown until it has an answer. Some services
	// do not expire the request itself, but a session or a lease that other requests keep alive.
	// Their drivers return [ErrLost] only if the request is not there. Other drivers return it also
	// once the request has certainly expired, however the call failed.
	Release(ctx context.Context, r Request) error

	// Inspect returns the queue of the name as the service sees it, without expired requests. A
	// name that is not in use has an empty queue. A backend that cannot read queues returns
	// [ErrUnsupported].
	Inspect(ctx context.Context, name string) (Queue, error)

	// Close ends the client. Calls under way return, and the driver's background work stops. Close
	// removes the client's requests from all queues, as far as it can within a few seconds; the
	// rest expires. If the Capabilities have FixedOutlives, a granted Fixed request stays until its
	// time. A connection that the user passed in stays open. A second Close returns nil.
	Close() error
}

// Capable is implemented by backends to report what they can do. A backend that does not implement
// it has only Exclusive locks, without a queue and without tokens.
type Capable interface {
	// Capabilities returns the same value each time. The zero Backend of a driver returns the zero
	// Capabilities: no client can use it.
	Capabilities() Capabilities
}

// Breaker is implemented by backends that let an operator end a hold. They must implement
// [Notifier] too.
type Breaker interface {
	// Break ends the hold with token t: its requests can be neither renewed nor joined any more.
	// What is left of it expires within its TTL, or is removed by a [Backend.Release] of its
	// requests, even if their renewal was refused before. With force it is removed now, and the
	// clients that held it are notified within a second, through [Notifier]. Break fails with
	// [ErrNotHeld], and changes nothing, if no hold has that token (any more). Without fencing, t
	// is 0 and means everything that holds the name: one owner, or all readers.
	Break(ctx context.Context, name string, t Token, force bool) error
}

// Notifier is implemented by backends that learn of a loss before the next renewal: of a forced
// break within a second, whatever the TTL, and of other losses where they can.
type Notifier interface {
	// Notify registers lost. The backend calls it with the ID of each request of this client that
	// it finds to be lost for good, from a goroutine of its own and without holding any of its
	// locks. Notify is called at most once, before the first Acquire.
	Notify(lost func(ID))
}

// Explainer is implemented by a [Notifier] that knows why a request was lost.
type Explainer interface {
	// Explain returns the reason of a loss that the backend has just reported through Notify, as an
	// error that matches [ErrLost]. It returns nil if there is no more to say.
	Explain(ID) error
}

// Lister is implemented by backends that know which names are in use.
type Lister interface {
	// List returns the names that have requests now, granted or waiting, in no particular order.
	// They are names as the other methods of this client take them: if the client has a prefix
	// ([Config.Prefix]), List returns only names whose keys begin with it, and removes it. So
	// Inspect shows the queue of each name while the name is in use.
	List(ctx context.Context) ([]string, error)
}

// Raiser is implemented by backends that can raise the token of a hold.
type Raiser interface {
	// Raise makes the token of r at least t; all tokens of the name that are granted afterwards are
	// greater. r is a granted Exclusive request of this client that is no join; what joined its
	// hold gets its token. Raise never makes a token smaller, and may be repeated. It fails with
	// [ErrLost] if r does not hold, and with [ErrInvalid] if the service cannot keep t and greater
	// tokens. Then it has changed nothing.
	Raise(ctx context.Context, r Request, t Token) error
}

// Request asks for a lock on one name. The zero values of Mode, Limit, Fixed, Wait and Uncertain
// are useful. Only a join has a Token. All other fields are always set.
type Request struct {
	Name string // any valid name; the driver encodes different names differently
	ID   ID     // 128 random bits: one per acquisition
	// the hold that it belongs to: its own ID, or, for a join, the ID of the request that began the
	// hold
	Owner  ID
	Token  Token // for a join: the token of the hold that it joins
	Client ID    // the client that sent it; the same for all requests of one client
	Mode   Mode
	// for Shared: how many owners may hold together, at most 1<<31-1; 0: no limit
	Limit int
	TTL   time.Duration // how long the service keeps it without a renewal
	Label string        // a text for people

	// it will not be renewed: where the service can, it ends the hold TTL after the grant, whatever
	// the client does
	Fixed     bool
	Wait      bool // for Acquire: wait in the queue
	Uncertain bool // for Release: a copy of the Acquire may still be under way
}

// Join reports whether the request belongs to a hold that another request began.
func (r *Request) Join() bool { return r.Owner != r.ID }

// Semaphore reports whether the request is for a permit of a semaphore. Semaphores and locks do not
// share a name.
func (r *Request) Semaphore() bool { return r.Mode == Shared && r.Limit > 0 }

// Mode is the kind of other holders that a request admits.
type Mode uint8

const (
	Exclusive Mode = iota // no other owner
	Shared                // other Shared owners, up to the limit
)

// String returns "exclusive" or "shared".
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// Covers reports whether a hold of mode m may be joined by a request of mode n.
func (m Mode) Covers(n Mode) bool { return m == Exclusive || n == Shared }

// Grant is what Acquire returns: the proof of a hold.
type Grant struct {
	Token  Token         // the hold's fencing token; 0 without Capabilities.Fencing
	TTL    time.Duration // the TTL that the service granted, counted from SentAt; 0: as requested
	SentAt time.Time     // a reading of time.Now, taken before the call that proved the hold
}

// Renewal is what Renew returns for each request.
type Renewal struct {
	TTL    time.Duration // as in Grant
	SentAt time.Time     // as in Grant
	Err    error         // nil: it holds; ErrLost: it is lost for good; any other error: unknown
}

// Token is a fencing token, which also names its hold. The tokens of Exclusive holds of one name
// grow strictly from each holder to the next. The token of a Shared hold is above those of earlier
// Exclusive holds and below those of later ones. The tokens of semaphores have no order.
type Token uint64

// ID is 128 random bits. Each request and each client has its own.
type ID [16]byte

// NewID returns a new ID from the operating system's random source.
func NewID() ID {
	var id ID
	rand.Read(id[:])
	return id
}

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the ID as 32 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText returns the same text as String.
func (id ID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText reads what MarshalText wrote, and fails for any other text.
func (id *ID) UnmarshalText(text []byte) error {
	var v ID
	if len(text) != 2*len(v) {
		return fmt.Errorf("an ID has %d hexadecimal digits, not %d bytes", 2*len(v), len(text))
	}
	if _, err := hex.Decode(v[:], text); err != nil {
		return errors.New("an ID has only hexadecimal digits")
	}
	*id = v
	return nil
}

// Capabilities report what a backend can do. Programs rely on them, and tests check that they are
// true.
type Capabilities struct {
	// the scheme of its URLs. Outside this repository, backends that may share queues have the same
	// scheme, at least up to a "+", as in "foo" and "foo+cluster"
	Backend string
	// the name of the format in which the locks are kept, if it is that of other software, which
	// then locks the same names: "curator". Empty: dlock's own. Such a backend may refuse a name
	// that the format cannot carry, with ErrInvalid; it never changes one
	Format string
	// Two backends of one process with the same Identity share their queues; with different ones
	// they do not. A driver sets it only if that is certain. The driver of a service combines the
	// identity that the user configured with the prefix of the keys. An Identity is never an
	// address: one service may have several, and two services may share one. If it is empty,
	// package dlock queries the services, by a join, when it matters.
	Identity string

	Queue      bool // waiters are granted in strict order of arrival
	Fencing    bool // holds have tokens
	Raises     bool // tokens can be raised: see [Raiser]
	Shared     bool // read-write locks
	Semaphores bool // Shared with a limit
	Joins      bool // an owner can be handed to another client
	Inspect    bool // queues can be read
	Durable    bool // holds outlive a restart of the service

	// No grant is lost when a server of the service fails and another one takes over; this holds
	// too where none can. If it is not set, the server that takes over may not know the last
	// grants. It may let a second holder in while the first one trusts its hold, and then only the
	// resource can refuse one of them, by its token.
	FailoverSafe bool

	// the service ends a fixed lease even if the client is stopped; otherwise only the client does
	ServerEndsFixed bool
	// a granted Fixed request lasts for its full time even if its client is closed or its process
	// dies; otherwise either frees it. If set, a Fixed request may join a hold of its own client
	// even without Joins
	FixedOutlives bool

	MinTTL time.Duration // the least TTL that the service keeps
	MaxTTL time.Duration // the greatest; 0: no bound of its own
	// the greatest TTL of a Fixed request, if it is more than MaxTTL; 0: it is MaxTTL
	MaxFixed time.Duration
}

// The sentinel errors. Each has exactly one meaning. If an error matches none of them, the outcome
// is unknown.
var (
	// ErrHeld means that another owner holds the lock or waits ahead, and that nothing of the
	// request is left.
	ErrHeld = errors.New("held by another owner")
	// ErrLost means that the request does not hold and never will again.
	ErrLost = errors.New("lease lost")
	// ErrNotHeld means that there is no such hold (any more), and that nothing was changed.
	ErrNotHeld = errors.New("not held")
	// ErrUpgrade means that an Exclusive request tried to join a hold that is only Shared. To wait
	// could deadlock.
	ErrUpgrade = errors.New("cannot upgrade a shared hold to exclusive: release the shared lease first")
	// ErrConflict means that the name is already in use as the other kind, a lock or a semaphore.
	ErrConflict = errors.New("the name is in use as another kind of lock; one name is either a lock or a semaphore")
	// ErrUnsupported means that this backend cannot do it; see its Capabilities.
	ErrUnsupported = errors.New("not supported by this backend")
	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("client closed")
	// ErrInvalid means that the call itself is wrong, and that nothing was sent. Repeating it does
	// not help.
	ErrInvalid = errors.New("invalid")
)

// Waited returns the error for an Acquire whose ctx ended after the service had confirmed that the
// request waits in the queue. The error matches [ErrHeld], the context's error and its cause. ctx
// must have ended.
func Waited(ctx context.Context) error { return WaitedFor(ctx, ErrHeld) }

// WaitedFor is Waited with a more precise error than ErrHeld: held is a [*HeldError], or another
// error that matches ErrHeld.
func WaitedFor(ctx context.Context, held error) error {
	return &waited{err: ctx.Err(), cause: context.Cause(ctx), held: held}
}

// HasWaited reports whether err is an error of [Waited] or [WaitedFor], or wraps one.
func HasWaited(err error) bool { return errors.As(err, new(*waited)) }

type waited struct{ err, cause, held error }

func (w *waited) Error() string {
	text := w.err.Error()
	if w.cause != nil && w.cause != w.err {
		// a cause of package dlock has that prefix, and the caller adds one; it may be a nil
		// pointer
		text += ": " + strings.TrimPrefix(fmt.Sprint(w.cause), "dlock: ")
	}
	return text + " while waiting: " + w.held.Error()
}

// Unwrap returns all that it matches.
func (w *waited) Unwrap() []error { return []error{w.err, w.held, w.cause} }

// HeldError is [ErrHeld] with what the service reported of a holder. A driver returns one if the
// answer to its call has that anyway: it costs no further call.
type HeldError struct {
	Label string // of a holder that blocks the request
	// since the holder's request arrived, by the service's clock, as in [Entry]; 0: not known
	Age time.Duration
}

// Error names the holder, and the age of its request if that is known.
func (e *HeldError) Error() string {
	by := ErrHeld.Error()
	if e.Label != "" {
		by += ", " + strconv.Quote(e.Label)
	}
	if e.Age == 0 {
		return by
	}
	return fmt.Sprintf("%s, whose request arrived %s ago", by, e.Age.Round(time.Millisecond))
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// refusals are the errors that mean no.
var refusals = []error{ErrHeld, ErrLost, ErrUpgrade, ErrConflict, ErrInvalid, ErrUnsupported, ErrClosed}

// Refused reports whether the error of an Acquire is a refusal: one of [ErrHeld], [ErrLost],
// [ErrUpgrade], [ErrConflict], [ErrInvalid], [ErrUnsupported] and [ErrClosed], but neither a
// context's error nor [Unsettled]. After a refusal the request is not in the queue, and the caller
// need not release it. (After ErrClosed, Close removes the requests of the client.)
func Refused(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*unsettled)) {
		return false
	}
	return slices.ContainsFunc(refusals, func(no error) bool { return errors.Is(err, no) })
}

// Unsettled returns the error for an Acquire that was refused with err although the request may
// still stand in the queue: an earlier copy of the call may be under way, or the request could not
// be withdrawn. The error matches all that err matches and has the same text, but [Refused] returns
// false for it.
func Unsettled(err error) error { return &unsettled{err} }

type unsettled struct{ err error }

func (u *unsettled) Error() string { return u.err.Error() }

// Unwrap returns the refusal.
func (u *unsettled) Unwrap() error { return u.err }

// RetryError is the error of a backend that neither queues nor waits, for a request that would have
// to wait. It matches [ErrHeld].
type RetryError struct {
	After time.Duration // the pause before the next request; the caller adds jitter
}

// Error says that the lock is held.
func (e *RetryError) Error() string { return ErrHeld.Error() }

// Is matches ErrHeld.
func (e *RetryError) Is(target error) bool { return target == ErrHeld }
