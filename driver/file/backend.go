//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Options are the options of [New]. The zero value is useful.
type Options struct {
	// Prefix is put before every name. Backends see each other's locks where prefix and name
	// together are the same.
	Prefix string
}

// Backend is one client of a directory. It implements [driver.Backend], [driver.Capable],
// [driver.Breaker] and [driver.Lister], whose contracts it keeps. It is made by [New] or a URL; the
// zero value is of no use.
type Backend struct {
	identity string
	prefix   string
	table    *table
	session  *session
	clock    func() (int64, error) // monotonic
	tick     time.Duration
	at       func(step string) // for tests

	// locks by slot, full while locked: the client's own updates of a slot go one by one
	updating [64]chan struct{}
	calls    sync.WaitGroup // calls and goroutines under way
	closing  chan struct{}
	done     chan struct{} // closed when Close is through

	mu         sync.Mutex
	closed     bool
	cache      map[int]*state
	requests   map[driver.ID]*ownRequest
	waiting    map[int]*waitingSlot
	notified   []int           // slots that the poller has to check
	tombstones []leftTombstone // by their time
	polling    bool            // the poller runs
}

// config is what tests replace.
type config struct {
	boot       string
	fileSystem func(dir string) (string, error)
	clock      func() (int64, error)
	tick       time.Duration
	at         func(step string)
	left       <-chan struct{} // is closed when whoever opens has left; may be nil
}

// New returns a backend over the queues in dir. It makes the directory, for this user alone, if it
// is missing. All programs that share it run as one user.
//
// New refuses a directory with an error that matches [driver.ErrUnsupported], and says why, if its
// file system cannot keep the promises of this package, if programs with another boot ID use it, or
// if a version of dlock with another format of the directory has made it in this boot.
func New(dir string, o Options) (*Backend, error) { return open(dir, o, nil) }

// open is New, until whoever opens has left.
func open(dir string, o Options, left <-chan struct{}) (*Backend, error) {
	dir, err := absolute(dir, o)
	if err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err == nil {
		boot, err = cleanBootID(boot)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: boot ID: %w", driver.ErrUnsupported, err)
	}
	return newBackend(dir, o.Prefix, config{boot: boot, fileSystem: fileSystem, clock: monotonic, tick: tick, at: func(string) {}, left: left})
}

func newBackend(dir, prefix string, c config) (*Backend, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	fs, err := c.fileSystem(dir)
	if err == nil {
		err = checkFileSystem(fs)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	t, err := openTable(dir, c)
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
		requests: map[driver.ID]*ownRequest{},
		waiting:  map[int]*waitingSlot{},
	}
	for i := range b.updating {
		b.updating[i] = make(chan struct{}, 1)
	}
	if err := b.purge(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Capabilities implements [driver.Capable]. All holds end with the boot of the machine.
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

// begin begins a call, for which Close waits. Done of b.calls has to follow.
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
		b.session.ringSelf() // ends the poller
	}
	b.calls.Wait()
	end, clean := time.Now().Add(2*time.Second), true
	for _, own := range slices.Collect(maps.Values(b.requests)) {
		if time.Now().After(end) || b.releaseAtClose(own) != nil {
			clean = false // it ends with the session
			break
		}
	}
	b.session.close(clean)
	b.table.close()
	return nil
}

// releaseAtClose removes a request from its queue. A Fixed request that was granted stays until its
// time, and does not depend on the client any more.
func (b *Backend) releaseAtClose(own *ownRequest) error {
	own.mu.Lock()
	over := own.over // abandoned, or lost
	own.mu.Unlock()
	return b.update(context.Background(), own.slot, func(s *state, _ int64) error {
		var err error
		fault := s.alter(own.name, own.id, func(e *entry) *entry {
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
			return e.detached(cell)
		})
		return errors.Join(err, fault)
	})
}
