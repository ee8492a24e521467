//go:build linux

package file

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
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
	os.Exit(m.Run())
}

// serve obeys commands, a line each, and answers each with a line:
//
//	acquire NAME TTL [fixed], release, renew; spawn a program;
//	stop STEP: the next pass of that step sends SIGSTOP to this process;
//	work NAMES: locks and unlocks under the eyes of the witnesses until "done" comes.
func serve(dir string) {
	c := booted(os.Getenv(bootEnv))
	var step atomic.Pointer[string]
	c.at = func(s string) {
		if p := step.Load(); p != nil && *p == s {
			step.Store(nil)
			// the signal goes to this thread, so that it stops here: another would let it run on a
			// little
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
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
		os.Exit(1) // the test is over, and this process with it, whatever it waits for
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
		case "stop":
			step.Store(&f[1])
		case "work":
			names, _ := strconv.Atoi(f[1])
			answer = work(b, dir, names, commands)
		}
		fmt.Println(answer)
	}
}

// child is a process that obeys.
type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
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
	c := &child{t, cmd, in, bufio.NewReader(out)}
	t.Cleanup(c.kill)
	if s := c.read(); s != "ready" {
		t.Fatalf("child: %s", s)
	}
	return c
}

func (c *child) send(format string, args ...any) { fmt.Fprintf(c.in, format+"\n", args...) }

func (c *child) read() string {
	s, _ := c.out.ReadString('\n')
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

// stopped waits until the process is.
func (c *child) stopped() {
	c.t.Helper()
	eventually(c.t, "the child is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		_, after, _ := strings.Cut(string(stat), ") ")
		return err == nil && strings.HasPrefix(after, "T")
	})
}

func TestKilledHolderFreesAtOnce(t *testing.T) {
	dir := t.TempDir()
	b := openTest(t, dir)
	c := start(t, dir)
	if s := c.do("acquire a 1h"); s == "" {
		t.Fatal("no answer")
	}
	w := request("a", long)
	done := background(t, b, w)
	second := start(t, dir) // a waiter that is killed stands in nobody's way either
	second.send("acquire a 1h")
	eventually(t, "both wait", func() bool { return inspect(t, b, "a").Len() == 3 })
	last := background(t, b, request("a", long))
	killed := time.Now()
	c.kill()
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
	t.Logf("takeover after %v", time.Since(killed))
	second.kill()
	release(t, b, w)
	if err := answer(t, last); err != nil {
		t.Fatal(err)
	}
}

// Also when the client that watches over the queue is killed with the holder, or is stopped,
// somebody notices.
func TestKilledHolderFreesAtOnceWithoutAGuard(t *testing.T) {
	for _, stop := range []bool{false, true} {
		dir := t.TempDir()
		b, c, guard := openTest(t, dir), start(t, dir), start(t, dir)
		c.do("acquire a 1h")
		guard.send("acquire a 2s")
		eventually(t, "the guard waits", func() bool { return inspect(t, b, "a").Len() == 2 })
		done := background(t, b, request("a", long))
		eventually(t, "it watches", func() bool {
			s, err := b.read(slot("a"))
			return err == nil && s.queue("a").guard() != 0 && s.queue("a").guard() != b.session.id
		})
		if stop {
			guard.signal(syscall.SIGSTOP)
			guard.stopped()
		} else {
			guard.kill()
		}
		c.kill()
		if err := answer(t, done); err != nil { // after the guard's TTL, where that is stopped
			t.Fatal(err)
		}
	}
}

// A writer that is killed while it waits does not keep out the readers behind it.
func TestKilledWaiterLetsReadersPass(t *testing.T) {
	dir := t.TempDir()
	b, c := openTest(t, dir), start(t, dir)
	read := func() driver.Request {
		r := request("a", long)
		r.Mode = driver.Shared
		return r
	}
	acquire(t, b, read())
	c.send("acquire a 1h")
	eventually(t, "the writer waits", func() bool { return inspect(t, b, "a").Len() == 2 })
	done := background(t, b, read())
	c.kill()
	if err := answer(t, done); err != nil {
		t.Fatal(err)
	}
}

// Programs that a holder has started inherit nothing that keeps it alive.
func TestKilledHolderFreesAtOnceThoughItsChildLives(t *testing.T) {
	dir := t.TempDir()
	b, c := openTest(t, dir), start(t, dir)
	c.do("acquire a 1h")
	pid, err := strconv.Atoi(c.do("spawn"))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	c.kill()
	acquire(t, b, request("a", long))
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the program is gone: %v", err)
	}
}

func TestStoppedHolderFreesAtItsTTL(t *testing.T) {
	const ttl = 500 * time.Millisecond
	dir := t.TempDir()
	b := openTest(t, dir)
	c := start(t, dir)
	before := time.Now()
	token := c.do("acquire a %v", ttl)
	c.signal(syscall.SIGSTOP)
	g := acquire(t, b, request("a", long))
	if d := time.Since(before); d < ttl {
		t.Errorf("taken over after %v, before the TTL", d)
	}
	if fmt.Sprint(g.Token) <= token {
		t.Errorf("token %d after %s", g.Token, token)
	}
	c.signal(syscall.SIGCONT)
	for _, do := range []string{"renew", "release"} {
		if s := c.do(do); s != driver.ErrLost.Error() {
			t.Errorf("%s by the one that was stopped: %q", do, s)
		}
	}
	if h := inspect(t, b, "a").Holders(); len(h) != 1 || h[0].Token != g.Token {
		t.Error("the successor was touched")
	}
}

// A process that is stopped at any step of an update wedges nobody: what it did not put in place
// does not count, and what it did ends at its TTL. When it goes on, it finds out.
func TestStoppedInAnUpdate(t *testing.T) {
	const ttl = 400 * time.Millisecond // where it has to pass; elsewhere an hour
	for _, step := range []string{"new", "written", "swapped", "unlinked"} {
		inPlace := step == "swapped" || step == "unlinked"
		t.Run("acquire "+step, func(t *testing.T) {
			dir := t.TempDir()
			b, c := openTest(t, dir), start(t, dir)
			c.do("stop %s", step)
			before := time.Now()
			c.send("acquire a %v", map[bool]time.Duration{true: ttl, false: time.Hour}[inPlace])
			c.stopped()
			r := request("a", long)
			r.Wait = inPlace
			g := acquire(t, b, r)
			if inPlace && time.Since(before) < ttl {
				t.Error("taken over before the TTL")
			}
			c.signal(syscall.SIGCONT)
			if inPlace {
				if s := c.read(); s != driver.ErrLost.Error() {
					t.Fatalf("the one that was stopped: %q", s)
				}
				return
			}
			eventually(t, "the one that was stopped waits", func() bool { return inspect(t, b, "a").Len() == 2 })
			release(t, b, r)
			if s := c.read(); s <= fmt.Sprint(g.Token) {
				t.Errorf("token %s after %d", s, g.Token)
			}
		})
		t.Run("release "+step, func(t *testing.T) {
			dir := t.TempDir()
			b, c := openTest(t, dir), start(t, dir)
			before := time.Now()
			c.do("acquire a %v", map[bool]time.Duration{true: time.Hour, false: ttl}[inPlace])
			c.do("stop %s", step)
			c.send("release")
			c.stopped()
			r := request("a", long)
			r.Wait = !inPlace
			acquire(t, b, r)
			if !inPlace && time.Since(before) < ttl {
				t.Error("taken over before the TTL")
			}
			c.signal(syscall.SIGCONT)
			want := driver.ErrLost.Error()
			if inPlace {
				want = "ok"
			}
			if s := c.read(); s != want {
				t.Errorf("release: %q, want %q", s, want)
			}
			if h := inspect(t, b, "a").Holders(); len(h) != 1 || h[0].ID != r.ID {
				t.Error("the successor was touched")
			}
			release(t, b, r)
			if n := states(t, b); len(n) != 0 {
				t.Errorf("states are left: %v", n)
			}
		})
	}
}

// Processes work on a few names while some are killed and stopped. In each section three witnesses
// watch: a file lock shows a second holder, a counter loses updates if there are two, and the
// tokens have to grow.
func TestProcessesExcludeEachOther(t *testing.T) {
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("kill=%t", kill), func(t *testing.T) {
			const names, processes = 3, 4
			dir := t.TempDir()
			b := openTest(t, dir)
			var results sync.WaitGroup
			var sections atomic.Int64
			watch := func(c *child) {
				s := c.read()
				if strings.HasPrefix(s, "bad") {
					t.Error(s)
				}
				n, _ := strconv.ParseInt(s, 10, 64)
				sections.Add(n)
			}
			var children []*child
			launch := func() *child {
				c := start(t, dir)
				c.send("work %d", names)
				results.Go(func() { watch(c) })
				return c
			}
			for range processes {
				children = append(children, launch())
			}
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
				time.Sleep(time.Duration(50+rand.IntN(100)) * time.Millisecond) // let them work
				if kill {
					i := rand.IntN(processes)
					switch rand.IntN(2) {
					case 0:
						children[i].cmd.Process.Kill()
						children[i] = launch()
					case 1:
						children[i].signal(syscall.SIGSTOP)
						time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
						children[i].signal(syscall.SIGCONT)
					}
				}
			}
			counted := func() (total int64) {
				for i := range names {
					data, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("witness-", i)))
					if err == nil && len(data) >= 8 {
						total += int64(binary.LittleEndian.Uint64(data))
					}
				}
				return total
			}
			eventually(t, "enough sections", func() bool { return counted() >= 100 })
			for _, c := range children {
				c.send("done")
			}
			results.Wait()
			total := counted()
			t.Logf("%d sections, %d by those who lived to tell", total, sections.Load())
			if !kill && total != sections.Load() || total < sections.Load() {
				t.Errorf("the counters say %d, the workers %d", total, sections.Load())
			}
			for i := range names {
				acquire(t, b, request(fmt.Sprint("work-", i), long))
			}
		})
	}
}

// work is the part of a child: it returns how many sections it was in, or "bad" and why.
func work(b *Backend, dir string, names int, commands <-chan string) string {
	done := make(chan struct{})
	go func() { <-commands; close(done) }()
	var sections atomic.Int64
	var all sync.WaitGroup
	bad := make(chan string, 16)
	for i := range 2 * names {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				r := request(fmt.Sprint("work-", i%names), long)
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				if rand.IntN(8) == 0 { // some give up early
					ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rand.IntN(3000))*time.Microsecond)
				}
				g, err := b.Acquire(ctx, r)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					continue
				}
				if err == nil {
					err = witness(filepath.Join(dir, fmt.Sprint("witness-", i%names)), g.Token)
				}
				if err == nil {
					sections.Add(1)
					err = b.Release(context.Background(), r)
				}
				if err != nil {
					bad <- fmt.Sprint("bad: ", err)
					return
				}
			}
		})
	}
	all.Wait()
	select {
	case s := <-bad:
		return s
	default:
		return fmt.Sprint(sections.Load())
	}
}

// witness is a section: only one may be in it.
func witness(path string, token driver.Token) error {
	fd, err := openAt(atFDCWD, path, syscall.O_RDWR|syscall.O_CREAT)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if alone, err := flock(fd, syscall.LOCK_EX); err != nil || !alone {
		return fmt.Errorf("somebody else is in the section: %w", errors.Join(err))
	}
	var data [16]byte // sections, last token
	if n, err := syscall.Pread(fd, data[:], 0); err != nil || n != 0 && n != len(data) {
		return fmt.Errorf("read %d bytes: %w", n, err)
	}
	if last := binary.LittleEndian.Uint64(data[8:]); last >= uint64(token) {
		return fmt.Errorf("token %d after %d", token, last)
	}
	binary.LittleEndian.PutUint64(data[:], binary.LittleEndian.Uint64(data[:])+1)
	binary.LittleEndian.PutUint64(data[8:], uint64(token))
	_, err = syscall.Pwrite(fd, data[:], 0)
	return err
}
