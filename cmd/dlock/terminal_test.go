//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// atTerminal starts dlock at a terminal of its own, which is returned.
func (l locks) atTerminal(args ...string) (cmd *exec.Cmd, terminal *os.File) {
	l.t.Helper()
	cmd, _, _ = l.command(args...)
	return cmd, l.startAtTerminal(cmd)
}

// startAtTerminal starts a command that leads the session of a terminal, which is returned.
func (l locks) startAtTerminal(cmd *exec.Cmd) (terminal *os.File) {
	l.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { cmd.Process.Kill() })
	return master
}

// screen is what a terminal shows.
type screen struct {
	t     *testing.T
	bytes chan byte
	shown []byte
}

func newScreen(t *testing.T, terminal io.Reader) *screen {
	s := &screen{t: t, bytes: make(chan byte, 1<<16)}
	go func() {
		defer close(s.bytes)
		for b := make([]byte, 1); ; {
			if _, err := terminal.Read(b); err != nil {
				return
			}
			s.bytes <- b[0]
		}
	}()
	return s
}

// until waits until the text is shown, and forgets what came before.
func (s *screen) until(want string) string {
	s.t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case b, ok := <-s.bytes:
			if !ok {
				s.t.Fatalf("the end, and no %q: %q", want, s.shown)
			}
			if s.shown = append(s.shown, b); strings.HasSuffix(string(s.shown), want) {
				all := string(s.shown)
				s.shown = nil
				return all
			}
		case <-late:
			s.t.Fatalf("no %q: %q", want, s.shown)
		}
	}
}

// rest is the text that was shown until the end and not read yet.
func (s *screen) rest() string {
	for b := range s.bytes {
		s.shown = append(s.shown, b)
	}
	return string(s.shown)
}

// TestACommandHasTheTerminal: it reads the terminal, also in a run within a run; where no shell
// could continue it, Ctrl-Z does nothing; and what comes after it has the terminal again.
func TestACommandHasTheTerminal(t *testing.T) {
	l := newLocks(t)
	cmd, terminal := l.atTerminal("run", "outer", "--", "sh", "-c",
		`"$DLOCK" run a -- sh -c 'echo up; read x; echo "got $x"; exec cat'; echo "status $?"; read y; echo "then $y"`)
	shown := newScreen(t, terminal)
	shown.until("up\r\n")
	io.WriteString(terminal, "\x1a")
	shown.until("^Z")
	io.WriteString(terminal, "hello\n")
	shown.until("got hello\r\n")
	io.WriteString(terminal, "\x04")
	shown.until("status 0\r\n")
	io.WriteString(terminal, "bye\n")
	shown.until("then bye\r\n")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	l.wantFree()
}

// TestTheTerminalIsReadInAPipe: standard input is something else, and another process in the pipe
// reads the terminal too.
func TestTheTerminalIsReadInAPipe(t *testing.T) {
	const reads = `echo x | "$DLOCK" run a -- sh -c 'echo up; read y </dev/tty; echo "got $y"' | sh -c 'read z </dev/tty; cat; echo "then $z"'`
	for where, run := range map[string]func(l locks, shell string) desk{
		"typed to a shell": func(l locks, shell string) desk {
			d := l.shellAt(shell)
			d.key(reads + "\n")
			d.until("\r\n")
			return d
		},
		"in a script": func(l locks, shell string) desk { return l.sit(shell, "-c", reads+"; true") },
		"within a run": func(l locks, shell string) desk {
			return l.sit(os.Args[0], "run", "b", "--", shell, "-c", reads+"; true")
		},
		"behind a shell, then in front": func(l locks, shell string) desk {
			d := l.shellAt(shell)
			d.key(reads + " &\n")
			d.awaitStopped()
			d.key("fg\n")
			d.until("fg\r\n")
			return d
		},
	} {
		t.Run(where, func(t *testing.T) {
			eachShell(t, func(t *testing.T, l locks, shell string) {
				d := run(l, shell)
				d.key("one\ntwo\n")
				got := d.until("up\r\n") + d.until("got ") + d.until("\r\n") + d.until("then ") + d.until("\r\n")
				if !strings.Contains(got, "one\r\n") || !strings.Contains(got, "two\r\n") {
					t.Errorf("%q", got)
				}
				l.wantFree()
			})
		})
	}
}

// TestCtrlCEndsTheScriptToo, as without dlock: while the command runs, while dlock waits for the
// lock, and in a run within a run.
func TestCtrlCEndsTheScriptToo(t *testing.T) {
	for when, script := range map[string]string{
		"the command runs":             `"$DLOCK" run a -- sh -c 'echo up; sleep 1000'; "$DLOCK" run b -- echo step two`,
		"it dies of it by itself":      `"$DLOCK" run a -- sh -c 'trap "trap - INT; kill -INT \$\$" INT; echo up; while :; do sleep 0.05; done'; echo step two`,
		"in a pipe":                    `"$DLOCK" run a -- sh -c 'echo up >/dev/tty; exec sleep 1000' </dev/null | cat; echo step two`,
		"within a run":                 `"$DLOCK" run c -- "$DLOCK" run a -- sh -c 'echo up; exec sleep 1000'; echo step two`,
		"in a loop":                    `for i in 1 2 3; do "$DLOCK" run a -- sh -c 'echo up; exec sleep 1000'; done; echo step two`,
		"it waits for the lock":        `echo up; "$DLOCK" run held -- echo in; echo step two`,
		"it waits within another lock": `"$DLOCK" run a -- sh -c 'echo up; "$DLOCK" run held -- echo in'; echo step two`,
	} {
		t.Run(when, func(t *testing.T) {
			eachShell(t, func(t *testing.T, l locks, shell string) {
				h := l.hold("held", "--", "sh", "-c", waitForLine)
				path := filepath.Join(t.TempDir(), "script")
				if err := os.WriteFile(path, []byte(script+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				d := l.sit(shell, path)
				d.until("up\r\n")
				if strings.Contains(script, "sleep 1000") {
					// dash loses a signal that it gets while it starts a command
					d.await(func(p process) bool { return p.name == "sleep" })
				}
				if strings.Contains(when, "waits") {
					l.until(`"waiters": [
      {`)
				}
				d.key("\x03")
				d.Wait()
				shown := d.rest()
				if s := d.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGINT || strings.Contains(shown, "step two") {
					t.Errorf("%s: %q", d.ProcessState, shown)
				}
				h.in.Close()
				h.rest()
				l.wantFree()
			})
		})
	}
}

// TestSignalsReachACommandOnce at a terminal: the keys go to all of the group, and dlock passes on
// what is sent to dlock alone.
func TestSignalsReachACommandOnce(t *testing.T) {
	eachShell(t, func(t *testing.T, l locks, shell string) {
		d, pidFile := l.shellAt(shell), filepath.Join(t.TempDir(), "pid")
		d.key(`"$DLOCK" run a -- sh -c 'trap "echo int" INT; trap "echo usr" USR1; trap "echo term; exit 7" TERM; echo $PPID >` + pidFile + `; while :; do sleep 0.01; done'; echo "status $?"` + "\n")
		pid := keeper(t, pidFile)
		d.until("\r\n")
		d.key("\x03")
		got := d.until("int\r\n")
		syscall.Kill(pid, syscall.SIGUSR1)
		got += d.until("usr\r\n")
		syscall.Kill(pid, syscall.SIGTERM)
		if got += d.until("status 7\r\n"); strings.Count(got, "int\r\n") != 1 || strings.Count(got, "usr\r\n") != 1 || strings.Count(got, "term\r\n") != 1 {
			t.Errorf("%q", got)
		}
		// one that does not mind the signal has not got it from the terminal
		d.key(`"$DLOCK" run a -- sleep 1000` + "\n")
		d.until("\r\n")
		syscall.Kill(d.await(func(p process) bool { return p.name == "sleep" }).parent, syscall.SIGINT)
		d.until(prompt)
		d.key(`echo "status $?"` + "\n")
		d.until("status 130\r\n")
	})
}

// TestAKilledCommandLeavesTheTerminalAsItWas: a shell after it can be typed into.
func TestAKilledCommandLeavesTheTerminalAsItWas(t *testing.T) {
	for how, status := range map[string]string{"kill -9 $$": "status 137", "exit 3": "status 3"} {
		l := newLocks(t)
		cmd, terminal := l.atTerminal("run", "outer", "--", "sh", "-c", `"$DLOCK" run a -- sh -c 'stty -echo; `+how+`'; echo "status $?"; stty -a; read x`)
		shown := newScreen(t, terminal)
		shown.until(status + "\r\n")
		echo := strings.Contains(shown.until("echoctl"), " echo ")
		if killed := status == "status 137"; echo != killed {
			t.Errorf("after %q: echo %t", how, echo)
		}
		io.WriteString(terminal, "\n")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestBreakAsksAtATerminal(t *testing.T) {
	for answer, want := range map[string]int{"y\n": 0, "n\n": statusFailed, "\x03": statusInterrupted} {
		l := newLocks(t)
		lease := l.lock(l.client().Mutex("a"))
		cmd, terminal := l.atTerminal("break", "--force", "a")
		if shown := newScreen(t, terminal).until("? [y/N] "); !strings.Contains(shown, "holds ") {
			t.Errorf("it does not show the holder: %s", shown)
		}
		io.WriteString(terminal, answer)
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%q: exit status %d, want %d", answer, got, want)
		}
		if err := lease.Renew(t.Context()); (err != nil) != (want == 0) {
			t.Errorf("%q: the lease: %v", answer, err)
		}
	}
}

// TestProgressAtATerminal: there is a bar while something is measured or tried, and none
// afterwards; Ctrl-C ends both, and leaves nothing locked.
func TestProgressAtATerminal(t *testing.T) {
	l := newLocks(t)
	for _, args := range [][]string{{"check"}, {"bench", "--for", "1s"}} {
		_, terminal := l.atTerminal(args...)
		shown := newScreen(t, terminal)
		shown.until("█░")
		shown.until("\r\x1b[K")
		shown.until(map[string]string{"check": "core laws hold\r\n", "bench": "HAND-OFFS/S"}[args[0]])
	}
	for _, args := range [][]string{{"check"}, {"bench", "--for", "1h"}} {
		cmd, terminal := l.atTerminal(args...)
		shown := newScreen(t, terminal)
		shown.until("░ ")
		io.WriteString(terminal, "\x03")
		shown.until("error: interrupted\r\n")
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != statusInterrupted {
			t.Errorf("%q: exit status %d after Ctrl-C", args, got)
		}
	}
	l.wantFree()
}

// TestMigrateAsks: after a no at the terminal the tables stay. (No server is contacted before.)
func TestMigrateAsks(t *testing.T) {
	l := newLocks(t)
	for answer, want := range map[string]string{"no": "nothing was done: the answer was no", "y": "127.0.0.1:1: connect: connection refused"} {
		cmd, terminal := l.atTerminal("migrate", "--down", "mysql://u:canary@127.0.0.1:1/d")
		shown := newScreen(t, terminal)
		shown.until("and all their content? [y/N] ")
		io.WriteString(terminal, answer+"\n")
		if text := shown.until(want); strings.Contains(text, "canary") {
			t.Errorf("the password is shown: %s", text)
		}
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != statusFailed {
			t.Errorf("%q: exit status %d", answer, got)
		}
	}
}
