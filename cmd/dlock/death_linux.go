package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// deathSignal makes the kernel kill the command if this process, which renews the lock, is killed,
// even if the guard was killed too. It is sent when the thread that started the command ends.
func deathSignal(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// adopt makes this process the parent of orphaned descendants of the command, so that they stay its
// descendants.
func adopt() { unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
