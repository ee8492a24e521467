//go:build linux || darwin

package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	childEnv = "DLOCK_FILE_TEST_CHILD" // the directory: this process is a child of a test
	bootEnv  = "DLOCK_FILE_TEST_BOOT"  // its boot ID
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		serve(dir)
		os.Exit(0)
	}
	if dir := os.Getenv(userEnv); dir != "" {
		asUser(dir)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve obeys commands, a line each, and answers each with a line:
//
//	acquire NAME TTL [fixed], try NAME TTL, release, renew; spawn a program; clock reads it;
//	limit BYTES: no file can grow beyond that, as on a full disk;
//	stop STEP: the next pass of that step sends SIGSTOP to this process;
//	work NAMES: locks and unlocks, checked by the witnesses, until it reads "done".
func serve(dir string) {
	c := booted(os.Getenv(bootEnv))
	var step atomic.Pointer[string]
	c.at = func(s string) {
		if p := step.Load(); p != nil && *p == s {
			step.Store(nil)
			stopHere()
		}
	}
	b, err := newBackend(dir, "", c)
	if err != nil {
		fmt.Println("open:", err)
		return
	}
	fmt.Println("ready")
	var r driver.Request
	commands := make(chan string, 1)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			commands <- in.Text()
		}
		os.Exit(1) // the test has ended, and so does this process, whatever it waits for
	}()
	for command := range commands {
		f := strings.Fields(command)
		var answer any = "ok"
		switch f[0] {
		case "acquire":
			ttl, _ := time.ParseDuration(f[2])
			r = request(f[1], ttl)
			r.Fixed = len(f) > 3
			if g, err := b.Acquire(context.Background(), r); err != nil {
				answer = err
			} else {
				answer = g.Token
			}
		case "try": // beside what it holds
			ttl, _ := time.ParseDuration(f[2])
			t := request(f[1], ttl)
			t.Wait = false
			if g, err := b.Acquire(context.Background(), t); err != nil {
				answer = err
			} else {
				answer = g.Token
			}
		case "limit":
			signal.Ignore(syscall.SIGXFSZ)
			l := syscall.Rlimit{Max: 1 << 40}
			l.Cur, _ = strconv.ParseUint(f[1], 10, 64)
			if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &l); err != nil {
				answer = err
			}
		case "release":
			if err := b.Release(context.Background(), r); err != nil {
				answer = err
			}
		case "renew":
			if err := renew(b, r); err != nil {
				answer = err
			}
		case "spawn":
			cmd := exec.Command("sleep", "60")
			if err := cmd.Start(); err != nil {
				answer = err
			} else {
				answer = cmd.Process.Pid
			}
		case "clock":
			if now, err := monotonic(); err != nil {
				answer = err
			} else {
				answer = now
			}
		case "stop":
			step.Store(&f[1])
		case "work":
			names, _ := strconv.Atoi(f[1])
			answer = work(b, dir, names, commands)
		}
		fmt.Println(answer)
	}
}

// child is a process that runs serve.
type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	// bounds the next reading of out, which ends with an error then
	readBy func(time.Time) error
}

func start(t testing.TB, dir string) *child { return startBoot(t, dir, boot1) }

func startBoot(t testing.TB, dir, boot string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+dir, bootEnv+"="+boot)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t, cmd, in, bufio.NewReader(out), out.(*os.File).SetReadDeadline}
	t.Cleanup(c.kill)
	if s := c.read(); s != "ready" {
		t.Fatalf("child: %s", s)
	}
	return c
}

func (c *child) send(format string, args ...any) { fmt.Fprintf(c.in, format+"\n", args...) }

func (c *child) read() string {
	const patience = 2 * time.Minute
	c.readBy(time.Now().Add(patience))
	s, err := c.out.ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Sprintf("nothing, for %s", patience)
	}
	return strings.TrimSuffix(s, "\n")
}

func (c *child) do(format string, args ...any) string {
	c.send(format, args...)
	return c.read()
}

func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// stopped waits until the process is stopped. The kernel reports each stop once.
func (c *child) stopped() {
	c.t.Helper()
	eventually(c.t, "the child is stopped", func() bool {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(c.cmd.Process.Pid, &status, syscall.WUNTRACED|syscall.WNOHANG, nil)
		return err == nil && pid == c.cmd.Process.Pid && status.Stopped()
	})
}
