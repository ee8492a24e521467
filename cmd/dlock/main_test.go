package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/cmd/dlock/internal/demo"
)

// asCommand makes the test binary the command itself, and the shops that it starts too. So the race
// detector watches them, and results of tests are not cached over changes of the command.
const asCommand = "DLOCK_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	// Under nohup all processes that the tests start would ignore it too.
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	os.Exit(m.Run())
}

// command is the command with temporary files in a folder of the test.
func command(t *testing.T, args ...string) (cmd *exec.Cmd, out, errOut *strings.Builder, dir string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, out, errOut = t.TempDir(), new(strings.Builder), new(strings.Builder)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, program, args...)
	// GORACE: the default is a second
	environ := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DLOCK_URL=") })
	cmd.Env = append(environ, asCommand+"=1", "TMPDIR="+dir, "TMP="+dir, "GORACE=atexit_sleep_ms=10", "DLOCK_OWNER=", "DLOCK_OUTER=", "DLOCK_RUN=", "DLOCK="+program)
	cmd.Stdout, cmd.Stderr = out, errOut
	return cmd, out, errOut, dir
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil || len(es) > 0 {
		t.Errorf("left behind in the temporary folder: %v, %v", es, err)
	}
}

func TestDemoSellsExactlyTheStock(t *testing.T) {
	cmd, out, errOut, dir := command(t, "demo", "--shops", "3", "--buyers", "60", "--stock", "20", "--think", "1ms")
	if err := cmd.Run(); err != nil || errOut.Len() > 0 {
		t.Errorf("%v, %s\n%s", err, errOut, out)
	}
	for _, want := range []string{"the stock was 20: oversold by ", "is killed in the middle", "sold 20, the stock was 20: oversold by 0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("control characters: %q", out)
	}
	wantEmpty(t, dir)
}

func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"demo --shops 1", "2 to 100 are allowed"},
		{"demo --shops x", "see dlock demo --help"},
		{"demo --buyers 10", "67 to 100000 are allowed"},
		{"demo --think -1s", "0s or more is allowed"},
		{"demo --url memory:x", "separate processes"},
		{"demo --url nosuch://u:canary@h", `unknown scheme "nosuch"; known here: etcd, etcds, file, mariadb`},
		{"demo --nosuch", "unknown flag: --nosuch; see dlock demo --help"},
		{"demo extra", `unexpected argument "extra"; see dlock demo --help`},
		{"demo redis://u:canary@h", "--url and DLOCK_URL name the backend"},
		{"redis://u:canary@h", "--url and DLOCK_URL name the backend"},
		{"nosuch", `unknown command "nosuch"`},
		{"ls --url=", "--url is empty; without it DLOCK_URL names the backend"},
		{"migrate --url=", "--url is empty; without it DLOCK_URL names the backend"},
		{"run a -- true", "DLOCK_URL is empty; unset it to lock in a folder of this user"},
	} {
		cmd, out, errOut, dir := command(t, strings.Fields(c.args)...)
		cmd.Env = append(cmd.Env, "DLOCK_URL=") // as of a variable of a script that is not set
		cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != statusUsage || out.Len() > 0 || !strings.Contains(errOut.String(), c.want) {
			t.Errorf("dlock %s: exit status %d, %q, want %q on standard error:\n%s", c.args, got, out, c.want, errOut)
		}
		if strings.Contains(errOut.String(), "canary") {
			t.Errorf("dlock %s shows the password: %s", c.args, errOut)
		}
		wantEmpty(t, dir)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for args, want := range map[string]string{
		"":            "  demo        A flash sale",
		"--help":      "  run         Run a command under a lock",
		"run --help":  "  124  the lock was not obtained",
		"demo --help": "Examples:\n  dlock demo\n",
		"--version":   "dlock version ",
		// for the shell
		"completion bash": "__start_dlock",
	} {
		cmd, out, errOut, _ := command(t, strings.Fields(args)...)
		if err := cmd.Run(); err != nil || errOut.Len() > 0 || !strings.Contains(out.String(), want) {
			t.Errorf("dlock %s: %v %s, want %q in\n%s", args, err, errOut, want, out)
		}
		if strings.Contains(out.String(), demo.ShopCommand+" ") && args == "" {
			t.Errorf("the hidden command shows:\n%s", out)
		}
	}
}

func TestStatus(t *testing.T) {
	for want, errs := range map[int][]error{
		0:                 {nil},
		statusFailed:      {errors.New("sold 51 under the lock"), dlock.ErrLost, context.DeadlineExceeded},
		statusUsage:       {demo.ErrUsage, dlock.ErrInvalid, dlock.ErrInvalidName},
		statusInterrupted: {errInterrupted},
		statusLost:        {&exit{statusLost, dlock.ErrInvalid}},
	} {
		for _, err := range errs {
			if err != nil {
				err = fmt.Errorf("wrapped: %w", err)
			}
			if got := status(err); got != want {
				t.Errorf("%v: %d, want %d", err, got, want)
			}
		}
	}
}

func TestAFailureIsStatus1(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, _, errOut, dir := command(t, "demo", "--url", "file://"+file)
	cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != statusFailed || !strings.Contains(errOut.String(), "error: dlock: open (file)") {
		t.Errorf("exit status %d: %s", got, errOut)
	}
	wantEmpty(t, dir)
}
