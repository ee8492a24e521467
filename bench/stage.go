package main

import (
	"fmt"
	"os"
)

// stage is the service.T of a program that is not a test.
type stage struct {
	cleanups []func()
	failed   bool
}

// refusal is the panic with which Fatalf ends the function that runs.
type refusal struct{ error }

// Helper implements service.T.
func (s *stage) Helper() {}

// Cleanup implements service.T.
func (s *stage) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

// Failed implements service.T.
func (s *stage) Failed() bool { return s.failed }

// Logf implements service.T.
func (s *stage) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Fatalf implements service.T.
func (s *stage) Fatalf(format string, args ...any) {
	s.failed = true
	panic(refusal{fmt.Errorf(format, args...)})
}

// end runs the functions that were given to Cleanup, the last first.
func (s *stage) end() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}

// try runs f, and returns the error of its call of Fatalf, if there is one.
func (s *stage) try(f func()) (err error) {
	defer func() {
		switch x := recover().(type) {
		case nil:
		case refusal:
			err = x.error
		default:
			panic(x)
		}
	}()
	f()
	return nil
}
