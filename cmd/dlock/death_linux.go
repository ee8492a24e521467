package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// deathSignal makes the kernel kill the command if this process, which renews the lock, is killed:
// also when its guard was killed too. It goes by the thread that started the command.
func deathSignal(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// adopt makes this process the parent of what the command's descendants leave behind, so that they
// stay its descendants.
func adopt() { unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
