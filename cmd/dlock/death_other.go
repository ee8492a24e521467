//go:build unix && !linux

package main

import "syscall"

// deathSignal does nothing: this kernel does not tell a command that its parent was killed.
func deathSignal(*syscall.SysProcAttr) {}
