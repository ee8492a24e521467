package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// noMajority is the error of a call to which too few masters had something to say. It says nothing
// about who holds the lock.
type noMajority struct {
	b       *Redlock
	timeout time.Duration
	errs    []error // by master; nil: it answered
}

// errSilent stands for the end of a context of ours, so that nobody takes it for the end of the
// caller's.
var errSilent = errors.New("no answer in time")

// silence returns the error for the case that no master says anything.
func (b *Redlock) silence(timeout time.Duration) *noMajority {
	e := &noMajority{b, timeout, make([]error, len(b.nodes))}
	for i := range e.errs {
		e.errs[i] = errSilent
	}
	return e
}

// said takes note of what a master said; nil is an answer.
func (e *noMajority) said(node int, err error) { e.errs[node] = err }

// silent returns how many masters have not answered.
func (e *noMajority) silent() int {
	n := 0
	for _, err := range e.errs {
		if err != nil {
			n++
		}
	}
	return n
}

// Error names the masters that did not answer, and why.
func (e *noMajority) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d of %d masters answered within %s, and %d have to", len(e.errs)-e.silent(), len(e.errs), e.timeout, e.b.need)
	for i, err := range e.errs {
		if err != nil {
			fmt.Fprintf(&s, "; %s: %v", e.b.nodes[i].where, err)
		}
	}
	return s.String()
}

// Unwrap returns the errors of the masters.
func (e *noMajority) Unwrap() []error {
	var errs []error
	for _, err := range e.errs {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// explain says what a user can do about an error of a master.
func (b *Redlock) explain(name string, err error) error {
	if err == nil {
		return nil
	}
	switch s := err.Error(); {
	case errors.As(err, new(*handshakeError)):
		return hide(err)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return errSilent
	case strings.Contains(s, "WRONGTYPE") || strings.Contains(s, "is not a request of dlock"):
		return fmt.Errorf("the key %q holds something that dlock did not write; remove it, or use another prefix: %w", b.holder(name), err)
	}
	return explain(err)
}
