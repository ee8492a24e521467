package adapt_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
	"github.com/dlock-go/dlock/internal/size"
)

// setUp is a kind of lock to adapt.
type setUp struct{ outlives, wakes, shares bool }

func (s setUp) String() string {
	return fmt.Sprintf("outlives=%t,wakes=%t,shares=%t", s.outlives, s.wakes, s.shares)
}

var setUps = []setUp{
	{true, true, false}, {true, false, false}, {false, true, false}, {false, false, false},
	{true, true, true}, {true, false, true}, {false, true, true},
}

// open opens a backend on the shelf.
func (u setUp) open(s *shelf) (*adapt.Backend, *client, error) {
	c := &client{s: s}
	var calls adapt.Calls = c
	switch {
	case s.fences && u.shares:
		calls = struct {
			fencingClient
			members
		}{fencingClient{wakingClient{c}}, members{c}}
	case u.wakes && u.shares:
		calls = struct {
			wakingClient
			members
		}{wakingClient{c}, members{c}}
	case u.shares:
		calls = struct {
			*client
			members
		}{c, members{c}}
	case s.fences:
		calls = fencingClient{wakingClient{c}}
	case u.wakes:
		calls = wakingClient{c}
	}
	b, err := adapt.New(calls, adapt.Options{
		Backend: "shelf", Format: "shelf", Outlives: u.outlives, MinTTL: time.Millisecond, MaxTTL: 24 * time.Hour, Close: c.close,
	})
	return b, c, err
}

func harness(u setUp) conformance.Harness { return harnessOn(newShelf(u.outlives), u) }

func harnessOn(s *shelf, u setUp) conformance.Harness {
	var clients sync.Map // by backend
	of := func(b driver.Backend) *client {
		c, _ := clients.Load(b)
		return c.(*client)
	}
	return conformance.Harness{
		Open: func(t conformance.T) driver.Backend {
			b, c, err := u.open(s)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			clients.Store(b, c)
			return b
		},
		Partition:   func(_ conformance.T, b driver.Backend) func() { return of(b).hang(false) },
		HoldReplies: func(_ conformance.T, b driver.Backend) func() { return of(b).hang(true) },
		Record: func(_ conformance.T, b driver.Backend) (replay func()) {
			c := of(b)
			c.mu.Lock()
			from := len(c.tries)
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				tries := c.tries[from:]
				c.mu.Unlock()
				s.mu.Lock()
				defer s.mu.Unlock()
				for _, r := range tries {
					_ = s.try(c, r)
				}
			}
		},
		// Calls: each hold costs a call at each renewal, since the calls are not batched
		Without: []string{"Calls", "DelayReplies", "Connections", "Restart", "Stored", "StepClock", "OpenPrefixed"},
	}
}

// TestConformance runs the laws under a fake clock.
func TestConformance(t *testing.T) {
	for _, u := range setUps {
		t.Run(u.String(), func(t *testing.T) {
			for _, l := range conformance.Laws() {
				t.Run(l.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { l.Run(t, harness(u)) })
				})
			}
		})
	}
}

// TestConformanceWithTokens runs the laws with calls whose holds have tokens.
func TestConformanceWithTokens(t *testing.T) {
	for _, u := range setUps {
		if !u.outlives || !u.wakes {
			continue
		}
		t.Run(u.String(), func(t *testing.T) {
			for _, l := range conformance.Laws() {
				t.Run(l.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := newShelf(true)
						s.fences = true
						l.Run(t, harnessOn(s, u))
					})
				})
			}
		})
	}
}

// TestConformanceInRealTime runs laws together, and those that need a clock that runs.
func TestConformanceInRealTime(t *testing.T) {
	h := harness(setUps[0])
	core := conformance.Core()
	h.Only = func(l conformance.Law) bool {
		return size.Long() || l.Name == "proof-before" || slices.ContainsFunc(core, func(c conformance.Law) bool { return c.Name == l.Name })
	}
	conformance.Run(t, h)
}
