package kit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// opened are attempts that begin and end one by one.
type opened struct {
	o    *Openings
	ends chan func(error)
}

func newOpened() *opened {
	return &opened{o: &Openings{Late: time.Second}, ends: make(chan func(error), 100)}
}

// ask has n attempts begin as soon as they may.
func (s *opened) ask(t *testing.T, n int) {
	for range n {
		go func() {
			if end, err := s.o.Begin(t.Context()); err == nil {
				s.ends <- end
			}
		}()
		synctest.Wait()
	}
}

// running fails the test unless n attempts have begun, and not ended.
func (s *opened) running(t *testing.T, n int, when string) {
	t.Helper()
	synctest.Wait()
	if len(s.ends) != n {
		t.Errorf("%s: %d attempts, want %d", when, len(s.ends), n)
	}
}

// end ends the attempt that began first.
func (s *opened) end(err error) {
	(<-s.ends)(err)
	synctest.Wait()
}

func TestOpeningsBeginSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOpened()
		s.ask(t, 20)
		s.running(t, 1, "at first")
		s.end(errors.New("refused"))
		s.running(t, 1, "after a failure")
		s.end(nil)
		s.running(t, 2, "after a success")
		s.end(nil)
		s.running(t, 4, "after two")
		s.end(errors.New("refused"))
		s.running(t, 3, "after a failure beside others")
		s.end(nil)
		s.running(t, 2, "after a success")
		s.o.Slow()
		s.end(nil)
		s.running(t, 2, "after a success behind a statement that was not answered")
	})
}

// TestLateOpenings: an attempt that hangs lets one other begin, and is counted once.
func TestLateOpenings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOpened()
		s.ask(t, 10)
		for n := range 5 {
			s.running(t, n+1, "while each is late")
			time.Sleep(time.Second)
		}
		s.running(t, 6, "before the late ones end")
		s.end(nil)
		s.end(errors.New("refused"))
		s.running(t, 4, "after two of the late ones")
	})
}

// TestOpeningsThatAreLeft: a caller that leaves takes no turn with it.
func TestOpeningsThatAreLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOpened()
		s.ask(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := s.o.Begin(ctx)
			left <- err
		}()
		synctest.Wait()
		s.ask(t, 1)
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left got %v", err)
		}
		s.end(nil)
		s.running(t, 1, "after a caller left")
		s.end(nil)
		if s.o.running != 0 || len(s.o.waiting) != 0 {
			t.Errorf("%d attempts count as running, and %d wait", s.o.running, len(s.o.waiting))
		}
	})
}
