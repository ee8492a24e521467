package dlockhttp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// smallBody is the size of the largest body that is read before the wait for the lock. Over HTTP/1
// package net/http watches the connection, and so detects a disconnect, only after the body was
// read.
const smallBody = 64 << 10

// hasSmallBody reports whether the request has a body that may be small, and that its client sends
// without waiting for 100 Continue.
func hasSmallBody(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody && r.ContentLength <= smallBody && r.Header.Get("Expect") == ""
}

// bufferBody returns the request with its body in memory if the body is small, so that the context
// of the request ends when the client disconnects. A larger body is left to the handler, including
// the part that was read. An error means that the client did not send what it announced.
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

// readBody is a body of which a part was read already.
type readBody struct {
	io.Reader
	io.Closer
}

// statusOfBody returns the status for a request whose body could not be read.
func statusOfBody(err error) int {
	if errors.As(err, new(*http.MaxBytesError)) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}
