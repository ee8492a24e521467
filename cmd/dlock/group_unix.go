//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock"
)

// passedOn are the signals to "dlock run" that are passed on to the command.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT,
}

// outputClosed reports whether the reader of standard output or error has gone.
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

// continues reports whether a signal continues a process that was stopped.
func continues(s os.Signal) bool { return s == syscall.SIGCONT }

// interrupt is the signal of Ctrl-C.
const interrupt = syscall.SIGINT

// number is the number of a signal.
func number(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return int(n)
}

// dieOf ends this process by the signal, so that its parent sees it: a shell ends its script after
// Ctrl-C if the signal has ended the command too, and goes on if the command exited by itself. It
// returns if the signal does not end the process: if the process was started to ignore it, and as
// process 1.
func dieOf(s os.Signal) {
	n, ok := s.(syscall.Signal)
	if !ok || signal.Ignored(s) || os.Getpid() == 1 {
		return
	}
	signal.Reset(s)
	if syscall.Kill(os.Getpid(), n) == nil {
		time.Sleep(time.Second) // it may reach another thread
	}
}

// group is a running command with all that it started.
//
// If dlock has a controlling terminal, and its process group may have other processes (a script
// around it, the rest of a pipe), the command is in that group too. So it has the terminal whenever
// dlock would have it, and the keys of the terminal and the job control of the shell act on both,
// as without dlock. What the command starts is then found by parents.
//
// Elsewhere (cron, systemd, ssh without -t, a container) the command has a group of its own, since
// signals that dlock passes on are for all that it started. The same holds if dlock leads the
// session of a terminal (ssh -t, docker run -t, a new window): then no other process is in its
// group, and the command's group gets the foreground. No shell could continue it there, so Ctrl-Z
// is ignored.
//
//	dlock is started           Ctrl-C goes to  Ctrl-Z, and what    what stops dlock alone
//	                                           stops a group
//	by a shell: foreground,    dlock and the   stops both; the     the guard stops the command,
//	background, in a pipe or   command, each   shell sees it, and  at once on Linux, elsewhere at
//	script, nested, in tmux    once            continues both      the end of trust
//	by ssh -t, docker -t       the command     does nothing        as above
//	by cron, systemd, ssh,     –               a stop of dlock's   as above
//	as process 1                               group is one of
//	                                           dlock alone
//
// If the command alone is stopped, dlock stops too if a shell should see it, and keeps the lock
// otherwise. When dlock is continued it proves the lock first, and then what the guard stopped goes
// on. A command that is continued together with dlock, or before it, ends if trust has ended
// (guard). What stops all processes at once (a freezer, the sleep of the machine) stops the guard
// too.
type group struct {
	*child
	tree
	terminal *terminal
	guard    *guard
	cmd      *exec.Cmd

	mu   sync.Mutex
	said map[string]bool // warnings about processes that no signal reaches
	// a signal that asks to end was passed on: any, and SIGTERM
	asked, askedBySIGTERM bool
}

// startGroup starts the command, which runs under the lease. The calling goroutine's thread must
// not end before the command (deathSignal).
func startGroup(cmd *exec.Cmd, lease *dlock.Lease, renewed <-chan struct{}) (*group, error) {
	session, _ := unix.Getsid(0)
	g := &group{cmd: cmd, tree: tree{keeper: os.Getpid(), session: session}, said: map[string]bool{}}
	g.terminal = controllingTerminal(cmd.Stdin, cmd.Stdout)
	own := g.terminal == nil || session == os.Getpid()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: own}
	deathSignal(cmd.SysProcAttr)
	adopt()
	g.leaveOut()
	if own && g.terminal.front() {
		signal.Ignore(syscall.SIGTTOU, syscall.SIGTSTP)
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, g.terminal.fd
		g.terminal.given = true
	}
	var err error
	if g.guard, err = startGuard(g.tree, lease.Until()); err != nil {
		return nil, &exit{statusRunFailed, fmt.Errorf("start the guard of the command: %w", err)}
	}
	err = g.whileProved(lease, renewed, func() (err error) {
		g.child, err = children.start(cmd)
		return err
	})
	if err != nil {
		g.finish(false)
		return nil, noCommand(err)
	}
	if g.command = g.child.pid; own {
		g.group = g.command
	}
	g.guard.say("command %d %d", g.command, g.group)
	return g, nil
}

// whileProved starts the command. This takes a moment. If this process is stopped meanwhile, the
// guard stops the command before it has started: then start does not return before the guard is
// notified that the lock is proved, or lost.
func (g *group) whileProved(lease *dlock.Lease, renewed <-chan struct{}, start func() error) error {
	started, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		lost := lease.Lost()
		for {
			select {
			case <-renewed:
				g.guard.until(lease.Until())
			case <-lost:
				lost = nil
				g.guard.say("lost")
			case <-started:
				return
			}
		}
	}()
	err := start()
	close(started)
	<-ended
	return err
}

// proved notifies the guard that the lease is proved, or starts a guard if there is none.
func (g *group) proved(until time.Time) {
	if g.guard.ended == nil {
		g.guardAgain(until)
		return
	}
	g.guard.until(until)
}

// guardEnded is closed when the guard has ended.
func (g *group) guardEnded() <-chan struct{} { return g.guard.ended }

// guardAgain starts another guard, after the end of one. If that fails, the next proof tries again.
func (g *group) guardAgain(until time.Time) {
	g.guard.in.Close()
	again, err := startGuard(g.tree, until)
	if err != nil {
		if g.guard.ended != nil {
			g.warn("the guard of the command was killed, and no other one can be started yet; dlock tries again after the next renewal: %v", err)
		}
		g.guard.ended = nil
		return
	}
	g.guard = again
}

func (g *group) warn(format string, args ...any) {
	fmt.Fprintf(g.cmd.Stderr, "warning: "+format+"\n", args...)
}

// finish ends the guard, and takes the terminal back.
func (g *group) finish(killed bool) {
	g.guard.end()
	g.terminal.takeBack(killed)
}

// askGuard asks whether the guard has stopped the command.
func (g *group) askGuard() { g.guard.say("whose") }

// guardSays has the answers to askGuard: true if the guard has stopped the command.
func (g *group) guardSays() <-chan bool { return g.guard.answers }

// stoppedAlone handles a stop of the command alone: if a shell should see it, dlock stops itself as
// the terminal would have done. Where no shell could continue it, the kernel ignores that signal,
// and the lock is kept.
func (g *group) stoppedAlone() {
	if g.group != 0 {
		return
	}
	if children.collect(); g.isStill() {
		syscall.Kill(os.Getpid(), syscall.SIGTSTP)
	}
}

// goOn continues the command after dlock was continued and has proved the lock.
func (g *group) goOn() {
	g.terminal.look()
	if g.guard.ended == nil { // it may have stopped the command before it was killed
		g.force(syscall.SIGCONT)
		return
	}
	g.guard.say("continue")
}

// signal passes on a signal to dlock. The keys of the terminal signal the whole group in the
// foreground: a process that is still there has that signal already, unless it would have ended it.
func (g *group) signal(s os.Signal) {
	n, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	if ends(s) {
		g.mu.Lock()
		g.asked, g.askedBySIGTERM = true, g.askedBySIGTERM || n == syscall.SIGTERM
		g.mu.Unlock()
	}
	if g.group == 0 && g.terminal.front() {
		switch n {
		case syscall.SIGWINCH:
			return
		case syscall.SIGINT, syscall.SIGQUIT:
			for _, p := range g.members() {
				if endsBy(p.pid, n) {
					syscall.Kill(p.pid, n)
				}
			}
			return
		}
	}
	g.ask(n, true)
	if ends(s) {
		g.warnOutOfReach("cannot be sent " + n.String())
	}
}

// warnOutOfReach warns once about each process of another user; what says what cannot be done.
func (g *group) warnOutOfReach(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.outOfReach() {
		if text := fmt.Sprint(p.pid, what); !g.said[text] {
			g.said[text] = true
			g.warn("process %d (%s) belongs to another user, and %s", p.pid, printable(p.name), what)
		}
	}
}

// kill ends the tree: it sends SIGTERM, and SIGKILL to what is left after grace. It returns when
// the command and all it started have ended, except processes that no signal reaches.
func (g *group) kill(grace time.Duration) {
	g.guard.say("lost")
	g.ask(syscall.SIGTERM, true)
	g.force(syscall.SIGCONT) // what is stopped cannot end
	g.warnOutOfReach("cannot be ended: it goes on without the lock")
	late := time.After(grace)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for ended := g.ended; ; {
		select {
		case <-ended:
			ended = nil // now wait for what it started
		case <-late:
			g.force(syscall.SIGKILL)
			<-g.ended
			return
		case <-look.C:
			if ended == nil && g.gone() {
				return
			}
		}
	}
}

// wantsGone reports, after the end of the command, whether all it started has to end before the
// lock is released: that is so if a signal to dlock has ended the command. SIGTERM is assumed to
// have ended it; after another signal a command may go on, and end by itself.
func (g *group) wantsGone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.askedBySIGTERM || g.asked && g.status.Signaled()
}

// killLeft kills the processes that the command has left.
func (g *group) killLeft() { g.force(syscall.SIGKILL) }

// gone reports whether no process is left that a signal could end.
func (g *group) gone() bool { return len(g.members()) == len(g.outOfReach()) }

// exitStatus is the exit status of a command that has ended, as a shell reports it, and the signal
// that ended it.
func (g *group) exitStatus() (int, os.Signal) {
	if g.status.Signaled() {
		return statusSignal + int(g.status.Signal()), g.status.Signal()
	}
	return g.status.ExitStatus(), nil
}
