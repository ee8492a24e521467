package file

import (
	"os"
	"syscall"
)

// stopHere stops this process: the kernel suspends all threads before the call returns.
func stopHere() { syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
