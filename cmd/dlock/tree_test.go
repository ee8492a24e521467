//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestASignalEndsWhatLeftTheGroup before the lock is released: a process that timeout starts has a
// group of its own. It is killed after grace if it ignores the signal.
func TestASignalEndsWhatLeftTheGroup(t *testing.T) {
	for _, ignores := range []string{"", `trap "" TERM; `} {
		l, f := newLocks(t), newLog(t)
		h := l.start("--grace", "300ms", "a", "--", "sh", "-c", `timeout 60 sh -c '`+ignores+f.writer()+`'; echo on`)
		f.grows()
		h.Process.Signal(syscall.SIGTERM)
		h.Process.Wait()
		had := f.lines()
		if time.Sleep(300 * time.Millisecond); f.lines() != had {
			t.Error("the lock is released, and what the command started runs on")
		}
		if _, out := h.rest(); out != "" {
			t.Errorf("%q", out)
		}
		l.wantFree()
	}
}

// TestWhatACommandLeavesIsItsOwnAffair if no signal has ended the command.
func TestWhatACommandLeavesIsItsOwnAffair(t *testing.T) {
	l, f := newLocks(t), newLog(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	l.want(0, "", "run", "a", "--", "sh", "-c", `sh -c '`+f.writer()+`' >/dev/null 2>&1 & echo $! >`+pidFile)
	pid := keeper(t, pidFile)
	defer syscall.Kill(pid, syscall.SIGKILL)
	f.grows()
	l.wantFree()
}

// inGroups is a script with two processes that report SIGTERM, one of them in a group of its own.
func inGroups(t *testing.T) (shell, script string) {
	t.Helper()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no shell with job control without a terminal")
	}
	return shell, `set -m; bash -c 'trap "echo job; exit" TERM; echo up; while :; do sleep 0.01; done' & trap "echo main" TERM; wait; wait`
}

// TestSignalsReachOtherGroupsOnce, also through a run in the command.
func TestSignalsReachOtherGroupsOnce(t *testing.T) {
	shell, script := inGroups(t)
	for _, inner := range []bool{false, true} {
		l := newLocks(t)
		args := []string{"a", "--", shell, "-c", script}
		if inner {
			args = append([]string{"b", "--", os.Args[0], "run"}, args...)
		}
		h := l.hold(args...)
		h.Process.Signal(syscall.SIGTERM)
		if _, out := h.rest(); strings.Count(out, "job\n") != 1 || strings.Count(out, "main\n") != 1 {
			t.Errorf("within another run %t: %q, %s", inner, out, h.errOut)
		}
		l.wantFree()
	}
}

// TestALossAsksOtherGroups before it kills them.
func TestALossAsksOtherGroups(t *testing.T) {
	shell, script := inGroups(t)
	l := newLocks(t)
	h := l.hold("a", "--", shell, "-c", script)
	l.want(0, "", "break", "--yes", "--force", "a")
	if status, out := h.rest(); status != statusLost || strings.Count(out, "job\n") != 1 {
		t.Errorf("exit status %d, %q, %s", status, out, h.errOut)
	}
}

// TestWhatAKilledGuardHeldGoesOn, in each group.
func TestWhatAKilledGuardHeldGoesOn(t *testing.T) {
	l, f := newLocks(t), newLog(t)
	h := l.start("a", "--", "sh", "-c", `timeout 60 sh -c '`+f.writer()+`'; true`)
	f.grows()
	h.Process.Signal(syscall.SIGSTOP)
	f.rests()
	for _, p := range processes() {
		if p.parent == h.Process.Pid && p.session == p.pid {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	h.Process.Signal(syscall.SIGCONT)
	f.grows()
	h.Process.Signal(syscall.SIGTERM)
	h.rest()
	l.wantFree()
}

// TestAGuardThatCannotBeStarted because there are no free files: what the killed guard had stopped
// goes on, and another guard is started when there are files.
func TestAGuardThatCannotBeStarted(t *testing.T) {
	l, f := newLocks(t), newLog(t)
	h := l.start("a", "--", "sh", "-c", f.writer())
	f.grows()
	guard := func() int {
		for _, p := range processes() {
			if p.parent == h.Process.Pid && p.session == p.pid && !p.dead {
				return p.pid
			}
		}
		return 0
	}
	first := guard()
	h.Process.Signal(syscall.SIGSTOP)
	f.rests()
	var before unix.Rlimit
	if err := unix.Prlimit(h.Process.Pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	// a guard needs two pipes, a renewal fewer files
	few := before
	few.Cur = uint64(firstFree(t, h.Process.Pid, 2))
	if err := unix.Prlimit(h.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	syscall.Kill(first, syscall.SIGKILL)
	h.Process.Signal(syscall.SIGCONT)
	f.grows()
	if guard() != 0 {
		t.Fatal("a guard was started without files")
	}
	unix.Prlimit(h.Process.Pid, unix.RLIMIT_NOFILE, &before, nil)
	h.Process.Signal(syscall.SIGCONT) // which has dlock prove the lock
	for end := time.Now().Add(20 * time.Second); guard() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no other guard")
		}
	}
	h.Process.Signal(syscall.SIGSTOP)
	f.rests()
	h.Process.Signal(syscall.SIGCONT)
	f.grows()
	h.Process.Signal(syscall.SIGTERM)
	if h.rest(); strings.Count(h.errOut.String(), "no other one can be started") != 1 {
		t.Errorf("%s", h.errOut)
	}
	l.wantFree()
}

// firstFree is the limit of file numbers with which n are free in the process.
func firstFree(t *testing.T, pid, n int) (limit int) {
	t.Helper()
	for ; n > 0; limit++ {
		if _, err := os.Lstat(filepath.Join("/proc", strconv.Itoa(pid), "fd", strconv.Itoa(limit))); err != nil {
			n--
		}
	}
	return limit
}

// TestWhatWasThereBeforeTheCommand is neither stopped nor ended with it: a shell starts it, and
// becomes dlock.
func TestWhatWasThereBeforeTheCommand(t *testing.T) {
	l, beside, f := newLocks(t), newLog(t), newLog(t)
	cmd, _, _ := l.command()
	script := `sh -c '` + beside.writer() + `' & exec "$DLOCK" run --grace 100ms a -- sh -c '` + f.writer() + `'`
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script}
	cmd.Stdout, cmd.Stderr = nil, nil // the shell's other child would keep them open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	f.grows()
	cmd.Process.Signal(syscall.SIGSTOP)
	f.rests()
	beside.grows()
	cmd.Process.Signal(syscall.SIGCONT)
	f.grows()
	l.want(0, "", "break", "--yes", "--force", "a")
	if cmd.Wait(); cmd.ProcessState.ExitCode() != statusLost {
		t.Error(cmd.ProcessState)
	}
	beside.grows()
	f.rests()
}

// TestANumberThatIsUsedAgain: after the end of the command another process may get its number. That
// process is not part of the tree while dlock runs.
func TestANumberThatIsUsedAgain(t *testing.T) {
	other := os.Getppid()
	if ms := (tree{keeper: os.Getpid(), session: -1, command: other}).members(); len(ms) > 0 {
		t.Errorf("%+v", ms)
	}
	if ms := (tree{keeper: 1 << 30, session: -1, command: other}).members(); len(ms) != 1 || ms[0].pid != other {
		t.Errorf("of a command whose keeper was killed: %+v", ms)
	}
}

// TestRootMakesNothingInAnothersHome: its owner could not use it.
func TestRootMakesNothingInAnothersHome(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	home := t.TempDir()
	const user = 65534
	if err := os.Chown(home, user, user); err != nil {
		t.Fatal(err)
	}
	cmd, _, errOut, _ := command(t, "run", "a", "--", "true")
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME=", "HOME="+home)
	cmd.Run()
	if cmd.ProcessState.ExitCode() != statusRunFailed || !strings.Contains(errOut.String(), "sudo -u '#"+strconv.Itoa(user)) {
		t.Errorf("%s, %s", cmd.ProcessState, errOut)
	}
	wantEmpty(t, home)
}
