package service

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
)

// Stage is the [T] of a program that is not a test. The zero Stage is ready for use. Its methods
// are safe for concurrent use, except End.
type Stage struct {
	mu       sync.Mutex
	cleanups []func()
	failure  error
}

// Helper implements [T].
func (s *Stage) Helper() {}

// Cleanup implements [T].
func (s *Stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// Failed implements [T].
func (s *Stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure != nil
}

// Logf implements [T].
func (s *Stage) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Fatalf implements [T]. It ends the goroutine, which has to be that of Try or one that it started.
func (s *Stage) Fatalf(format string, args ...any) {
	s.mu.Lock()
	if s.failure == nil {
		s.failure = fmt.Errorf(format, args...)
	}
	s.mu.Unlock()
	runtime.Goexit()
}

// Try runs f, and returns the first failure.
func (s *Stage) Try(f func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// End runs the functions that were given to Cleanup, the last first.
func (s *Stage) End() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}
