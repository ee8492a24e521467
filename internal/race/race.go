//go:build race

// Package race reports whether the race detector is on. Tests that take long with it, and in which
// it has nothing to find, do less then; make test also runs those once without it.
package race

// Enabled reports whether the race detector is on.
const Enabled = true

// Flag is the flag for the go command in tests that build programs, so that they find the libraries
// of the test itself in the build cache.
const Flag = "-race"
