package zookeeper

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// peerLocks is where the tests of other software's formats lock.
const peerLocks = "/locks"

// in returns the parameters of a format.
func in(format string) string { return "?format=" + format + "&path=" + peerLocks + "/{name}" }

// locker is a process that locks: with dlock, or with what other software uses. A call is a line,
// as of the programs in peers. Calls fail the test if they are not answered.
type locker struct {
	t    testing.TB
	kind string
	// the argument of a call for a name: its path, or for dlock the name
	at   func(name string) string
	call func(line string) string
	// kill ends the process at once, and start begins another one that takes its place
	kill, start func()
}

// do makes a call that has to succeed.
func (l *locker) do(what, name string) {
	l.t.Helper()
	if got := l.ask(what, name); got != "ok" {
		l.t.Errorf("%s: %s %s: %s", l.kind, what, name, got)
	}
}

func (l *locker) ask(what, name string) string {
	l.t.Helper()
	return l.call(what + " " + l.at(name))
}

func peerPath(name string) string { return peerLocks + "/" + name }

// startPeer returns a new client of a program of another language, which has a session of its own.
// A kill ends the program, with all of its clients.
func startPeer(t testing.TB, program, s *service.Server, session time.Duration) *locker {
	t.Helper()
	l := &locker{t: t, kind: program.Kind.Name, at: peerPath}
	var conn net.Conn
	var in *bufio.Reader
	l.call = func(line string) string {
		conn.SetDeadline(time.Now().Add(await.Patience))
		_, err := io.WriteString(conn, line+"\n")
		answer := ""
		if err == nil {
			answer, err = in.ReadString('\n')
		}
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(answer)
	}
	connect := func() {
		var err error
		if conn, err = net.Dial("tcp", program.Addr); err != nil {
			t.Fatalf("%s: %v", l.kind, err)
		}
		in = bufio.NewReader(conn)
		if got := l.call(fmt.Sprintf("%s %d", s.Addr, session.Milliseconds())); got != "ok" {
			t.Fatalf("%s: %s", l.kind, got)
		}
	}
	l.kill = func() {
		program.Kill(t)
		conn.Close()
	}
	l.start = func() {
		program.Restart(t)
		connect()
	}
	connect()
	t.Cleanup(func() { conn.Close() })
	return l
}

// startChild starts a program of this package.
func startChild(t testing.TB, kind string, p service.Program, at func(string) string, args ...string) *locker {
	t.Helper()
	l := &locker{t: t, kind: kind, at: at}
	var c *service.Child
	l.start = func() {
		c = p.Start(t, args...)
		c.Expect("up")
	}
	l.kill = func() { c.Kill() }
	l.call = func(line string) string { c.Say(line); return c.Hear() }
	l.start()
	return l
}

// startGo starts a process that uses zk.Lock.
func startGo(t testing.TB, s *service.Server, session time.Duration) *locker {
	t.Helper()
	return startChild(t, "zk.Lock", zkLockProgram, peerPath, s.Addr, session.String())
}

// startDlock starts a process that uses dlock. Its session has 4/3 of the TTL.
func startDlock(t testing.TB, url string, ttl time.Duration) *locker {
	t.Helper()
	return startChild(t, "dlock", dlockProgram, func(name string) string { return name }, url, ttl.String())
}

// answers answers each line of a program's input.
func answers(in *bufio.Scanner, out io.Writer, answer func(what, arg string) string) error {
	fmt.Fprintln(out, "up")
	for in.Scan() {
		what, arg, _ := strings.Cut(in.Text(), " ")
		fmt.Fprintln(out, answer(what, arg))
	}
	return nil
}

// verdictOf is how a program answers a call that has that result.
func verdictOf(err error) string {
	if err != nil {
		return strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return "ok"
}

// zkLockProgram locks with zk.Lock of github.com/go-zookeeper/zk.
var zkLockProgram = service.NewProgram("zk.Lock", func(in *bufio.Scanner, out io.Writer, args []string) error {
	timeout, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	c, _, err := zk.Connect([]string{args[0]}, timeout, zk.WithLogger(quietly{}))
	if err != nil {
		return err
	}
	defer c.Close()
	locks := map[string]*zk.Lock{}
	return answers(in, out, func(what, path string) string {
		if locks[path] == nil {
			locks[path] = zk.NewLock(c, path, zk.WorldACL(zk.PermAll))
		}
		switch what {
		case "lock":
			return verdictOf(locks[path].Lock())
		case "unlock":
			return verdictOf(locks[path].Unlock())
		}
		return "zk.Lock has no " + what
	})
})

// dlockProgram locks with dlock.
var dlockProgram = service.NewProgram("dlock", func(in *bufio.Scanner, out io.Writer, args []string) error {
	ttl, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := dlock.Open(ctx, args[0], dlock.TTL(ttl), dlock.Logger(nil))
	if err != nil {
		return err
	}
	defer c.Close()
	leases := map[string]*dlock.Lease{}
	return answers(in, out, func(what, name string) string {
		m := c.Mutex(name)
		if kind, _, ok := strings.Cut(what, "-"); ok && kind == "read" {
			m = c.RWMutex(name).Read()
		}
		if strings.HasSuffix(what, "unlock") {
			err := leases[name].Unlock(ctx)
			delete(leases, name)
			return verdictOf(err)
		}
		lease, err := m.Lock(ctx)
		leases[name] = lease
		return verdictOf(err)
	})
})

// register records who is in a critical section. It is outside of all locks.
type register struct {
	t                testing.TB
	mu               sync.Mutex
	readers, writers int
	sections         map[string]int // by the kind of the locker
}

func (r *register) enter(l *locker, write bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writers > 0 || write && r.readers > 0 {
		// a peer that stood still for longer than its session may do that
		r.t.Errorf("%s enters beside %d writers and %d readers", l.kind, r.writers, r.readers)
	}
	r.sections[l.kind]++
	r.add(write, 1)
}

func (r *register) leave(write bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(write, -1)
}

func (r *register) add(write bool, n int) {
	if write {
		r.writers += n
	} else {
		r.readers += n
	}
}

// mix lets lockers take turns on a new name until each has been in the critical section that often.
// Some of them are killed in it; a new process takes the place of one that was killed.
// If rw is set two thirds of the sections are a reader's.
func mix(t testing.TB, each int, rw bool, killed func(*locker) bool, lockers ...*locker) {
	t.Helper()
	name, kills := "mix-"+driver.NewID().String(), 1 // of each
	if size.Long() {
		each, kills = 10*each, 5
	}
	r := &register{t: t, sections: map[string]int{}}
	var wg sync.WaitGroup
	for _, l := range lockers {
		wg.Go(func() {
			for i := range each {
				write, kind := true, ""
				if rw {
					kind, write = "write-", i%3 == 0
					if !write {
						kind = "read-"
					}
				}
				l.do(kind+"lock", name)
				if t.Failed() {
					return
				}
				r.enter(l, write)
				time.Sleep(rand.N(3 * time.Millisecond))
				if killed(l) && i%(each/kills) == each/(2*kills) {
					l.kill()
					r.leave(write)
					l.start()
					continue
				}
				r.leave(write)
				l.do(kind+"unlock", name)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Fatalf("not all sections are over; so far: %v", r.sections)
	}
	t.Log("sections: " + fmt.Sprint(r.sections))
}

// inOrder queues the lockers behind a hold of the first one, and returns when each was granted the
// name in the order of arrival, and how long that took from the first release.
func inOrder(t *testing.T, z zkTree, name string, lockers ...*locker) time.Duration {
	t.Helper()
	lockers[0].do("lock", name)
	granted := make(chan int, len(lockers))
	var wg sync.WaitGroup
	for i, l := range lockers[1:] {
		z.awaitAt(peerPath(name), i+1)
		wg.Go(func() {
			l.do("lock", name)
			granted <- i + 1
			l.do("unlock", name)
		})
	}
	z.awaitAt(peerPath(name), len(lockers))
	began := time.Now()
	lockers[0].do("unlock", name)
	await.All(t, &wg)
	took := time.Since(began)
	close(granted)
	var order []string
	for i := range granted {
		order = append(order, strconv.Itoa(i))
	}
	for i, got := range order {
		if got != strconv.Itoa(i+1) {
			t.Errorf("granted in the order %s", strings.Join(order, " "))
			break
		}
	}
	return took
}

// awaitAt waits until as many nodes stand at a path.
func (z zkTree) awaitAt(path string, n int) {
	z.t.Helper()
	await.That(z.t, fmt.Sprintf("%d nodes stand at %s", n, path), func() bool { return len(z.children(path)) == n })
}
