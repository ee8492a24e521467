//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// atTerminal starts dlock at a terminal of its own, which is returned.
func (l locks) atTerminal(args ...string) (cmd *exec.Cmd, terminal *os.File) {
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
	cmd, _, _ = l.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, master
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

// TestACommandHasTheTerminal: it reads from there, Ctrl-Z does not leave it standing, Ctrl-C ends
// it, and afterwards the shell that called dlock has the terminal again.
func TestACommandHasTheTerminal(t *testing.T) {
	l := newLocks(t)
	// the shell around it stands for the user's
	cmd, terminal := l.atTerminal("run", "outer", "--", "sh", "-c",
		`"$DLOCK" run a -- sh -c 'echo up; read x; echo "got $x"; exec cat'; echo "status $?"; read y; echo "then $y"`)
	shown := newScreen(t, terminal)
	shown.until("up\r\n")
	io.WriteString(terminal, "\x1a")
	shown.until("^Z")
	io.WriteString(terminal, "hello\n")
	shown.until("got hello\r\n")
	io.WriteString(terminal, "\x03")
	shown.until("status 130\r\n")
	io.WriteString(terminal, "bye\n")
	shown.until("then bye\r\n")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	l.wantFree()
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
			t.Errorf("it does not show whom it ends: %s", shown)
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

// TestMigrateAsks: who says no at the terminal keeps the tables. (No server is asked before.)
func TestMigrateAsks(t *testing.T) {
	l := newLocks(t)
	for answer, want := range map[string]string{"no": "nothing was done: the answer was no", "y": "127.0.0.1:1: connect: connection refused"} {
		cmd, terminal := l.atTerminal("migrate", "--down", "mysql://u:canary@127.0.0.1:1/d")
		shown := newScreen(t, terminal)
		shown.until("and all that they know? [y/N] ")
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
