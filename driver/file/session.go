//go:build linux

package file

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/dlock-go/dlock/driver"
)

const (
	chunkCells = 8192 // a chunk is a whole number of pages everywhere
	chunkSize  = 8 * chunkCells
)

// cells are a client's file: one word for each of its requests, the time when it was last proved or kept alive. The
// file grows by whole chunks. Not safe for concurrent use, but for the words themselves.
type cells struct {
	fd     int
	prot   int
	chunks []mapped
}

// at returns the word, which must be in the file.
func (c *cells) at(i int) (*uint64, error) {
	for len(c.chunks) <= i/chunkCells {
		n, err := size(c.fd)
		if err == nil && n < int64(len(c.chunks)+1)*chunkSize {
			err = errors.New("a client's file is too short; " + repair)
		}
		if err != nil {
			return nil, err
		}
		m, err := mapFile(c.fd, int64(len(c.chunks))*chunkSize, chunkSize, c.prot)
		if err != nil {
			return nil, fmt.Errorf("map a client's file: %w", err)
		}
		c.chunks = append(c.chunks, m)
	}
	return c.chunks[i/chunkCells].word(i % chunkCells), nil
}

func (c *cells) close() {
	for _, m := range c.chunks {
		m.unmap()
	}
	syscall.Close(c.fd)
}

// session is this client's presence: a file that is locked (flock) for as long as the process lives, and a named
// pipe, its bell, that others write to when they grant one of its waiters.
type session struct {
	id      driver.ID
	clients int // descriptor of the directory
	bell    *os.File

	mu    sync.Mutex
	cells cells
	next  int // the first cell that was never used
	free  []int
}

// openSession makes the file aside and renames it into place once it is locked: it is never seen unlocked while its
// client lives. That the file system keeps its word about locks and shared memory is tried out on it.
func openSession(clients int) (*session, error) {
	s := &session{id: driver.NewID(), clients: clients}
	name := s.id.String()
	fd, err := openAt(clients, name+".new", syscall.O_RDWR|syscall.O_CREAT|syscall.O_EXCL)
	if err != nil {
		return nil, fmt.Errorf("write in clients: %w", err)
	}
	s.cells = cells{fd: fd, prot: syscall.PROT_READ | syscall.PROT_WRITE}
	locked, err := flock(fd, syscall.LOCK_EX)
	if err == nil && !locked {
		err = errors.New("locked by somebody else")
	}
	err = errors.Join(err, s.grow())
	if err == nil {
		err = selfTest(clients, name+".new", &s.cells)
	}
	if err == nil {
		err = syscall.Renameat(clients, name+".new", clients, name)
	}
	if err == nil {
		err = s.hang()
	}
	if err != nil {
		syscall.Unlinkat(clients, name+".new")
		s.close(true)
		return nil, fmt.Errorf("own file in clients: %w", err)
	}
	return s, nil
}

// hang hangs up the bell. Both ends are open here, so that a read waits for the next ring.
func (s *session) hang() error {
	if err := syscall.Mknodat(s.clients, s.bellName(), syscall.S_IFIFO|0o600, 0); err != nil {
		return fmt.Errorf("named pipe: %w", err)
	}
	fd, err := openAt(s.clients, s.bellName(), syscall.O_RDWR|syscall.O_NONBLOCK)
	if err != nil {
		return fmt.Errorf("named pipe: %w", err)
	}
	s.bell = os.NewFile(uintptr(fd), "bell")
	return nil
}

func (s *session) bellName() string { return s.id.String() + ".bell" }

// selfTest tries out, through a second look at our own file, what all depends on.
func selfTest(dir int, name string, own *cells) error {
	fd, err := openAt(dir, name, syscall.O_RDONLY)
	if err != nil {
		return err
	}
	second := cells{fd: fd, prot: syscall.PROT_READ}
	defer second.close()
	if free, err := flock(fd, syscall.LOCK_SH); err != nil {
		return err
	} else if free {
		return fmt.Errorf("%w: file locks (flock) have no effect here", driver.ErrUnsupported)
	}
	a, err := own.at(0)
	if err != nil {
		return err
	}
	b, err := second.at(0)
	if err != nil {
		return err
	}
	const mark = 1
	err = raise(a, mark)
	if seen, err2 := load(b); err == nil && err2 == nil && seen != mark {
		err = fmt.Errorf("%w: a file that is mapped twice does not show one content", driver.ErrUnsupported)
	} else if err == nil {
		err = err2
	}
	return err
}

// grow adds a chunk that is really written: a hole might find the disk full when it is first touched.
func (s *session) grow() error {
	if _, err := syscall.Seek(s.cells.fd, int64(len(s.cells.chunks))*chunkSize, 0); err != nil {
		return err
	}
	if err := writeAll(s.cells.fd, make([]byte, chunkSize)); err != nil {
		return err
	}
	_, err := s.cells.at(len(s.cells.chunks) * chunkCells)
	return err
}

// take returns a cell for a new request.
func (s *session) take() (int, *uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		p, err := s.cells.at(i)
		if err == nil {
			s.free = s.free[:n-1]
		}
		return i, p, err
	}
	if s.next == len(s.cells.chunks)*chunkCells {
		if err := s.grow(); err != nil {
			return 0, nil, err
		}
	}
	p, err := s.cells.at(s.next)
	if err != nil {
		return 0, nil, err
	}
	s.next++
	return s.next - 1, p, nil
}

// give takes the cell back. Its request must be gone from the queue: a stale time in it would keep that alive.
func (s *session) give(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, i)
}

// cell returns the time in one of our own cells.
func (s *session) cell(i int) (int64, error) {
	s.mu.Lock()
	p, err := s.cells.at(i)
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	v, err := load(p)
	return int64(v), err
}

// close ends the presence: others find it dead. If nothing is left in the queues the file can go; otherwise it tells
// the next client that there is something to sweep.
func (s *session) close(remove bool) {
	if remove {
		syscall.Unlinkat(s.clients, s.id.String())
	}
	syscall.Unlinkat(s.clients, s.bellName())
	if s.bell != nil {
		s.bell.Close()
	}
	s.cells.close()
}
