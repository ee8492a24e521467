//go:build linux || darwin

package file

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// A writer that is stopped in an update, and continues after the updates of other clients, does no
// harm, not even if the slot was vacant before, and is again.
func TestStoppedWriterLosesItsSwap(t *testing.T) {
	for _, step := range []string{"new", "written"} {
		r := newRig(t)
		q := request("a", 10*second)
		resume := r.as.stop(step, 1, func() error { _, err := r.a.Acquire(t.Context(), q); return err })
		other := request("a", long)
		g := acquire(t, r.b, other)
		release(t, r.b, other)
		if err := resume(); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if h := inspect(t, r.b, "a").Holders(); len(h) != 1 || h[0].Token <= g.Token {
			t.Errorf("%s: the stopped writer's token is not above the one that was granted meanwhile", step)
		}
		release(t, r.a, q)
		if n := states(t, r.a); len(n) != 0 {
			t.Errorf("%s: states are left: %v", step, n)
		}
	}
}

// A process that is stopped at any step of an update blocks no other. What it did not put in place
// has no effect, and what it did ends at its TTL. When it continues, its calls report that.
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
					t.Fatalf("the stopped process: %q", s)
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

// Processes work on a few names while some are killed and stopped. Each critical section checks
// three things: a file lock shows a second holder, a counter loses updates if there are two, and
// the tokens have to grow.
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
			t.Logf("%d sections, %d by workers that were not killed", total, sections.Load())
			if !kill && total != sections.Load() || total < sections.Load() {
				t.Errorf("the counters say %d, the workers %d", total, sections.Load())
			}
			for i := range names {
				acquire(t, b, request(fmt.Sprint("work-", i), long))
			}
		})
	}
}

// work is what a child does: it returns the number of its sections, or "bad" and the reason.
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
				if rand.IntN(8) == 0 { // some waits end early
					ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rand.IntN(3000))*time.Microsecond)
				}
				g, err := b.Acquire(ctx, r)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					if err := b.Release(context.Background(), r); err != nil && !errors.Is(err, driver.ErrLost) {
						bad <- fmt.Sprint("bad: ", err)
						return
					}
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

// witness is a critical section: only one may be in it.
func witness(path string, token driver.Token) error {
	fd, err := openFile(path, syscall.O_RDWR|syscall.O_CREAT)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if alone, err := flock(fd, syscall.LOCK_EX); err != nil || !alone {
		return fmt.Errorf("another process is in the section: %w", errors.Join(err))
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

// A process with many waiters that was killed, or stopped for longer than its TTL, blocks no other.
// The release of the holder grants the first live waiter behind it. It does not grant each of the
// process's requests in turn.
func TestReleaseGoesPastManyWhoAreOver(t *testing.T) {
	for _, c := range []struct {
		name          string
		ttl           time.Duration
		ends          func(t *testing.T, away *Backend, now *atomic.Int64)
		frozen, ahead bool
	}{
		{"killed", long, func(t *testing.T, away *Backend, _ *atomic.Int64) { die(t, away) }, false, false},
		{"stopped", second, func(_ *testing.T, _ *Backend, now *atomic.Int64) { now.Add(int64(second)) }, true, false},
		{"stopped, behind one that was killed", second, func(_ *testing.T, _ *Backend, now *atomic.Int64) { now.Add(int64(second)) }, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const many = 100
			dir, config := t.TempDir(), testConfig()
			config.tick = time.Hour // only the release finds them
			var now atomic.Int64
			now.Store(1e9)
			config.clock = func() (int64, error) { return now.Load(), nil }
			holder, survivor := openTestConfig(t, dir, config), openTestConfig(t, dir, config)
			if c.frozen {
				config.clock = func() (int64, error) { return 1e9, nil }
			}
			away := openTestConfig(t, dir, config)

			held := request("a", long)
			acquire(t, holder, held)
			ahead, dies := 0, func() {}
			if c.ahead {
				dead := openTestConfig(t, dir, config)
				background(t, dead, request("a", long))
				ahead, dies = 1, func() { die(t, dead) }
			}
			var waiting sync.WaitGroup
			for range many {
				waiting.Go(func() { away.Acquire(t.Context(), request("a", c.ttl)) })
			}
			defer waiting.Wait()
			defer away.Close()
			stand := func() int {
				s, err := holder.read(slot("a"))
				if err != nil {
					t.Fatal(err)
				}
				return len(entries(s))
			}
			eventually(t, "all wait", func() bool { return stand() == 1+ahead+many })
			last := request("a", long)
			done := background(t, survivor, last)
			dies()
			c.ends(t, away, &now)

			release(t, holder, held)
			s, err := holder.read(slot("a"))
			if err != nil {
				t.Fatal(err)
			}
			if e := s.find("a", last.ID); e == nil || e.Token == 0 {
				t.Fatalf("after the release %d requests stand, and the survivor is %+v", stand(), e)
			}
			if err := answer(t, done); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestDeadWaitersDoNotPileUp: waiters that died behind one that lives are found by the updates of
// other clients, a few at a time, although they block no request.
func TestDeadWaitersDoNotPileUp(t *testing.T) {
	const many = 40
	dir, config := t.TempDir(), testConfig()
	config.tick = time.Hour
	b := openTestConfig(t, dir, config)
	acquire(t, b, request("a", long))
	background(t, b, request("a", long))
	var dead []*Backend
	for range many {
		c := openTestConfig(t, dir, config)
		background(t, c, request("a", long))
		dead = append(dead, c)
	}
	for _, c := range dead {
		die(t, c)
	}
	for range many / sample {
		try := request("a", long)
		try.Wait = false
		if _, err := b.Acquire(t.Context(), try); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
	}
	s, err := b.read(slot("a"))
	if n := len(entries(s)); err != nil || n != 2 {
		t.Errorf("%d requests are left, %v", n, err)
	}
}
