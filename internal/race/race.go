//go:build race

// Package race says whether the race detector watches. Tests that compute for long with it, and in
// which it has nothing to find, do less then; make test runs those once without it.
package race

// Enabled reports whether the race detector watches.
const Enabled = true

// Flag is what the go command is given by tests that build programs: the libraries are in the build
// cache as the tests' own are.
const Flag = "-race"
