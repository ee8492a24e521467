// Package driver is the contract between dlock and the services that it locks with.
//
// Users of dlock work with the types of the root package, which are implemented once. A driver
// implements something smaller: a [Backend], which keeps a queue of requests under each name. Which
// requests are granted follows from that queue alone, by the rule of [Queue]. The words are those
// of lock managers in database textbooks.
//
// A request is identified by 128 random bits. To send it twice is to send it once. Every call that
// changes a queue has one of three outcomes:
//
//   - yes: the error is nil.
//   - no: the error is one of the sentinels of this package.
//   - unknown: any other error. The client finds out by sending the same request again. It never
//     guesses.
//
// # Time
//
// The service's clock expires requests. The client's monotonic clock can only make the client stop
// sooner. The times that a driver reports ([Grant.SentAt], [Renewal.SentAt]) are readings of
// [time.Now] from before the call that proved the hold was sent. No wall clock is compared across
// machines.
//
// # For authors of drivers
//
//  1. Implement [Backend].
//  2. Implement the optional interfaces that the service allows: [Capable], [Breaker], [Notifier],
//     [Explainer], [Lister].
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
	"time"
)

// Backend keeps the queues of one service (one Redis, one directory …) for one client. All methods
// are safe for concurrent use. After Close every method returns an error that matches [ErrClosed].
//
// Every method returns within 100 ms of the end of its context, whatever the network does. What is
// still under way then goes on in the background.
type Backend interface {
	// Acquire adds r to the queue of r.Name, and returns its grant. If a request with r.ID stands
	// there already, Acquire resumes that one.
	//
	// There are two kinds of requests. One with r.Owner == r.ID, a stranger to all that stand
	// there, may have to wait for them. If r.Wait is not set it does not wait: the error matches
	// [ErrHeld], and is a [*HeldError] where the service says who holds the lock, and the request
	// leaves nothing behind. One with another owner is a join, and never
	// waits: it is granted, or the error is [ErrLost] if the owner does not hold the lock, or
	// [ErrUpgrade]. [ErrConflict] refuses a lock where a semaphore stands, and the other way round.
	//
	// The TTL of a request that is resumed begins again, or the grant reports what is left of it.
	// The token is the same each time. A request that has expired, was ended by force, or was
	// released as Uncertain is never resumed: the error is [ErrLost]. The client does not send the
	// ID of a request again that ended in good order.
	//
	// While a request waits the driver keeps it alive. That costs the same however many wait: one
	// push channel, watch stream or batched poll for the whole client. Waiters are granted in the
	// order of arrival.
	//
	// If ctx ends while the request waits in the queue, as the service has said, the error is that
	// of [Waited] or [WaitedFor]. If ctx ends and the service did not answer, the error matches the
	// context's and does not match [ErrHeld]. While ctx lives no error matches
	// [context.DeadlineExceeded] or [context.Canceled], although a driver may have deadlines of its
	// own.
	//
	// A TTL below MinTTL or above MaxTTL (of a Fixed request MaxFixed) of the Capabilities is
	// [ErrInvalid]. Any other is kept in full.
	//
	// Requests that have expired do not pile up behind those that live: each call purges some of
	// them, wherever they stand.
	//
	// After an error that is a refusal, as [Refused] reports, nothing of the request is left: it
	// does not stand, and no copy of the call is under way. A refusal of which that is not sure is
	// [Unsettled].
	//
	// After any other error, the end of ctx included, the request may stand, and may be granted.
	// The caller removes it: it calls Release, with Uncertain set unless the error is that of
	// [Waited] or [WaitedFor], again and again until the answer is nil or [ErrLost]. The driver
	// does nothing in the background for that. It remembers what it knows of the request until
	// then: after Waited, a copy may be under way of which only the driver knows; and where nothing
	// was sent the Release costs no call.
	//
	// A driver that cannot queue returns a [*RetryError] for a request that would have to wait. The
	// caller waits and sends a new request.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew proves that the requests still hold, and begins their TTLs again. It sends batches, so
	// that the number of round trips does not grow with each request. The result has one element
	// for each request, in the same order.
	//
	// It never revives a request that has expired, was released or was broken. The error of such a
	// request is [ErrLost], which is final. The error of a request that still waits is
	// [ErrNotHeld].
	Renew(ctx context.Context, rs []Request) []Renewal

	// Release removes the request, granted or waiting, and grants those who follow from that. It
	// returns nil if this call removed the request, or an earlier copy of the call, as far as the
	// driver knows. It returns [ErrLost] if the request was not there any more, or was broken: what
	// is left of a broken hold ends with its release. It never changes another request.
	//
	// If r.Uncertain is set, a copy of the request's Acquire may still be under way. Then, for at
	// least r.TTL from now, an Acquire with that ID creates nothing and returns ErrLost; unless the
	// driver, whose own Acquire of it has failed, knows that no copy is under way.
	//
	// The caller repeats a Release whose outcome is unknown until it has an answer. So where the
	// service does not remove a request by itself, as under a session or a lease that other
	// requests keep alive, the driver returns [ErrLost] only when it is not there; elsewhere also
	// once it has expired for sure, however the call failed.
	Release(ctx context.Context, r Request) error

	// Inspect returns the queue of the name as the service sees it, without what has expired. A
	// name that nobody uses has an empty queue. A backend without the means returns
	// [ErrUnsupported].
	Inspect(ctx context.Context, name string) (Queue, error)

	// Close ends the client. Calls under way return, and what the driver started stops. Close
	// removes the client's requests from all queues, as far as it can within a few seconds; the
	// rest expires. Where Capabilities say FixedOutlives, a Fixed request that was granted stays
	// until its time. A client of the service that the user brought stays open. A second Close
	// returns nil.
	Close() error
}

// Capable is implemented by backends to say what they can do. A backend without it can do nothing
// beyond Exclusive locks, without queue and without tokens.
type Capable interface {
	// Capabilities returns the same value each time. Those of a driver's zero Backend are the zero
	// Capabilities: no client stands on it.
	Capabilities() Capabilities
}

// Breaker is implemented by backends that let an operator end a hold. They implement [Notifier]
// too.
type Breaker interface {
	// Break ends the hold with token t: its requests can be neither renewed nor joined any more,
	// and what is left of it expires within its TTL, or is removed by its [Backend.Release], also
	// by one that follows on a renewal which was refused. With force it is removed now. Then the
	// clients that hold it learn of that within a second, through [Notifier]. The error is
	// [ErrNotHeld] if no hold has that token (any more); then nothing was changed. Where there is
	// no fencing, t is 0 and means the one holder.
	Break(ctx context.Context, name string, t Token, force bool) error
}

// Notifier is implemented by backends that learn of a loss before the next renewal: of a break by
// force within a second, whatever the TTL, and of other losses as they can.
type Notifier interface {
	// Notify makes the backend call lost with the ID of each request of this client that it learns
	// to be lost for good. It calls lost from a goroutine of its own, and holds none of its locks
	// meanwhile. Notify is called at most once, before the first Acquire.
	Notify(lost func(ID))
}

// Explainer is implemented by backends with a [Notifier] that can say why a request was lost.
type Explainer interface {
	// Explain returns why the request was lost, which the backend is about to say by Notify: an
	// error that matches [ErrLost]. It returns nil if there is no more to say.
	Explain(ID) error
}

// Lister is implemented by backends that know which names are in use.
type Lister interface {
	// List returns, in no particular order, the names that have requests now, granted or waiting. A
	// name is what the other methods of this client take: where the client has a prefix
	// ([Config.Prefix]), List returns the names whose keys begin with it, without it, and no
	// others. So Inspect shows the queue of each name, until that is free.
	List(ctx context.Context) ([]string, error)
}

// Request asks for a lock on one name. The zero values of Mode, Limit, Fixed, Wait and Uncertain
// are useful. Only a join has a Token. All other fields are always set.
type Request struct {
	Name string // any valid name; the driver encodes different names differently
	ID   ID     // 128 random bits: one per acquisition
	// the hold that it belongs to: its own ID, or, of a join, the ID of the request that began the
	// hold
	Owner  ID
	Token  Token // of a join: the token of the hold that it joins
	Client ID    // who sent it: all requests of one client have the same
	Mode   Mode
	// of Shared: how many owners may hold together, 1<<31-1 at most; 0: no bound
	Limit int
	TTL   time.Duration // how long the service keeps it without a renewal
	Label string        // for people

	// it will not be renewed: where the service can, it ends the hold TTL after the grant, whatever
	// the client does
	Fixed     bool
	Wait      bool // of Acquire: wait in the queue
	Uncertain bool // of Release: a copy of the acquire may still be under way
}

// Join reports whether the request belongs to a hold that another request began.
func (r *Request) Join() bool { return r.Owner != r.ID }

// Semaphore reports whether the request is for a permit of a semaphore. Semaphores and locks do not
// share a name.
func (r *Request) Semaphore() bool { return r.Mode == Shared && r.Limit > 0 }

// Mode says whom a request admits beside it.
type Mode uint8

const (
	Exclusive Mode = iota // nobody else
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
	Token  Token         // the hold's fencing token; 0 if Capabilities say no fencing
	TTL    time.Duration // what the service really gave, counted from SentAt; 0: what was asked for
	SentAt time.Time     // a reading of time.Now before the call that proved the hold was sent
}

// Renewal is what Renew returns for each request.
type Renewal struct {
	TTL    time.Duration // as of Grant
	SentAt time.Time     // as of Grant
	Err    error         // nil: it holds; ErrLost: it is lost for good; anything else: unknown
}

// Token is a fencing token. The tokens of Exclusive holds of one name grow strictly from each
// holder to the next. The token of a Shared hold is above those of earlier Exclusive holds and
// below those of later ones. It names the hold.
type Token uint64

// ID is 128 random bits. No two requests, and no two clients, have the same.
type ID [16]byte

// NewID returns a new ID from the operating system's randomness.
func NewID() ID {
	var id ID
	rand.Read(id[:])
	return id
}

// IsZero reports whether id was never set.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the ID as 32 hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText returns the same text as String.
func (id ID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText reads what MarshalText wrote, and refuses everything else.
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

// Capabilities say what a backend can do. Programs decide by them, and tests check that they are
// true.
type Capabilities struct {
	// the scheme of its URLs, "redis"; that of clients which may share queues is the same, but for
	// what follows a "+"
	Backend string
	// Backends of one process with the same Identity have the same queues, and with different ones
	// others. A driver fills it with what it is sure of, which of a service is what the user said,
	// together with the prefix of its keys; never with an address: one service has many, and two
	// can have one. Empty: package dlock asks the services, by a join, when it matters.
	Identity string

	Queue      bool // waiters are granted in strict order of arrival
	Fencing    bool // holds have tokens
	Shared     bool // read-write locks
	Semaphores bool // Shared with a limit
	Joins      bool // an owner can be handed to another client
	Inspect    bool // queues can be read
	Durable    bool // holds outlive a restart of the service

	// the service ends a fixed lease even if the client is stopped; otherwise the client alone does
	ServerEndsFixed bool
	// a granted Fixed request stands until its time although its client is closed or its process
	// dies; otherwise both free it. A Fixed request that joins a hold of its own client is admitted
	// then, also where Joins says no
	FixedOutlives bool

	MinTTL time.Duration // the least TTL that the service keeps
	MaxTTL time.Duration // the greatest; 0: no bound of its own
	// the greatest TTL of a Fixed request, where it is more than MaxTTL; 0: it is MaxTTL
	MaxFixed time.Duration
}

// The sentinels. Each of them allows one conclusion. If an error matches none of them the outcome
// is unknown.
var (
	// ErrHeld: somebody else holds the lock or waits ahead, and nothing of the request is left.
	ErrHeld = errors.New("held by another owner")
	// ErrLost: the request does not hold and never will again.
	ErrLost = errors.New("lease lost")
	// ErrNotHeld: there is no such hold (any more), and nothing was changed.
	ErrNotHeld = errors.New("not held")
	// ErrUpgrade: Exclusive was asked for under a hold that is only Shared. To wait for it could
	// deadlock.
	ErrUpgrade = errors.New("cannot upgrade a shared hold to exclusive: give the shared lease back first")
	// ErrConflict: the name is in use as the other kind, a lock or a semaphore, which came first.
	ErrConflict = errors.New("the name is in use as another kind of lock")
	// ErrUnsupported: this backend cannot do that; see its Capabilities.
	ErrUnsupported = errors.New("not supported by this backend")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("client closed")
	// ErrInvalid: the call itself is wrong, and nothing was sent. To repeat it would not help.
	ErrInvalid = errors.New("invalid")
)

// Waited returns the error of an Acquire whose ctx ended while the request waited in the queue, as
// the service had said. The error matches [ErrHeld], the context's error and its cause. ctx must
// have ended.
func Waited(ctx context.Context) error { return WaitedFor(ctx, ErrHeld) }

// WaitedFor is Waited with more than ErrHeld to say: held is a [*HeldError], or another error that
// matches ErrHeld.
func WaitedFor(ctx context.Context, held error) error {
	return &waited{err: ctx.Err(), cause: context.Cause(ctx), held: held}
}

// HasWaited reports whether err is that of [Waited] or [WaitedFor].
func HasWaited(err error) bool { return errors.As(err, new(*waited)) }

type waited struct{ err, cause, held error }

func (w *waited) Error() string {
	text := w.err.Error()
	if w.cause != nil && w.cause != w.err {
		text += ": " + w.cause.Error()
	}
	return text + " while it waited: " + w.held.Error()
}

// Unwrap returns all that it matches.
func (w *waited) Unwrap() []error { return []error{w.err, w.held, w.cause} }

// HeldError is [ErrHeld] with what the service says of a holder. A driver returns one where the
// answer to its call says so anyway: it costs no further call.
type HeldError struct {
	Label string        // of a holder that stands against the request
	Age   time.Duration // since that one's request arrived, by the service's clock, as of [Entry]
}

// Error says who holds the lock, and since when.
func (e *HeldError) Error() string {
	by := ErrHeld.Error()
	if e.Label != "" {
		by += ", " + strconv.Quote(e.Label)
	}
	return fmt.Sprintf("%s, which came %s ago", by, e.Age.Round(time.Millisecond))
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// refusals are the errors that say no.
var refusals = []error{ErrHeld, ErrLost, ErrUpgrade, ErrConflict, ErrInvalid, ErrUnsupported, ErrClosed}

// Refused reports whether the error of an Acquire is a refusal: one of [ErrHeld], [ErrLost],
// [ErrUpgrade], [ErrConflict], [ErrInvalid], [ErrUnsupported] and [ErrClosed], but neither the end
// of the context nor [Unsettled]. Then the request does not stand, and the caller need not release
// it. (What a client had when it was closed, its Close removes.)
func Refused(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*unsettled)) {
		return false
	}
	return slices.ContainsFunc(refusals, func(no error) bool { return errors.Is(err, no) })
}

// Unsettled returns the error of an Acquire that was refused with err although the request may
// stand: an earlier copy of the call may be under way, or the request could not be withdrawn. It
// matches all that err matches, has the same text, and is no refusal for [Refused].
func Unsettled(err error) error { return &unsettled{err} }

type unsettled struct{ err error }

func (u *unsettled) Error() string { return u.err.Error() }

// Unwrap returns the refusal.
func (u *unsettled) Unwrap() error { return u.err }

// RetryError is the error of a backend that cannot queue, for a request that would have to wait. It
// matches [ErrHeld].
type RetryError struct {
	After time.Duration // how long to wait before the next request; the caller adds jitter
}

// Error says that the lock is held.
func (e *RetryError) Error() string { return ErrHeld.Error() }

// Is matches ErrHeld.
func (e *RetryError) Is(target error) bool { return target == ErrHeld }
