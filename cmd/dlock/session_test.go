//go:build linux

package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// drawing matches what moves the cursor and is not shown.
var drawing = regexp.MustCompile("\x1b\\[[?0-9]*[A-Za-z]")

// wantNarrow wants what was shown to fit into 80 columns.
func wantNarrow(t *testing.T, shown string) {
	t.Helper()
	for line := range strings.SplitSeq(drawing.ReplaceAllString(strings.ReplaceAll(shown, home, "\r\n"), ""), "\r\n") {
		if n := utf8.RuneCountInString(line); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestASessionOfTwoUsers, each at a terminal of 80 columns: ann's command hangs, and bob ends it.
func TestASessionOfTwoUsers(t *testing.T) {
	l := newLocks(t)
	type desk struct {
		wait func() int // for the exit status
		in   io.Writer
		out  *screen
	}
	sit := func(args ...string) desk {
		cmd, terminal := l.atTerminal(args...)
		setSize(t, terminal, columns, 24)
		return desk{func() int { cmd.Wait(); return cmd.ProcessState.ExitCode() }, terminal, newScreen(t, terminal)}
	}
	host, _ := os.Hostname()

	ann := sit("run", "--ttl", "3s", "deploy/shop", "--", "sh", "-c", "echo rolling out; exec sleep 1000")
	ann.out.until("rolling out\r\n")
	carl := sit("run", "--wait", "5m", "deploy/shop", "--", "sh", "-c", "echo mine; read x")
	l.until(`"waiters": [
      {`)

	top := sit("top", "--interval", "100ms")
	first := top.out.until("deploy/shop  1 ") + top.out.until("/sh")
	if !strings.Contains(first, "  "+host+"/") {
		t.Errorf("the holder is not shown: %q", first)
	}
	ls := sit("ls", "deploy/")
	listed := ls.out.until("deploy/shop  exclusive  1     1 ") + ls.out.until("/sh\r\n")
	if ls.wait() != 0 || !strings.HasPrefix(listed, "NAME         MODE       HOLD  WAIT  AGE ") {
		t.Errorf("ls: %q", listed)
	}
	bob := sit("break", "--force", "deploy/shop")
	asked := bob.out.until("? [y/N] ")
	io.WriteString(bob.in, "y\n")
	asked += bob.out.until("ended; the holder learns of it within a second\r\n")
	if status := bob.wait(); status != 0 {
		t.Errorf("break: exit status %d", status)
	}

	// carl has it, which top shows; ann is notified
	carl.out.until("mine\r\n")
	after := top.out.until("handed off  " + host + "/")
	io.WriteString(top.in, "q")
	after += top.out.until(firstScreen)
	if status := top.wait(); status != 0 {
		t.Errorf("top: exit status %d", status)
	}
	loss := ann.out.until("error: lease lost while the command ran: lock \"deploy/shop\"\r\n")
	if status := ann.wait(); status != statusLost {
		t.Errorf("ann: exit status %d", status)
	}
	io.WriteString(carl.in, "done\n")
	if status := carl.wait(); status != 0 {
		t.Errorf("carl: exit status %d", status)
	}
	l.wantFree()
	for _, shown := range []string{first, listed, asked, after, loss} {
		wantNarrow(t, shown)
	}
}
