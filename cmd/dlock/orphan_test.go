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
)

// TestOrphansAreReaped while the command runs and while dlock waits for the lock: as process 1 of a
// container dlock is the parent of all orphans.
func TestOrphansAreReaped(t *testing.T) {
	l := newLocks(t)
	h := l.hold("a", "--", "sh", "-c", waitForLine)
	for _, name := range []string{"free", "a"} {
		cmd, _, _ := l.command("run", name, "--", "sh", "-c", "for i in 1 2 3 4 5; do (sleep 1000 &); done; exec tail -f /dev/null")
		// a shell leaves processes behind before it becomes dlock, and so does the command
		cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `for i in 1 2 3; do sleep 1000 & done; exec "$@"`, "sh", os.Args[0]}, cmd.Args[1:]...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if name == "a" {
			l.until(`"waiters": [
      {`)
		}
		// first the children of the shell, later those that the command has left
		children := func() (all []int) {
			for _, p := range processes() {
				if p.parent == cmd.Process.Pid && p.name == "sleep" {
					all = append(all, p.pid)
				}
			}
			return all
		}
		want, ended := map[string]int{"free": 8, "a": 3}[name], false
		for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			left := children()
			if ended && len(left) == 0 {
				break
			}
			if !ended && len(left) == want {
				for _, pid := range left {
					syscall.Kill(pid, syscall.SIGKILL)
				}
				ended = true
			}
			if time.Since(begin) > time.Minute {
				t.Fatalf("%s: %d children of %d, ended: %v; want all of them, and none once they have ended", name, len(left), want, ended)
			}
		}
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}
	h.in.Close()
	h.rest()
	l.wantFree()
}

// asRoot makes the test binary one that becomes root for good and does not end, if it may.
const asRoot = "DLOCK_TEST_AS_ROOT"

func init() {
	if os.Getenv(asRoot) == "" {
		return
	}
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("up")
	time.Sleep(time.Minute)
	os.Exit(0)
}

// TestACommandThatBecameRoot: it cannot be ended, and a warning that names it says so at once. (The
// test needs a user that is not root, and a program that makes it root: it makes both, as root.)
func TestACommandThatBecameRoot(t *testing.T) {
	if os.Getuid() != 0 {
		// the base of the test: a process of another user is recognized
		g := tree{command: 1, keeper: 0}
		if ms := g.outOfReach(); len(ms) == 0 {
			t.Error("process 1 is not out of reach")
		}
		return
	}
	const user = 65534
	dir, err := os.MkdirTemp("/tmp", "dlock-root")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	plain, root, state := filepath.Join(dir, "plain"), filepath.Join(dir, "root"), filepath.Join(dir, "state")
	for path, mode := range map[string]os.FileMode{plain: 0o755, root: 0o755 | os.ModeSetuid} {
		if err := os.WriteFile(path, self, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(state, user, user); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) *exec.Cmd {
		cmd, _, _, _ := command(t, args...)
		cmd.Path, cmd.Dir = plain, "/"
		cmd.Env = append(cmd.Env, "DLOCK_URL=file://"+state+"/locks", "TMPDIR=/tmp", "GOCOVERDIR=/tmp")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		return cmd
	}
	cmd := run("run", "--ttl", "3s", "--grace", "100ms", "a", "--", "env", asRoot+"=1", root)
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if b := make([]byte, 3); true {
		if _, err := io.ReadFull(out, b); err != nil || string(b) != "up\n" {
			t.Fatalf("%q, %v, %s", b, err, cmd.Stderr)
		}
	}
	var command process
	for _, p := range processes() {
		if p.parent == cmd.Process.Pid && p.name == "root" {
			command = p
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	breaks := run("break", "--yes", "--force", "a")
	if err := breaks.Run(); err != nil {
		t.Fatalf("%v, %s%s", err, breaks.Stdout, breaks.Stderr)
	}
	time.AfterFunc(3*time.Second, func() { syscall.Kill(command.pid, syscall.SIGKILL) })
	cmd.Wait()
	got := fmt.Sprint(cmd.Stderr)
	for _, want := range []string{fmt.Sprintf("process %d (root) belongs to another user, and cannot be sent terminated", command.pid),
		fmt.Sprintf("process %d (root) belongs to another user, and cannot be ended: it goes on without the lock", command.pid)} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if status := cmd.ProcessState.ExitCode(); status != statusLost {
		t.Errorf("exit status %d", status)
	}
}
