package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/dlock-go/dlock/conformance/internal/await"
)

// diary is a server that any machine has: this binary. It answers each line with all lines that it
// ever received, which it keeps in a file.
var diary = NewProgram("diary", func(_ *bufio.Scanner, _ io.Writer, args []string) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			for s := bufio.NewScanner(c); s.Scan(); {
				f, err := os.OpenFile(args[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
				if err != nil {
					return
				}
				fmt.Fprint(f, s.Text()+" ")
				f.Close()
				text, _ := os.ReadFile(args[1])
				fmt.Fprintln(c, string(text))
			}
		}()
	}
})

// diaries is the kind of these servers.
func diaries(t *testing.T) Kind {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Kind{
		Name: "diary",
		Command: func(dir string, ports []int) []string {
			return []string{"/usr/bin/env", childEnv + "=" + diary.name, self, fmt.Sprint(ports[0]), filepath.Join(dir, "text")}
		},
		URL: func(addr string) string { return addr },
		Ask: func(ctx context.Context, addr string) (string, error) {
			_, err := tell(ctx, addr, "?")
			return "diary 1", err
		},
	}
}

func tell(ctx context.Context, addr, what string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	c.SetDeadline(end)
	fmt.Fprintln(c, what)
	return bufio.NewReader(c).ReadString('\n')
}

func TestProcess(t *testing.T) {
	t.Parallel()
	s, err := start(diaries(t), asProcess)
	if err != nil {
		t.Fatal(err)
	}
	defer s.place.remove()
	answers := func(what, want string) {
		t.Helper()
		// lines that were sent while it was paused may come after
		if got, err := tell(await.Bounded(t, await.Patience), s.Addr, what); err != nil || !strings.Contains(got, want+" ") {
			t.Fatalf("sent %q it answers %q, %v", what, got, err)
		}
	}
	answers("one", "? one")
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Quiet)
	defer cancel()
	if got, err := tell(ctx, s.Addr, "two"); !await.IsTimeout(err) {
		t.Fatalf("paused it answers %q, %v", got, err)
	}
	s.Continue(t)
	answers("three", "three")
	s.Pause(t)
	s.Kill(t)
	if got, err := tell(await.Bounded(t, await.Patience), s.Addr, "four"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("dead it answers %q, %v", got, err)
	}
	s.Restart(t)
	answers("five", "five")
	if got, err := tell(await.Bounded(t, await.Patience), s.Addr, ""); !strings.HasPrefix(got, "? one ") || !strings.Contains(got, " three ") {
		t.Fatalf("started again it answers %q, %v", got, err)
	}
	s.RestartEmpty(t)
	if got, err := tell(await.Bounded(t, await.Patience), s.Addr, "six"); got != "? six \n" {
		t.Fatalf("emptied it answers %q, %v", got, err)
	}
	if log := s.place.log(time.Time{}); !strings.Contains(log, "listening\n") {
		t.Fatalf("its log is %q", log)
	}
	if log := s.place.log(time.Now()); log != "" {
		t.Fatalf("since now it wrote %q", log)
	}
}

// part is a test within another one, which may fail without it.
type part struct {
	*testing.T
	failed   bool
	said     strings.Builder
	cleanups []func()
}

func (p *part) Failed() bool                    { return p.failed }
func (p *part) Cleanup(f func())                { p.cleanups = append(p.cleanups, f) }
func (p *part) Logf(format string, args ...any) { fmt.Fprintf(&p.said, format, args...) }
func (p *part) end() {
	for _, f := range p.cleanups {
		f()
	}
}

// TestLogs: a part that fails shows the server's output meanwhile, and no more; the whole log is in
// a file.
func TestLogs(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DLOCK_TEST_LOGS", dir)
	for name, k := range map[string]Kind{"process": diaries(t), "container": pinger} {
		way, word := asProcess, "listening"
		if name == "container" {
			if _, err := engine(); err != nil {
				continue
			}
			way, word = inContainer, "Ready to accept connections"
		}
		s, err := start(k, way)
		if err != nil {
			t.Fatal(err)
		}
		defer s.place.remove()
		good, bad := &part{T: t}, &part{T: t, failed: true}
		logged := func(n int) { // a container's lines are stamped when the engine reads them
			for end := time.Now().Add(time.Minute); strings.Count(s.place.log(time.Time{}), word) < n; <-time.After(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%s: it did not log %q %d times", name, word, n)
				}
			}
		}
		logged(1)
		Watch(good, s)
		s.Restart(t)
		logged(2)
		Watch(bad, s)
		s.Restart(t)
		logged(3)
		good.end()
		bad.end()
		if n := strings.Count(bad.said.String(), word); n != 1 || good.said.Len() > 0 {
			t.Errorf("%s: the part that failed shows\n%s\nand the other one\n%s", name, &bad.said, &good.said)
		}
		kept := &part{T: t, failed: true}
		s.keepLog(kept)
		_, path, _ := strings.Cut(kept.said.String(), "its log is ")
		if text, err := os.ReadFile(path); err != nil || strings.Count(string(text), word) != 3 || filepath.Dir(path) != dir {
			t.Errorf("%s: it logs %q; the file has %q, %v", name, &kept.said, text, err)
		}
	}
}

// loud is a T that notes how the test would have failed.
type loud struct {
	*testing.T
	fatal string
}

func (l *loud) Fatalf(format string, args ...any) {
	l.fatal = fmt.Sprintf(format, args...)
	panic(l)
}

// fatal returns what f fails its test with.
func fatal(t *testing.T, f func(T)) (text string) {
	t.Helper()
	l := &loud{T: t}
	defer func() {
		if r := recover(); r != nil && r != any(l) {
			panic(r)
		}
		text = l.fatal
	}()
	f(l)
	return ""
}

// TestPortsOfOthers: another run, which this process plays, does not get a port that is chosen but
// has no listener yet.
func TestPortsOfOthers(t *testing.T) {
	ports, err := FreePorts(2)
	if err != nil || ports[0] == ports[1] {
		t.Fatalf("ports %v, %v", ports, err)
	}
	taken.Lock()
	defer taken.Unlock()
	for _, p := range ports {
		if reserved(p) {
			t.Errorf("port %d was given twice", p)
		}
	}
}

func TestNoWayToStart(t *testing.T) {
	k := diaries(t)
	k.Name, k.Image, k.Built = "nothing", "dlock-test/nothing:0", "dlock-test/nothing:1"
	k.Command = func(string, []int) []string { return []string{"dlock-test-no-such-program"} }
	got := fatal(t, func(t T) { StartOwn(t, k) })
	for _, want := range []string{"no way to start nothing", "\n- container: ", "\n- process: there is no program dlock-test-no-such-program"} {
		if !strings.Contains(got, want) {
			t.Errorf("failed with %q, without %q", got, want)
		}
	}
}

func TestServerThatEndsIsNoServer(t *testing.T) {
	k := diaries(t)
	k.Command = func(string, []int) []string { return []string{"sh", "-c", "echo wrong option; exit 1"} }
	if _, err := start(k, asProcess); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "wrong option") {
		t.Fatalf("got %v", err)
	}
}

func TestImageThatTheUserNames(t *testing.T) {
	e, err := engine()
	if err != nil {
		t.Skipf("needs a container engine: %v", err)
	}
	t.Setenv("DLOCK_TEST_IMAGE_NAMED", "dlock-test/no-such-image:1")
	if image, _, err := lookForImage(e, Kind{Name: "named", Image: pinger.Image, Built: pinger.Built}); err == nil || !strings.Contains(err.Error(), "DLOCK_TEST_IMAGE_NAMED") {
		t.Fatalf("took %q, %v for a named image that does not exist", image, err)
	}
}

func TestServerOfTheUser(t *testing.T) {
	own := StartOwn(t, pinger)
	t.Setenv("DLOCK_TEST_PINGER_URL", own.URL)
	s := Start(t, pinger)
	if s.Own() || !own.Own() || s.Addr != own.Addr || s.Version != own.Version || s.Origin != "DLOCK_TEST_PINGER_URL" {
		t.Fatalf("got %+v", s)
	}
	for name, f := range map[string]func(T){"Pause": s.Pause, "Continue": s.Continue, "Kill": s.Kill, "Restart": s.Restart, "RestartEmpty": s.RestartEmpty} {
		if got := fatal(t, f); !strings.Contains(got, "it is the user's") {
			t.Errorf("%s of the user's server failed with %q", name, got)
		}
	}
	Unreport(s.Version + ": " + s.Origin)
	if another := StartOwn(t, pinger); another.Addr == s.Addr {
		t.Fatal("StartOwn returned the user's server")
	}
	t.Setenv("DLOCK_TEST_PINGER_URL", "redis://u:secret@%zz")
	if got := fatal(t, func(t T) { Start(t, pinger) }); got == "" || strings.Contains(got, "secret") {
		t.Errorf("an invalid URL failed with %q", got)
	}
}

// pinger is a kind whose servers are containers, or processes of a package. It is asked without a
// client library.
var pinger = Kind{
	Name:    "pinger",
	Image:   "redis:8",
	Built:   "dlock-test/redis:8",
	Package: "redis-server",
	Command: func(dir string, ports []int) []string {
		return []string{"redis-server", "--bind", "127.0.0.1", "--port", fmt.Sprint(ports[0]), "--dir", dir, "--save", ""}
	},
	URL: func(addr string) string { return "redis://" + addr },
	Ask: func(ctx context.Context, text string) (string, error) {
		answer, err := tell(ctx, strings.TrimPrefix(text, "redis://"), "PING\r")
		if err == nil && answer != "+PONG\r\n" {
			err = fmt.Errorf("PING is answered with %q", answer)
		}
		return "pinger 1", err
	},
}

// bequeath starts servers, prints their addresses, and never removes them.
func bequeath(t *testing.T, out io.Writer) error {
	run, err := begin()
	if err != nil {
		return err
	}
	for way, k := range map[string]Kind{"process": diaries(t), "container": pinger} {
		f := asProcess
		if way == "container" {
			if _, err := engine(); err != nil {
				continue
			}
			f = inContainer
		}
		s, err := start(k, f)
		if err != nil {
			return err
		}
		if way == "container" { // the system itself ends a stopped process when its parent dies
			s.place.pause()
		}
		fmt.Fprintln(out, s.Addr)
	}
	fmt.Fprintln(out, run.folder)
	return nil
}

// heir bequeaths.
var heir = NewProgram("heir", func(in *bufio.Scanner, out io.Writer, _ []string) error {
	in.Scan()
	if err := bequeath(&testing.T{}, out); err != nil {
		return err
	}
	in.Scan()
	return nil
})

// orphanEnv is set in a run of these tests that bequeaths.
const orphanEnv = "DLOCK_TEST_ORPHAN"

// guardian starts tests that bequeath, as the command go does.
var guardian = NewProgram("guardian", func(in *bufio.Scanner, out io.Writer, _ []string) error {
	in.Scan()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-test.run=^TestNothingIsLeft$")
	cmd.Env = append(os.Environ(), childEnv+"=", orphanEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
})

// TestNothingIsLeft kills a run in the middle.
func TestNothingIsLeft(t *testing.T) {
	if os.Getenv(orphanEnv) != "" {
		if err := bequeath(t, os.Stdout); err != nil {
			t.Fatal(err)
		}
		<-t.Context().Done() // never
	}
	t.Parallel()
	for name, f := range map[string]struct {
		program Program
		end     syscall.Signal
	}{
		"killed": {heir, syscall.SIGKILL}, "interrupted": {heir, syscall.SIGINT}, "orphaned": {guardian, syscall.SIGKILL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := f.program.Start(t)
			c.Say("go")
			var addrs []string
			line := c.Hear()
			for ; !strings.HasPrefix(line, "/"); line = c.Hear() {
				addrs = append(addrs, line)
			}
			if _, err := os.Stat(line); err != nil || len(addrs) == 0 {
				t.Fatalf("nothing was started: %v, %v", addrs, err)
			}
			if err := c.cmd.Process.Signal(f.end); err != nil {
				t.Fatal(err)
			}
			<-c.done
			await.That(t, "the folder is gone", func() bool { _, err := os.Stat(line); return errors.Is(err, os.ErrNotExist) })
			for _, a := range addrs {
				// a killed process may take a while
				await.That(t, "no server listens at "+a, func() bool {
					conn, err := net.Dial("tcp", a)
					if err == nil {
						conn.Close()
					}
					return err != nil
				})
			}
			e, err := engine()
			if err != nil {
				return
			}
			list, err := e.ContainerList(t.Context(), client.ContainerListOptions{
				All: true, Filters: make(client.Filters).Add("label", runLabel+"="+filepath.Base(line)),
			})
			if err != nil || len(list.Items) > 0 {
				t.Errorf("containers that are left: %v, %v", list.Items, err)
			}
		})
	}
}
