package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// timeout is how long a master has to answer, and so how long a call may take.
func (b *Backend) timeout(ttl time.Duration) time.Duration { return min(b.o.NodeTimeout, ttl/10) }

// impossible reports whether no majority is left without that number of masters.
func (b *Backend) impossible(without int) bool { return len(b.masters)-without < b.majority }

// answer has the calls to one master with their results. Each call has its own error.
type answer struct {
	master int
	calls  []*script.Call
}

// broadcast sends the calls to every master at once. When those to one master have ended, however
// late, it calls done with mu held.
func (b *Backend) broadcast(timeout time.Duration, calls func() []*script.Call, done func(answer)) (<-chan answer, error) {
	answers, sends := make(chan answer, len(b.masters)), make([]func(), len(b.masters))
	for i, m := range b.masters {
		a := answer{i, calls()}
		sends[i] = func() {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			script.Exec(ctx, m.rdb, a.calls)
			b.mu.Lock()
			done(a)
			b.mu.Unlock()
			answers <- a
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Over() {
		return nil, driver.ErrClosed
	}
	for _, send := range sends {
		b.life.Go(send)
	}
	return answers, nil
}

// collect passes up to n answers to take as they arrive, until take has enough or timeout expires.
// If ctx or the backend ends before, it returns that error.
func collect[A any](
	ctx context.Context, b *Backend, n int, timeout time.Duration, answers <-chan A, take func(A) (enough bool),
) error {
	t := time.NewTimer(timeout)
	defer t.Stop()
	for range n {
		select {
		case a := <-answers:
			if take(a) {
				return nil
			}
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-b.life.Closed():
			return driver.ErrClosed
		}
	}
	return nil
}

// noMajority is the error of a call that too few masters answered. It says nothing about the holder
// of the lock.
type noMajority struct {
	b       *Backend
	timeout time.Duration
	errs    []error // by master; nil: it answered
}

// errNoAnswer replaces the error of a context of the driver, which must not look like the end of
// the caller's context.
var errNoAnswer = errors.New("no answer in time")

// unanswered returns the error for the case that no master has answered yet.
func (b *Backend) unanswered(timeout time.Duration) *noMajority {
	e := &noMajority{b, timeout, make([]error, len(b.masters))}
	for i := range e.errs {
		e.errs[i] = errNoAnswer
	}
	return e
}

// record sets the error of a master; nil: it answered.
func (e *noMajority) record(master int, err error) { e.errs[master] = err }

// missing returns how many masters have not answered.
func (e *noMajority) missing() int { return len(e.Unwrap()) }

// Error names the masters that did not answer, and why.
func (e *noMajority) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d of %d masters answered within %s, but %d must", len(e.errs)-e.missing(), len(e.errs), e.timeout, e.b.majority)
	for i, err := range e.errs {
		if err != nil {
			fmt.Fprintf(&s, "; %s: %v", e.b.masters[i].where, err)
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

// Is matches [driver.ErrUnsupported] if so many masters have another version's format that there is
// no majority without them.
func (e *noMajority) Is(target error) bool {
	n := 0
	for _, err := range e.errs {
		if fault.OtherFormat(err) {
			n++
		}
	}
	return target == driver.ErrUnsupported && e.b.impossible(n)
}

// explain adds to an error of a master what can be done about it.
func (b *Backend) explain(name string, err error) error {
	if err == nil {
		return nil
	}
	err = fault.WithoutArguments(err)
	switch s := err.Error(); {
	case errors.As(err, new(*conn.HandshakeError)):
		return kit.Hide(context.Background(), err) // it is not the end of the caller's context
	case kit.IsContext(err):
		return errNoAnswer
	case fault.OtherFormat(err):
		return fmt.Errorf("the key %q was written by another version of dlock; clients of both cannot share a prefix: %w", b.holderKey(name), err)
	case strings.Contains(s, "WRONGTYPE") || strings.Contains(s, "is not of dlock"):
		return fmt.Errorf("the key %q holds something that dlock did not write; remove it, or use another prefix: %w", b.holderKey(name), err)
	}
	return fault.Explain(err, page)
}
