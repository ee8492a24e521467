//go:build race

// Package race says whether the race detector watches. Tests that compute for long with it, and in
// which it has nothing to find, do less then; make test runs those once without it.
package race

// Enabled reports whether the race detector watches.
const Enabled = true
