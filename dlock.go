// Package dlock is a library of distributed locks: one [Mutex] over the service that a team already
// runs.
//
//	client, err := dlock.Open(ctx, "redis://localhost:6379/0?ttl=30s")
//	if err != nil { … }
//	defer client.Close()
//
//	lease, err := client.Mutex("orders/42").Lock(ctx) // ctx bounds the wait only
//	if err != nil { … }
//	defer lease.Unlock(ctx)
//
//	ctx = lease.Context(ctx)     // ends, with cause ErrLost, if the lease is lost
//	charge(ctx, lease.Token())   // the resource refuses a smaller token
//
// A URL picks the backend; a blank import of its driver makes the scheme known (package driver/all
// imports every one).
//
// # What it promises
//
// Waiters are served in the order of their arrival. A crashed holder blocks others for at most its
// TTL. A lease renews itself; if it cannot be proved in time it is lost, and its holder is told
// before the backend lets anybody else in: the client trusts a lease until TTL after the last
// successful call was sent, less a margin. That bound is only as good as the holder's attention to
// it: a process that was paused does not notice, and no lock service can stop what it then writes.
// Where that matters, pass [Lease.Token] to the resource and let it refuse a smaller one.
//
// # Owners
//
// A lock is held by an owner, not by a goroutine or a connection. The owner travels in the context:
// a lock of the same name under [Lease.Context] re-enters. The first pitfall is to forget that
// context: a lock of a name that the caller holds, under a context that does not carry the hold,
// waits for itself. The error of a wait that ended, and TryLock's, says so, and the log once a Lock
// has waited for a TTL.
//
// # Fencing tokens
//
// The tokens of exclusive holds of a name grow strictly from each holder to the next. The resource
// remembers the greatest that it has seen from an exclusive holder and refuses a smaller one. The
// token of a shared hold is compared with that bar but never raises it; that of a semaphore names
// the permit.
package dlock

import (
	"context"
	"math"

	"github.com/dlock-go/dlock/driver"
)

// Token is a fencing token; see the package comment. 0 means that the backend has none.
type Token = driver.Token

// HeldError is [ErrHeld] where the label and the age of a holder are known without a further call:
// the backend's answer has them, or the hold is the client's own. Find it with [errors.As].
type HeldError = driver.HeldError

// Capabilities say what a backend can do.
type Capabilities = driver.Capabilities

// Mutex is a lock that can be taken: exclusive, one side of a read-write lock, a semaphore's
// permit, or several at once ([All]). It has no state of its own: two values of one name are one
// lock. It is safe for concurrent use.
//
// The interface is sealed; only this package implements it.
type Mutex interface {
	// Name returns the name that was given.
	Name() string

	// Lock waits until the lock is granted, in the order of arrival. ctx bounds the wait, not the
	// lease; when it ends, Lock returns its error within 100 ms, nothing stays in the queue, and a
	// grant that came too late is passed on. That error matches [ErrHeld] too if the request stood
	// in the queue, and not if the service did not answer.
	//
	// Under a context that carries a hold on this very name ([Lease.Context], [WithOwner]) it
	// re-enters that hold instead and never waits: with no call to the backend if the hold is this
	// client's and has the same mode; [ErrLost] if that hold is over; [ErrUpgrade] if exclusive is
	// asked under shared.
	//
	// A lease that re-enters shares the hold, its TTL, and whether it is renewed.
	//
	// Other errors: [ErrInvalid] (a bad name or option), [ErrConflict], [ErrUnsupported],
	// [ErrClosed], [ErrLost] (three times a grant, or its place in the queue, was over before this
	// process saw it: it is stopped for longer than the TTL again and again, or cut off), the
	// context's, or the backend's own. On every error the caller holds nothing.
	Lock(ctx context.Context) (*Lease, error)

	// TryLock is Lock without the wait: if the lock is held, or somebody waits for it, it is
	// [ErrHeld] at once, and has left nothing behind when it returns. A backend that does not
	// answer for 10 s is an error, whatever the context.
	TryLock(ctx context.Context) (*Lease, error)

	take(ctx context.Context, wait bool) (*Lease, error)
	keeps(k kept) error
}

// Mutex returns the exclusive lock of that name. It is the same lock as RWMutex(name).Write(). What
// is wrong with the name or the options is the error of its Lock.
func (c *Client) Mutex(name string, opts ...LockOption) Mutex {
	return c.newLock(name, driver.Exclusive, 0, opts)
}

// RWMutex is a read-write lock: readers together, a writer alone, in the order of arrival, so that
// neither starves. It is safe for concurrent use. [Client.RWMutex] makes one; the locks of the zero
// RWMutex refuse with [ErrInvalid].
type RWMutex struct{ read, write Mutex }

// Read returns the lock that readers take.
func (rw RWMutex) Read() Mutex { return made(rw.read) }

// Write returns the lock that writers take. Under a context that carries it, Read downgrades: join,
// then give the exclusive lease back.
func (rw RWMutex) Write() Mutex { return made(rw.write) }

// made returns m, or in place of nil, which means in some places that no lock is needed, a lock
// that refuses.
func made(m Mutex) Mutex {
	if m == nil {
		return &all{err: invalid("the lock of a zero RWMutex; Client.RWMutex makes one")}
	}
	return m
}

// RWMutex returns the read-write lock of that name.
func (c *Client) RWMutex(name string, opts ...LockOption) RWMutex {
	return RWMutex{
		read:  c.newLock(name, driver.Shared, 0, opts),
		write: c.newLock(name, driver.Exclusive, 0, opts),
	}
}

// Semaphore returns a lock that up to n owners hold together; n is at least 1, and at most
// 2147483647. Where clients name different limits, the smallest of those that hold or wait ahead
// counts, so that a limit can be changed while both values live. A name is either a lock or a
// semaphore; the other is [ErrConflict] while it is in use.
func (c *Client) Semaphore(name string, n int, opts ...LockOption) Mutex {
	l := c.newLock(name, driver.Shared, n, opts)
	if (n < 1 || n > math.MaxInt32) && l.err == nil {
		l.err = invalid("a semaphore of %d; it can be 1 to %d", n, math.MaxInt32)
	}
	return l
}

// Do locks m, runs fn under the lease's context, and gives the lock back, also if fn panics. It
// returns the error of Lock, or those of fn and of Unlock joined. If the lease was lost while fn
// ran it is [ErrLost], whatever fn returned, and does not match [context.Canceled] while ctx lives,
// as much as fn's own error may. Inside fn, m.Lock(ctx) re-enters and returns a lease with the
// token.
//
// [Wait] bounds the wait and not fn. For leader election see [Client.Election].
func Do(ctx context.Context, m Mutex, fn func(ctx context.Context) error) (err error) {
	if m == nil || fn == nil {
		return wrap("do", "", "", invalid("the mutex or the function is nil"))
	}
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	during := lease.Context(ctx)
	defer func() { err = outcome(ctx, during, err, lease.Unlock(ctx)) }()
	return fn(during)
}
