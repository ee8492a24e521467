//go:build linux || darwin

package file

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// mapped is a part of a file as memory that all processes share, in words of 64 bits. Words are
// read and written by load, swap and raise alone.
type mapped []byte

func mapFile(fd int, offset int64, size int, prot int) (mapped, error) {
	m, err := syscall.Mmap(fd, offset, size, prot, syscall.MAP_SHARED)
	return m, err
}

func (m mapped) unmap() {
	if m != nil {
		syscall.Munmap(m)
	}
}

// word returns word i.
func (m mapped) word(i int) *uint64 { return (*uint64)(unsafe.Pointer(&m[8*i])) }

// load returns the word.
func load(p *uint64) (v uint64, err error) {
	err = guard(p, func() { v = atomic.LoadUint64(p) })
	return v, err
}

// swap puts v in place of old, and reports whether it did. After an error it did not.
func swap(p *uint64, old, v uint64) (done bool, err error) {
	err = guard(p, func() { done = atomic.CompareAndSwapUint64(p, old, v) })
	return done, err
}

// raise sets the word to v unless it is greater. It is a full barrier: what is loaded after it is
// not older than it.
func raise(p *uint64, v uint64) error {
	return guard(p, func() {
		for old := atomic.LoadUint64(p); old < v; old = atomic.LoadUint64(p) {
			if atomic.CompareAndSwapUint64(p, old, v) {
				return
			}
		}
	})
}

// guard runs f, which accesses p, and turns a fault into an error: the memory is a file, which may
// be truncated, or on a disk that fails.
func guard(p *uint64, f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface {
				error
				Addr() uintptr
			})
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("cannot access shared memory (a file of the directory was truncated, or its disk fails): %w", fault)
		}
	}()
	_ = *p // a fault here can be recovered; under the race detector f would fault in C code
	f()
	return nil
}
