package file

import (
	"fmt"
	"path/filepath"
	"syscall"
	"unsafe"
)

// monotonic reads CLOCK_UPTIME_RAW in nanoseconds. All processes of the machine share this clock.
// It stands still while the machine sleeps, as they do. Package time reads the same clock, but
// counts from the start of the process.
func monotonic() (int64, error) {
	const clockUptimeRaw = 8
	var ts syscall.Timespec
	if _, _, e := libcCall(clockGettime, clockUptimeRaw, uintptr(unsafe.Pointer(&ts)), 0); e != 0 {
		return 0, fmt.Errorf("monotonic clock: %w", e)
	}
	return ts.Nano(), nil
}

// Package syscall has no clock_gettime for this system, whose kernel is called only through its
// library. The library is called in the way of golang.org/x/sys, which the packages runtime and
// syscall keep working for all programs.

//go:cgo_import_dynamic libc_clock_gettime clock_gettime "/usr/lib/libSystem.B.dylib"

// clockGettime is the address of clock_gettime: see system_darwin.s.
var clockGettime uintptr

// libcCall calls a function of the library.
//
//go:linkname libcCall syscall.syscall
func libcCall(fn, a1, a2, a3 uintptr) (r1, r2 uintptr, err syscall.Errno)

// clockID distinguishes processes whose monotonic clocks may differ: 1 for a process that Rosetta
// translates, 0 for all others. Whether both see one clock is not documented.
func clockID() uint64 {
	translated, err := syscall.SysctlUint32("sysctl.proc_translated")
	if err != nil { // there is no Rosetta on this machine
		return 0
	}
	return uint64(translated)
}

// bootID names this boot of the machine.
func bootID() (string, error) { return syscall.Sysctl("kern.bootsessionuuid") }

// fileSystem names the file system of a directory, as mount(8) does.
func fileSystem(dir string) (string, error) {
	const isLocal = 0x1000 // MNT_LOCAL
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "", err
	}
	var name []byte
	for _, c := range st.Fstypename {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	if _, ok := local[string(name)]; ok && st.Flags&isLocal == 0 {
		return "remote " + string(name), nil // checkFileSystem refuses this name
	}
	return string(name), nil
}

// The commands of fcntl(2) for locks of an open file description on bytes of a file, which package
// syscall does not have.
const (
	ofdGet = 92 // F_OFD_GETLK
	ofdSet = 90 // F_OFD_SETLK
)

// Package syscall has no openat and unlinkat for this system. The files are found by their paths,
// which works unless the directory is moved. No client moves it, and to move it is an error, like
// removing it.

func (f folder) open(name string, flags int) (int, error) {
	return openFile(filepath.Join(f.path, name), flags)
}

func (f folder) remove(name string) error { return syscall.Unlink(filepath.Join(f.path, name)) }
