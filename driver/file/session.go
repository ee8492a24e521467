//go:build linux || darwin

package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/dlock-go/dlock/driver"
)

// session is the presence of this client. It is a lock on its home for as long as the process
// lives, and a named pipe, its bell. Others write to the bell when they grant one of its waiters.
type session struct {
	id    sessionID
	table *table
	bell  *os.File

	mu    sync.Mutex
	free  []int // the cells that no request has
	block int   // the last block that was taken
}

// openSession takes a home, and tests what everything depends on.
func openSession(t *table) (*session, error) {
	number, err := t.advance(headSession, 0)
	if err != nil {
		return nil, err
	}
	s := &session{table: t}
	if err := s.takeHome(number); err != nil {
		return nil, fmt.Errorf("take a place among the clients: %w", err)
	}
	if err := s.selfTest(); err != nil {
		s.close(true)
		return nil, err
	}
	if err := s.makeBell(); err != nil {
		s.close(true)
		return nil, fmt.Errorf("named pipe: %w", err)
	}
	return s, nil
}

// takeHome takes the first block that is nobody's. It is locked before it gets the session's name.
func (s *session) takeHome(number uint64) error {
	fd := s.table.cells.fd
	return s.take(0, func(block int, w *uint64) (bool, error) {
		if block >= 1<<homeBits {
			return false, errors.New("there are too many clients")
		}
		if locked, err := lockByte(fd, block, syscall.F_WRLCK); err != nil || !locked {
			return false, err
		}
		s.id = sessionID(number<<homeBits | uint64(block))
		done, err := swap(w, 0, uint64(s.id))
		if err == nil && !done {
			_, err = lockByte(fd, block, syscall.F_UNLCK)
		}
		return done, err
	})
}

// extend takes one more block, if possible behind those that the session has.
func (s *session) extend() error {
	return s.take(s.block+1, func(_ int, w *uint64) (bool, error) { return swap(w, 0, uint64(s.id)) })
}

// take takes one of the free blocks, as f reports that it has. It looks from the given block to the
// end, then from the first one, and then makes more. s.mu is held, or s is not shared yet.
func (s *session) take(block int, f func(block int, w *uint64) (bool, error)) error {
	c := &s.table.cells
	for wrapped := block == 0; ; block++ {
		w, owner, err := c.owner(block)
		if err == nil && w == nil {
			if wrapped {
				err = c.grow()
			}
			block, wrapped = -1, true
		} else if err == nil && owner == 0 {
			var done bool
			if done, err = f(block, w); done {
				s.addBlock(block)
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// addBlock makes the cells of a block usable, the first of them first. s.mu is held, or s is not
// shared yet.
func (s *session) addBlock(block int) {
	s.block = block
	for i := blockWords - 1; i > 0; i-- {
		s.free = append(s.free, block*blockWords+i)
	}
}

// selfTest opens the folder and the file cells a second time, and tests that locks and shared
// memory have their effect.
func (s *session) selfTest() error {
	dir, err := openFolder(s.table.path)
	if err != nil {
		return err
	}
	defer dir.close()
	if alone, err := flock(dir.fd, syscall.LOCK_EX); err != nil {
		return err
	} else if alone { // beside the shared lock of this client
		return fmt.Errorf("%w: file locks (flock) have no effect here", driver.ErrUnsupported)
	}
	fd, err := s.table.dir.open("cells", syscall.O_RDWR)
	if err != nil {
		return err
	}
	second := cells{fd: fd}
	defer second.close()
	if locked, err := lockedByOthers(fd, s.id.home()); err != nil {
		return err
	} else if !locked {
		return fmt.Errorf("%w: file locks (fcntl, F_OFD_SETLK) have no effect here", driver.ErrUnsupported)
	}
	if _, owner, err := second.owner(s.id.home()); err != nil {
		return err
	} else if owner != s.id {
		return fmt.Errorf("%w: a file that is mapped twice does not show one content", driver.ErrUnsupported)
	}
	return nil
}

// makeBell makes the named pipe. The client has both ends open, so that a read waits for the next
// ring.
func (s *session) makeBell() error {
	path := filepath.Join(s.table.bells.path, bellName(s.id))
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return err
	}
	if s.table.shared {
		if err := syscall.Chmod(path, 0o660); err != nil {
			return err
		}
	}
	fd, err := s.table.bells.open(bellName(s.id), syscall.O_RDWR|syscall.O_NONBLOCK)
	if err != nil {
		return err
	}
	s.bell = os.NewFile(uintptr(fd), "bell")
	return nil
}

func bellName(s sessionID) string { return fmt.Sprintf("%016x", uint64(s)) }

// ring tells a client that something happened in the slot. A client that cannot be rung finds out
// by itself a little later.
func (t *table) ring(s sessionID, slot int) {
	fd, err := t.bells.open(bellName(s), syscall.O_WRONLY|syscall.O_NONBLOCK)
	if err == nil {
		syscall.Write(fd, binary.NativeEndian.AppendUint32(nil, uint32(slot)))
		syscall.Close(fd)
	}
}

// ringSelf rings the client's own bell, for slot 0, which does no harm. It never waits: a full pipe
// wakes the reader anyway.
func (s *session) ringSelf() {
	if c, err := s.bell.SyscallConn(); err == nil {
		c.Write(func(fd uintptr) bool {
			syscall.Write(int(fd), make([]byte, 4))
			return true
		})
	}
}

// takeCell returns a cell for a new request. In it is the time of an earlier request, which keeps
// nobody alive.
func (s *session) takeCell() (int, *uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		if err := s.extend(); err != nil {
			return 0, nil, err
		}
	}
	n := len(s.free) - 1
	w, err := s.table.cells.word(s.free[n])
	if err != nil {
		return 0, nil, err
	}
	i := s.free[n]
	s.free = s.free[:n]
	return i, w, nil
}

// returnCell takes the cell back. Its request must be gone from the queue: a new time in the cell
// would keep that alive.
func (s *session) returnCell(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, i)
}

// close ends the presence. If no request of the session is left in a queue (clean), its blocks
// become free. Otherwise they tell the next client that there is something to purge, as soon as the
// lock is gone with the descriptor of the file.
func (s *session) close(clean bool) {
	s.table.bells.remove(bellName(s.id))
	s.leave()
	if clean {
		s.table.cells.free(s.id)
	}
}

// leave ends the presence as the end of the process does.
func (s *session) leave() {
	if s.bell != nil {
		s.bell.Close()
	}
}
