//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/watch"
)

// samplePage is a page of n names, the last one the busiest, and n events.
func samplePage(n int) *topPage {
	p := newTopPage("redis://ann:canary@cache:6379/0?sentinel_password=canary&ttl=1s", "shop/", time.Second)
	look := &watch.Look{At: time.Now(), Total: watch.Counts{Handoffs: n, Losses: 1}}
	for i := range n {
		q := watch.Queue{Name: fmt.Sprintf("shop/%03d", i), Holders: []watch.Entry{{Owner: "o", Client: "c", Label: fmt.Sprintf("web%d/4711/ann/roll-out", i), Age: 61, Left: 20}}}
		for w := range i {
			q.Waiters = append(q.Waiters, watch.Entry{Age: float64(w)})
		}
		look.Names = append(look.Names, watch.Name{Queue: q, PerSecond: 0.5})
		look.Events = append(look.Events, watch.Event{Name: q.Name, Kind: watch.HandedOff, Count: 2, From: "a", To: fmt.Sprintf("last %d", i)})
	}
	p.see(look, nil)
	return p
}

func TestTheTopPageFits(t *testing.T) {
	for _, n := range []int{0, 1, 5, 100} {
		p := samplePage(n)
		p.see(nil, errors.New(strings.Repeat("out of order ", 20)))
		for height := 1; height < 60; height++ {
			for _, width := range []int{1, 20, 40, 80, 120} {
				lines := p.lines(width, height)
				if len(lines) > height {
					t.Fatalf("%d names at %dx%d: %d lines", n, width, height, len(lines))
				}
				for _, line := range lines {
					if utf8.RuneCountInString(line) > width {
						t.Fatalf("%d names at %dx%d: %q", n, width, height, line)
					}
				}
			}
		}
	}
}

func TestTheTopPageShowsTheBusiestFirst(t *testing.T) {
	p := samplePage(30)
	text := strings.Join(p.lines(80, 24), "\n")
	for _, want := range []string{
		"dlock top  redis://ann@cache:6379/0  shop/*\nnames 30, holders 30, waiting 435; handed off 30 (15/s), lost 1, broken 0\n",
		"\nshop/029  29    0.0s    0.5    1     1m01s  20s   web29/4711/ann/roll-out\nshop/028 ",
		"\nand 19 more\n", "shop/029  handed off 2 times  a > last 29\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "canary") {
		t.Error("it shows a password:\n" + text)
	}
	if p.see(p.look, nil); len(p.events) != eventsKept {
		t.Errorf("%d events are kept", len(p.events))
	}
	// a page that is full of names shows the names
	if lines := p.lines(80, 8); !strings.HasPrefix(lines[3], "NAME") || !strings.HasPrefix(lines[5], "shop/028") {
		t.Errorf("%q", lines)
	}
	p.see(nil, errors.New("connection refused"))
	if text := strings.Join(p.lines(80, 24), "\n"); !strings.Contains(text, "no answer since: connection refused\n") || !strings.Contains(text, "shop/029") {
		t.Error(text)
	}
}

func TestTopWithoutATerminal(t *testing.T) {
	l := newLocks(t)
	c := l.client(dlock.Label("ann"))
	l.lock(c.Mutex("x/1"))
	l.wait(c, c.Mutex("x/1"))
	l.lock(c.Mutex("y"))
	out := l.want(0, "names 1, holders 1, waiting 1; handed off 0 (0/s), lost 0, broken 0", "top", "--interval", "100ms", "x/")
	lines := strings.Split(out, "\n")
	if len(lines) != 6 || strings.Contains(out, "\x1b") || strings.Join(strings.Fields(lines[3]), " ") != "NAME WAIT OLDEST PER S HOLD AGE LEFT HELD BY" || !strings.HasPrefix(lines[4], "x/1   1 ") || !strings.HasSuffix(lines[4], "  ann") {
		t.Error(out)
	}
	var look watch.Look
	if err := json.Unmarshal([]byte(l.want(0, "", "top", "--interval", "100ms", "--once", "--json")), &look); err != nil || len(look.Names) != 2 || look.InUse != 2 {
		t.Errorf("%v, %+v", err, look)
	}
	for _, args := range [][]string{{"top", "--interval", "99ms"}, {"top", "--most", "0"}} {
		l.want(statusUsage, "or more is allowed", args...)
	}
	l.want(statusFailed, "connection refused", "top", "--url", "redis://127.0.0.1:1/0")
}

// TestTopWritesALineForEachLook: until it is interrupted.
func TestTopWritesALineForEachLook(t *testing.T) {
	l := newLocks(t)
	c := l.client()
	cmd, _, errOut := l.command("top", "--interval", "100ms", "--json")
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	looks, held := json.NewDecoder(out), (*dlock.Lease)(nil)
	for n := 0; ; n++ {
		var look watch.Look
		if err := looks.Decode(&look); err != nil {
			t.Fatal(err, errOut)
		}
		if held == nil {
			held = l.lock(c.Mutex("x"))
			l.wait(c, c.Mutex("x"))
		} else if len(look.Names) == 1 && len(look.Names[0].Waiters) == 1 {
			held.Unlock(t.Context())
		} else if look.Total.Handoffs == 1 {
			break
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	io.Copy(io.Discard, out)
	if cmd.Wait(); cmd.ProcessState.ExitCode() != statusInterrupted {
		t.Errorf("exit status %d, %s", cmd.ProcessState.ExitCode(), errOut)
	}
}

func setSize(t *testing.T, terminal *os.File, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		t.Fatal(err)
	}
}

// TestTopFollowsTheSize between two snapshots.
func TestTopFollowsTheSize(t *testing.T) {
	l := newLocks(t)
	cmd, terminal := l.atTerminal("top", "--interval", "1h")
	setSize(t, terminal, 80, 24)
	shown := newScreen(t, terminal)
	shown.until("names 0, holders 0")
	setSize(t, terminal, 20, 2)
	shown.until("names 0, holders 0,…" + clearRight + clearBelow)
	io.WriteString(terminal, "q")
	cmd.Wait()
}

// TestTopOnATerminal: it shows events, and every way to end it restores the terminal.
func TestTopOnATerminal(t *testing.T) {
	for name, end := range map[string]struct {
		status int
		by     func(*os.Process, io.Writer)
	}{
		"q":       {0, func(_ *os.Process, w io.Writer) { io.WriteString(w, "q") }},
		"Ctrl-C":  {statusInterrupted, func(_ *os.Process, w io.Writer) { io.WriteString(w, "\x03") }},
		"SIGTERM": {statusInterrupted, func(p *os.Process, _ io.Writer) { p.Signal(syscall.SIGTERM) }},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocks(t)
			cmd, terminal := l.atTerminal("top", "--interval", "100ms")
			setSize(t, terminal, 80, 24)
			shown := newScreen(t, terminal)
			shown.until(otherScreen)
			shown.until("names 0, holders 0")
			lease := l.lock(l.client(dlock.Label("ann")).Mutex("deploy/shop"))
			shown.until("deploy/shop  ")
			bob := l.client(dlock.Label("bob"))
			l.wait(bob, bob.Mutex("deploy/shop"))
			lease.Unlock(t.Context())
			shown.until("handed off  ann > bob")
			end.by(cmd.Process, terminal)
			shown.until(firstScreen)
			cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != end.status {
				t.Errorf("exit status %d, want %d", got, end.status)
			}
			state, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
			if err != nil || state.Lflag&unix.ICANON == 0 || state.Lflag&unix.ECHO == 0 {
				t.Errorf("the terminal is not as it was: %v, %+v", err, state)
			}
		})
	}
}
