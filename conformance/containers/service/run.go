package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Main is for TestMain, which calls it before anything else:
//
//	func TestMain(m *testing.M) { os.Exit(service.Main(m)) }
//
// It runs the tests, removes what they left, and then prints what ran on which servers. In child
// processes of this package it runs their program instead.
func Main(m *testing.M) int { return Run(m.Run) }

// Run is [Main] for a program that is no test: its main calls nothing else, and ends with the
// result. Run calls run in the process that was started, and returns its result.
func Run(run func() int) int {
	inMain = true
	switch {
	case os.Getenv(cleanerEnv) != "":
		cleanUp(os.Getenv(cleanerEnv))
		return 0
	case os.Getenv(childEnv) != "":
		return runChild(os.Getenv(childEnv))
	}
	go endWithParent()
	code := run()
	if theRun.cleaner != nil {
		theRun.end.Close()
		theRun.cleaner.Wait()
	}
	report.print()
	return code
}

// endWithParent ends the run when the process that started it is gone: its result would not be
// seen, and it could not be interrupted.
func endWithParent() {
	for parent := os.Getppid(); os.Getppid() == parent; {
		time.Sleep(500 * time.Millisecond)
	}
	os.Exit(1) // the cleaner does the rest
}

// cleanerEnv is set in the cleaner: the run's folder.
const cleanerEnv = "DLOCK_TEST_CLEANER"

// run has what this process started. Its cleaner is a second process that reads from a pipe of this
// one: when the run has ended, in whatever way, the pipe ends, and the cleaner removes what is
// left.
type run struct {
	id      string // also the label of its containers
	folder  string // everything that it writes
	cleaner *exec.Cmd
	end     io.Closer
}

var (
	theRun run
	inMain bool // without Main the cleaner would run the tests
)

// begin returns the run; the first call starts it.
func begin() (*run, error) { return beginOnce() }

var beginOnce = sync.OnceValues(func() (*run, error) {
	if !inMain {
		return nil, errors.New("TestMain has to call service.Main, or main service.Run")
	}
	folder, err := os.MkdirTemp("", "dlock-test-")
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(folder, "pids"), 0o700); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), cleanerEnv+"="+folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	end, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	ready, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("the cleaner did not start: %w", err)
	}
	theRun = run{id: filepath.Base(folder), folder: folder, cleaner: cmd, end: end}
	return &theRun, nil
})

// note notifies the cleaner that it has to end a process, until forget.
func (r *run) note(pid int) (forget func()) {
	name := filepath.Join(r.folder, "pids", strconv.Itoa(pid))
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		panic(err) // the process would not be removed
	}
	return func() { os.Remove(name) }
}

func cleanUp(folder string) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	io.WriteString(os.Stdout, "\n")
	io.Copy(io.Discard, os.Stdin) // until the run has ended

	noted, _ := filepath.Glob(filepath.Join(folder, "pids", "*"))
	for _, name := range noted {
		if pid, err := strconv.Atoi(filepath.Base(name)); err == nil && within(pid, folder) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, containersMark)); err == nil {
		removeContainers(filepath.Base(folder))
	}
	// a process that is just ending may still write
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if os.RemoveAll(folder) == nil {
			return
		}
	}
}

// within reports whether the process works in the folder: a process of the run does, another one
// that got its number does not.
func within(pid int, folder string) bool {
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil { // not Linux
		out, _ := exec.Command("lsof", "-a", "-p", strconv.Itoa(pid), "-d", "cwd", "-Fn").Output()
		_, dir, _ = strings.Cut(string(out), "\nn")
	}
	return strings.HasPrefix(dir, folder+"/")
}
