package file_test

import "syscall"

// mountOver mounts another file system over a directory: here it cannot.
func mountOver(string) error { return syscall.ENOTSUP }
