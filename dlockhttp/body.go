package dlockhttp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// smallBody is the greatest body that is read before the lock is waited for. HTTP/1 shows that a
// client has gone only when the body of its request was read: package net/http looks at the
// connection from then on.
const smallBody = 64 << 10

// hasSmallBody reports whether the request has a body that may be small, and that its client sends
// without being asked for it.
func hasSmallBody(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody && r.ContentLength <= smallBody && r.Header.Get("Expect") == ""
}

// bufferBody returns the request with its body in memory, if that is small, so that its context
// ends when the client goes away. A greater one is left to the handler, with what was read of it
// first. The error says that the client did not send what it announced.
func bufferBody(r *http.Request) (*http.Request, error) {
	var start bytes.Buffer
	if r.ContentLength > 0 {
		start.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	n, err := start.ReadFrom(io.LimitReader(r.Body, smallBody+1))
	if err != nil {
		return r, err
	}
	with := *r
	if n <= smallBody {
		with.Body = readBody{&start, r.Body}
	} else {
		with.Body = readBody{io.MultiReader(&start, r.Body), r.Body}
	}
	return &with, nil
}

// readBody is a body of which a part was read.
type readBody struct {
	io.Reader
	io.Closer
}

// statusOfBody returns the answer to a request whose body could not be read.
func statusOfBody(err error) int {
	if errors.As(err, new(*http.MaxBytesError)) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}
