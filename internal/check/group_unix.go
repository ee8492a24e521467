//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// whole makes the end of a command's context the end of all that it started, too.
func whole(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}
