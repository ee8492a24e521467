//go:build unix

package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the controlling terminal of this process.
type terminal struct {
	fd     int
	before *term.State // at the start; nil: it is not restored
	taken  bool        // this process's group had the foreground when it was started or continued
	given  bool        // the command's group got the foreground
}

// controllingTerminal opens it, whatever standard input is; nil: there is none.
func controllingTerminal(in, out any) *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	t := &terminal{fd: fd}
	t.taken = t.front()
	// in a pipeline others, such as a pager, may have changed it
	inFile, _ := in.(*os.File)
	outFile, _ := out.(*os.File)
	if t.taken && isTerminal(inFile) && isTerminal(outFile) {
		t.before, _ = term.GetState(fd)
	}
	return t
}

// front reports whether this process is in the group in the foreground, which gets the signals of
// Ctrl-C and Ctrl-Z.
func (t *terminal) front() bool {
	if t == nil {
		return false
	}
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// look checks, after a stop, whether this process's group has the foreground.
func (t *terminal) look() {
	if t != nil && !t.given {
		t.taken = t.front()
	}
}

// takeBack gives this process's group the foreground again if the group that had it is gone. After
// a command that was killed, the terminal's state is restored: an editor that could not clean up
// leaves it without echo.
func (t *terminal) takeBack(killed bool) {
	if t == nil {
		return
	}
	defer unix.Close(t.fd)
	if !t.taken {
		return
	}
	// changing the foreground group stops a process that is not in it
	signal.Ignore(syscall.SIGTTOU)
	front, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err == nil && front != unix.Getpgrp() && (t.given || errors.Is(syscall.Kill(-front, 0), syscall.ESRCH)) {
		unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp())
	}
	if killed && t.before != nil && t.front() {
		term.Restore(t.fd, t.before)
	}
}
