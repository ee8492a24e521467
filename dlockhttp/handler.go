// Package dlockhttp puts a lock around HTTP handlers, and carries fencing marks from one process to
// another.
//
// [Handler] runs a handler under the lock that is picked for each request. [Transport] sends the
// [fence.Mark] of the holder with its requests; [Marked] and [Serial] are how a resource behind
// HTTP takes it.
package dlockhttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/refusal"
)

// Options configure handlers. The zero value is useful.
type Options struct {
	// RetryAfter is what a client is told to wait after 503, rounded up to seconds; 0: one second.
	// A negative one is a mistake: every request is 500.
	RetryAfter time.Duration

	// Refuse writes the answer to a request that does not get to the handler. Headers of this
	// package are set. nil: the status and its text, and err goes to slog.Default if that is 500
	// or more and the client has not gone. err says more than strangers should read.
	Refuse func(w http.ResponseWriter, r *http.Request, status int, err error)
}

// Handler returns a handler that runs next under the lock that pick returns for the request, and
// gives it back before the request is over. If pick returns nil, next runs without a lock.
//
// The context of next's request ends with the lease: with cause [dlock.ErrLost] if it is lost, and
// what next answers then is its own affair. A Lock of the same name under it re-enters. It carries
// the lease's mark ([fence.FromContext]), if it has one.
//
// Requests wait for the lock in the order of their arrival, as long as their contexts live, unless
// the lock was made with [dlock.Wait]; with Wait(0) they do not wait at all. A request whose client
// goes away while it waits leaves the queue. For that its body is read before it waits, into
// memory, if it has at most 64 KiB; HTTP/1 does not show sooner that a client has gone. (If the
// lock is free next gets the body as it comes. Otherwise the lock is tried once more than without a
// body, for a second at most.) That of a client with a greater body, that waits to be asked for it
// (Expect: 100-continue), or that has sent more than its request, is not noticed until next reads
// from the connection: bound the wait of such requests with Wait.
//
// If the lock is not got next does not run, and the answer is
//
//	409  somebody else has it
//	503  with Retry-After: the request's context ended while it waited, or the service failed
//	400  the name is not valid: the client sent what it was made of; or the body did not come as
//	     it was announced (413 if that is the limit of an [http.MaxBytesReader])
//	500  a mistake of this program, as of [dlock.IsPermanent], or next or pick is nil
func Handler(next http.Handler, pick func(*http.Request) dlock.Mutex, o Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if next == nil || pick == nil || o.RetryAfter < 0 {
			o.refuse(w, r, http.StatusInternalServerError, invalid("the handler or the function that picks the lock is nil, or RetryAfter is negative"))
			return
		}
		m := pick(r)
		if m == nil {
			next.ServeHTTP(w, r)
			return
		}
		ctx := r.Context()
		lease, err := (*dlock.Lease)(nil), error(nil)
		if hasSmallBody(r) { // which is left alone if the lock is free: next may answer as it comes
			lease, err = try(ctx, m)
			if err != nil && !dlock.IsPermanent(err) && ctx.Err() == nil {
				if r, err = bufferBody(r); err != nil {
					o.refuse(w, r, statusOfBody(err), err)
					return
				}
				lease, err = m.Lock(ctx)
			}
		} else {
			lease, err = m.Lock(ctx)
		}
		if err != nil {
			o.refuse(w, r, statusOf(ctx, err), err)
			return
		}
		// The log of dlock says what became of a lease that could not be given back.
		defer lease.Unlock(ctx)
		ctx = lease.Context(ctx)
		if mark, err := fence.Of(lease); err == nil {
			ctx = fence.NewContext(ctx, mark)
		}
		r = r.WithContext(ctx)
		defer func() { // package net/http does it for the request that it made
			if r.MultipartForm != nil {
				_ = r.MultipartForm.RemoveAll()
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// firstTry is how long the answer to the first try may take. A service that is slower than that, or
// down, is asked again by a Lock, whose time dlock.Wait bounds.
const firstTry = time.Second

func try(ctx context.Context, m dlock.Mutex) (*dlock.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, firstTry)
	defer cancel()
	return m.TryLock(ctx)
}

func statusOf(ctx context.Context, err error) int {
	switch refusal.Of(ctx, err) {
	case refusal.Held:
		return http.StatusConflict
	case refusal.BadRequest:
		return http.StatusBadRequest
	case refusal.Mistake:
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}

func (o Options) refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	if status == http.StatusServiceUnavailable {
		after := o.RetryAfter
		if after == 0 {
			after = time.Second
		}
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	if o.Refuse != nil {
		o.Refuse(w, r, status, err)
		return
	}
	if status >= http.StatusInternalServerError && !errors.Is(err, context.Canceled) {
		slog.WarnContext(r.Context(), "dlockhttp: a request was refused", "status", status, "error", err)
	}
	http.Error(w, http.StatusText(status), status)
}

func invalid(text string) error {
	return &dlock.Error{Op: "handle", Err: fmt.Errorf("%w: %s", dlock.ErrInvalid, text)}
}
