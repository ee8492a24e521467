// Package dlockhttp puts a lock around HTTP handlers, and carries fencing marks from one process to
// another.
//
// [Handler] runs a handler under the lock that is picked for each request. [Transport] sends the
// [fence.Mark] of the holder with its requests, and [Marked] and [Serial] receive it for a resource
// behind HTTP.
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

// Options configure handlers. The zero value is ready to use.
type Options struct {
	// RetryAfter is the value of the header Retry-After of a 503, rounded up to seconds; 0: one
	// second. If it is negative, which is a mistake, every request is answered with 500.
	RetryAfter time.Duration

	// Refuse writes the response to a request that does not get to the handler. The header
	// Retry-After of a 503 is set already. Refuse must be safe for concurrent use. nil: the
	// response is the status and its text; if the status is 500 or more and the client has not gone
	// away, err is logged to slog.Default with the method and the path of the request. err may
	// contain internals that a client must not see.
	Refuse func(w http.ResponseWriter, r *http.Request, status int, err error)
}

// Handler returns a handler that runs next under the lock that pick returns for the request, and
// releases the lock before the request ends. If pick returns nil, next runs without a lock.
//
// The context of next's request ends with the lease, with cause [dlock.ErrLost] if the lease is
// lost; the response is up to next in that case. A Lock of the same name under the context
// re-enters. The context carries the lease's mark ([fence.FromContext]), if it has one.
//
// Requests wait for the lock in the order of their arrival, until their contexts end, unless the
// lock was made with [dlock.Wait]; with Wait(0) they do not wait at all. If a client disconnects
// while its request waits, the request leaves the queue. HTTP/1 detects that only after the body
// was read, so a body of at most 64 KiB is read into memory before the wait. (Before that, Handler
// tries the lock once, for at most a second, so that next gets the body as it arrives if the lock
// is free.) The disconnect is not detected until next reads from the connection if the body is
// larger, if the client waits for 100 Continue before it sends the body (Expect: 100-continue), or
// if it has sent more than its request: limit the wait of such requests with Wait.
//
// If the lock is not granted, next does not run, and the response is
//
//	409  the lock is held, or its name is in use as another kind of lock
//	503  with Retry-After: the request's context ended during the wait, the service failed, or the
//	     dlock client is closed
//	400  the name, which comes from the request, is not valid; or the body did not arrive as
//	     announced (413 if that is the limit of an http.MaxBytesReader)
//	500  a mistake in this program: any other error that dlock.IsPermanent reports, a nil next or
//	     pick, or a negative RetryAfter
func Handler(next http.Handler, pick func(*http.Request) dlock.Mutex, o Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if next == nil || pick == nil || o.RetryAfter < 0 {
			o.refuse(w, r, http.StatusInternalServerError, invalid("the handler or the pick function is nil, or RetryAfter is negative"))
			return
		}
		m := pick(r)
		if m == nil {
			next.ServeHTTP(w, r)
			return
		}
		ctx := r.Context()
		lease, err := (*dlock.Lease)(nil), error(nil)
		if hasSmallBody(r) { // if the lock is free, next may respond while the body arrives
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
		// if the release fails, dlock logs it and sends it again
		defer lease.Unlock(ctx)
		ctx = lease.Context(ctx)
		if mark, err := fence.Of(lease); err == nil {
			ctx = fence.NewContext(ctx, mark)
		}
		r = r.WithContext(ctx)
		defer func() { // package net/http does this only for its own *http.Request
			if r.MultipartForm != nil {
				_ = r.MultipartForm.RemoveAll()
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// firstTry limits the first attempt. If the service is slower than that, or down, a Lock follows,
// which dlock.Wait limits.
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
		// the path alone: a query may contain secrets
		slog.WarnContext(r.Context(), "dlockhttp: request refused", "method", r.Method, "path", r.URL.Path, "status", status, "err", err)
	}
	http.Error(w, http.StatusText(status), status)
}

func invalid(text string) error {
	return &dlock.Error{Op: "handle", Err: fmt.Errorf("%w: %s", dlock.ErrInvalid, text)}
}
