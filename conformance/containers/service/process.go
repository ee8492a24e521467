package service

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a server that is a process of this machine.
type process struct {
	kind Kind
	argv []string
	dir  string // data and log

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	said transcript
}

func asProcess(k Kind, ports []int) (place, string, error) {
	run, err := begin()
	if err != nil {
		return nil, "", err
	}
	dir, err := os.MkdirTemp(run.folder, k.Name+"-")
	if err != nil {
		return nil, "", err
	}
	p := &process{kind: k, dir: dir}
	k.Ready = "" // it is in an image
	p.argv = k.argv(p.data(), ports)
	if err := installed(k, cmp.Or(k.Needs, k.Command(p.data(), ports)[0])); err != nil {
		os.RemoveAll(dir)
		return nil, "", fmt.Errorf("process: %w", err)
	}
	if err := p.wipe(); err != nil {
		return nil, "", err
	}
	return p, "process of the package " + k.Package, nil
}

func (p *process) data() string { return filepath.Join(p.dir, "data") }

var installing sync.Mutex

// installed makes sure that the program is there.
func installed(k Kind, program string) error {
	installing.Lock()
	defer installing.Unlock()
	if _, err := exec.LookPath(program); err == nil {
		return nil
	}
	apt, err := exec.LookPath("apt-get")
	switch {
	case err != nil || k.Package == "":
		return fmt.Errorf("there is no program %s, and no package to install it from", program)
	case os.Geteuid() != 0:
		return fmt.Errorf("there is no program %s; root may install it: apt-get install %s", program, k.Package)
	}
	install := append([]string{"install", "-y", "--no-install-recommends"}, strings.Fields(k.Package)...)
	for _, args := range [][]string{{"update"}, install} {
		cmd := exec.Command(apt, append([]string{"-q"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("there is no program %s, and apt-get %s: %w:\n%s", program, strings.Join(args, " "), err, tail(string(out), 5))
		}
	}
	_, err = exec.LookPath(program)
	return err
}

func (p *process) start() error {
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.data(), &p.said, &p.said
	// a process that it started may keep its output open
	cmd.WaitDelay = time.Second
	// an interrupt at the terminal is not for it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	done, err := spawn(cmd)
	if err != nil {
		return err
	}
	p.cmd, p.done = cmd, done
	return nil
}

func (p *process) running() bool { return p.cmd != nil && !ended(p.done) }

func (p *process) pid() (int, error) { return p.cmd.Process.Pid, nil }

func (p *process) pause() error { return stop(p.cmd.Process) }

func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

func (p *process) wipe() error {
	if err := os.RemoveAll(p.data()); err != nil {
		return err
	}
	if err := os.Mkdir(p.data(), 0o700); err != nil {
		return err
	}
	for name, text := range p.kind.Files {
		if err := os.WriteFile(filepath.Join(p.data(), name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) log(since time.Time) string { return p.said.since(since) }

// transcript is the output of a process, with times.
type transcript struct {
	mu    sync.Mutex
	text  []byte
	marks []mark
}

// mark is a place in a transcript: what follows was written at that time.
type mark struct {
	at   time.Time
	from int
}

func (d *transcript) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.marks = append(d.marks, mark{time.Now(), len(d.text)})
	d.text = append(d.text, b...)
	return len(b), nil
}

func (d *transcript) since(t time.Time) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := sort.Search(len(d.marks), func(i int) bool { return !d.marks[i].at.Before(t) })
	if i == len(d.marks) {
		return ""
	}
	return string(d.text[d.marks[i].from:])
}

func (p *process) remove() {
	if p.running() {
		p.kill()
	}
	os.RemoveAll(p.dir)
}

// spawn starts a process whose working directory is in the run's folder, where the cleaner finds
// it. The result is closed when the process has ended.
func spawn(cmd *exec.Cmd) (done chan struct{}, err error) {
	run, err := begin()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	forget := run.note(cmd.Process.Pid)
	done = make(chan struct{})
	go func() {
		cmd.Wait()
		forget()
		close(done)
	}()
	return done, nil
}

func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// stop stops a process, and waits until it is stopped.
func stop(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(time.Millisecond) {
		if stopped(p.Pid) {
			return nil
		}
	}
	return errors.New("the process does not stop")
}

// stopped reports whether all threads of a process are stopped.
func stopped(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 { // not Linux
		out, _ := exec.Command("ps", "-o", "state=", "-p", fmt.Sprint(pid)).Output()
		return strings.HasPrefix(strings.TrimSpace(string(out)), "T")
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		// the name is in parentheses, and may contain any byte; the state follows it
		rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
		if state := strings.Fields(rest); len(state) == 0 || state[0] != "T" && state[0] != "t" {
			return false
		}
	}
	return true
}
