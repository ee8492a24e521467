//go:build unix && !linux

package main

import "syscall"

// deathSignal does nothing: this kernel does not tell a command that its parent was killed. The
// guard does it.
func deathSignal(*syscall.SysProcAttr) {}

// adopt does nothing: what has lost its parent is a child of process 1 here.
func adopt() {}
