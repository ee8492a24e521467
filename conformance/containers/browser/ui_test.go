package browser

import (
	"bufio"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// command is the dlock command, and its environment.
type command struct {
	t   *testing.T
	bin string
	url string // of the backend
}

func newCommand(t *testing.T) command {
	t.Helper()
	return command{t, steps.BuildCommand(t), "file://" + filepath.Join(t.TempDir(), "locks")}
}

// served is a running "dlock ui".
type served struct {
	*exec.Cmd
	address string // of the page
	token   string // to end holds
	said    *said
}

// said is the output of a process.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// serve starts "dlock ui" with arguments, and returns when it serves. DLOCK_URL is the URL of d.
func (d command) serve(args ...string) *served {
	d.t.Helper()
	s := &served{Cmd: exec.Command(d.bin, append([]string{"ui"}, args...)...), said: &said{}}
	s.Env = append(os.Environ(), "DLOCK_URL="+d.url)
	s.Stderr = s.said
	out, err := s.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(s.stop)
	lines := bufio.NewReader(out)
	for s.address == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			d.t.Fatalf("dlock ui %q: %v\n%s", args, err, s.said)
		}
		s.said.Write([]byte(line))
		line = strings.TrimSpace(line)
		if token, ok := strings.CutPrefix(line, "token to end holds: "); ok {
			s.token = token
		} else if strings.HasPrefix(line, "http://") {
			s.address = line
		}
	}
	go io.Copy(s.said, lines)
	return s
}

func (s *served) stop() {
	s.Process.Kill()
	s.Wait()
}

// holder is a "dlock run" whose command writes a line when it has the lock, and ends when it reads
// one.
type holder struct {
	*exec.Cmd
	t     *testing.T
	in    io.WriteCloser
	up    chan time.Time // when it had the lock
	ended chan struct{}
}

// lock starts a holder, or waiter, of a name.
func (d command) lock(name, label string, flags ...string) *holder {
	d.t.Helper()
	args := append(append([]string{"run"}, flags...), name, "--", "sh", "-c", "echo up; read x")
	h := &holder{Cmd: exec.Command(d.bin, args...), t: d.t, up: make(chan time.Time, 1), ended: make(chan struct{})}
	join := "?"
	if strings.Contains(d.url, "?") {
		join = "&"
	}
	h.Env = append(os.Environ(), "DLOCK_URL="+d.url+join+"label="+label)
	var err error
	if h.in, err = h.StdinPipe(); err != nil {
		d.t.Fatal(err)
	}
	out, err := h.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() {
		lines := bufio.NewReader(out)
		if line, _ := lines.ReadString('\n'); line == "up\n" {
			h.up <- time.Now()
		}
		io.Copy(io.Discard, lines)
		h.Wait()
		close(h.ended)
	}()
	d.t.Cleanup(func() {
		h.Process.Signal(os.Interrupt)
		select {
		case <-h.ended:
		case <-time.After(10 * time.Second):
			h.Process.Kill()
			<-h.ended
		}
	})
	return h
}

// held waits until the holder has the lock, and returns the time of that.
func (h *holder) held() time.Time {
	h.t.Helper()
	select {
	case at := <-h.up:
		return at
	case <-time.After(time.Minute):
		h.t.Fatal("the holder does not get the lock")
		panic("unreachable")
	}
}

// lost waits until dlock run has ended, and returns its status.
func (h *holder) lost() int {
	h.t.Helper()
	select {
	case <-h.ended:
		return h.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		h.t.Fatal("the holder does not end")
		panic("unreachable")
	}
}

// release releases the lock.
func (h *holder) release() { io.WriteString(h.in, "\n") }

var pictures = flag.String("pictures", "", "write pictures of the page into this folder")

// keep saves a picture of the page, if the flag is set.
func (p *tab) keep(name string) {
	p.t.Helper()
	if *pictures == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), p.picture(), 0o600); err != nil {
		p.t.Fatal(err)
	}
}
