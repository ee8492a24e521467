// Package driver is the contract between dlock and the services that it locks with.
//
// Users of dlock hold types of the root package, which are implemented once. A driver implements
// something smaller: a [Backend], which keeps a queue of requests under each name. What is granted
// follows from that queue alone, by the rule of [Queue]; the words below are those of lock managers
// in database textbooks.
//
// A request is identified by 128 random bits. Sending it twice is sending it once. Every call that
// changes a queue has three outcomes: yes (nil), no (one of the sentinels of this package) and
// unknown (any other error). Unknown is settled by sending the same request again, and never
// guessed.
//
// # Time
//
// The service's clock expires requests. The client's monotonic clock can only make the client stop
// sooner: the instants that a driver reports ([Grant.SentAt], [Renewal.SentAt]) are readings of
// [time.Now] taken before the call that proved the hold was sent. No wall clock crosses machines.
//
// # For authors of drivers
//
// Implement [Backend]; implement the optional interfaces ([Capable], [Breaker], [Notifier],
// [Lister]) that the service allows; call [Register] in an init function; run the suite of package
// conformance on the real service. CONTRIBUTING.md has the checklist.
package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Backend keeps the queues of one service (one Redis, one directory …) for one client. All methods
// are safe for concurrent use. After Close every method returns an error that matches [ErrClosed].
//
// Every method returns within 100 ms of the end of its context, whatever the network does: what is
// still under way then is settled in the background.
type Backend interface {
	// Acquire adds r to the queue of r.Name, or resumes it if a request with r.ID is there already,
	// and returns its grant.
	//
	// A stranger (r.Owner == r.ID) that is not granted at once waits if r.Wait is set, and
	// otherwise is [ErrHeld] and leaves nothing behind. A join (any other owner) never waits: it is
	// granted, or [ErrLost] if the owner does not hold the lock, or [ErrUpgrade]. [ErrConflict]
	// refuses a lock among semaphores, and the other way round.
	//
	// Resumed, a request has its TTL armed anew, or the grant reports what remains; the token is
	// the same each time. What has expired, was ended by force, or was released as Uncertain is
	// never resumed: that is [ErrLost]. The ID of a request that ended in good order is not sent
	// again.
	//
	// While a request waits the driver keeps it alive, at a cost that does not grow with the number
	// of waiters: one push channel, watch stream or batched poll for the whole client. Waiters are
	// granted in the order of arrival.
	//
	// If ctx ends while the request stands in the queue, as the service has said, the error is
	// [Waited]'s; if the service did not answer, it matches the context's error and not [ErrHeld].
	// While ctx lives no error matches [context.DeadlineExceeded] or [context.Canceled]: the
	// deadlines that a driver sets itself are its own business.
	//
	// A TTL below MinTTL or above MaxTTL of the Capabilities is [ErrInvalid]; any other is kept in
	// full, never cut.
	//
	// What has expired does not pile up behind those that live: it is swept wherever it stands, a
	// bounded number with each call.
	//
	// On any error, the end of ctx included, no request stays: the driver removes it, in the
	// background if it must, and a copy of it that is still under way creates nothing when it
	// arrives. If the error raced with a grant, that grant is passed on to the next waiter.
	//
	// A driver that cannot queue returns a [*Retry] for a request that would have to wait; the
	// caller waits and sends a new one.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew proves that the requests still hold, and arms their TTLs anew, in a number of round
	// trips that does not grow with each request (batches, one per server). The result has one
	// element for each request, in the same order.
	//
	// It never revives a request that has expired, was released or was broken: that is [ErrLost],
	// and it is final. Of a request that still waits it is [ErrNotHeld].
	Renew(ctx context.Context, rs []Request) []Renewal

	// Release removes the request, granted or waiting, and grants whoever follows. It is nil if
	// this call, or an earlier copy of it that the driver can tell, removed it, and [ErrLost] if it
	// was not there any more or was broken: what is left of a broken hold ends with its release. It
	// never touches another request.
	//
	// If r.Uncertain is set, a copy of the request's Acquire may still be under way: for at least
	// r.TTL from now, an Acquire with that ID creates nothing and is ErrLost.
	Release(ctx context.Context, r Request) error

	// Inspect returns the queue of the name as the service sees it, without what has expired. A
	// name that nobody uses has an empty queue. A backend without the means returns
	// [ErrUnsupported].
	Inspect(ctx context.Context, name string) (Queue, error)

	// Close ends the client's presence: it makes calls under way return, stops what the driver
	// started, and removes what the client still has in any queue as far as it can within a few
	// seconds (what it cannot, expires). What was granted to a Fixed request stays until its time
	// where Capabilities say FixedOutlives. A client of the service that the user brought stays
	// open. Close again returns nil.
	Close() error
}

// Capable is implemented by backends to say what they can do. A backend without it can do nothing
// beyond Exclusive locks, without queue and without tokens.
type Capable interface {
	// Capabilities returns the same value each time.
	Capabilities() Capabilities
}

// Breaker is implemented by backends that let an operator end a hold.
type Breaker interface {
	// Break ends the hold that has token t: its requests can be neither renewed nor joined any
	// more, and what remains of it runs out within its TTL. With force it is removed now.
	// [ErrNotHeld] if no hold has that token (any more); then nothing was changed. Where there is
	// no fencing, t is 0 and the one holder is meant.
	Break(ctx context.Context, name string, t Token, force bool) error
}

// Notifier is implemented by backends that may learn of a loss before the next renewal.
type Notifier interface {
	// Notify makes the backend call lost, from a goroutine of its own and holding no lock of its
	// own, with the ID of each request of this client that it learns to be lost for good. It is
	// called at most once, before the first Acquire.
	Notify(lost func(ID))
}

// Lister is implemented by backends that can tell which names are in use.
type Lister interface {
	// List returns, in no particular order, the names that have requests now.
	List(ctx context.Context) ([]string, error)
}

// Request asks for one name. The zero values of Mode, Limit, Fixed, Wait and Uncertain are useful;
// all other fields are always set, but Token, which only a join has.
type Request struct {
	Name string // any valid name; encoded injectively by the driver
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

	// it will not be renewed: where the service can, it ends TTL after the grant, whatever the
	// client does
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
	Err    error         // nil: it holds. ErrLost: it is lost for good. Anything else: unknown.
}

// Token is a fencing token. Those of Exclusive holds of one name grow strictly from each holder to
// the next. The token of a Shared hold lies above those of earlier Exclusive holds and below those
// of later ones; it names the hold.
type Token uint64

// ID is 128 random bits in which no two requests (or clients) are the same.
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

// Capabilities say what a backend can do, so that programs can decide and tests can hold it to its
// word.
type Capabilities struct {
	Backend string // the scheme of its URLs: "redis"
	// backends of one process with the same non-empty Identity stand over the same queues
	Identity string

	Queue      bool // waiters are granted in strict order of arrival
	Fencing    bool // holds have tokens
	Shared     bool // read-write locks
	Semaphores bool // Shared with a limit
	Joins      bool // an owner can be handed to another client
	Inspect    bool // queues can be read
	Durable    bool // holds outlive a restart of the service

	// a fixed lease is ended by the service even if the client is stopped; else by the client alone
	ServerEndsFixed bool
	// a granted Fixed request stands until its time also over Close and over the death of its
	// process; else both free it
	FixedOutlives bool

	MinTTL time.Duration // the least TTL that the service keeps
	MaxTTL time.Duration // the greatest; 0: no bound of its own
}

// The sentinels. Each licenses one conclusion; whatever matches none of them left the outcome
// unknown.
var (
	// ErrHeld: somebody else holds the lock (or waits ahead), and nothing of the request was left
	// behind.
	ErrHeld = errors.New("held by another owner")
	// ErrLost: the request does not hold and never will again.
	ErrLost = errors.New("lease lost")
	// ErrNotHeld: there is no such hold (any more); nothing was changed.
	ErrNotHeld = errors.New("not held")
	// ErrUpgrade: Exclusive was asked under a hold that is only Shared; waiting for it could
	// deadlock, so it was refused.
	ErrUpgrade = errors.New("cannot upgrade a shared hold to exclusive: give the shared lease back first")
	// ErrConflict: the name is in use as the other kind, a lock or a semaphore; it was there first.
	ErrConflict = errors.New("the name is in use as another kind of lock")
	// ErrUnsupported: this backend cannot do that; see its Capabilities.
	ErrUnsupported = errors.New("not supported by this backend")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("client closed")
	// ErrInvalid: the call itself is wrong and nothing was sent; it will not succeed when repeated.
	ErrInvalid = errors.New("invalid")
)

// Waited returns what Acquire returns when ctx ended while the request stood in the queue, as the
// service had said. It matches [ErrHeld], the context's error and its cause. ctx must have ended.
func Waited(ctx context.Context) error {
	return &waited{err: ctx.Err(), cause: context.Cause(ctx)}
}

type waited struct{ err, cause error }

func (w *waited) Error() string {
	if w.cause != nil && w.cause != w.err {
		return fmt.Sprintf("%s: %s, while it waited", w.err, w.cause)
	}
	return w.err.Error() + " while it waited: " + ErrHeld.Error()
}

// Unwrap returns all that it matches.
func (w *waited) Unwrap() []error { return []error{w.err, ErrHeld, w.cause} }

// Retry is the answer of a backend that cannot queue to a request that would have to wait. It
// matches [ErrHeld].
type Retry struct {
	After time.Duration // when it is worth asking again; the caller adds jitter
}

// Error says that the lock is held.
func (e *Retry) Error() string { return ErrHeld.Error() }

// Is matches ErrHeld.
func (e *Retry) Is(target error) bool { return target == ErrHeld }
