//go:build !race

package race

// Enabled reports whether the race detector is on.
const Enabled = false

// Flag is the flag for the go command in tests that build programs.
const Flag = "-race=false"
