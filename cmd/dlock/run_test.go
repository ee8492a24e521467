//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// locks is a folder of locks for a test.
type locks struct {
	t   *testing.T
	url string
}

func newLocks(t *testing.T) locks {
	return locks{t, "file://" + filepath.Join(t.TempDir(), "locks")}
}

// command is dlock with the folder as its backend, by its environment.
func (l locks) command(args ...string) (cmd *exec.Cmd, out, errOut *strings.Builder) {
	cmd, out, errOut, _ = command(l.t, args...)
	cmd.Env = append(cmd.Env, "DLOCK_URL="+l.url)
	return cmd, out, errOut
}

// run runs dlock, and returns what it wrote.
func (l locks) run(args ...string) (status int, out, errOut string) {
	cmd, o, e := l.command(args...)
	cmd.Run()
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// want runs dlock, and wants that status, and those words in what it wrote.
func (l locks) want(status int, words string, args ...string) string {
	l.t.Helper()
	got, out, errOut := l.run(args...)
	if got != status || !strings.Contains(out+errOut, words) {
		l.t.Errorf("dlock %q: exit status %d, want %d with %q\n%s%s", args, got, status, words, out, errOut)
	}
	return out
}

// wantFree wants that nothing is held or waited for.
func (l locks) wantFree() {
	l.t.Helper()
	l.want(0, "[]\n", "ls", "--json")
}

// holder is a dlock whose command writes a line when it runs, and reads one before it ends.
type holder struct {
	*exec.Cmd
	t      *testing.T
	in     io.WriteCloser
	out    *bufio.Reader
	errOut *strings.Builder
}

// hold starts dlock run with the arguments, and returns when its command has written "up".
func (l locks) hold(args ...string) holder {
	l.t.Helper()
	h := l.start(args...)
	if line, err := h.out.ReadString('\n'); line != "up\n" {
		l.t.Fatalf("dlock %q: %q, %v, %s", args, line, err, h.errOut)
	}
	return h
}

func (l locks) start(args ...string) holder {
	l.t.Helper()
	cmd, _, errOut := l.command(append([]string{"run"}, args...)...)
	cmd.Stdout = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { cmd.Process.Kill() })
	return holder{cmd, l.t, in, bufio.NewReader(out), errOut}
}

// rest waits for the end of all that have the output, and then of dlock.
func (h holder) rest() (status int, out string) {
	text, _ := io.ReadAll(h.out)
	h.Wait()
	return h.ProcessState.ExitCode(), string(text)
}

const waitForLine = `echo up; read x; echo "$x"`

func TestRunEndsWithTheStatusOfTheCommand(t *testing.T) {
	l := newLocks(t)
	l.want(0, "", "run", "a", "--", "true")
	l.want(7, "", "run", "a", "--", "sh", "-c", "exit 7")
	l.want(statusSignal+9, "", "run", "a", "--", "sh", "-c", "kill -9 $$")
	l.wantFree()
}

func TestRunGivesTheCommandItsHold(t *testing.T) {
	l := newLocks(t)
	l.url += "?label=cron"
	out := l.want(0, "", "run", "a/b", "--", "sh", "-c", `echo "$DLOCK_NAME|$DLOCK_TOKEN|$DLOCK_OWNER|$DLOCK_URL"; "$DLOCK" inspect a/b`)
	first, rest, _ := strings.Cut(out, "\n")
	f := strings.Split(first, "|")
	owner, err := dlock.ParseOwner(f[2])
	if token, _ := strconv.ParseUint(f[1], 10, 64); len(f) != 4 || f[0] != "a/b" || token == 0 || err != nil || owner.Name() != "a/b" || f[3] != l.url {
		t.Errorf("%q, %v", f, err)
	}
	if !strings.Contains(rest, f[1]) || !strings.Contains(rest, "cron") {
		t.Errorf("no token %s and no label in\n%s", f[1], rest)
	}
	out = l.want(0, "", "run", "--url", strings.TrimSuffix(l.url, "?label=cron"), "a", "--", "sh", "-c", `"$DLOCK" ls --json`)
	if !strings.Contains(out, "/sh\"") {
		t.Errorf("the label has no command:\n%s", out)
	}
	// a path is not taken for a label, and the label of another machine's run is not used
	out = l.want(0, "", "run", "--url", strings.TrimSuffix(l.url, "?label=cron")+"/label=x", "a", "--", "sh", "-c", `DLOCK_RUN=elsewhere/1 "$DLOCK" run b -- "$DLOCK" ls --json`)
	if !strings.Contains(out, "/sh\"") || strings.Contains(out, "elsewhere") {
		t.Errorf("labels:\n%s", out)
	}
}

func TestANestedRunReenters(t *testing.T) {
	l := newLocks(t)
	// of the same name, with another one between, and of a name that is not held around it
	l.want(0, "a b c in\n", "run", "a", "--", "sh", "-c",
		`printf "a "; "$DLOCK" run b -- sh -c 'printf "b "; "$DLOCK" run --try a -- "$DLOCK" run --try b -- "$DLOCK" run --try c -- echo c in'`)
	// elsewhere the same name is another lock, and free
	other := newLocks(t)
	l.want(0, "in\n", "run", "a", "--", "sh", "-c", `"$DLOCK" run --try --url "`+other.url+`" a -- echo in`)
	other.want(0, "", "run", "--try", "a", "--", "sh", "-c", `DLOCK_URL="`+other.url+`" "$DLOCK" run --try a -- true`)
	// an exclusive lock under a shared hold of the same name is refused at once
	l.want(statusRunFailed, "upgrade", "run", "--shared", "a", "--", "sh", "-c", `"$DLOCK" run a -- true`)
	l.want(statusUsage, "DLOCK_OWNER in the environment", "run", "a", "--", "sh", "-c", `DLOCK_OWNER=x "$DLOCK" run a -- true`)
	l.wantFree()
}

// TestAHoldThatWasCarriedTooFar: a process in the environment of a run that has ended, such as a
// server of tmux, learns which variable to unset, and can lock then.
func TestAHoldThatWasCarriedTooFar(t *testing.T) {
	l := newLocks(t)
	for _, c := range []struct {
		in    []string // runs around the environment
		drops []string
	}{
		{[]string{"a"}, []string{envOwner}},
		{[]string{"b", "a"}, []string{envOwner}},
		{[]string{"a", "b"}, []string{envOuter}},
		{[]string{"a", "b", "a"}, []string{envOwner, envOuter}},
	} {
		var around []string
		for i, name := range c.in {
			if i > 0 {
				around = append(around, os.Args[0])
			}
			around = append(around, "run", name, "--")
		}
		carried := strings.Split(strings.TrimSpace(l.want(0, "", append(around, "env")...)), "\n")
		cmd, out, errOut := l.command("run", "a", "--", "echo", "in")
		cmd.Env = append(cmd.Env, carried...)
		cmd.Run()
		drop := "env -u " + strings.Join(c.drops, " -u ") + " dlock run"
		if status := cmd.ProcessState.ExitCode(); status != statusRunFailed || out.Len() > 0 || strings.Count(errOut.String(), "\n") != 1 ||
			!strings.Contains(errOut.String(), "was not started") || !strings.Contains(errOut.String(), drop) || strings.Contains(errOut.String(), "while the command ran") {
			t.Errorf("within %q: exit status %d, %s%s", c.in, status, out, errOut)
		}
		cmd, out, errOut = l.command()
		cmd.Env = append(cmd.Env, carried...)
		cmd.Path, cmd.Args = "/usr/bin/env", strings.Fields("env -u "+strings.Join(c.drops, " -u ")+" "+os.Args[0]+" run a -- echo in")
		if err := cmd.Run(); err != nil || out.String() != "in\n" {
			t.Errorf("after %q: %v, %s%s", drop, err, out, errOut)
		}
		// another name is not affected
		cmd, out, errOut = l.command("run", "other", "--", "echo", "in")
		cmd.Env = append(cmd.Env, carried...)
		if err := cmd.Run(); err != nil || out.String() != "in\n" {
			t.Errorf("another name: %v, %s%s", err, out, errOut)
		}
	}
	l.wantFree()
}

func TestRunOfAHeldLock(t *testing.T) {
	l := newLocks(t)
	h := l.hold("a", "--", "sh", "-c", waitForLine)
	l.want(statusHeld, "held", "run", "--try", "a", "--", "echo", "in")
	l.want(statusHeld, "held", "run", "--wait", "1s", "a", "--", "echo", "in")
	l.want(statusHeld, "held", "run", "--once-per", "1m", "a", "--", "echo", "in")
	if status, out, errOut := l.run("run", "-q", "--try", "a", "--", "echo", "in"); status != statusHeld || out+errOut != "" {
		t.Errorf("-q: %d, %s%s", status, out, errOut)
	}
	l.want(statusRunFailed, "another kind of lock", "run", "-q", "--limit", "2", "--try", "a", "--", "echo", "in")
	waits := l.start("--wait", "1m", "a", "--", "sh", "-c", waitForLine)
	l.until(`"waiters": [
      {`)
	io.WriteString(h.in, "bye\n")
	if status, out := h.rest(); status != 0 || out != "bye\n" {
		t.Errorf("%d, %q", status, out)
	}
	io.WriteString(waits.in, "next\n")
	if status, out := waits.rest(); status != 0 || out != "up\nnext\n" {
		t.Errorf("the waiter: %d, %q, %s", status, out, waits.errOut)
	}
	l.wantFree()
}

// until waits until ls --json has the text.
func (l locks) until(text string) {
	l.t.Helper()
	l.await(text, "ls", "--json")
}

// await runs dlock until it writes the text.
func (l locks) await(text string, args ...string) {
	l.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		_, out, _ := l.run(args...)
		if strings.Contains(out, text) {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("dlock %q: no %s in\n%s", args, text, out)
		}
	}
}

// awaitCount runs ls --json until it has the text so often.
func (l locks) awaitCount(text string, n int) {
	l.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		_, out, _ := l.run("ls", "--json")
		if strings.Count(out, text) == n {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("not %d of %s in\n%s", n, text, out)
		}
	}
}

func TestRunTogether(t *testing.T) {
	for flag, alone := range map[string][]string{"--shared": {"--try"}, "--limit=2": {"--try", "--limit=2"}} {
		l := newLocks(t)
		one, two := l.hold(flag, "a", "--", "sh", "-c", waitForLine), l.hold(flag, "a", "--", "sh", "-c", waitForLine)
		l.want(statusHeld, "", append(append([]string{"run"}, alone...), "a", "--", "true")...)
		one.in.Close()
		one.rest()
		two.in.Close()
		two.rest()
		l.wantFree()
	}
}

func TestRunKeepsOthersOutForAtLeastSoLong(t *testing.T) {
	l := newLocks(t)
	l.want(0, "", "run", "--once-per", "1h", "a", "--", "true")
	l.want(statusHeld, `"a" runs now, or has run already in this period of 1h0m0s`, "run", "--once-per", "1h", "a", "--", "echo", "twice")
	l.want(0, "fixed", "inspect", "a")
	l.want(0, "ended", "break", "--yes", "--force", "a")
	l.want(7, "", "run", "--once-per", "200ms", "a", "--", "sh", "-c", "exit 7")
	// also if dlock is killed
	h := l.hold("--once-per", "1h", "killed", "--", "sh", "-c", "echo up; exec sleep 1000")
	h.Process.Kill()
	h.rest()
	l.want(statusHeld, "held", "run", "--once-per", "1h", "killed", "--", "echo", "twice")
	// which it can wait for
	l.want(0, "", "run", "--once-per", "200ms", "--wait", "1m", "a", "--", "true")
	l.want(statusUsage, "period of 48h0m0s; ", "run", "--once-per", "48h", "b", "--", "echo", "in")
	l.want(statusUsage, "period of 0s; ", "run", "--once-per", "0", "b", "--", "echo", "in")
}

// TestALossEndsTheWholeGroup: another process breaks the hold; the command and all it started
// ignore SIGTERM.
func TestALossEndsTheWholeGroup(t *testing.T) {
	l := newLocks(t)
	h := l.hold("--ttl", "3s", "--grace", "300ms", "a", "--", "sh", "-c", `trap "echo asked" TERM; sh -c 'trap "" TERM; echo up; while :; do sleep 1; done' & while :; do wait; done`)
	l.want(0, "ended", "break", "--yes", "--force", "a")
	if status, out := h.rest(); status != statusLost || !strings.Contains(out, "asked") {
		t.Errorf("exit status %d, %q", status, out)
	}
	if got := h.errOut.String(); got != "error: lease lost while the command ran: lock \"a\"\n" {
		t.Errorf("%q", got)
	}
	l.wantFree()

	// a command that ends on SIGTERM, and leaves a process behind that does not
	h = l.hold("--ttl", "3s", "--grace", "300ms", "a", "--", "sh", "-c", `sh -c 'trap "" TERM; echo up; sleep 20; echo survived' & wait`)
	l.want(0, "ended", "break", "--yes", "--force", "a")
	if status, out := h.rest(); status != statusLost || out != "" {
		t.Errorf("exit status %d, %q", status, out)
	}

	// without force, and a command that ends in time: nothing is killed
	h = l.hold("--ttl", "3s", "--grace", "1m", "a", "--", "sh", "-c", `trap "echo asked; exit 0" TERM; echo up; while :; do sleep 0.01; done`)
	l.want(0, "broken", "break", "--yes", "a")
	if status, out := h.rest(); status != statusLost || out != "asked\n" {
		t.Errorf("exit status %d, %q, %s", status, out, h.errOut)
	}
}

// TestABreakByForceEndsTheCommandAtOnce, long before the next renewal, where the backend pushes it.
func TestABreakByForceEndsTheCommandAtOnce(t *testing.T) {
	l := newLocks(t)
	within := 15 * time.Second // by the renewal of the default TTL
	b, err := dlock.OpenBackend(t.Context(), l.url)
	if err != nil {
		t.Fatal(err)
	}
	if _, pushes := b.(driver.Notifier); pushes {
		within = 5 * time.Second // a second, on a machine that is busy
	}
	b.Close()
	h := l.hold("--grace", "100ms", "a", "--", "sh", "-c", `trap "" TERM; echo up; while :; do sleep 0.05; done`)
	l.want(0, "ended", "break", "--yes", "--force", "a")
	broken := time.Now()
	status, _ := h.rest()
	if took := time.Since(broken); status != statusLost || took > within {
		t.Errorf("exit status %d after %s, want %d within %s", status, took, statusLost, within)
	}
	l.wantFree()
}

// TestALossEndsWhatStandsStill: a stopped process gets SIGTERM too, and time to end.
func TestALossEndsWhatStandsStill(t *testing.T) {
	l := newLocks(t)
	h := l.hold("--ttl", "3s", "--grace", "20s", "a", "--", "sh", "-c", `trap "echo asked; exit 0" TERM; echo up; kill -STOP $$; while :; do sleep 0.01; done`)
	l.want(0, "ended", "break", "--yes", "--force", "a")
	if status, out := h.rest(); status != statusLost || out != "asked\n" {
		t.Errorf("exit status %d, %q, %s", status, out, h.errOut)
	}
}

func TestAKilledRunLeavesNothing(t *testing.T) {
	l := newLocks(t)
	h := l.hold("--ttl", "1h", "a", "--", "sh", "-c", "echo up; exec sleep 1000")
	h.Process.Kill()
	// the end of its output shows that the command has ended too
	h.rest()
	l.want(0, "in\n", "run", "--wait", "20s", "a", "--", "echo", "in")
}

// TestAStoppedRunEndsItsCommand: while dlock is stopped its hold expires, and another run gets the
// lock. When dlock goes on it ends the command.
func TestAStoppedRunEndsItsCommand(t *testing.T) {
	l := newLocks(t)
	h := l.hold("--ttl", "3s", "a", "--", "sh", "-c", "echo up; exec sleep 1000")
	h.Process.Signal(syscall.SIGSTOP)
	l.want(0, "in\n", "run", "--wait", "1m", "a", "--", "echo", "in")
	h.Process.Signal(syscall.SIGCONT)
	if status, _ := h.rest(); status != statusLost {
		t.Errorf("exit status %d, %s", status, h.errOut)
	}
	l.wantFree()
}

// TestABackendThatDoesNotAnswer is reported within the time of --wait, with its host.
func TestABackendThatDoesNotAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	l := newLocks(t)
	for _, scheme := range []string{"redis", "mysql", "zookeeper", "etcd"} {
		raw := scheme + "://u:canary@" + silent.Addr().String() + "/0"
		if scheme == "etcd" || scheme == "zookeeper" {
			raw = scheme + "://" + silent.Addr().String()
		}
		status, out, errOut := l.run("run", "--wait", "200ms", "--url", raw, "a", "--", "echo", "in")
		if status != statusRunFailed || out != "" || !strings.Contains(errOut, "the backend did not answer within 200ms: reach "+silent.Addr().String()) || strings.Contains(errOut, "canary") {
			t.Errorf("%s: exit status %d, %s%s", scheme, status, out, errOut)
		}
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	l := newLocks(t)
	h := l.hold("a", "--", "sh", "-c", `trap "echo one" USR1; trap "echo two" HUP; trap "echo end; exit 9" TERM; echo up; while :; do sleep 0.01; done`)
	for s, want := range map[os.Signal]string{syscall.SIGUSR1: "one\n", syscall.SIGHUP: "two\n"} {
		h.Process.Signal(s)
		if line, err := h.out.ReadString('\n'); line != want {
			t.Errorf("%s: %q, %v", s, line, err)
		}
	}
	waits := l.start("a", "--", "echo", "in")
	l.until(`"waiters": [
      {`)
	waits.Process.Signal(syscall.SIGTERM)
	if status, out := waits.rest(); status != statusSignal+15 || out != "" || waits.errOut.String() != "error: ended by a signal: terminated\n" {
		t.Errorf("the waiter: %d, %q, %s", status, out, waits.errOut)
	}
	// a run that was started to ignore a signal ignores it
	late, out, _ := l.command()
	late.Path, late.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec "$DLOCK" run a -- echo in`}
	if err := late.Start(); err != nil {
		t.Fatal(err)
	}
	l.until(`"waiters": [
      {`)
	late.Process.Signal(syscall.SIGHUP)
	h.Process.Signal(syscall.SIGTERM)
	if status, out := h.rest(); status != 9 || out != "end\n" {
		t.Errorf("%d, %q, %s", status, out, h.errOut)
	}
	if late.Wait(); late.ProcessState.ExitCode() != 0 || out.String() != "in\n" {
		t.Errorf("a run that ignores SIGHUP: %s, %s", late.ProcessState, out)
	}
	l.wantFree()
}

// TestASignalBeforeTheCommand: it came when the lock was held and the command not yet started.
func TestASignalBeforeTheCommand(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(signalled{syscall.SIGTERM})
	r := newRelay(func(os.Signal) {})
	defer r.stop()
	cmd := exec.Command("true")
	if _, _, err := supervise(ctx, cmd, nil, 0, r); !errors.Is(err, signalled{syscall.SIGTERM}) || cmd.Process != nil {
		t.Errorf("%v; the command was started: %t", err, cmd.Process != nil)
	}
}

func TestRunRefusesBadInput(t *testing.T) {
	l := newLocks(t)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("\x7fELF"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{statusUsage, "no -- before the command", []string{"a", "true"}},
		{statusUsage, "no name before --", []string{"--", "true"}},
		{statusUsage, "2 names before --", []string{"a", "b", "--", "true"}},
		{statusUsage, "no command after --", []string{"a", "--"}},
		{statusUsage, "unknown flag: --nosuch; see dlock run --help", []string{"--nosuch", "a", "--", "true"}},
		{statusUsage, "--try and --wait", []string{"--try", "--wait", "1s", "a", "--", "true"}},
		{statusUsage, "--shared and --limit", []string{"--shared", "--limit", "2", "a", "--", "true"}},
		{statusUsage, "--wait -1s", []string{"--wait", "-1s", "a", "--", "true"}},
		{statusUsage, "--grace -1s", []string{"--grace", "-1s", "a", "--", "true"}},
		{statusUsage, "--limit 0", []string{"--limit", "0", "a", "--", "true"}},
		{statusUsage, "TTL of 1ns; 100ms to 24h0m0s are allowed here", []string{"--ttl", "1ns", "a", "--", "true"}},
		{statusUsage, `--ttl "": want a duration such as 30s or 5m; see dlock run --help`, []string{"--ttl", "", "a", "--", "true"}},
		{statusUsage, `--ttl "--": want a duration`, []string{"--ttl", "--", "a", "--", "true"}},
		{statusUsage, `--once-per "50": want a duration`, []string{"--once-per", "50", "a", "--", "true"}},
		{statusUsage, `--limit "x": want a whole number`, []string{"--limit", "x", "a", "--", "true"}},
		{statusUsage, "invalid name: empty", []string{"", "--", "true"}},
		{statusUsage, "control character", []string{"a\nb", "--", "true"}},
		{statusUsage, "within one process only", []string{"--url", "memory:x", "a", "--", "true"}},
		{statusUsage, `unknown scheme "nosuch"`, []string{"--url", "nosuch://u:canary@h", "a", "--", "true"}},
		{statusRunFailed, "127.0.0.1:1: connect: connection refused", []string{"--wait", "1s", "--url", "redis://u:canary@127.0.0.1:1/0", "a", "--", "true"}},
		{statusRunFailed, "127.0.0.1:1: connect: connection refused", []string{"--wait", "1s", "--url", "mysql://u:canary@127.0.0.1:1/x", "a", "--", "true"}},
		{statusNoCommand, "executable file not found", []string{"a", "--", "no-such-command"}},
		{statusNoCommand, "no such file", []string{"a", "--", "/no/such/command"}},
		{statusCannotStart, "permission denied", []string{"a", "--", plain}},
		{statusCannotStart, "exec format error", []string{"a", "--", broken}},
	} {
		status, out, errOut := l.run(append([]string{"run"}, c.args...)...)
		if status != c.status || out != "" || !strings.Contains(errOut, c.want) || strings.Count(errOut, "\n") != 1 || strings.Contains(errOut, "canary") {
			t.Errorf("%q: exit status %d, want %d, one line with %q\n%s%s", c.args, status, c.status, c.want, out, errOut)
		}
	}
	l.wantFree()
	// the lock is not taken first if there is no such command
	h := l.hold("a", "--", "sh", "-c", waitForLine)
	l.want(statusNoCommand, "not found", "run", "a", "--", "no-such-command")
	h.in.Close()
	h.rest()
}

func TestTheDefaultIsAFolderOfTheUser(t *testing.T) {
	state := t.TempDir()
	cmd, out, errOut, _ := command(t, "run", "a", "--", "sh", "-c", `echo "$DLOCK_URL"`)
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+state)
	if err := cmd.Run(); err != nil || out.String() != "file://"+state+"/dlock\n" || !strings.Contains(errOut.String(), "for this machine and user only, in file://"+state+"/dlock\n") {
		t.Errorf("%v, %s%s", err, out, errOut)
	}
	cmd, _, errOut, _ = command(t, "run", "-q", "a", "--", "true")
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+state)
	if err := cmd.Run(); err != nil || errOut.Len() > 0 {
		t.Errorf("%v, %s", err, errOut)
	}
	home := t.TempDir()
	cmd, out, errOut, _ = command(t, "run", "-v", "a", "--", "true")
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME=relative", "HOME="+home)
	if err := cmd.Run(); err != nil || out.Len() > 0 {
		t.Errorf("%v, %s%s", err, out, errOut)
	}
	if _, err := os.Stat(filepath.Join(home, ".local", "state", "dlock")); err != nil {
		t.Error(err)
	}
	cmd, _, errOut, _ = command(t, "ls")
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME=", "HOME=")
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != statusUsage || !strings.Contains(errOut.String(), "no home directory") {
		t.Errorf("%v, %s", err, errOut)
	}
}

func TestPasswordsOfURLs(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://u:canary@h:1,h2:2/0?ttl=1s":                     "redis://u@h:1,h2:2/0?ttl=1s",
		"redis://:canary@h/0":                                    "redis://h/0",
		"redis://u:can@ary@h/0?x=a@b":                            "redis://u@h/0?x=a@b",
		"redis+sentinel://h/m/0?sentinel_password=canary&ttl=1s": "redis+sentinel://h/m/0?ttl=1s",
		"redis+sentinel://h/m/0?sentinel%5Fpassword=canary":      "redis+sentinel://h/m/0",
		"redis+sentinel://h/m/0?Sentinel_Password=canary":        "redis+sentinel://h/m/0",
		"file:///a/b":   "file:///a/b",
		"file:/a:b@c/d": "file:/a:b@c/d",
	} {
		if got := withoutPassword(raw); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
	same, others := "mysql://u:p@h/d?prefix=x&ttl=1s", []string{"mysql://u:p@h/e?prefix=x", "mysql://u:p@h/d?prefix=y", "mysql://u:p@i/d?prefix=x", "mariadb://u:p@h/d?prefix=x"}
	if place(same) != place("mysql://v@h/d?prefix=x&label=y") {
		t.Error("another user, or another label, makes it another place")
	}
	for _, o := range others {
		if place(o) == place(same) {
			t.Errorf("%s and %s are one place", o, same)
		}
	}
}
