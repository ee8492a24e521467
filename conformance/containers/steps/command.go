package steps

import (
	"bufio"
	"bytes"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/await"
)

// Command runs dlock's "run", "ls", "inspect", "graph", "top", "break" and "bench" as an operator
// does: on the URL, with its password in the environment.
func Command(t *testing.T, rawURL string) {
	t.Helper()
	bin := BuildCommand(t)
	dlock := func(args ...string) *exec.Cmd {
		cmd := bounded(t, 3*time.Minute, bin, args...)
		cmd.Env = append(os.Environ(), "DLOCK_URL="+rawURL, "DLOCK="+bin)
		// for a command that a failed test leaves: it has the pipes
		cmd.WaitDelay = 10 * time.Second
		return cmd
	}
	run := func(args ...string) (*exec.Cmd, []byte) {
		cmd := dlock(args...)
		out, _ := cmd.CombinedOutput()
		return cmd, out
	}
	want := func(status int, words string, args ...string) {
		t.Helper()
		cmd, out := run(args...)
		if got := cmd.ProcessState.ExitCode(); got != status || !bytes.Contains(out, []byte(words)) {
			t.Errorf("dlock %q: exit status %d, want %d with %q\n%s", args, got, status, words, out)
		}
	}
	want(0, "no name is held or waited for", "ls")
	want(0, "HAND-OFFS/S", "bench", "--for", "1s")
	want(0, `"handoffs": [`, "bench", "--for", "1s", "--json")
	want(0, "no name is held or waited for", "ls")
	// the command has the URL without a password, and may have it whole
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal("the URL of the test is invalid")
	}
	safe := *u
	if _, ok := u.User.Password(); ok {
		safe.User = url.User(u.User.Username())
	}
	const show = `echo "=$DLOCK_URL="`
	want(0, "="+safe.String()+"=\n", "run", "shop/a", "--", "sh", "-c", show)
	want(0, "="+rawURL+"=\n", "run", "--pass-password", "shop/a", "--", "sh", "-c", show)
	// and nothing else that it can see has the password
	if password, ok := u.User.Password(); ok {
		cmd := dlock("run", "-v", "shop/a", "--", "sh", "-c", `env; tr '\0' '\n' </proc/$PPID/cmdline; "$DLOCK" graph 2>&1; "$DLOCK" top 2>&1; echo end`)
		if out, _ := cmd.CombinedOutput(); bytes.Contains(out, []byte(password)) || !bytes.Contains(out, []byte("end\n")) {
			t.Errorf("the command can see the password %q:\n%s", password, out)
		}
	}
	want(7, "a in\n", "run", "--pass-password", "shop/a", "--", "sh", "-c",
		`"$DLOCK" run --pass-password shop/b -- "$DLOCK" run --try shop/a -- echo a in && exit 7`)
	want(0, "", "run", "--once-per", "1h", "shop/once", "--", "true")
	want(124, "held", "run", "--once-per", "1h", "shop/once", "--", "true")
	want(0, "fixed", "inspect", "shop/once")
	want(0, "ended", "break", "--yes", "--force", "shop/once")

	h := dlock("run", "--ttl", "3s", "--grace", "100ms", "shop/a", "--", "sh", "-c", `trap "" TERM; echo up; while :; do sleep 0.1; done`)
	var errOut bytes.Buffer
	h.Stderr = &errOut
	lines := bufio.NewReader(begin(t, h, false))
	if line, err := lines.ReadString('\n'); line != "up\n" {
		t.Fatalf("%q, %v, %s", line, err, errOut.String())
	}
	wait := "3s"
	if _, out := run("run", "--wait", wait, "shop/a", "--", "true"); bytes.Contains(out, []byte("did not answer")) {
		wait = "20s" // on a slow machine the server needed longer for the first connection
	}
	want(124, "held", "run", "--wait", wait, "shop/a", "--", "true")
	want(0, "exclusive", "ls", "shop/")
	waits := dlock("run", "shop/a", "--", "true")
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	await.That(t, "the graph shows the waiter", func() bool {
		out, err := dlock("graph", "shop/").Output()
		return err == nil && bytes.Contains(out, []byte("/sh  waited for by 1\n└─ shop/a\n   └─ 1. ")) && bytes.Contains(out, []byte("/true  "))
	})
	want(0, "names 1, holders 1, waiting 1; ", "top", "shop/a")
	waits.Process.Signal(syscall.SIGTERM)
	if waits.Wait(); waits.ProcessState.ExitCode() != 128+15 {
		t.Errorf("the waiter: exit status %d", waits.ProcessState.ExitCode())
	}
	want(0, `"waiters": []`, "inspect", "--json", "shop/a")
	want(0, "ended", "break", "--yes", "--force", "shop/a")
	over(t, lines)
	h.Wait()
	if got := h.ProcessState.ExitCode(); got != 123 || !strings.Contains(errOut.String(), "lost") {
		t.Errorf("after its hold was broken: exit status %d, %s", got, errOut.String())
	}

	// killed with its command; another one is granted when its TTL has passed
	h = dlock("run", "--ttl", "2s", "shop/a", "--", "sh", "-c", "echo up; exec sleep 1000")
	lines = bufio.NewReader(begin(t, h, false))
	if line, err := lines.ReadString('\n'); line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	h.Process.Kill()
	over(t, lines)
	h.Wait()
	want(0, "in\n", "run", "--wait", "1m", "shop/a", "--", "echo", "in")
	want(0, "no name is held or waited for", "ls")
}

// bounded is a command that runs for no longer than that. One that waits forever prints its stacks
// when it is ended.
func bounded(t *testing.T, d time.Duration, bin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(await.Bounded(t, d), bin, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGABRT) }
	return cmd
}

// begin starts a command, and returns the standard output of it and of everything that it starts,
// and the standard error too if both is set. A process may keep that open forever: then its end is
// an error.
func begin(t *testing.T, cmd *exec.Cmd, both bool) io.Reader {
	t.Helper()
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Stdout = write; both {
		cmd.Stderr = write
	}
	err = cmd.Start()
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	out.SetReadDeadline(time.Now().Add(10 * time.Minute))
	return out
}

// over waits until a command and everything that it started has ended, for at most a minute.
func over(t *testing.T, out io.Reader) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, out)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the output of a command that was ended: %v", err)
		}
	case <-time.After(await.Patience):
		t.Fatalf("a process that the command started still has its output open, a minute after its end")
	}
}
