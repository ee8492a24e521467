//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// passedOn are the signals that a command gets which are sent to "dlock run".
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT,
}

// outputClosed reports whether nobody reads any more what is written to standard output or error.
func outputClosed() bool {
	fds := []unix.PollFd{{Fd: 1, Events: unix.POLLOUT}, {Fd: 2, Events: unix.POLLOUT}}
	if n, err := unix.Poll(fds, 0); n == 0 || err != nil {
		return false
	}
	return (fds[0].Revents|fds[1].Revents)&(unix.POLLERR|unix.POLLHUP) != 0
}

// ends reports whether a signal asks a process to end.
func ends(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// number is the number of a signal.
func number(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return int(n)
}

// group is a command and what it starts: a process group of its own.
type group struct {
	cmd      *exec.Cmd
	terminal int         // which the group was given; -1: none
	before   *term.State // of the terminal
}

// startGroup starts the command in a group of its own. If this process has the terminal, the group
// gets it: otherwise it could not read from there. The calling goroutine's thread must not end
// before the command (deathSignal).
func startGroup(cmd *exec.Cmd) (*group, error) {
	g := &group{cmd: cmd, terminal: -1}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	deathSignal(cmd.SysProcAttr)
	if in, ok := cmd.Stdin.(*os.File); ok {
		if front, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCGPGRP); err == nil && front == unix.Getpgrp() {
			// A change of the group in front stops who is not; and Ctrl-Z would leave a lock that
			// is held by what stands still, at a terminal that nobody reads.
			signal.Ignore(syscall.SIGTTOU, syscall.SIGTSTP)
			g.terminal = int(in.Fd())
			g.before, _ = term.GetState(g.terminal)
			cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, g.terminal
		}
	}
	if err := cmd.Start(); err != nil {
		g.takeTerminal(false)
		return nil, err
	}
	return g, nil
}

// takeTerminal gives the terminal back to this process. After a command that was killed it is made
// as it was before: an editor that could not clean up leaves it without echo.
func (g *group) takeTerminal(killed bool) {
	if g.terminal < 0 {
		return
	}
	unix.IoctlSetPointerInt(g.terminal, unix.TIOCSPGRP, unix.Getpgrp())
	if killed && g.before != nil {
		term.Restore(g.terminal, g.before)
	}
}

// signal sends a signal to all of the group.
func (g *group) signal(s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		syscall.Kill(-g.cmd.Process.Pid, n)
	}
}

// end ends the group: it asks (SIGTERM), and kills what is there after grace. done is closed when
// the command itself has ended.
func (g *group) end(grace time.Duration, done <-chan struct{}) {
	g.signal(syscall.SIGTERM)
	g.signal(syscall.SIGCONT) // what is stopped cannot end
	late := time.After(grace)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for gone := done; ; {
		select {
		case <-gone:
			gone = nil // and now what it started
		case <-late:
			g.signal(syscall.SIGKILL)
			<-done
			return
		case <-look.C:
			if gone == nil && errors.Is(syscall.Kill(-g.cmd.Process.Pid, 0), syscall.ESRCH) {
				return
			}
		}
	}
}

// exitStatus is the exit status of a command that ended, as a shell says it.
func exitStatus(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return statusSignal + int(w.Signal())
	}
	return s.ExitCode()
}
