//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dlock-go/dlock"
)

// shells are those of this machine that have job control.
func shells(t *testing.T) (paths []string) {
	t.Helper()
	for _, name := range []string{"sh", "bash"} {
		if path, err := exec.LookPath(name); err == nil {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		t.Fatal("no shell at all")
	}
	return paths
}

// eachShell runs the test under each shell.
func eachShell(t *testing.T, test func(t *testing.T, l locks, shell string)) {
	for _, shell := range shells(t) {
		t.Run(filepath.Base(shell), func(t *testing.T) { test(t, newLocks(t), shell) })
	}
}

// desk is a shell at a terminal.
type desk struct {
	*exec.Cmd
	t        *testing.T
	keyboard *os.File
	*screen
}

const prompt = "ready> "

// sit starts the program at a terminal, with the environment of the locks.
func (l locks) sit(program string, args ...string) desk {
	l.t.Helper()
	cmd, _, _ := l.command(args...)
	cmd.Path, cmd.Args = program, append([]string{program}, args...)
	cmd.Env = append(cmd.Env, "PS1="+prompt, "ENV=", "HISTFILE=", "TERM=dumb", "LC_ALL=C")
	terminal := l.startAtTerminal(cmd)
	return desk{cmd, l.t, terminal, newScreen(l.t, terminal)}
}

// shellAt is a shell whom a user types to.
func (l locks) shellAt(shell string) desk {
	l.t.Helper()
	args := []string{"-i"}
	if filepath.Base(shell) == "bash" {
		args = []string{"--norc", "--noprofile", "--noediting", "-i"}
	}
	d := l.sit(shell, args...)
	d.until(prompt)
	return d
}

// front is the process group that has the terminal.
func (d desk) front() int {
	d.t.Helper()
	group, err := unix.IoctlGetInt(int(d.keyboard.Fd()), unix.TIOCGPGRP)
	if err != nil {
		d.t.Fatal(err)
	}
	return group
}

// await waits until there is such a process at the terminal.
func (d desk) await(like func(process) bool) process {
	d.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, p := range processes() {
			if p.session == d.Process.Pid && like(p) {
				return p
			}
		}
	}
	d.t.Fatal("there is no such process")
	return process{}
}

// awaitStopped waits until the job that a shell at the terminal has behind it is stopped, all of
// it: a process that stopped after fg, as its command did before, would stop the job again.
func (d desk) awaitStopped() {
	d.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stopped, running := 0, 0
		for _, p := range processes() {
			switch {
			case p.session != d.Process.Pid || p.pid == d.Process.Pid || p.dead:
			case p.stopped:
				stopped++
			default:
				running++
			}
		}
		if stopped > 0 && running == 0 {
			return
		}
	}
	d.t.Fatal("the job is not stopped")
}

// text is what was shown since the last call.
func (d desk) text() string {
	d.t.Helper()
	d.key("echo thus far | tr t T\n")
	return d.until("Thus far\r\n")
}

func (d desk) key(text string) {
	d.t.Helper()
	if _, err := io.WriteString(d.keyboard, text); err != nil {
		d.t.Fatal(err)
	}
}

// log is a file that a command writes to for as long as it runs.
type log struct {
	t    *testing.T
	path string
}

func newLog(t *testing.T) log { return log{t, filepath.Join(t.TempDir(), "log")} }

// writer is the shell command that writes to it.
func (f log) writer() string {
	return `while :; do echo x >>` + f.path + `; sleep 0.01; done`
}

func (f log) lines() int {
	b, _ := os.ReadFile(f.path)
	return strings.Count(string(b), "\n")
}

// grows waits until something is written.
func (f log) grows() {
	f.t.Helper()
	for had, end := f.lines(), time.Now().Add(30*time.Second); f.lines() == had; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatal("the command does not run")
		}
	}
}

// rests waits until nothing is written any more.
func (f log) rests() {
	f.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		had := f.lines()
		if time.Sleep(300 * time.Millisecond); f.lines() == had {
			return
		}
		if time.Now().After(end) {
			f.t.Fatal("the command runs on")
		}
	}
}

// awaitEnding waits, where /proc says it, until the command that writes has SIGTERM pending: on a
// busy machine the guard may be late.
func (f log) awaitEnding() {
	f.t.Helper()
	if runtime.GOOS != "linux" {
		return
	}
	for end := time.Now().Add(30 * time.Second); !f.ending(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatal("what goes on when it is continued has no SIGTERM to end it")
		}
	}
}

// ending reports whether each shell that runs the writer has SIGTERM pending.
func (f log) ending() bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	found := false
	for _, path := range lines {
		b, _ := os.ReadFile(path)
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if len(args) != 3 || args[0] != "sh" || !strings.HasSuffix(args[2], f.writer()) {
			continue
		}
		found = true
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		m := regexp.MustCompile(`(?m)^ShdPnd:\s*([0-9a-f]+)$`).FindSubmatch(status)
		if m == nil {
			return false
		}
		if pending, err := strconv.ParseUint(string(m[1]), 16, 64); err != nil || pending>>(syscall.SIGTERM-1)&1 == 0 {
			return false
		}
	}
	return found
}

// wantAlone takes the lock, and wants that nothing is written while it is held.
func (l locks) wantAlone(f log) {
	l.t.Helper()
	out := l.want(0, "", "run", "--wait", "1m", "a", "--", "sh", "-c", `wc -l <`+f.path+`; sleep 0.5; wc -l <`+f.path)
	if n := strings.Fields(out); len(n) != 2 || n[0] != n[1] {
		l.t.Errorf("while another one held the lock, the command ran: %q", n)
	}
}

// jobs are the ways in which a user may start a command that writes to a log.
func jobs(f log, flags string) map[string]string {
	w := `"$DLOCK" run ` + flags + ` a -- sh -c '` + f.writer() + `'`
	return map[string]string{
		"alone":             w,
		"in a pipe":         w + ` </dev/null | cat`,
		"behind a pipe":     `yes | ` + w,
		"it ignores Ctrl-Z": `"$DLOCK" run ` + flags + ` a -- sh -c 'trap "" TSTP; ` + f.writer() + `' | cat`,
		"nested":            `"$DLOCK" run ` + flags + ` b -- ` + w,
		"in a script":       `sh -c 'x=1; "$DLOCK" run ` + flags + ` a -- sh -c "` + f.writer() + `"; true'`,
	}
}

// TestCtrlZStopsBoth: while the job is stopped, its hold expires, and another run gets the lock.
// When the job goes on, the command ends, and does nothing else before.
func TestCtrlZStopsBoth(t *testing.T) {
	eachShell(t, func(t *testing.T, _ locks, shell string) {
		for name := range jobs(log{}, "") {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				l, f := newLocks(t), newLog(t)
				d := l.shellAt(shell)
				d.key(jobs(f, "--ttl 3s")[name] + "\n")
				f.grows()
				d.key("\x1a")
				d.until("topped")
				l.wantAlone(f)
				f.awaitEnding()
				had := f.lines()
				d.key("fg; echo over\n")
				d.until("over\r\n")
				d.until("over\r\n")
				if n := f.lines() - had; n > 0 {
					t.Errorf("after the loss it wrote %d times", n)
				}
				l.wantFree()
			})
		}
	})
}

// TestFgInTimeGoesOn: a job that was stopped for less than its TTL goes on, under the same hold.
func TestFgInTimeGoesOn(t *testing.T) {
	eachShell(t, func(t *testing.T, l locks, shell string) {
		f := newLog(t)
		d := l.shellAt(shell)
		d.key(`"$DLOCK" run --ttl 1m a -- sh -c '` + f.writer() + `' | cat` + "\n")
		f.grows()
		token := regexp.MustCompile(`\d{9,}`)
		before := token.FindString(l.want(0, "", "inspect", "a"))
		job := d.front()
		for _, on := range []string{"fg", "bg"} {
			d.key("\x1a")
			d.until(prompt)
			f.rests()
			d.key(on + "\n")
			f.grows()
		}
		if after := token.FindString(l.want(0, "", "inspect", "a")); before == "" || after != before {
			t.Errorf("another hold: token %s, and before %s", after, before)
		}
		d.key("fg\n")
		for end := time.Now().Add(30 * time.Second); d.front() != job && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
		d.key("\x03")
		f.rests()
		l.wantFree()
	})
}

// keeper waits until a command has written its parent, which is dlock, to a file.
func keeper(t *testing.T, path string) int {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		b, _ := os.ReadFile(path)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && strings.HasSuffix(string(b), "\n") {
			return pid
		}
	}
	t.Fatal("the command does not run")
	return 0
}

// started are the ways in which dlock is started: each function starts "dlock run" with the
// arguments, and returns a function that waits for its exit status.
var started = map[string]func(l locks, args ...string) (status func() int){
	"without a terminal": func(l locks, args ...string) func() int {
		h := l.start(args...)
		return func() int { status, _ := h.rest(); return status }
	},
	"by a shell": func(l locks, args ...string) func() int {
		d := l.shellAt(shells(l.t)[0])
		var quoted []string
		for _, a := range args {
			quoted = append(quoted, "'"+strings.ReplaceAll(a, "'", `'\''`)+"'")
		}
		d.key(`"$DLOCK" run ` + strings.Join(quoted, " ") + "\n")
		d.until("\r\n")
		return func() int {
			// the shell reports how a job ended if it saw the job stop
			for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
				if strings.Contains(d.text(), strconv.Itoa(statusLost)) {
					return statusLost
				}
			}
			return 0
		}
	},
	"as the leader of a terminal": func(l locks, args ...string) func() int {
		cmd, terminal := l.atTerminal(append([]string{"run"}, args...)...)
		newScreen(l.t, terminal)
		return func() int { cmd.Wait(); return cmd.ProcessState.ExitCode() }
	},
	"around another run": func(l locks, args ...string) func() int {
		cut := slices.Index(args, "--") + 1
		args = slices.Concat(args[:cut], []string{os.Args[0], "run", "inner", "--"}, args[cut:])
		h := l.start(args...)
		return func() int { status, _ := h.rest(); return status }
	},
	"within another run": func(l locks, args ...string) func() int {
		h := l.start(append([]string{"around", "--", os.Args[0], "run"}, args...)...)
		return func() int { status, _ := h.rest(); return status }
	},
}

// TestAStopOfDlockAlone stops the command too. It goes on when dlock does, if the lock is still
// held then.
func TestAStopOfDlockAlone(t *testing.T) {
	for how, start := range started {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			l, f, pidFile := newLocks(t), newLog(t), filepath.Join(t.TempDir(), "pid")
			// the command and what it starts ignore SIGTERM, and have groups of their own
			own := "set -m; "
			if how == "by a shell" {
				own = "" // that would want the terminal, which it has no more
			}
			script := `trap "" TERM; echo $PPID >` + pidFile + `; ` + own + `sh -c '` + f.writer() + `'; true`
			status := start(l, "--ttl", "3s", "--grace", "200ms", "a", "--", "sh", "-c", script)
			pid := keeper(t, pidFile)
			if how == "around another run" {
				p, _ := processOf(pid)
				pid = p.parent
			}
			f.grows()
			syscall.Kill(pid, syscall.SIGSTOP)
			f.rests()
			syscall.Kill(pid, syscall.SIGCONT)
			f.grows()
			syscall.Kill(pid, syscall.SIGSTOP)
			l.wantAlone(f)
			syscall.Kill(pid, syscall.SIGCONT)
			if got := status(); got != statusLost {
				t.Errorf("exit status %d", got)
			}
			f.rests()
			l.wantFree()
		})
	}
}

// TestAStopOfTheWholeGroup by a signal: when the group goes on after the end of trust, the command
// ends at once, although SIGCONT reaches it before dlock can verify the lock.
func TestAStopOfTheWholeGroup(t *testing.T) {
	eachShell(t, func(t *testing.T, l locks, shell string) {
		f, pidFile := newLog(t), filepath.Join(t.TempDir(), "pid")
		d := l.shellAt(shell)
		d.key(`"$DLOCK" run --ttl 3s a -- sh -c 'echo $PPID >` + pidFile + `; ` + f.writer() + `'` + "\n")
		group, _ := syscall.Getpgid(keeper(t, pidFile))
		f.grows()
		syscall.Kill(-group, syscall.SIGSTOP)
		d.until("topped")
		l.wantAlone(f)
		f.awaitEnding()
		had := f.lines()
		d.key("fg; echo status $?\n")
		d.until("status " + strconv.Itoa(statusLost) + "\r\n")
		if n := f.lines() - had; n > 0 {
			t.Errorf("after the loss it wrote %d times", n)
		}
	})
}

// TestACommandThatIsStoppedAlone: the shell sees a job that is stopped, and continues both.
func TestACommandThatIsStoppedAlone(t *testing.T) {
	eachShell(t, func(t *testing.T, l locks, shell string) {
		d := l.shellAt(shell)
		d.key(`"$DLOCK" run a -- sh -c 'kill -STOP $$; echo went on'` + "\n")
		d.until("topped")
		d.until(prompt)
		d.key("fg\n")
		d.until("went on\r\n")
		d.until(prompt)
		l.wantFree()
	})
	// without a shell dlock keeps the lock, and waits for the command
	l := newLocks(t)
	h := l.hold("--ttl", "3s", "a", "--", "sh", "-c", `echo up; kill -STOP $$; echo went on`)
	var stopped process
	for end := time.Now().Add(20 * time.Second); !stopped.stopped && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, p := range processes() {
			if p.parent == h.Process.Pid && p.stopped {
				stopped = p
			}
		}
	}
	l.want(statusHeld, "held", "run", "--wait", "4s", "a", "--", "true")
	syscall.Kill(stopped.pid, syscall.SIGCONT)
	if status, out := h.rest(); status != 0 || out != "went on\n" {
		t.Errorf("exit status %d, %q, %s", status, out, h.errOut)
	}
}

// TestAStaleProofContinuesNothing: dlock proved the lock, was stopped before it reported that, and
// reports it when it is continued.
func TestAStaleProofContinuesNothing(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 1000; true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	g := guarded{tree: tree{outside: map[int]uint64{}}}
	say := func(format string, args ...any) {
		t.Helper()
		if err := g.hear(fmt.Sprintf(format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	session, _ := unix.Getsid(0)
	say("keeper %d %d", cmd.Process.Pid, session)
	for end := time.Now().Add(30 * time.Second); len(g.members()) == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	defer g.force(syscall.SIGKILL)
	g.hold()
	stands := func() bool { ms := g.members(); return len(ms) == 1 && ms[0].stopped }
	for end := time.Now().Add(30 * time.Second); !stands() && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a signal takes effect some time after it was sent
	}
	say("until %d %d", monotonic()-1, monotonic()+time.Hour)
	if !stands() {
		t.Error("an expired proof continues the command")
	}
	say("continue")
	if !stands() {
		t.Error("after an expired proof the command is continued")
	}
	say("until %d %d", monotonic()+time.Hour, monotonic()+2*time.Hour)
	if stands() {
		t.Error("a proof does not continue the command")
	}
}

// TestOnlyARenewalIsAProof: an unknown outcome is not a proof.
func TestOnlyARenewalIsAProof(t *testing.T) {
	r := newRelay(func(os.Signal) {})
	defer r.stop()
	r.noteRenewal(dlock.Renewal{Holds: 1, Unknown: 1})
	r.noteRenewal(dlock.Renewal{Holds: 1, Lost: 1})
	if len(r.renewed) != 0 {
		t.Error("a failed renewal is taken for a proof")
	}
	if r.noteRenewal(dlock.Renewal{Holds: 1}); len(r.renewed) != 1 {
		t.Error("a renewal is not reported")
	}
}

// TestAKilledGuardIsReplaced: the next guard stops the command with dlock too, even if dlock is
// stopped as soon as that guard runs.
func TestAKilledGuardIsReplaced(t *testing.T) {
	l, f := newLocks(t), newLog(t)
	h := l.start("--ttl", "3s", "a", "--", "sh", "-c", f.writer())
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
	if first == 0 {
		t.Fatal("no guard")
	}
	syscall.Kill(first, syscall.SIGKILL)
	for end := time.Now().Add(20 * time.Second); guard() == first || guard() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no other guard")
		}
	}
	h.Process.Signal(syscall.SIGSTOP)
	l.wantAlone(f)
	h.Process.Signal(syscall.SIGCONT)
	if status, _ := h.rest(); status != statusLost {
		t.Errorf("exit status %d, %s", status, h.errOut)
	}
}

// TestAKilledRunTakesAllAlong: the command and all it started.
func TestAKilledRunTakesAllAlong(t *testing.T) {
	l, f := newLocks(t), newLog(t)
	h := l.start("a", "--", "sh", "-c", `sh -c '`+f.writer()+`' & `+`wait`)
	f.grows()
	h.Process.Kill()
	h.rest()
	f.rests()
	l.want(0, "in\n", "run", "--wait", "20s", "a", "--", "echo", "in")
}
