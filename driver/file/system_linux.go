package file

import (
	"fmt"
	"os"
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

// clockID distinguishes processes whose monotonic clocks may differ: it names the time namespace of
// this process; 0 if the kernel has none.
func clockID() uint64 {
	var st syscall.Stat_t
	if syscall.Stat("/proc/self/ns/time", &st) != nil {
		return 0
	}
	return st.Ino
}

// bootID names this boot of the machine.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(b), err
}

// fileSystem names the file system of a directory, by the magic number of statfs(2).
func fileSystem(dir string) (string, error) {
	var st syscall.Statfs_t
	err := syscall.Statfs(dir, &st)
	return fmt.Sprintf("%#x", uint32(st.Type)), err
}

// The commands of fcntl(2) for locks of an open file description on bytes of a file. They are the
// same on all architectures.
const (
	ofdGet = 36
	ofdSet = 37
)

func (f folder) open(name string, flags int) (int, error) {
	return again(func() (int, error) {
		return syscall.Openat(f.fd, name, flags|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	})
}

func (f folder) remove(name string) error { return syscall.Unlinkat(f.fd, name) }
