package file

import (
	"os"
	"runtime"
	"syscall"
)

// stopHere stops this process. The signal goes to this thread, so that it stops here: another would
// let it run on a little.
func stopHere() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}
