package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// ofFlock is the system's file lock. It has neither lease nor token, ends with its process, and
// each waiter occupies a thread.
var ofFlock = contender{name: "flock", bound: true, renews: true, most: 500, open: func(_ context.Context, dir string) (client, error) {
	return flockClient{dir}, nil
}}

type flockClient struct{ dir string }

func (c flockClient) locker(_ context.Context, name string) (locker, error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "flock-"+name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return flockLocker{f}, nil
}

func (c flockClient) close() {}

type flockLocker struct{ f *os.File }

// lock does not end with ctx: a thread that waits in a system call cannot be cancelled.
func (l flockLocker) lock(context.Context) error {
	for {
		err := syscall.Flock(int(l.f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func (l flockLocker) unlock() error { return syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN) }

func (l flockLocker) close() { l.f.Close() }
