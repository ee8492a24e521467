// Package dlock provides distributed locks with one API, [Mutex], over the service that a team
// already runs: Redis, MySQL, MariaDB, PostgreSQL, ZooKeeper or etcd; or in a directory or in
// memory, without a service.
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
// The scheme of the URL selects the backend. A blank import of its driver registers the scheme;
// package driver/all imports every driver.
//
// # What it promises
//
// Waiters are granted in the order of their arrival. A crashed holder blocks others for at most its
// TTL. [Client.Capabilities] reports what a backend cannot do: Redlock has neither an order nor
// tokens.
//
// A lease renews itself. If it cannot be renewed in time it is lost, and its holder is notified
// before the backend grants the lock to another owner: the client trusts a lease for its TTL, less
// a margin, from the moment at which it sent the last successful call. A process that is paused
// does not notice the loss, and no lock service can stop what it writes when it resumes. Where that
// matters, pass [Lease.Token] to the resource and have it refuse a smaller token.
//
// # Owners
//
// A lock is held by an owner, not by a goroutine or a connection. The owner travels in the context:
// a lock of the same name under [Lease.Context] re-enters the hold and returns another lease of it.
// The hold ends when its last lease is released.
//
// The most common mistake is to forget that context. Code that holds a lock and locks the same name
// under a context without the hold waits for itself. The error of TryLock, or of Lock when its wait
// ends, says so. A Lock that has waited in this way for one TTL is logged.
//
// # Fencing tokens
//
// The tokens of exclusive holds of a name grow strictly from one holder to the next. The resource
// remembers the greatest token that it has seen from an exclusive holder and refuses a smaller one.
// The token of a shared hold is compared with that greatest token but never raises it. The token of
// a semaphore identifies the permit and has no order.
package dlock

import (
	"context"
	"math"

	"github.com/dlock-go/dlock/driver"
)

// Token is a fencing token, as the package comment explains. It is 0 if the backend has none.
type Token = driver.Token

// HeldError is an [ErrHeld] with the label and the age of a holder. It is returned where both are
// known without a further call: the backend's answer has them, or the hold is the client's own,
// whose age counts from its grant. Find it with [errors.As].
type HeldError = driver.HeldError

// Capabilities describes what a backend can do.
type Capabilities = driver.Capabilities

// Mutex is a lock: exclusive, one side of a read-write lock, a permit of a semaphore, or several
// locks at once ([All]). It has no state of its own: two values with one name are the same lock. It
// is safe for concurrent use.
//
// The interface is sealed: only this package implements it.
type Mutex interface {
	// Name returns the name of the lock as it was given.
	Name() string

	// Lock blocks until the lock is granted, in the order of arrival. ctx bounds the wait, not the
	// lease. When ctx ends, Lock returns its error within 100 ms. No request stays in the queue,
	// and a grant that came too late is passed on. The error also matches [ErrHeld] if the request
	// stood in the queue, but not if the service did not answer.
	//
	// Under a context that carries a hold of the same name ([Lease.Context], [WithOwner]) Lock
	// re-enters that hold and never waits. If the hold is this client's and has the same mode, that
	// takes no call to the backend. The new lease shares the hold, its TTL, and whether it is
	// renewed.
	//
	// On every error the caller holds nothing:
	//   - [ErrHeld]: the wait ended, by ctx or by [Wait], while the request stood in the queue.
	//   - [ErrUpgrade]: an exclusive lock was requested under a shared hold.
	//   - [ErrLost]: the hold in the context has ended. Or a grant, or a place in the queue,
	//     expired three times before this process saw it: the process was paused for longer than
	//     the TTL each time, or is cut off.
	//   - [ErrInvalid]: the name or an option is not valid.
	//   - [ErrConflict], [ErrUnsupported], [ErrClosed].
	//   - The context's error, or the backend's own.
	Lock(ctx context.Context) (*Lease, error)

	// TryLock is Lock without the wait. If the lock is held, or another request waits for it,
	// TryLock fails with [ErrHeld] at once, and has left no request behind when it returns. It
	// fails if the backend does not answer within 10 s, whatever the context.
	TryLock(ctx context.Context) (*Lease, error)

	take(ctx context.Context, wait bool) (*Lease, error)
	keeps(k kept) error
}

// Mutex returns the exclusive lock of that name. It is the same lock as RWMutex(name).Write(). A
// name or option that is not valid is reported by its Lock; [ErrInvalidName] describes names, and
// [Name] makes one from any text.
func (c *Client) Mutex(name string, opts ...LockOption) Mutex {
	return c.newLock(name, driver.Exclusive, 0, opts)
}

// RWMutex is a read-write lock. Readers hold it together and a writer alone, in the order of
// arrival, so that neither starves. It is safe for concurrent use. [Client.RWMutex] makes one; the
// locks of the zero RWMutex fail with [ErrInvalid].
type RWMutex struct{ read, write Mutex }

// Read returns the lock for readers.
func (rw RWMutex) Read() Mutex { return made(rw.read) }

// Write returns the lock for writers. To downgrade, lock Read under a context that carries the
// write lease, then release the write lease.
func (rw RWMutex) Write() Mutex { return made(rw.write) }

// made returns m or, if m is nil, a lock that fails: some callers take a nil Mutex to mean that no
// lock is needed.
func made(m Mutex) Mutex {
	if m == nil {
		return &all{err: invalid("the lock is of a zero RWMutex; make one with Client.RWMutex")}
	}
	return m
}

// RWMutex returns the read-write lock of that name. A name or option that is not valid is reported
// by its Lock.
func (c *Client) RWMutex(name string, opts ...LockOption) RWMutex {
	return RWMutex{
		read:  c.newLock(name, driver.Shared, 0, opts),
		write: c.newLock(name, driver.Exclusive, 0, opts),
	}
}

// Semaphore returns a lock that up to n owners hold together. n is 1 to 2147483647. If clients name
// different limits, the smallest among the limits of a request, of the holders and of the waiters
// ahead of it applies to that request. So a limit can be changed while clients with both values
// run. A name is either a lock or a semaphore: while it is in use as one, the other fails with
// [ErrConflict]. A name, n or option that is not valid is reported by its Lock.
func (c *Client) Semaphore(name string, n int, opts ...LockOption) Mutex {
	l := c.newLock(name, driver.Shared, n, opts)
	if (n < 1 || n > math.MaxInt32) && l.err == nil {
		l.err = invalid("a semaphore of %d; 1 to %d are allowed", n, math.MaxInt32)
	}
	return l
}

// Do locks m, runs fn under the lease's context, and releases the lock, even if fn panics. Inside
// fn, m.Lock(ctx) re-enters and returns a lease with the token. [Wait] bounds the wait and not fn.
// For leader election see [Client.Election].
//
// Do returns the error of Lock, or those of fn and of Unlock, joined. If the lease was lost while
// fn ran, the error is [ErrLost] whatever fn returned. It does not match [context.Canceled] before
// ctx has ended, even if the error of fn does. A nil m or fn fails with [ErrInvalid].
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
