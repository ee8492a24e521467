//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/cmd/dlock/internal/demo"
)

// startSlow starts a demo in a process group of its own, as a terminal does, and returns when it
// sells under the lock.
func startSlow(t *testing.T) (cmd *exec.Cmd, out io.Closer, errOut *strings.Builder, dir string) {
	t.Helper()
	cmd, _, errOut, dir = command(t, "demo", "--think", "50ms")
	cmd.Stdout = nil
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// processes that a failed test leaves
	t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	locked := false
	for s := bufio.NewScanner(pipe); s.Scan(); {
		locked = locked || strings.HasPrefix(s.Text(), "under dlock")
		if locked && strings.Contains(s.Text(), " sold") {
			return cmd, pipe, errOut, dir
		}
	}
	t.Fatalf("it ended: %v, %s", cmd.Wait(), errOut)
	return nil, nil, nil, ""
}

// wantNoProcess waits until no process of the group is left.
func wantNoProcess(t *testing.T, group int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := syscall.Kill(-group, 0); errors.Is(err, syscall.ESRCH) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("shops are left behind")
		}
	}
}

// TestSignalsLeaveNothingBehind: Ctrl-C goes to the whole group, a kill to the command alone.
func TestSignalsLeaveNothingBehind(t *testing.T) {
	for name, send := range map[string]func(pid int) error{
		"Ctrl-C":  func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) },
		"SIGINT":  func(pid int) error { return syscall.Kill(pid, syscall.SIGINT) },
		"SIGTERM": func(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) },
		"SIGHUP":  func(pid int) error { return syscall.Kill(-pid, syscall.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			cmd, _, errOut, dir := startSlow(t)
			if err := send(cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != statusInterrupted || errOut.String() != "error: interrupted\n" {
				t.Errorf("exit status %d: %s", got, errOut)
			}
			// The command waited for its shops: none is there any more.
			if err := syscall.Kill(-cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Error("shops are left behind:", err)
			}
			wantEmpty(t, dir)
		})
	}
}

func TestAClosedPipeLeavesNothingBehind(t *testing.T) {
	cmd, out, errOut, dir := startSlow(t)
	out.Close()
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != statusInterrupted {
		t.Errorf("exit status %d: %s", got, errOut)
	}
	wantNoProcess(t, cmd.Process.Pid)
	wantEmpty(t, dir)
}

// TestShopsDoNotOutliveTheirCoordinator: after a SIGKILL files cannot be cleaned up, but the shops
// notice the end of the coordinator.
func TestShopsDoNotOutliveTheirCoordinator(t *testing.T) {
	cmd, _, _, _ := startSlow(t)
	cmd.Process.Kill()
	cmd.Wait()
	wantNoProcess(t, cmd.Process.Pid)
}

// TestAShopIgnoresTheTerminal: a Ctrl-C reaches the shops too, but the coordinator decides when
// they end.
func TestAShopIgnoresTheTerminal(t *testing.T) {
	cmd, _, errOut, dir := command(t, demo.ShopCommand)
	cmd.Stdout = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "stock"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(in, "{\"Dir\": %q, \"Shop\": 1, \"Buyers\": 1}", dir)
	events := bufio.NewScanner(out)
	if !events.Scan() || events.Text() != `{"Kind":"ready"}` {
		t.Errorf("the first event is %q", events.Text())
	}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
	fmt.Fprintln(in, `"start"`)
	last := ""
	for events.Scan() {
		last = events.Text()
	}
	if err := cmd.Wait(); err != nil || last != `{"Kind":"done"}` {
		t.Errorf("%v, %s, the last event is %q", err, errOut, last)
	}
}
