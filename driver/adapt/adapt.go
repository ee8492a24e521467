// Package adapt makes a backend of dlock of a lock that exists already: a table of the user's, a
// lock of a database, a key that other software sets. [Calls] say how to take, extend and release
// that lock; [New] does the rest.
package adapt

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Calls are a lock that is taken, extended and released by the ID of its holder. All methods are
// safe for concurrent use. They return soon after their context has ended.
//
// Every call has one of three outcomes: nil; one of the errors that it names; or any other error,
// which means that the outcome is unknown. It is then repeated, so each call must have the same
// effect when it is executed twice, also late.
type Calls interface {
	// Try takes the lock r.Name for r.ID, until r.TTL from now by the clock of the service. If r.ID
	// has the lock already, Try succeeds, and the time is at least r.TTL again. If another holder
	// has the lock the error matches [driver.ErrHeld]; it can be a [*driver.HeldError] that
	// describes the holder. It never waits for the holder.
	Try(ctx context.Context, r driver.Request) error

	// Extend makes the hold of r.ID last for at least ttl from now, and never shortens it. If r.ID
	// does not have the lock any more, the error is [driver.ErrLost], and nothing is changed.
	Extend(ctx context.Context, r driver.Request, ttl time.Duration) error

	// Release frees the lock if r.ID has it. If r.ID does not have it (any more), the error is
	// [driver.ErrLost], and nothing is changed. If r.Uncertain is set, a copy of a Try of r.ID may
	// still be under way: for at least r.TTL it must not take the lock, if the service makes that
	// possible. Where it does not, such a copy takes the lock for no holder, for one TTL.
	Release(ctx context.Context, r driver.Request) error
}

// Waker is implemented by [Calls] that learn of a release.
type Waker interface {
	// Watch calls wake each time the lock of that name may have been released, until ctx ends. It
	// calls ready once it would learn of any release from then on, and again after each
	// interruption. An error ends the watch; it is begun again after a pause. Wake-ups may be
	// missing or too many: waiters try again from time to time all the same.
	Watch(ctx context.Context, name string, ready, wake func()) error
}

// Inspector is implemented by [Calls] that can read who has a lock.
type Inspector interface {
	// Holder returns the holder of the lock, or nil if it is free. Label, TTL, Age, Left and Foreign
	// are set as far as they are known. The ID is that of the request, if it is one of dlock.
	Holder(ctx context.Context, name string) (*driver.Entry, error)
}

// Namer is implemented by [Calls] whose service does not carry every name.
type Namer interface {
	// CheckName returns nil, or an error that says what is allowed and matches [driver.ErrInvalid].
	CheckName(name string) error
}

// Options configure [New].
type Options struct {
	Backend string // the scheme, for errors and metrics; required
	Format  string // see [driver.Capabilities.Format]; required

	// Outlives is set if a hold stays for its time when its process dies and when its connection
	// ends. Without it the service must end the hold with the process or the connection.
	Outlives bool
	Durable  bool // holds survive a restart of the service

	MinTTL, MaxTTL time.Duration // as in [driver.Capabilities]

	// RetryDelay is how long a waiter pauses before it tries again, give or take half of it. It
	// tries sooner if the holder is known to expire before, or a [Waker] wakes it. 0: 50ms with no
	// Waker, else 1s.
	RetryDelay time.Duration

	Close func() error // called by Close after everything was released; may be nil
}
