package dlockhttp

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/fence"
)

// Header is the name of the header with the text of a [fence.Mark].
const Header = "Dlock-Fence"

// Transport sends the mark that a request's context carries ([fence.NewContext], or [Handler]) in
// the header [Header] of the request, replacing one that the request has. Requests without a mark
// are sent unchanged. With a mark that is not valid, such as the zero Mark, RoundTrip fails with
// [dlock.ErrInvalid], and the request is not sent. The mark goes wherever the client's requests go,
// so use a Transport for the resource only. The zero Transport is ready to use. It is safe for
// concurrent use if Base is.
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
				r.Body.Close() // as required of every RoundTripper
			}
			return nil, &dlock.Error{Op: "send", Err: fmt.Errorf("%w: the mark in the request's context is not valid", dlock.ErrInvalid)}
		}
		r = r.Clone(r.Context()) // a RoundTripper must not change the caller's request
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header.Set(Header, m.String())
	}
	return base.RoundTrip(r)
}

// Marked returns a handler that reads the mark of a request and passes it to next in the request's
// context ([fence.FromContext]). It compares nothing: next calls Admit in the transaction that
// writes. If a middleware compared the mark and next wrote afterwards, a request that was stopped
// in between would write late.
//
// The response is 428 to a request without a mark, 400 if the header is not the text of a mark or
// occurs more than once, and 500 if next is nil.
func Marked(next http.Handler, o Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m, ok := o.mark(w, r, next != nil); ok {
			next.ServeHTTP(w, r.WithContext(fence.NewContext(r.Context(), m)))
		}
	})
}

// Serial returns a handler that admits requests to a resource by their marks and runs next for one
// request of a resource at a time. It is for resources that only this process writes, see
// [fence.Local]. resource returns the resource's name. Waiting requests are admitted in any order;
// a request older than the last that was admitted is refused. Work that next starts and does not
// wait for may overlap with the next request: put an [http.TimeoutHandler] around Serial, not
// inside.
//
// If a client disconnects while its request waits, the request is not admitted. For that, over
// HTTP/1, a body announced with at most 64 KiB is read before the wait, as by [Handler]. A chunked
// body is left to next, and the disconnect is not detected until next reads it.
//
// The response is 412 to an older mark; 503 if the request's context ends during the wait; 428, 400
// and 500 as for Marked; 400 also for a name that is not valid or a body that did not arrive as
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
		o.refuse(w, r, http.StatusInternalServerError, invalid("the handler or the resource function is nil, or RetryAfter is negative"))
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
