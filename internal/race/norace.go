//go:build !race

package race

// Enabled reports whether the race detector watches.
const Enabled = false

// Flag is what the go command is given by tests that build programs.
const Flag = "-race=false"
