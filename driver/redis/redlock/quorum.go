package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// single reports whether there is only one master.
func (b *Backend) single() bool { return len(b.masters) == 1 }

// timeout is how long a master has to answer, and so how long a call may take. One of several must
// not use up the TTL that the others grant. A single one may, but for what a renewal needs.
func (b *Backend) timeout(ttl time.Duration) time.Duration {
	if b.single() {
		return min(b.o.NodeTimeout, ttl/3)
	}
	return min(b.o.NodeTimeout, ttl/10)
}

// impossible reports whether no majority is left without that number of masters.
func (b *Backend) impossible(without int) bool { return len(b.masters)-without < b.majority }

// movingPause is how long a call waits before it is sent again to a Cluster whose slots move.
const movingPause = 20 * time.Millisecond

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
			b.exec(ctx, m, a.calls)
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

// exec runs the calls on a master until ctx ends, at its deadline. A Cluster does not execute calls
// while the slot of their keys moves and some of the keys are elsewhere; they are sent again, for
// nine tenths of the time, so that their error arrives before the caller stops waiting for it.
func (b *Backend) exec(ctx context.Context, m *master, calls []*script.Call) {
	script.Exec(ctx, m.rdb, calls)
	calls = slices.DeleteFunc(slices.Clone(calls), func(c *script.Call) bool { return !fault.Moving(c.Err) })
	if len(calls) == 0 {
		return
	}
	end, _ := ctx.Deadline()
	again, cancel := context.WithDeadline(ctx, end.Add(-time.Until(end)/10))
	defer cancel()
	for {
		select {
		case <-time.After(movingPause):
		case <-again.Done():
			return
		case <-b.life.Closed():
			return
		}
		refused := calls[0].Err
		script.Exec(again, m.rdb, calls)
		for _, c := range calls {
			if c.Err != nil && again.Err() != nil && !fault.Moving(c.Err) {
				c.Err = &movingError{refused, c.Err}
			}
		}
		calls = slices.DeleteFunc(calls, func(c *script.Call) bool { return !fault.Moving(c.Err) })
		if len(calls) == 0 {
			return
		}
	}
}

// movingError is the error of a call whose time ended after it was refused because its slot moves,
// and was sent again.
type movingError struct{ refused, last error }

// Error returns the text of the refusal.
func (e *movingError) Error() string { return e.refused.Error() }

// Unwrap returns the error of the last copy, which may have been executed.
func (e *movingError) Unwrap() error { return e.last }

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

// errNotThere is what a master answers to a join whose hold it does not have.
var errNotThere = errors.New("the hold to join is not there")

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
	switch err := e.errs[0]; {
	case e.b.single() && err == errNoAnswer:
		return fmt.Sprintf("the server did not answer within %s", e.timeout)
	case e.b.single() && err != nil:
		return err.Error()
	}
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

// Is matches [driver.ErrUnsupported] if so many masters have another version's format, or in place
// of a peer's lock something that no peer writes, that there is no majority without them.
func (e *noMajority) Is(target error) bool {
	n := 0
	for _, err := range e.errs {
		if fault.OtherFormat(err) || e.b.layout.format != "" && wrongType(err) {
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
	if m := (*movingError)(nil); errors.As(err, &m) {
		err = m.refused
	}
	err = fault.WithoutArguments(err)
	key := b.layout.keys(name, "")[0]
	switch s := err.Error(); {
	case errors.As(err, new(*conn.HandshakeError)):
		return kit.Hide(context.Background(), err) // it is not the end of the caller's context
	case kit.IsContext(err):
		return errNoAnswer
	case fault.Moving(err):
		return fmt.Errorf("the slot of the key %q is moving to another node, and nothing is granted in it meanwhile: %w", key, err)
	case fault.OtherFormat(err):
		return fmt.Errorf("the key %q was written by another version of dlock; clients of both cannot share a prefix: %w", key, err)
	case wrongType(err) && b.layout.format != "":
		return fmt.Errorf("the key %q is not a string, so it is no lock of this format (a lock of Redisson is a hash, and so is one of dlock's own): "+
			"use the key and the format of the other software (%s): %w", key, b.layout.page, err)
	case wrongType(err) || strings.Contains(s, "is not of dlock"):
		return fmt.Errorf("the key %q holds something that dlock did not write; remove it, or use another prefix: %w", key, err)
	}
	return fault.Explain(err, b.layout.page)
}

// wrongType reports whether a key has another type than that of the layout.
func wrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }
