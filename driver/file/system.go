//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"syscall"
)

// again repeats a system call that a signal interrupted.
func again[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if !errors.Is(err, syscall.EINTR) {
			return v, err
		}
	}
}

// openFile opens a file. The name is absolute, or relative to the working directory.
func openFile(path string, flags int) (int, error) {
	return again(func() (int, error) {
		return syscall.Open(path, flags|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	})
}

// folder is a directory that is kept open. The zero value is none.
type folder struct {
	path string
	fd   int
}

func openFolder(path string) (folder, error) {
	fd, err := openFile(path, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		return folder{}, err
	}
	return folder{path, fd}, nil
}

func (f folder) close() {
	if f.path != "" {
		syscall.Close(f.fd)
	}
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := again(func() (int, error) { return syscall.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func size(fd int) (int64, error) {
	var st syscall.Stat_t
	err := syscall.Fstat(fd, &st)
	return st.Size, err
}

// flock takes a lock, or reports false if it would have to wait. The open file description keeps
// the lock until it is closed.
func flock(fd int, how int) (bool, error) {
	_, err := again(func() (struct{}, error) { return struct{}{}, syscall.Flock(fd, how|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// lockByte takes or releases (F_UNLCK) the lock on a byte, or reports false if it would have to
// wait. The open file description keeps the lock until it is closed. The file need not have such a
// byte.
func lockByte(fd, i int, how int16) (bool, error) {
	l := syscall.Flock_t{Type: how, Start: int64(i), Len: 1}
	_, err := again(func() (struct{}, error) { return struct{}{}, syscall.FcntlFlock(uintptr(fd), ofdSet, &l) })
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// lockedByOthers reports whether another open file description has the lock on a byte. It does not
// take the lock.
func lockedByOthers(fd, i int) (bool, error) {
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Start: int64(i), Len: 1}
	_, err := again(func() (struct{}, error) { return struct{}{}, syscall.FcntlFlock(uintptr(fd), ofdGet, &l) })
	if err != nil {
		return false, fmt.Errorf("test a lock: %w", err)
	}
	return l.Type != syscall.F_UNLCK, nil
}

// read returns the content of a file: only its first bytes, unless goesOn returns true for them. If
// the name is that of a named pipe it does not wait.
func (f folder) read(name string, first int, goesOn func(start string, size int64) bool) ([]byte, error) {
	fd, err := f.open(name, syscall.O_RDONLY|syscall.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	n, err := size(fd)
	if err != nil {
		return nil, err
	}
	start := make([]byte, first)
	read, err := readFull(fd, start)
	if err != nil || read < first || !goesOn(string(start), n) {
		return start[:read], err
	}
	data := make([]byte, n)
	copy(data, start)
	read, err = readFull(fd, data[first:])
	return data[:first+read], err
}

// readFull reads until data is full or the file ends, and returns the number of bytes read.
func readFull(fd int, data []byte) (read int, err error) {
	for read < len(data) {
		n, err := again(func() (int, error) { return syscall.Read(fd, data[read:]) })
		if err != nil || n == 0 {
			return read, err
		}
		read += n
	}
	return read, nil
}
