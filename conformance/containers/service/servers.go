// Package service provides what tests on real services need: the servers, and processes that can be
// stopped.
//
// [Start] starts a server of a [Kind] for one test. It tries these sources in order, and the last
// lines of the run say which one was used ([Main] prints them, and has to be called by TestMain):
//
//  1. the server at DLOCK_TEST_<KIND>_URL, which the tests only use;
//  2. a container of the image DLOCK_TEST_IMAGE_<KIND>, or else of the published one, or else, if
//     that can be neither found nor pulled, of the one that scripts/images.sh builds from Debian's
//     packages;
//  3. a process of an installed package, which is installed if it is missing and the tests may.
//
// If none works the test fails, and says what was tried. Containers use the host's network: a
// server listens on a free port of 127.0.0.1, however it was started, and the address that it gives
// its clients and its peers is right for all of them.
//
// A second process removes everything that a run starts, also when the run is interrupted, killed,
// or runs out of time.
package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// T is what this package needs of a test; [testing.T], testing.B and conformance.T have it.
type T interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Kind is a kind of server.
type Kind struct {
	Name    string // as in DLOCK_TEST_<NAME>_URL
	Image   string // the published one
	Built   string // the name of the one that scripts/images.sh builds
	Package string // Debian's, which has the program; several if need be
	// the program that shows whether the package is installed, unless it is the command's
	Needs string
	Ports int               // how many a server listens on; 0: one
	Files map[string]string // files for the folder of the data: text by name

	// OnDisk keeps the data of a container on the engine's disk. Otherwise they are in memory, and
	// what a client does never waits for a disk, whatever the server's settings are.
	OnDisk bool

	// Prepare, unless it is nil, is a program and its arguments that fill a new folder of the data
	// before the first start.
	Prepare func(dir string) []string

	// Ready, unless it is empty, is a folder of the image that scripts/images.sh builds: it has
	// the result of Prepare in a container, which is so made once. If you change Prepare, empty it.
	Ready string

	// Command is the program and its arguments: it keeps its data in dir, which exists and is its
	// working directory, and listens on 127.0.0.1, for its clients on the first of the ports.
	Command func(dir string, ports []int) []string

	// URL returns the URL that clients open, given the host and port.
	URL func(addr string) string

	// Ask returns the server's own name and version once it serves its clients.
	Ask func(ctx context.Context, url string) (version string, err error)
}

// With returns the kind with arguments added to its command.
func (k Kind) With(args ...string) Kind {
	command := k.Command
	k.Command = func(dir string, ports []int) []string { return append(command(dir, ports), args...) }
	return k
}

// argv returns the command that runs the server on the data in dir, and prepares them if need be.
// The shell becomes the server, so the server gets the signals.
func (k Kind) argv(dir string, ports []int) []string {
	command := k.Command(dir, ports)
	if k.Prepare == nil {
		return command
	}
	prepare := words(k.Prepare(dir)...)
	if k.Ready != "" {
		prepare = "if [ -d " + words(k.Ready) + " ]; then cp -a --sparse=always " + words(k.Ready) + "/. .; else " + prepare + "; fi"
	}
	return []string{"sh", "-c", "cd " + words(dir) + " && { [ -e prepared ] || { " + prepare + " && : >prepared; }; } && exec " + words(command...)}
}

// words quotes words for the shell.
func words(ws ...string) string {
	var s strings.Builder
	for _, w := range ws {
		s.WriteString(" '" + strings.ReplaceAll(w, "'", `'\''`) + "'")
	}
	return s.String()
}

// Server is one server. Its methods fail the test if they do not succeed, and return when they are
// done. Only one may be called at a time.
type Server struct {
	URL     string // for clients
	Addr    string // its host and port
	Version string // as it reports it: "redis 8.0.2"
	Origin  string // how it was started
	Kind    Kind
	place   place // nil: it is the user's
	Ports   []int
}

// place is where a server runs: a container, or a process of this machine. Errors say in words what
// went wrong.
type place interface {
	start() error // for the first time, or on the data that it left
	running() bool
	pid() (int, error)
	data() string // the folder, for the server itself
	pause() error
	resume() error
	kill() error
	wipe() error                // of one that does not run: its data
	log(since time.Time) string // its output
	remove()
}

// Start returns a server of the kind that serves. It is the one that the user named in the
// environment, or else the test's own, as of StartOwn.
func Start(t T, k Kind) *Server {
	t.Helper()
	name := "DLOCK_TEST_" + strings.ToUpper(k.Name) + "_URL"
	given := os.Getenv(name)
	if given == "" {
		return StartOwn(t, k)
	}
	u, err := url.Parse(given)
	if err != nil {
		t.Fatalf("%s is not a URL", name) // err would show the URL with its password
	}
	s := &Server{URL: given, Addr: u.Host, Origin: name, Kind: k}
	if err := s.wait(); err != nil {
		t.Fatalf("the server that %s names: %v", name, err)
	}
	report.started(s)
	return s
}

// StartOwn returns a server of the kind that serves this test alone. It is removed when the test
// ends. If the test failed, its log is kept in a file, and the file's name and the end of the log
// are shown, as of Watch.
func StartOwn(t T, k Kind) *Server {
	t.Helper()
	var tried []string
	for _, way := range []func(Kind, []int) (place, string, error){inContainer, asProcess} {
		for range 3 { // another program may take a port first
			s, err := start(k, way)
			if err != nil {
				tried = append(tried, err.Error())
				if errors.Is(err, errSlow) {
					t.Fatalf("%v", err) // the server started: another way would only hide that
				}
				if errors.Is(err, errEnded) {
					continue
				}
				break
			}
			t.Cleanup(func() {
				if t.Failed() && !shown.within(t) {
					s.show(t, time.Time{})
				}
				if t.Failed() {
					s.keepLog(t)
				}
				s.place.remove()
			})
			report.tried(tried)
			report.started(s)
			return s
		}
	}
	t.Fatalf("no way to start %s; tried:\n- %s", k.Name, strings.Join(tried, "\n- "))
	panic("unreachable")
}

func start(k Kind, way func(Kind, []int) (place, string, error)) (*Server, error) {
	ports, err := FreePorts(max(k.Ports, 1))
	if err != nil {
		return nil, err
	}
	p, origin, err := way(k, ports)
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
	s := &Server{URL: k.URL(addr), Addr: addr, Origin: origin, Kind: k, place: p, Ports: ports}
	if err := p.start(); err != nil {
		p.remove()
		return nil, fmt.Errorf("%s: %w", origin, err)
	}
	if err := s.wait(); err != nil {
		log := tail(p.log(time.Time{}), 20)
		p.remove()
		return nil, fmt.Errorf("%s: %w; it wrote:\n%s", origin, err, log)
	}
	return s, nil
}

var (
	errEnded = errors.New("the server ended")
	errSlow  = errors.New("it does not serve")
)

// wait waits until the server serves.
func (s *Server) wait() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for {
		version, err := s.Ask(ctx)
		switch {
		case err == nil:
			s.Version = version
			return nil
		case s.place != nil && !s.place.running():
			return errEnded
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", errSlow, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// Ask asks the server for its name and version, as its kind does.
func (s *Server) Ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if s.place != nil { // clients log a lot about a server that does not listen yet
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
		if err != nil {
			return "", err
		}
		c.Close()
	}
	return s.Kind.Ask(ctx, s.URL)
}

// Own reports whether the server is the test's own, so that it may be paused, killed and restarted.
// The other methods fail the test if it is not.
func (s *Server) Own() bool { return s.place != nil }

// PID returns the number of the server's process, where its machine is this one.
func (s *Server) PID(t T) (pid int) {
	t.Helper()
	s.do(t, "find the process of", func(p place) (err error) { pid, err = p.pid(); return err })
	return pid
}

// Pause stops the server where it is: connections stay, and nothing answers, until Continue.
func (s *Server) Pause(t T) {
	t.Helper()
	s.do(t, "pause", place.pause)
}

// Continue undoes Pause.
func (s *Server) Continue(t T) {
	t.Helper()
	s.do(t, "continue", place.resume)
}

// Kill ends the server at once, as a crash does. A server that is paused can be killed too.
func (s *Server) Kill(t T) {
	t.Helper()
	s.do(t, "kill", place.kill)
}

// Restart kills the server if it runs, and starts it on the data that it left, at the same address.
// How much of its data a killed server leaves depends on it and its configuration.
func (s *Server) Restart(t T) {
	t.Helper()
	s.do(t, "restart", func(p place) error {
		if p.running() {
			if err := p.kill(); err != nil {
				return err
			}
		}
		if err := p.start(); err != nil {
			return err
		}
		return s.wait()
	})
}

// RestartEmpty is Restart without any data.
func (s *Server) RestartEmpty(t T) {
	t.Helper()
	s.do(t, "wipe", func(p place) error {
		if p.running() {
			if err := p.kill(); err != nil {
				return err
			}
		}
		return p.wipe()
	})
	s.Restart(t)
}

func (s *Server) do(t T, what string, f func(place) error) {
	t.Helper()
	if s.place == nil {
		t.Fatalf("cannot %s the server of %s: it is the user's", what, s.Origin)
	}
	if err := f(s.place); err != nil {
		t.Fatalf("%s %s (%s): %v", what, s.Kind.Name, s.Origin, err)
	}
}

// tail returns the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

var taken struct {
	sync.Mutex
	ports []int
}

// The ports of servers are outside the range that systems use for connections (from 32768 on Linux,
// from 49152 elsewhere): one of those could be in use when a killed server starts again.
const firstPort, lastPort = 15000, 32000

// FreePorts returns ports of 127.0.0.1 on which no program listens, each of them once in a run.
func FreePorts(n int) ([]int, error) {
	taken.Lock()
	defer taken.Unlock()
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if slices.Contains(taken.ports, port) || !reserved(port) {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			if tries > 1000 {
				return nil, fmt.Errorf("no free port of %d to %d: %w", firstPort, lastPort, err)
			}
			continue
		}
		defer l.Close()
		ports = append(ports, port)
		taken.ports = append(taken.ports, port)
	}
	return ports, nil
}

// reserved keeps a port for this process until it ends, and reports false if another run has it:
// between the choice of a port and the start of its server no program listens there, and a test
// that waits for the server would take the other run's for it.
func reserved(port int) bool {
	dir := filepath.Join(os.TempDir(), "dlock-ports")
	os.MkdirAll(dir, 0o777)
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return true // another user's, or no folder: the port itself shows whether it is free
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		f.Close()
		return false
	}
	reservations = append(reservations, f)
	return true
}

// reservations are never closed. The caller of reserved holds taken.
var reservations []*os.File

// Addrs returns the addresses of servers.
func Addrs(servers []*Server) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr)
	}
	return all
}
