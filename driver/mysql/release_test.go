package mysql

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestACallThatEndsEarly: the lock that it took is released. A tombstone, which makes all calls for
// the name slower until it expires, is left only if the outcome never became known.
func TestACallThatEndsEarly(t *testing.T) {
	for what, c := range map[string]struct {
		err        error // of take
		tombstones int
		before     bool // another call of the same request was answered later
	}{
		"take is answered later":     {nil, 0, false},
		"take is not answered":       {errors.New("reset"), 1, false},
		"take collides with others":  {serverError(1213, "40001"), 0, false},
		"the second is not answered": {errors.New("reset"), 1, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f free
				r := exclusive("x")
				s := &scripted{takes: 20 * time.Millisecond}
				s.answer = func(stmt string) (answer, error) {
					said, err := f.answer(stmt)
					holder, left := none, "-1"
					if len(f.holders) > 0 {
						holder, left = r.ID.String(), "60000000"
					}
					switch {
					case strings.Contains(stmt, "VALUES(holder)"):
						if !c.before || s.count("VALUES(holder)") > 1 {
							err = c.err
						}
					case is(stmt, look):
						said.rows[0][4], said.rows[0][6] = holder, left
					case is(stmt, read):
						lock := []string{"1000", "0", "0", holder, none, "", "60000000", "0", "0", "0", left}
						said = reads(append(lock, make([]string, 14)...)...)
					}
					return said, err
				}
				b := s.client(t, Options{})
				// It ends while the statement that takes the lock is under way.
				ctx, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
				defer cancel()
				if _, err := b.Acquire(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("Acquire: %v", err)
				}
				if s.count("VALUES(holder)") != 1 {
					t.Fatalf("it ended before, or after: %q", s.said(""))
				}
				if c.before {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					defer cancel()
					if _, err := b.Acquire(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
						t.Fatalf("Acquire again: %v", err)
					}
				}
				released := r
				released.Uncertain = true
				for { // as package dlock does
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					err := b.Release(ctx, released)
					cancel()
					if err == nil || errors.Is(err, driver.ErrLost) {
						break
					}
				}
				if len(f.holders) > 0 {
					t.Error("it holds")
				}
				if n := s.count("'tombstone', X'"); n != c.tombstones {
					t.Errorf("it leaves %d tombstones; want %d", n, c.tombstones)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if _, is := b.requests.Find(r.ID); is {
					t.Error("it is still in the record")
				}
			})
		})
	}
}
