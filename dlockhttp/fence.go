package dlockhttp

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

// Header is the name of the header that carries the text of a [fence.Mark].
const Header = "Dlock-Fence"

// Transport sends the mark that a request's context carries ([fence.NewContext], or [Handler]) in a
// header of the request, and requests without one as they are. It replaces a header that the
// request has. A mark that is not valid, such as the zero one, is [dlock.ErrInvalid], and the
// request is not sent. It sends the mark wherever the client's requests go: use it for the resource
// alone. The zero Transport is ready.
type Transport struct {
	Base http.RoundTripper // sends the requests; nil: http.DefaultTransport
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t == nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, &dlock.Error{Op: "send", Err: fmt.Errorf("%w: the Transport is nil", dlock.ErrInvalid)}
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if m, ok := fence.FromContext(r.Context()); ok {
		if _, err := fence.ParseMark(m.String()); err != nil {
			if r.Body != nil {
				r.Body.Close() // as every RoundTripper has to
			}
			return nil, &dlock.Error{Op: "send", Err: fmt.Errorf("%w: the mark in the request's context is not valid", dlock.ErrInvalid)}
		}
		r = r.Clone(r.Context()) // the caller's is not to be changed
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header.Set(Header, m.String())
	}
	return base.RoundTrip(r)
}

// Marked returns a handler that reads the mark which a request brings, and hands it to next in the
// request's context ([fence.FromContext]). It compares nothing: next calls Admit in the transaction
// that writes. A middleware that compared, and let next write afterwards, would let a request write
// late that was stopped in between.
//
// The answer is 428 to a request without a mark, 400 if the header cannot be read or there are
// several, and 500 if next is nil.
func Marked(next http.Handler, o Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m, ok := o.mark(w, r, next != nil); ok {
			next.ServeHTTP(w, r.WithContext(fence.NewContext(r.Context(), m)))
		}
	})
}

// Serial returns a handler that admits requests to a resource by their marks, one at a time, and
// runs next while it keeps others out: for resources that are written by this process alone, see
// [fence.Local]. resource returns the resource's name. A request that waits for another one is
// admitted in any order; an older one than the last that was admitted is refused. What next starts
// and does not wait for is not kept apart: put an [http.TimeoutHandler] around it, not into it.
//
// A request whose client goes away while it waits is not admitted. For that, over HTTP/1, a body
// that is announced with at most 64 KiB is read before, as by [Handler]; one in chunks is left to
// next, and until next reads it its client goes away unnoticed.
//
// The answer is 412 to an older mark; 503 if the request's context ends while it waits; 428, 400
// and 500 as of Marked; 400 too for a name that is not valid, or a body that did not come as it was
// announced (413 if that is the limit of an [http.MaxBytesReader]).
func Serial(next http.Handler, resource func(*http.Request) string, o Options) http.Handler {
	var local fence.Local
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, ok := o.mark(w, r, next != nil && resource != nil)
		if !ok {
			return
		}
		name := resource(r)
		if r.ContentLength > 0 && hasSmallBody(r) {
			var err error
			if r, err = bufferBody(r); err != nil {
				o.refuse(w, r, statusOfBody(err), err)
				return
			}
		}
		ctx := fence.NewContext(r.Context(), m)
		done, err := local.Admit(ctx, name, m)
		switch {
		case err == nil:
			defer done()
			next.ServeHTTP(w, r.WithContext(ctx))
		case errors.Is(err, dlock.ErrInvalid):
			o.refuse(w, r, http.StatusBadRequest, err)
		case errors.Is(err, fence.ErrStale):
			o.refuse(w, r, http.StatusPreconditionFailed, err)
		default:
			o.refuse(w, r, http.StatusServiceUnavailable, err)
		}
	})
}

// mark reads the mark of a request, or refuses it.
func (o Options) mark(w http.ResponseWriter, r *http.Request, ready bool) (fence.Mark, bool) {
	texts := r.Header.Values(Header)
	switch {
	case !ready || o.RetryAfter < 0:
		o.refuse(w, r, http.StatusInternalServerError, invalid("the handler or the function that names the resource is nil, or RetryAfter is negative"))
	case len(texts) == 0:
		o.refuse(w, r, http.StatusPreconditionRequired, invalid("the request has no header "+Header))
	case len(texts) > 1:
		o.refuse(w, r, http.StatusBadRequest, invalid("the request has the header "+Header+" more than once"))
	default:
		m, err := fence.ParseMark(texts[0])
		if err == nil {
			return m, true
		}
		o.refuse(w, r, http.StatusBadRequest, err)
	}
	return fence.Mark{}, false
}
