package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/dlock-go/dlock"
)

// noCommand says why a command cannot be started, with the exit status for that.
func noCommand(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return &exit{statusNoCommand, err}
	}
	return &exit{statusCannotStart, err}
}

// supervise runs the command until it has ended, and returns its exit status. Signals go to its
// group. If the lease is lost, the group is ended, and lost is true.
func supervise(ctx context.Context, cmd *exec.Cmd, lease *dlock.Lease, grace time.Duration, r *relay) (code int, lost bool, err error) {
	// of the death signal
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var g *group
	r.hand(func() func(os.Signal) {
		// a signal came before the command
		if err = context.Cause(ctx); err != nil {
			return nil
		}
		if g, err = startGroup(cmd); err != nil {
			err = noCommand(err)
			return nil
		}
		return g.signal
	})
	if err != nil {
		return 0, false, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = cmd.Wait()
	}()
	select {
	case <-done:
	case <-lease.Lost():
		lost = true
		g.end(grace, done)
	}
	r.hand(func() func(os.Signal) { return func(os.Signal) {} })
	if cmd.ProcessState != nil {
		code = exitStatus(cmd.ProcessState)
	}
	g.takeTerminal(code > statusSignal)
	if e := (*exec.ExitError)(nil); err != nil && !errors.As(err, &e) {
		return 0, lost, err
	}
	return code, lost, nil
}
