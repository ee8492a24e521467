//go:build unix && !linux

package main

import "syscall"

// deathSignal does nothing: this kernel does not kill a command whose parent was killed. The guard
// does.
func deathSignal(*syscall.SysProcAttr) {}

// adopt does nothing: an orphaned process becomes a child of process 1 here.
func adopt() {}
