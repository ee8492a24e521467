//go:build linux

package file

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

// monotonic reads CLOCK_MONOTONIC in nanoseconds. All processes of the machine share this clock. It
// stands still while the machine is suspended, as they do.
func monotonic() (int64, error) {
	const clockMonotonic = 1
	var ts syscall.Timespec
	if _, _, e := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0); e != 0 {
		return 0, fmt.Errorf("monotonic clock: %w", e)
	}
	return ts.Nano(), nil
}

// bootID names this boot of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	id := strings.TrimSpace(string(b))
	if err == nil && (id == "" || strings.ContainsAny(id, "/\x00")) {
		err = errors.New("no boot ID")
	}
	return id, err
}

// timeNamespace names the time namespace of this process; 0 where the kernel has none. Each
// namespace may have a monotonic clock of its own.
func timeNamespace() uint64 {
	var st syscall.Stat_t
	if syscall.Stat("/proc/self/ns/time", &st) != nil {
		return 0
	}
	return st.Ino
}

// again repeats a system call that a signal interrupted.
func again[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if !errors.Is(err, syscall.EINTR) {
			return v, err
		}
	}
}

const atFDCWD = -0x64 // openAt: names are relative to the working directory, or absolute

func openAt(dir int, name string, flags int) (int, error) {
	return again(func() (int, error) {
		return syscall.Openat(dir, name, flags|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	})
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

// The numbers of the calls for locks of an open file description on bytes of a file. They are the
// same on all kinds of machines.
const (
	ofdGet = 36
	ofdSet = 37
)

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
		return false, fmt.Errorf("ask for a lock: %w", err)
	}
	return l.Type != syscall.F_UNLCK, nil
}

// readAt returns the content of a file.
func readAt(dir int, name string) ([]byte, error) {
	fd, err := openAt(dir, name, syscall.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	n, err := size(fd)
	if err != nil {
		return nil, err
	}
	data := make([]byte, n)
	for read := 0; read < len(data); {
		n, err := again(func() (int, error) { return syscall.Read(fd, data[read:]) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return data[:read], nil
		}
		read += n
	}
	return data, nil
}
