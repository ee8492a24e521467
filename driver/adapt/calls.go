package adapt

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Calls are a lock that is taken, extended and released by the ID of its holder. All methods are
// safe for concurrent use. They return soon after their context has ended. Calls that learn of a
// loss before the next Extend implement [driver.Notifier] too.
//
// Every call has one of three outcomes: nil; one of the errors that it names, or ErrInvalid or
// ErrUnsupported of package driver; or any other error, which means that the outcome is unknown. It
// is then repeated, so each call must have the same effect when it is executed twice, also late.
type Calls interface {
	// Try takes the lock r.Name for r.ID, until r.TTL from now by the clock of the service. If r.ID
	// has the lock already, Try succeeds, and the time is at least r.TTL again. If another holder
	// has the lock the error matches [driver.ErrHeld]; it can be a [*HeldError] that describes the
	// holder. It never waits for the holder.
	Try(ctx context.Context, r driver.Request) error

	// Extend makes the hold of r.ID last for at least ttl from now, and never shortens it. If r.ID
	// does not have the lock any more, the error is [driver.ErrLost], and nothing is changed.
	Extend(ctx context.Context, r driver.Request, ttl time.Duration) error

	// Release ends the hold of r.ID, after that time from now: 0 is at once, and the only value
	// without [Options.Outlives]. Until then the lock stays held, but not longer, whatever time the
	// hold had. If r.ID does not have the lock (any more), the error is [driver.ErrLost], and
	// nothing is changed.
	//
	// If r.Uncertain is set, a copy of a Try of r.ID may still be under way: for at least r.TTL it
	// must not take the lock, if the service makes that possible. Where it does not, such a copy
	// takes the lock for no holder, for one TTL.
	Release(ctx context.Context, r driver.Request, after time.Duration) error
}

// Fencer is implemented by [Calls] whose holds have fencing tokens.
type Fencer interface {
	// TryFenced is Try, which is then not called, and returns the token of the hold. It is greater
	// than those of all earlier holds of the name, and the same whenever TryFenced succeeds for the
	// same hold.
	TryFenced(ctx context.Context, r driver.Request) (driver.Token, error)
}

// Sharer is implemented by [Calls] under which several requests of dlock can have one lock: its
// members. Other software sees them as one holder. The backend then has read-write locks, and other
// clients can join a hold. The calls keep more of [Calls]:
//
//   - Try is called for Shared requests and for joins too, and decides atomically. A member
//     succeeds again. A join of an owner that has no member fails with [driver.ErrLost], and with
//     [driver.ErrUpgrade] if the mode of none of the owner's members covers its own
//     ([driver.Mode.Covers]); else it becomes a member at once, whatever waits. Any other request
//     becomes a member if the lock is free, or if it and all members are Shared. It fails with
//     ErrLost, for good, if only joins of its own hold are left.
//   - Each member has its own time. Extend and Release are of the member r.ID alone, and the lock
//     is held while there is any member, without a gap that other software could use. The time
//     after which Release ends a hold is always 0.
//   - The HeldError.Left of a Shared request is the time of the Exclusive members.
//   - TryFenced returns for a join the token of its hold. The token of a Shared hold is greater
//     than those of earlier Exclusive holds, and less than those of later ones.
type Sharer interface {
	// Members returns all members of the lock, or the one holder that is other software. It is for
	// Inspect, and replaces [Inspector]. ID, Owner, Client, Mode and Fixed of members are set, and
	// what an Inspector sets.
	Members(ctx context.Context, name string) ([]*driver.Entry, error)
}

// HeldError is an answer of Try: another holder has the lock. It matches [driver.ErrHeld], and is
// found as a [*driver.HeldError].
type HeldError struct {
	By driver.HeldError // what is known of the holder
	// until the holder's time is over, if it does not extend it; 0: not known
	Left time.Duration
}

// Error describes the holder.
func (e *HeldError) Error() string { return e.By.Error() }

// Unwrap returns the description of the holder.
func (e *HeldError) Unwrap() error { return &e.By }

// Waker is implemented by [Calls] that learn of a release.
type Waker interface {
	// Watch calls wake each time the lock of that name may have been released, until ctx ends. It
	// calls ready once it would learn of any release from then on, and again after each
	// interruption. An error ends the watch; it is begun again after a pause. Wake-ups may be
	// missing or too many: waiters try again from time to time all the same.
	Watch(ctx context.Context, name string, ready, wake func()) error
}

// Inspector is implemented by [Calls] that can read the holder of a lock, and are no [Sharer].
type Inspector interface {
	// Holder returns the holder of the lock, or nil if it is free. Token, Label, TTL, Age, Left and
	// Foreign are set as far as they are known. The ID is that of the request, if it is one of
	// dlock.
	Holder(ctx context.Context, name string) (*driver.Entry, error)
}

// Namer is implemented by [Calls] whose service does not carry every name.
type Namer interface {
	// CheckName returns nil, or an error that says what is allowed and matches [driver.ErrInvalid].
	CheckName(name string) error
}
