package main

import "syscall"

// deathSignal makes the kernel kill the command if this process is killed, and with it the renewal
// of the lock. It goes by the thread that started the command.
func deathSignal(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
