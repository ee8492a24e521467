//go:build linux

package file

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Backend is one client of a directory. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker] and [driver.Lister]. It is made by [New] or a URL; the zero value is of no use.
type Backend struct {
	identity string
	prefix   string
	table    *table
	session  *session
	clock    func() (int64, error) // monotonic
	tick     time.Duration
	at       func(step string) // for tests

	// by slot, full while locked: our own updates of a slot go one by one
	updating [64]chan struct{}
	calls    sync.WaitGroup // calls and goroutines under way
	closing  chan struct{}
	done     chan struct{} // closed when Close is through

	mu      sync.Mutex
	closed  bool
	cache   map[int]*state
	mine    map[driver.ID]*hold
	waits   map[int]*waits
	news    []int   // slots that the poller has to look at
	graves  []grave // by their time
	polling bool
}

// config is what tests change.
type config struct {
	boot  string
	magic func(dir string) (uint32, error)
	clock func() (int64, error)
	tick  time.Duration
	at    func(step string)
}

func open(dir, prefix string) (*Backend, error) {
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnsupported, err)
	}
	return openConfig(dir, prefix, config{boot: boot, magic: magic, clock: monotonic, tick: tick, at: func(string) {}})
}

func openConfig(dir, prefix string, c config) (*Backend, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	m, err := c.magic(dir)
	if err == nil {
		err = checkMagic(m)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	t, err := openTable(dir, c.boot, c.at)
	if err != nil {
		return nil, err
	}
	s, err := openSession(t)
	if err != nil {
		t.close()
		return nil, fmt.Errorf("%s: %w", t.path, err)
	}
	b := &Backend{
		identity: fmt.Sprintf("file:%d:%d:%s", st.Dev, st.Ino, prefix),
		prefix:   prefix,
		table:    t,
		session:  s,
		clock:    c.clock,
		tick:     c.tick,
		at:       c.at,
		closing:  make(chan struct{}),
		done:     make(chan struct{}),
		cache:    map[int]*state{},
		mine:     map[driver.ID]*hold{},
		waits:    map[int]*waits{},
	}
	for i := range b.updating {
		b.updating[i] = make(chan struct{}, 1)
	}
	if err := b.sweep(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Capabilities returns what the driver can do. The holds end with the boot of the machine.
func (b *Backend) Capabilities() driver.Capabilities {
	return driver.Capabilities{
		Backend:         "file",
		Identity:        b.identity,
		Queue:           true,
		Fencing:         true,
		Shared:          true,
		Semaphores:      true,
		Joins:           true,
		Inspect:         true,
		ServerEndsFixed: true,
		FixedOutlives:   true,
		MinTTL:          minTTL,
		MaxTTL:          maxTTL,
	}
}

const (
	minTTL = 100 * time.Millisecond
	maxTTL = 100 * 365 * 24 * time.Hour // keeps sums of times far from the end of their range
)

// begin starts a call that Close waits for.
func (b *Backend) begin(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.calls.Add(1)
	return nil
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.calls.Done()
	name = b.prefix + name
	i := slot(name)
	err := b.update(ctx, i, func(s *state, _ int64) error {
		found := false
		err := s.each(name, func(e *entry) *entry { // all that have tokens are at hand
			if t == 0 || e.Token != t {
				return e
			}
			found = true
			switch {
			case force:
				return nil
			case e.Broken:
				return e
			}
			return e.change(func(e *entry) { e.Broken = true })
		})
		if err == nil && !found {
			return driver.ErrNotHeld
		}
		return err
	})
	if err == nil {
		// finds when it ends; otherwise whoever comes next does
		b.update(context.Background(), i, nil)
	}
	return err
}

// Inspect implements [driver.Backend].
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if err := b.begin(ctx); err != nil {
		return driver.Queue{}, err
	}
	defer b.calls.Done()
	name = b.prefix + name
	i := slot(name)
	if err := b.updateSome(ctx, i, math.MaxInt, nil); err != nil {
		return driver.Queue{}, err
	}
	s, err := b.read(i)
	if err != nil {
		return driver.Queue{}, err
	}
	now, err := b.clock()
	q := s.queue(name)
	if q == nil || err != nil {
		return driver.Queue{}, err
	}
	var out driver.Queue
	show := func(es []*entry, to *[]*driver.Entry) {
		for _, e := range es {
			cell, dead, err2 := b.life(e, now)
			if left := e.expires(cell) - now; err2 != nil {
				err = err2
			} else if !dead && left > 0 {
				c := e.Entry
				c.Name = strings.TrimPrefix(c.Name, b.prefix)
				c.Age, c.Left = time.Duration(max(0, now-e.arrived)), time.Duration(left)
				*to = append(*to, &c)
			}
		}
	}
	strangers, err := q.all()
	show(strangers, &out.Arrivals)
	show(q.joins, &out.Joins)
	return out, err
}

// List implements [driver.Lister].
func (b *Backend) List(ctx context.Context) ([]string, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	var names []string
	for i := range slots {
		w, err := load(b.table.word(i))
		if err != nil {
			return nil, err
		}
		if vacant(w) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := b.updateSome(ctx, i, math.MaxInt, nil); err != nil {
			return nil, err
		}
		s, err := b.read(i)
		if err != nil {
			return nil, err
		}
		for _, q := range s.queues {
			if name, ok := strings.CutPrefix(q.name, b.prefix); ok && name != "" {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		<-b.done
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	defer close(b.done)
	close(b.closing)
	if b.session.bell != nil {
		b.session.poke() // the poller
	}
	b.calls.Wait()
	end, clean := time.Now().Add(2*time.Second), true
	for _, h := range slices.Collect(maps.Values(b.mine)) {
		if time.Now().After(end) || b.bequeath(h) != nil {
			clean = false // it dies with the session
			break
		}
	}
	b.session.close(clean)
	b.table.close()
	return nil
}

// bequeath leaves what was granted to a Fixed request to its time, and takes every other out of the
// queue.
func (b *Backend) bequeath(h *hold) error {
	h.mu.Lock()
	over := h.over // given up, or lost
	h.mu.Unlock()
	return b.update(context.Background(), h.slot, func(s *state, _ int64) error {
		var err error
		fault := s.alter(h.name, h.id, func(e *entry) *entry {
			switch {
			case e.session != b.session.id:
				return e
			case over || !e.outlives():
				return nil
			}
			var cell int64
			if cell, err = b.table.cells.at(e.session, e.cell); err != nil {
				return e
			}
			return e.orphan(cell)
		})
		return errors.Join(err, fault)
	})
}
