package service

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Program is a program for a child process: a second client that can be stopped as a whole, or
// killed. It talks to the test in lines.
type Program struct{ name string }

var programs = map[string]func(in *bufio.Scanner, out io.Writer, args []string) error{}

// NewProgram names a program. It is called for a variable of the test's package, so that the child,
// which is the same test binary, finds it. The test's lines arrive on in, and the test reads the
// lines that are written to out. The process ends when main returns, with its error if that is not
// nil. main has to return when in ends: then the test is over.
func NewProgram(name string, main func(in *bufio.Scanner, out io.Writer, args []string) error) Program {
	if _, twice := programs[name]; twice {
		panic("service: two programs are called " + name)
	}
	programs[name] = main
	return Program{name}
}

// childEnv is set in a child: the program's name.
const childEnv = "DLOCK_TEST_CHILD"

func runChild(name string) int {
	main, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "there is no program %s\n", name)
		return 2
	}
	if err := main(bufio.NewScanner(os.Stdin), os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Child is a process that runs a Program. Its methods fail the test if they do not succeed.
type Child struct {
	t     T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	errs  lockedBuffer
	done  chan struct{}
}

// Start runs the program in a process of its own, which is killed when the test ends; if the test
// failed, the child's standard error is shown.
func (p Program) Start(t T, args ...string) *Child {
	t.Helper()
	run, err := begin()
	if err != nil {
		t.Fatalf("%v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir, err := os.MkdirTemp(run.folder, "child-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	c := &Child{t: t, cmd: exec.Command(self, args...), lines: make(chan string, 1024)}
	c.cmd.Dir = dir
	c.cmd.Env = append(os.Environ(), childEnv+"="+p.name)
	c.cmd.Stderr = &c.errs
	// a process that it started may keep that open
	c.cmd.WaitDelay = time.Second
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// not StdoutPipe: the child's last lines can be read after its end
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatalf("%v", err)
	}
	c.cmd.Stdout = write
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatalf("%v", err)
	}
	c.done, err = spawn(c.cmd)
	write.Close()
	if err != nil {
		t.Fatalf("%v", err)
	}
	go func() {
		defer out.Close()
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		<-c.done
		if t.Failed() && c.errs.String() != "" {
			t.Logf("the child %s wrote:\n%s", p.name, ends(c.errs.String(), 60))
		}
		os.RemoveAll(dir)
	})
	return c
}

// ID returns the child's process ID.
func (c *Child) ID() int { return c.cmd.Process.Pid }

// Say sends the child a line.
func (c *Child) Say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatalf("say %q to the child: %v%s", line, err, c.died())
	}
}

// Hear returns the child's next line, and waits for it for at most a minute.
func (c *Child) Hear() string {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.t.Fatalf("the child has nothing more to say; it wrote:\n%s", ends(c.errs.String(), 20))
		}
		return line
	case <-time.After(time.Minute):
		c.t.Fatalf("the child wrote nothing for a minute")
	}
	panic("unreachable")
}

// Heard returns the child's next line, if there is one already.
func (c *Child) Heard() (line string, is bool) {
	select {
	case line, is = <-c.lines:
	default:
	}
	return line, is
}

// Expect reads a line, and fails the test unless it is the given one.
func (c *Child) Expect(line string) {
	c.t.Helper()
	if got := c.Hear(); got != line {
		c.t.Fatalf("the child wrote %q, want %q", got, line)
	}
}

// Stop stops the child where it is, until Continue: all of its goroutines, its timers and its
// sockets.
func (c *Child) Stop() {
	c.t.Helper()
	if err := stop(c.cmd.Process); err != nil {
		c.t.Fatalf("stop the child: %v%s", err, c.died())
	}
}

// Continue undoes Stop.
func (c *Child) Continue() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		c.t.Fatalf("continue the child: %v%s", err, c.died())
	}
}

// Kill ends the child at once, stopped or not, and waits until it is gone. Its connections are
// closed by the system.
func (c *Child) Kill() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Fatalf("kill the child: %v", err)
	}
	<-c.done
}

// Wait ends the child's input, and waits until the child has ended in good order.
func (c *Child) Wait() {
	c.t.Helper()
	c.in.Close()
	select {
	case <-c.done:
	case <-time.After(time.Minute):
		c.t.Fatalf("the child does not end")
	}
	if s := c.cmd.ProcessState; !s.Success() {
		c.t.Fatalf("the child: %s; it wrote:\n%s", s, strings.TrimSpace(ends(c.errs.String(), 20)))
	}
}

// died says how the child has ended by itself; empty if it has not.
func (c *Child) died() string {
	select {
	case <-c.done:
		return fmt.Sprintf(": the child has ended by itself (%s)", c.cmd.ProcessState)
	case <-time.After(time.Second):
		return ""
	}
}

// ends returns the first and the last lines of a text: a panic begins with its reason.
func ends(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(all) <= lines {
		return strings.Join(all, "\n")
	}
	first, last := all[:lines/2], all[len(all)-lines/2:]
	return strings.Join(slices.Concat(first, []string{"..."}, last), "\n")
}

// lockedBuffer is a buffer that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
