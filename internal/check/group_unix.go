//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// endWithGroup makes the end of a command's context end whatever the command started, too.
func endWithGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}
