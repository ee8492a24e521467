//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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
// [driver.Breaker], [driver.Notifier], [driver.Explainer], [driver.Lister] and [driver.Raiser],
// whose contracts it keeps. It is made by [New] or a URL; the zero value is not usable.
type Backend struct {
	identity string
	prefix   string
	table    *table
	session  *session
	clock    func() (int64, error) // monotonic
	tick     time.Duration
	at       func(step string) // for tests

	// locks by slot, full while locked: the client makes one update of a slot at a time
	updating [64]chan struct{}
	calls    sync.WaitGroup // calls and goroutines under way
	closing  chan struct{}
	done     chan struct{} // closed when Close has finished

	mu         sync.Mutex
	closed     bool
	cache      map[int]*state
	requests   map[driver.ID]*ownRequest
	waiting    map[int]*waitingSlot
	lost       func(driver.ID)       // reports a loss; nil: Notify was not called
	held       map[int][]*ownRequest // by slot: what the poller watches
	notified   []int                 // slots that the poller has to check
	tombstones []leftTombstone       // by their time
	polling    bool                  // the poller runs

	verifying, unverified atomic.Bool // what is held is being verified; more has come meanwhile
}

// config is what tests replace.
type config struct {
	boot       string
	fileSystem func(dir string) (string, error)
	clock      func() (int64, error)
	tick       time.Duration
	at         func(step string)
	proc       process
	left       <-chan struct{} // closed when the caller of the opener has left; may be nil
}

// New returns a backend over the queues in dir. If the directory is missing New makes it, for this
// user alone (mode 0700). Programs that share it run as its owner, or, if its group has all rights
// in it (mode 2770), as members of that group. Any other user is refused, and so is root in a
// directory that it does not own, and every user in a directory that all users can write in. The
// error then matches [io/fs.ErrPermission], and says what to do. Files in the directory are made so
// that all of these users can use them, whatever their umasks are.
//
// New fails with an error that matches [driver.ErrUnsupported] and gives the reason if the file
// system of dir cannot keep the promises of this package, if programs with another boot ID use the
// directory, or if a version of dlock with another format of the directory made it in this boot.
func New(dir string, o Options) (*Backend, error) { return open(dir, o, nil) }

// open is New. It stops trying when left is closed.
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
	proc, err := thisProcess()
	if err != nil {
		return nil, fmt.Errorf("groups of this process: %w", err)
	}
	return newBackend(dir, o.Prefix, config{
		boot: boot, fileSystem: fileSystem, clock: monotonic, tick: tick, at: func(string) {}, proc: proc, left: left,
	})
}

func newBackend(dir, prefix string, c config) (*Backend, error) {
	if err := makeDir(dir, c.proc); err != nil {
		return nil, err
	}
	o, err := ownerOf(dir)
	if err == nil {
		err = o.admit(dir, c.proc)
	}
	if err != nil {
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
	t, err := openTable(dir, o, c)
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
		held:     map[int][]*ownRequest{},
	}
	for i := range b.updating {
		b.updating[i] = make(chan struct{}, 1)
	}
	err = b.purge()
	if err == nil {
		err = t.moved() // since it was opened
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Capabilities implements [driver.Capable]. All holds end with the boot of the machine. Those of
// the zero Backend are zero.
func (b *Backend) Capabilities() driver.Capabilities {
	if b.table == nil {
		return driver.Capabilities{}
	}
	return driver.Capabilities{
		Backend:         "file",
		Identity:        b.identity,
		Queue:           true,
		Fencing:         true,
		Raises:          true,
		Shared:          true,
		Semaphores:      true,
		Joins:           true,
		Inspect:         true,
		FailoverSafe:    true,
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

// Notify implements [driver.Notifier].
func (b *Backend) Notify(lost func(driver.ID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = lost
}

// begin begins a call, for which Close waits. Done of b.calls has to follow.
func (b *Backend) begin(ctx context.Context) error {
	if b.table == nil { // New did not make it
		return driver.ErrClosed
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		b.mu.Unlock()
		return err
	}
	b.calls.Add(1)
	b.mu.Unlock()
	// any other error leaves it open whether the directory was moved; grants and renewals check
	// again
	if err := b.table.moved(); errors.Is(err, errMoved) {
		b.calls.Done()
		return err
	}
	return nil
}

// lostIf returns the error of a call for a request that this client may hold: if the directory was
// moved, the request is lost.
func lostIf(err error) error {
	if errors.Is(err, errMoved) {
		return fmt.Errorf("%w: %w", driver.ErrLost, err)
	}
	return err
}

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	if b.table == nil {
		return nil
	}
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
	if b.session.pipe != nil {
		b.session.wakeSelf() // ends the poller
	}
	b.calls.Wait()
	// where the path leads now, its name may be another client's
	if errors.Is(b.table.moved(), errMoved) {
		b.session.leave()
		b.table.close()
		return nil
	}
	end, clean := time.Now().Add(2*time.Second), true
	for _, own := range slices.Collect(maps.Values(b.requests)) {
		if time.Now().After(end) || b.releaseAtClose(own) != nil {
			clean = false // the rest ends with the session
			break
		}
	}
	b.session.close(clean)
	b.table.close()
	return nil
}

// releaseAtClose removes a request from its queue. A granted Fixed request stays until its time,
// and no longer depends on the client.
func (b *Backend) releaseAtClose(own *ownRequest) error {
	b.mu.Lock()
	over := own.failed
	b.mu.Unlock()
	own.mu.Lock()
	over = over || own.over
	own.mu.Unlock()
	return b.update(context.Background(), own.slot, func(s *state, _ int64) error {
		var err error
		s.alter(own.name, own.id, func(e *entry) *entry {
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
		return err
	})
}
