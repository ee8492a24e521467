//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var (
	_ driver.Backend = (*Backend)(nil)
	_ driver.Capable = (*Backend)(nil)
	_ driver.Breaker = (*Backend)(nil)
	_ driver.Lister  = (*Backend)(nil)
)

const (
	boot1 = "00000000-0000-0000-0000-000000000001"
	boot2 = "00000000-0000-0000-0000-000000000002"
	long  = time.Minute // a TTL that no test waits for

	second = time.Second
)

func testConfig() config {
	proc, err := thisProcess()
	if err != nil {
		panic(err)
	}
	return config{boot: boot1, fileSystem: fileSystem, clock: monotonic, tick: tick, at: func(string) {}, proc: proc}
}

func openTest(t testing.TB, dir string) *Backend { return openTestConfig(t, dir, testConfig()) }

func openTestConfig(t testing.TB, dir string, c config) *Backend {
	t.Helper()
	b, err := newBackend(dir, "", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func request(name string, ttl time.Duration) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, Client: driver.NewID(), TTL: ttl, Label: "test", Wait: true}
}

func join(r driver.Request, g driver.Grant) driver.Request {
	j := r
	j.ID, j.Token = driver.NewID(), g.Token
	return j
}

func acquire(t testing.TB, b *Backend, r driver.Request) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	g, err := b.Acquire(ctx, r)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

func release(t testing.TB, b *Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(t.Context(), r); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func inspect(t testing.TB, b *Backend, name string) driver.Queue {
	t.Helper()
	q, err := b.Inspect(t.Context(), name)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return q
}

func renew(b *Backend, r driver.Request) error {
	return b.Renew(context.Background(), []driver.Request{r})[0].Err
}

// eventually polls until a condition holds that another goroutine or process brings about.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// background acquires in a goroutine, and returns once the request stands in the queue.
func background(t testing.TB, b *Backend, r driver.Request) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(t.Context(), r)
		done <- err
	}()
	eventually(t, "the request is in the queue", func() bool {
		s, err := b.read(slot(b.prefix + r.Name))
		return err == nil && s.find(b.prefix+r.Name, r.ID) != nil
	})
	return done
}

// answer waits for the result of background.
func answer(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the request was never answered")
		return nil
	}
}

func states(t testing.TB, b *Backend) []string {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(b.table.path, "states"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// steps let a test stop a backend at the n-th pass of a step from now, and let it continue.
type steps struct {
	mu   sync.Mutex
	step string
	n    int
	hit  chan chan struct{}
}

func (s *steps) at(step string) {
	s.mu.Lock()
	var hit chan chan struct{}
	if s.step == step {
		if s.n--; s.n == 0 {
			hit, s.step = s.hit, ""
		}
	}
	s.mu.Unlock()
	if hit != nil {
		resume := make(chan struct{})
		hit <- resume
		<-resume
	}
}

// stop runs f, which stops at the n-th pass of the step. It returns a function that lets f continue
// and waits for it.
func (s *steps) stop(step string, n int, f func() error) (resume func() error) {
	s.mu.Lock()
	s.step, s.n, s.hit = step, n, make(chan chan struct{})
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case stopped := <-s.hit:
		return func() error {
			close(stopped)
			return <-done
		}
	case err := <-done: // it never reached the step
		s.mu.Lock()
		defer s.mu.Unlock()
		s.step = ""
		return func() error { return err }
	}
}

// rig is two clients with a clock that the test sets.
type rig struct {
	a, b   *Backend
	as, bs steps
	now    atomic.Int64
	t      *testing.T
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	r.now.Store(1e9)
	dir, c := t.TempDir(), testConfig()
	c.clock = func() (int64, error) { return r.now.Load(), nil }
	c.at = r.as.at
	r.a = openTestConfig(t, dir, c)
	c.at = r.bs.at
	r.b = openTestConfig(t, dir, c)
	return r
}

func (r *rig) advance(d time.Duration) { r.now.Add(int64(d)) }

// try is b's attempt to get the lock at once.
func (r *rig) try() error {
	q := request("a", long)
	q.Wait = false
	_, err := r.b.Acquire(r.t.Context(), q)
	return err
}

func fixed(name string, ttl time.Duration) driver.Request {
	r := request(name, ttl)
	r.Fixed = true
	return r
}

// reuse opens a client that takes the cells of the closed and dead clients, and writes in all of
// them.
func reuse(t *testing.T, r *rig) {
	t.Helper()
	dir, c := filepath.Dir(r.b.table.path), testConfig()
	c.clock = func() (int64, error) { return r.now.Load(), nil }
	x := openTestConfig(t, dir, c)
	if x.session.id.home() != 0 { // it has purged, and the next client finds the home free
		x = openTestConfig(t, dir, c)
	}
	if x.session.id.home() != 0 {
		t.Fatalf("block %d was taken, and not the home of the dead client", x.session.id.home())
	}
	x.clock = func() (int64, error) { return r.now.Load() + 1e15, nil }
	for i := range 3 * blockWords {
		acquire(t, x, request(fmt.Sprint("reuse", i), long))
	}
}

// cpu is the time that this process has used.
func cpu(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// powerOff makes other clients find the directory without clients, as if the machine had been
// switched off.
func powerOff(t testing.TB, b *Backend) {
	t.Helper()
	if _, err := flock(b.table.dir.fd, syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
}

func booted(boot string) config {
	c := testConfig()
	c.boot = boot
	return c
}

// refusedBoot reports whether the error is that of a process with another boot ID.
func refusedBoot(err error) bool {
	return errors.Is(err, driver.ErrUnsupported) && strings.Contains(err.Error(), "boot ID")
}

// die makes other clients find the client dead, as if its process had been killed.
func die(t testing.TB, b *Backend) {
	t.Helper()
	if _, err := lockByte(b.table.cells.fd, b.session.id.home(), syscall.F_UNLCK); err != nil {
		t.Fatal(err)
	}
}
