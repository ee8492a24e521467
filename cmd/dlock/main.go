// Command dlock operates locks: it runs commands under a lock, shows holders and waiters, ends
// holds, and checks and measures backends. dlock demo is the flash sale.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/demo"
)

// The exit statuses. Those of "dlock run" are outside the range that commands use themselves, as in
// timeout(1) and env(1).
const (
	statusFailed      = 1
	statusUsage       = 2
	statusUntried     = 3   // "dlock check" found nothing wrong, but did not try everything in time
	statusLost        = 123 // the lock was lost while the command ran
	statusHeld        = 124 // the lock was not obtained
	statusRunFailed   = 125 // the backend failed, or another error of "dlock run" itself
	statusCannotStart = 126 // the command exists but cannot be started
	statusNoCommand   = 127 // there is no such command
	statusSignal      = 128 // and the signal's number: the command was ended by it
	statusInterrupted = 130 // what a shell reports for a program that Ctrl-C ended
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// errInterrupted: a signal ended the command.
var errInterrupted = errors.New("interrupted")

// exit is the error of a command that chose its exit status. Without err nothing is printed.
type exit struct {
	status int
	err    error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// bySignal is the error of a command that should end by a signal, if it can.
type bySignal struct {
	error
	os.Signal
}

func (e *bySignal) Unwrap() error { return e.error }

// usage is an error of wrong arguments. The text says what is allowed.
func usage(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{demo.ErrUsage}, args...)...)
}

func run(args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.Execute()
	if e := (*exit)(nil); err != nil && (!errors.As(err, &e) || e.err != nil) {
		fmt.Fprintln(errOut, "error:", err)
	}
	if e := (*bySignal)(nil); errors.As(err, &e) {
		dieOf(e.Signal)
	}
	return status(err)
}

// status is the exit status of a command that returned err.
func status(err error) int {
	e := (*exit)(nil)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.status
	case errors.Is(err, errInterrupted):
		return statusInterrupted
	case errors.Is(err, demo.ErrUsage) || errors.Is(err, dlock.ErrInvalid):
		return statusUsage
	default:
		return statusFailed
	}
}

// untilSignal runs f with a context that ends when the command should end: after Ctrl-C, or when
// the terminal or the pipe that it writes to is closed. f cleans up in bounded time.
func untilSignal(f func(ctx context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	go func() {
		for {
			select {
			case <-pipe: // also if a viewer or a backend closes a connection, which ends nothing
				if outputClosed() {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := f(ctx); err == nil || ctx.Err() == nil {
		return err
	}
	return errInterrupted
}
