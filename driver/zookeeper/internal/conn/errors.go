package conn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

var (
	// ErrEnded: the session ended while the call was under way. The outcome is unknown, but what
	// the call created goes with the session.
	ErrEnded = errors.New("the session with ZooKeeper ended")
	// ErrNoServer: no server gave a session in time.
	ErrNoServer = errors.New("no server gave a session")
	// ErrAnswer: the server's answer does not fit the call.
	ErrAnswer = errors.New("unexpected answer")
	// ErrNoGreeting: there is a server, but it gives no session.
	ErrNoGreeting = errors.New("the server does not answer like a ZooKeeper server in service")
)

// errHungUp: the server closed the connection at once.
var errHungUp = fmt.Errorf("%w: it closed the connection at once; it may have no leader, or no connection left for this client's address (maxClientCnxns)", ErrNoGreeting)

// ungreeted returns the error of a server that gave no session before err ended the connection.
func ungreeted(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errHungUp
	}
	return ErrNoGreeting
}

// finals are the errors that decide a call whatever the connection does.
var finals = []error{
	ErrEnded, zk.ErrSessionExpired, context.Canceled, context.DeadlineExceeded,
	driver.ErrClosed, driver.ErrHeld, driver.ErrLost, driver.ErrNotHeld, driver.ErrUpgrade, driver.ErrConflict, driver.ErrUnsupported, driver.ErrInvalid,
}

// Refused reports whether err says that the server did not execute the call.
func Refused(err error) bool {
	return err != nil && (kit.WasNotSent(err) || kindOf(err).did == nothing)
}

// Unknown reports whether err leaves open if the call was executed.
func Unknown(err error) bool { return err != nil && !Refused(err) && !matches(err, finals) }

// Disconnected reports whether err leaves that open, and the same call may succeed soon on this
// network connection or the next.
func Disconnected(err error) bool { return Unknown(err) && kindOf(err).again() }

// Later reports whether the server did not execute the call for a reason that passes: a waiter
// sends it again.
func Later(err error) bool {
	return err != nil && !kit.WasNotSent(err) && kindOf(err).did == nothing && kindOf(err).again()
}

// Answered reports whether err is an answer that the same call would get again.
func Answered(err error) bool {
	return err != nil && !kit.WasNotSent(err) && kindOf(err).did == nothing && !kindOf(err).again()
}

func matches(err error, any []error) bool {
	return slices.ContainsFunc(any, func(e error) bool { return errors.Is(err, e) })
}

// Fault records why no server is reached, for calls that stop trying. It is safe for concurrent
// use.
type Fault struct {
	mu  sync.Mutex
	err error
}

// set sets the reason; nil: a server is reached. It hides matches of a context's error, since the
// deadline was the driver's.
func (f *Fault) set(err error) {
	err = kit.Hide(context.Background(), err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// Err returns the reason, or nil.
func (f *Fault) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
