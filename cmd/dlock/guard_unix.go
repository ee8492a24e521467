//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock/cmd/dlock/internal/demo"
)

// The guard is a process beside each "dlock run". It keeps the command from running while dlock
// cannot renew the lock. What stops dlock does not stop the guard: it has a session of its own, and
// no terminal. dlock writes lines to it:
//
//	keeper PID SESSION  the process whose descendants in that session are guarded; the first line
//	outside PID START   a process that descends from dlock, and is not guarded
//	command PID GROUP   the process of the command, and its group, 0 if it has none of its own
//	until STOP END      the lock is proved: what was stopped goes on. It is trusted until shortly
//	                    before STOP; both are nanoseconds of the monotonic clock of the system
//	continue            dlock was continued: before STOP, all that is guarded is continued too
//	whose               the command is stopped; the guard answers "mine" if it has stopped it, and
//	                    "not mine" otherwise
//	lost                dlock itself ends the command now: what was stopped goes on
//	bye                 the command has ended
//
// What it does:
//
//	dlock is stopped     the tree is stopped (Linux; checked four times a second)
//	STOP has passed      dlock is stopped, or it would have written a line: the tree is stopped
//	END has passed       the tree gets SIGTERM, which is pending until a SIGCONT: if that comes
//	                     before dlock goes on (fg continues both at once), the tree ends, as
//	                     after a loss
//	the lines end        dlock was killed: the tree is killed, as far as it can still be found
//
// STOP and END lie between the end of trust and the end of the TTL, after which others can get the
// lock. A line that comes late does no harm: the tree is stopped for that time, and a proof from
// before a stop of dlock that is sent after it continues nothing. dlock writes "until" after each
// renewal, and after its own SIGCONT only when the lock was proved again. If the guard itself is
// killed, dlock starts another one. If it is stopped, dlock goes on without it.
type guard struct {
	*child
	in      *os.File
	answers chan bool     // to "whose": true if the guard has stopped the command
	gap     time.Duration // between the end of trust, STOP and END
}

// guardCommand is the hidden command that is the guard.
const guardCommand = "run-guard"

// startGuard starts a guard for the tree, with a lease that is trusted until then. Its command may
// not have started yet.
func startGuard(t tree, until time.Time) (*guard, error) {
	program := "/proc/self/exe" // it exists after an upgrade too
	if _, err := os.Stat(program); err != nil {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	answers, out, err := os.Pipe()
	if err != nil {
		w.Close()
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(program, guardCommand)
	cmd.Args[0] = "dlock"
	cmd.Stdin, cmd.Stdout = r, out
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// a margin is a twentieth of the TTL, and at most a second
	g := &guard{in: w, answers: make(chan bool, 1), gap: max(min(time.Until(until)/60, 300*time.Millisecond), time.Millisecond)}
	// before the guard runs, since this process may be stopped at any time: as much as a pipe holds
	hello := fmt.Appendf(nil, "keeper %d %d\n", t.keeper, t.session)
	if t.command != 0 {
		hello = fmt.Appendf(hello, "command %d %d\n", t.command, t.group)
	}
	hello = fmt.Appendln(hello, g.proof(until))
	for pid, start := range t.outside {
		hello = fmt.Appendf(hello, "outside %d %d\n", pid, start)
	}
	fits := min(len(hello), 4096)
	w.SetWriteDeadline(time.Now().Add(time.Second))
	w.Write(hello[:fits])
	if g.child, err = children.start(cmd); err != nil {
		w.Close()
		answers.Close()
		return nil, err
	}
	go func() {
		defer answers.Close()
		for s := bufio.NewScanner(answers); s.Scan(); {
			g.answers <- s.Text() == "mine"
		}
	}()
	w.SetWriteDeadline(time.Now().Add(time.Second))
	w.Write(hello[fits:])
	return g, nil
}

// say writes a line. It fits into the pipe, unless the guard is stopped for long.
func (g *guard) say(format string, args ...any) {
	g.in.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	fmt.Fprintf(g.in, format+"\n", args...)
}

// until notifies the guard that the lock is proved, and trusted until then.
func (g *guard) until(end time.Time) { g.say("%s", g.proof(end)) }

// proof is the line of until.
func (g *guard) proof(end time.Time) string {
	now := monotonic()
	stop := now + time.Until(end) + g.gap
	return fmt.Sprintf("until %d %d", stop, stop+g.gap)
}

// end ends the guard.
func (g *guard) end() {
	g.say("bye")
	g.in.Close()
	if g.ended == nil {
		return
	}
	select {
	case <-g.ended:
	case <-time.After(time.Second):
		syscall.Kill(g.pid, syscall.SIGKILL)
	}
}

// monotonic is a clock that all processes of the machine share.
func monotonic() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano())
}

// newGuard is the command that is the guard.
func newGuard() *cobra.Command {
	return &cobra.Command{
		Use:    guardCommand,
		Short:  "Keeps a command from running without its dlock run, which starts it",
		Hidden: true,
		Args:   noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// signals that end or stop dlock are not for its guard
			signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGPIPE)
			return watchOver(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// guarded is what the guard knows.
type guarded struct {
	tree
	until, end time.Duration // STOP and END; 0: none
	silent     bool          // STOP has passed, and dlock has written nothing since
	stopped    []process     // by the guard
}

// watchOver guards the tree that the lines describe, until they end.
func watchOver(lines io.Reader, answers io.Writer) error {
	received := make(chan string)
	go func() {
		defer close(received)
		for s := bufio.NewScanner(lines); s.Scan(); {
			received <- s.Text()
		}
	}()
	g := guarded{tree: tree{outside: map[int]uint64{}}}
	var look <-chan time.Time
	if canSeeStops {
		t := time.NewTicker(time.Second / 4)
		defer t.Stop()
		look = t.C
	}
	for {
		var due <-chan time.Time
		if next := g.next(); next != 0 {
			due = time.After(max(next-monotonic(), 0))
		}
		select {
		case line, ok := <-received:
			switch {
			case !ok:
				if g.keeper != 0 {
					g.force(syscall.SIGKILL)
				}
				return nil
			case line == "bye":
				g.goOn()
				return nil
			case line == "whose":
				fmt.Fprintln(answers, map[bool]string{true: "mine", false: "not mine"}[len(g.stopped) > 0])
			default:
				if err := g.hear(line); err != nil {
					return err
				}
			}
		case <-look:
			if g.silent || g.keeperStopped() {
				g.hold()
			}
		case <-due:
			g.late()
		}
	}
}

// hear acts on a line.
func (g *guarded) hear(line string) (err error) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "keeper":
		_, err = fmt.Sscan(rest, &g.keeper, &g.session)
	case "outside":
		var pid int
		var start uint64
		_, err = fmt.Sscan(rest, &pid, &start)
		g.outside[pid] = start
	case "command":
		_, err = fmt.Sscan(rest, &g.command, &g.group)
	case "until":
		if _, err = fmt.Sscan(rest, &g.until, &g.end); err == nil && g.trusted() && !g.keeperStopped() {
			g.goOn()
		}
		g.silent = false
	case "continue":
		if !g.trusted() { // dlock was stopped since, and proves the lock again
			break
		}
		g.goOn()
		// and what an earlier guard had stopped before it was killed
		for _, p := range slices.Backward(g.members()) {
			if p.stopped {
				syscall.Kill(p.pid, syscall.SIGCONT)
			}
		}
		if g.group != 0 {
			syscall.Kill(-g.group, syscall.SIGCONT)
		} else if p, ok := processOf(g.command); !ok || p.stopped {
			syscall.Kill(g.command, syscall.SIGCONT)
		}
	case "lost":
		g.until, g.end, g.silent = 0, 0, false
		g.goOn()
	default:
		err = fmt.Errorf("%w: %q", demo.ErrUsage, line)
	}
	return err
}

// next is when to call late; 0: never.
func (g *guarded) next() time.Duration {
	if g.silent {
		return g.end
	}
	return g.until
}

// late is called when dlock has not reported in time that the lock is proved.
func (g *guarded) late() {
	if g.hold(); !g.silent {
		g.silent = true
		return
	}
	g.ask(syscall.SIGTERM, false) // it takes effect before the tree does anything else
	g.end = 0
}

// trusted reports whether STOP is still to come.
func (g *guarded) trusted() bool { return monotonic() < g.until }

// keeperStopped reports whether dlock is stopped.
func (g *guarded) keeperStopped() bool {
	p, ok := processOf(g.keeper)
	return ok && p.stopped
}

// hold stops the tree.
func (g *guarded) hold() { g.stopped = append(g.stopped, g.stop()...) }

// goOn continues what the guard has stopped: children first, since they were stopped last. So a
// shell does not see that its job was stopped.
func (g *guarded) goOn() {
	if len(g.stopped) == 0 {
		return
	}
	there := map[int]bool{}
	for _, p := range g.members() {
		there[p.pid] = true
	}
	for _, p := range slices.Backward(g.stopped) {
		if there[p.pid] {
			syscall.Kill(p.pid, syscall.SIGCONT)
		}
	}
	g.stopped = nil
}
