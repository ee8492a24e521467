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

// terminal is the one that controls this process.
type terminal struct {
	fd     int
	before *term.State // at the start; nil: not to be restored
	taken  bool        // this process's group was in front when it was started or continued
	given  bool        // to the command's group
}

// controllingTerminal opens it, wherever standard input comes from; nil: there is none.
func controllingTerminal(in, out any) *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	t := &terminal{fd: fd}
	t.taken = t.front()
	// in a pipeline others may have changed it: a pager, say
	inFile, _ := in.(*os.File)
	outFile, _ := out.(*os.File)
	if t.taken && isTerminal(inFile) && isTerminal(outFile) {
		t.before, _ = term.GetState(fd)
	}
	return t
}

// front reports whether this process is in the group in front, which gets what Ctrl-C and Ctrl-Z
// send.
func (t *terminal) front() bool {
	if t == nil {
		return false
	}
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// look sees whether this process's group is in front after it was stopped and continued.
func (t *terminal) look() {
	if t != nil && !t.given {
		t.taken = t.front()
	}
}

// takeBack puts this process's group in front again if what was there is gone. After a command that
// was killed the terminal is made as it was before: an editor that could not clean up leaves it
// without echo.
func (t *terminal) takeBack(killed bool) {
	if t == nil {
		return
	}
	defer unix.Close(t.fd)
	if !t.taken {
		return
	}
	// to change the group in front stops a process that is not in that
	signal.Ignore(syscall.SIGTTOU)
	front, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err == nil && front != unix.Getpgrp() && (t.given || errors.Is(syscall.Kill(-front, 0), syscall.ESRCH)) {
		unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp())
	}
	if killed && t.before != nil && t.front() {
		term.Restore(t.fd, t.before)
	}
}
