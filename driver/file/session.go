//go:build linux || darwin

package file

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/dlock-go/dlock/driver"
)

// session is the presence of this client: a lock on its home for as long as the process lives, and
// a named pipe. Other clients write to the pipe when they grant one of its waiters.
type session struct {
	id    sessionID
	table *table
	pipe  *os.File

	mu    sync.Mutex
	free  []int // the cells that no request uses
	block int   // the last block that was taken
}

// openSession takes a home, and tests that locks and shared memory work.
func openSession(t *table) (*session, error) {
	number, err := t.advance(headSession, 0)
	if err != nil {
		return nil, err
	}
	s := &session{table: t}
	if err := s.takeHome(number); err != nil {
		return nil, fmt.Errorf("register this client in the file cells: %w", err)
	}
	if err := s.selfTest(); err != nil {
		s.close(true)
		return nil, err
	}
	if err := s.makePipe(); err != nil {
		s.close(true)
		return nil, fmt.Errorf("named pipe: %w", err)
	}
	return s, nil
}

// takeHome takes the first free block. It is locked before it gets the session's name.
func (s *session) takeHome(number uint64) error {
	fd := s.table.cells.fd
	return s.take(0, func(block int, w *uint64) (bool, error) {
		if block >= 1<<homeBits {
			return false, fmt.Errorf("the directory has its greatest number of clients, %d", 1<<homeBits)
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

// extend takes one more block, if possible behind the session's last one.
func (s *session) extend() error {
	return s.take(s.block+1, func(_ int, w *uint64) (bool, error) { return swap(w, 0, uint64(s.id)) })
}

// take calls f for free blocks until f reports that it has taken one. It begins at the given block,
// continues from the first one, and then makes more. s.mu is held, or s is not shared yet.
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

// addBlock adds the cells of a block to the free ones, so that the first is used first. s.mu is
// held, or s is not shared yet.
func (s *session) addBlock(block int) {
	s.block = block
	for i := blockWords - 1; i > 0; i-- {
		s.free = append(s.free, block*blockWords+i)
	}
}

// selfTest opens the folder and the file cells a second time, and tests that locks and shared
// memory work.
func (s *session) selfTest() error {
	dir, err := openFolder(s.table.path)
	if err != nil {
		return err
	}
	defer dir.close()
	if alone, err := flock(dir.fd, syscall.LOCK_EX); err != nil {
		return err
	} else if alone { // despite the shared lock of this client
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
		return fmt.Errorf("%w: two mappings of one file do not share their content", driver.ErrUnsupported)
	}
	return nil
}

// makePipe makes the named pipe. The client has both ends open, so that a read waits for the next
// message.
func (s *session) makePipe() error {
	path := filepath.Join(s.table.pipes.path, pipeName(s.id))
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return err
	}
	if s.table.shared {
		if err := syscall.Chmod(path, 0o660); err != nil {
			return err
		}
	}
	fd, err := s.table.pipes.open(pipeName(s.id), syscall.O_RDWR|syscall.O_NONBLOCK)
	if err != nil {
		return err
	}
	s.pipe = os.NewFile(uintptr(fd), "pipe")
	return nil
}

func pipeName(s sessionID) string { return fmt.Sprintf("%016x", uint64(s)) }

// wakeUp makes a client check the slot. A client whose pipe cannot be written to checks by itself a
// little later.
func (t *table) wakeUp(s sessionID, slot int) {
	fd, err := t.pipes.open(pipeName(s), syscall.O_WRONLY|syscall.O_NONBLOCK)
	if err == nil {
		syscall.Write(fd, binary.NativeEndian.AppendUint32(nil, uint32(slot)))
		syscall.Close(fd)
	}
}

// wakeSelf wakes this client's own poller, for slot 0, which does no harm. It never waits: a full
// pipe wakes the reader anyway.
func (s *session) wakeSelf() {
	if c, err := s.pipe.SyscallConn(); err == nil {
		c.Write(func(fd uintptr) bool {
			syscall.Write(int(fd), make([]byte, 4))
			return true
		})
	}
}

// takeCell returns a cell for a new request. The time in it is from an earlier request, and keeps
// no request alive.
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

// returnCell makes a cell free. Its request must have left the queue: a new time in the cell would
// keep that request alive.
func (s *session) returnCell(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, i)
}

// close ends the presence. If no request of the session is left in a queue (clean), its blocks
// become free. Otherwise they show the next client that there is something to purge, once the lock
// has ended with the descriptor of the file.
func (s *session) close(clean bool) {
	s.table.pipes.remove(pipeName(s.id))
	s.leave()
	if clean {
		s.table.cells.free(s.id)
	}
}

// leave ends the presence as the end of the process does.
func (s *session) leave() {
	if s.pipe != nil {
		s.pipe.Close()
	}
}
