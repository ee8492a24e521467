package mysql

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// queueSeen is what a server answers about the queues of a client that listens.
type queueSeen struct {
	head  int64
	ahead driver.ID // of the first that waits, in each queue; zero: none
}

// listens distinguishes statements that listen from those that take wake-up locks.
func listens(stmt string) bool {
	return strings.HasPrefix(stmt, "SELECT GET_LOCK(") && strings.Contains(stmt, ", 1), RELEASE_LOCK(")
}

// listeningClient is a client of a scripted server whose GET_LOCK answers as the test says. looks
// is nil if the polls find nothing.
func listeningClient(t *testing.T, looks func() queueSeen, listened func(stmt string) (got string, err error)) (*Backend, *scripted) {
	t.Helper()
	s := &scripted{answer: func(stmt string) (a answer, err error) {
		switch {
		case is(stmt, poll):
			saw := queueSeen{head: 6}
			if looks != nil {
				saw = looks()
			}
			for _, name := range polledNames(stmt) {
				a.rows = append(a.rows, rowOfPoll(name, saw.head, saw.ahead))
			}
			return a, nil
		case listens(stmt):
			got, err := listened(stmt)
			return reads(got, "1"), err
		}
		return reads("1"), nil
	}}
	return s.client(t, Options{}), s
}

// silent is a wake-up lock that is not freed.
func silent(string) (string, error) { time.Sleep(listenTime * time.Second); return "0", nil }

// queuesUp adds a request of the client that waits.
func queuesUp(b *Backend, name string, place int64) *ownRequest {
	return b.waits(exclusive(name), place).Request
}

// learns makes the client learn that a request of another client is ahead.
func (b *Backend) learns(m *ownRequest, ahead driver.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.follow(b.waiters.Group(m.Name), m, ahead)
}

// listened returns the statements that listen.
func (s *scripted) listened() []string {
	return slices.DeleteFunc(s.said("GET_LOCK"), func(stmt string) bool { return !listens(stmt) })
}

// TestWakeupLocksAreTakenAndReleased: a client that learns of others in a queue takes a wake-up
// lock for each of its requests there, releases that of each request that goes, and returns its
// session to the pool when it has none.
func TestWakeupLocksAreTakenAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := listeningClient(t, nil, silent)
		first, second := queuesUp(b, "x", 7), queuesUp(b, "x", 8)
		alone := queuesUp(b, "y", 3)
		synctest.Wait()
		if taken := s.said("GET_LOCK"); len(taken) > 0 {
			t.Errorf("of others nothing is known, and it says %q", taken)
		}
		b.learns(first, driver.NewID())
		synctest.Wait()
		for m, want := range map[*ownRequest]int{first: 1, second: 1, alone: 0} {
			if n := s.count("GET_LOCK(" + wakeupOf(m.ID) + ", 0)"); n != want {
				t.Errorf("the wake-up lock of %s/%d is taken %d times; want %d", m.Name, m.place, n, want)
			}
		}
		for i, m := range []*ownRequest{first, second} {
			b.mu.Lock()
			b.remove(m)
			b.mu.Unlock()
			time.Sleep(maxPoll + time.Millisecond) // it did not hold, so that may wait for more
			synctest.Wait()
			if n := s.count("RELEASE_LOCK(" + wakeupOf(m.ID) + ")"); n != 1 {
				t.Errorf("the wake-up lock of %s/%d is released %d times", m.Name, m.place, n)
			}
			b.mu.Lock()
			if runs := b.wakeups.runs; runs != (i == 0) {
				t.Errorf("after %d of two have gone the session is kept: %t", i+1, runs)
			}
			b.mu.Unlock()
		}
	})
}

// TestWakeupLocksThatAreNoUse: a client that listens in vain does so ever more rarely, and goes on
// polling as if there were no wake-up locks.
func TestWakeupLocksThatAreNoUse(t *testing.T) {
	for what, listened := range map[string]func() (string, error){
		"they are free without need": func() (string, error) { return "1", nil },
		"the server refuses":         func() (string, error) { return "", errors.New("no named locks here") },
		"the server says nonsense":   func() (string, error) { return "", nil },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var polls atomic.Int64
				ahead := driver.NewID()
				b, s := listeningClient(t, func() queueSeen {
					if polls.Add(1) > 1 { // the first after listening finds the same request
						ahead = driver.NewID()
					}
					return queueSeen{6, ahead}
				}, func(string) (string, error) { polls.Store(0); return listened() })
				queuesUp(b, "x", 7)
				time.Sleep(time.Minute)
				if n := len(s.listened()); n < 5 || n > 20 {
					t.Errorf("it listens %d times in a minute", n)
				}
				if n := s.count("SELECT HEX(l.name), l.head"); n < 550 {
					t.Errorf("it polls %d times in a minute; want 600", n)
				}
			})
		})
	}
}

// TestAWakeupLockThatDoesNotExist: a request that never waited has no wake-up lock. The waiter
// behind it listens once, and then to the next request's without delay, however long that took.
func TestAWakeupLockThatDoesNotExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		without, with := driver.NewID(), driver.NewID()
		var ahead atomic.Value
		ahead.Store(without)
		b, s := listeningClient(t, func() queueSeen { return queueSeen{6, ahead.Load().(driver.ID)} }, func(stmt string) (string, error) {
			if strings.Contains(stmt, wakeupOf(without)) {
				return "1", nil
			}
			return silent(stmt)
		})
		queuesUp(b, "x", 7)
		time.Sleep(5 * time.Second)
		if n := s.count(wakeupOf(without) + ", 1"); n != 1 {
			t.Errorf("it listens %d times to a wake-up lock that does not exist; want once", n)
		}
		ahead.Store(with)
		time.Sleep(2 * maxPoll)
		if n := s.count(wakeupOf(with) + ", 1"); n != 1 {
			t.Errorf("it listens %d times to the next one's; want once", n)
		}
	})
}

// TestAWakeupLockIsTriedAgainWhenTheQueueMoves: one that was not taken yet when the client listened
// has been taken by then. As long as the queue stands still it is tried once.
func TestAWakeupLockIsTriedAgainWhenTheQueueMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var head atomic.Int64
		head.Store(4)
		ahead := driver.NewID()
		b, s := listeningClient(t, func() queueSeen { return queueSeen{head.Load(), ahead} }, func(string) (string, error) { return "1", nil })
		queuesUp(b, "x", 70)
		for moves := range 3 {
			time.Sleep(5 * time.Second)
			if n := len(s.listened()); n != moves+1 {
				t.Errorf("when the queue has moved %d times it has listened %d times; want %d", moves, n, moves+1)
			}
			head.Add(1)
		}
	})
}

// TestAWakeupLockThatIsFreedIsAnsweredAtOnce: the client polls without delay, in that queue alone.
func TestAWakeupLockThatIsFreedIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		freed := make(chan struct{})
		b, s := listeningClient(t, nil, func(string) (string, error) { <-freed; return "1", nil })
		m := queuesUp(b, "x", 7)
		queuesUp(b, "y", 7)
		time.Sleep(20 * time.Second) // now it polls each 100 ms
		before := s.count("SELECT HEX(l.name), l.head")
		for s.count("SELECT HEX(l.name), l.head") == before {
			time.Sleep(time.Millisecond)
		}
		b.learns(m, driver.NewID())
		time.Sleep(35 * time.Millisecond)
		before = s.count("SELECT HEX(l.name), l.head")
		close(freed)
		synctest.Wait()
		polls := s.said("SELECT HEX(l.name), l.head")
		if len(polls) != before+1 || !strings.Contains(polls[before], hexOf("x")) || strings.Contains(polls[before], hexOf("y")) {
			t.Errorf("at once there are the polls %q", polls[before:])
		}
	})
}

// TestWakeupLocksOfASessionThatBreaks: they are not taken again, and requests that come later have
// wake-up locks.
func TestWakeupLocksOfASessionThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := listeningClient(t, nil, silent)
		var mended atomic.Bool
		said := s.answer
		s.answer = func(stmt string) (answer, error) {
			if !mended.Load() && strings.Contains(stmt, ", 0)") && strings.HasPrefix(stmt, "SELECT GET_LOCK") {
				return answer{}, errors.New("reset")
			}
			return said(stmt)
		}
		lost := queuesUp(b, "x", 7)
		b.learns(lost, driver.NewID())
		synctest.Wait()
		mended.Store(true)
		later := queuesUp(b, "x", 8)
		b.mustWait(later, 6, 0, driver.ID{})
		synctest.Wait()
		taken := s.said("GET_LOCK(" + wakeupOf(later.ID) + ", 0)")
		again := slices.ContainsFunc(taken, func(stmt string) bool { return strings.Contains(stmt, lost.ID.String()) })
		if len(taken) != 1 || again {
			t.Errorf("taken is %q", taken)
		}
		b.mu.Lock()
		b.remove(lost)
		b.mu.Unlock()
		synctest.Wait()
		if released := s.said("SELECT RELEASE_LOCK"); len(released) > 0 {
			t.Errorf("a wake-up lock that was lost is released: %q", released)
		}
	})
}

// TestWakeupLocksLeaveThePoolToOthers: a small pool has none, and a pool whose connections are all
// wanted gets theirs back.
func TestWakeupLocksLeaveThePoolToOthers(t *testing.T) {
	for most, want := range map[int]int{wakeupPool - 1: 0, wakeupPool: 1} {
		synctest.Test(t, func(t *testing.T) {
			b, s := listeningClient(t, nil, silent)
			db := b.pool.db
			db.SetMaxOpenConns(most)
			m := queuesUp(b, "x", 7)
			b.learns(m, driver.NewID())
			time.Sleep(5 * time.Second)
			taken := slices.DeleteFunc(s.said("SELECT GET_LOCK"), listens)
			if n := len(taken); n != want {
				t.Errorf("%d connections: %d wake-up locks are taken; want %d", most, n, want)
			}
			for range most - 1 {
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			last, err := db.Conn(ctx)
			if err != nil {
				t.Fatalf("%d connections: the last one: %v", most, err)
			}
			last.Close()
		})
	}
}

// TestAWakeupLockOfANameWhereNothingWaits: one that was freed when the last waiter of its name had
// gone does not keep the client from listening to others.
func TestAWakeupLockOfANameWhereNothingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := listeningClient(t, nil, silent)
		m, ahead := queuesUp(b, "x", 7), driver.NewID()
		b.mu.Lock()
		b.wakeups.freed, b.wakeups.name = driver.NewID(), "gone"
		b.mu.Unlock()
		b.learns(m, ahead)
		synctest.Wait()
		if s.count("GET_LOCK("+wakeupOf(ahead)+", 1)") == 0 {
			t.Error("it does not listen to the wake-up lock of the request ahead")
		}
	})
}

// TestWakeupLocksOfTheClientItself: it does not listen to those of its own requests, whose releases
// it knows.
func TestWakeupLocksOfTheClientItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var own atomic.Value
		own.Store(driver.ID{})
		b, s := listeningClient(t, func() queueSeen { return queueSeen{6, own.Load().(driver.ID)} }, silent)
		first, second := queuesUp(b, "x", 7), queuesUp(b, "x", 8)
		own.Store(first.ID)
		b.mustWait(second, 6, 0, first.ID)
		time.Sleep(time.Minute)
		if said := s.said("GET_LOCK"); len(said) > 0 {
			t.Errorf("no other client is there, and it says %q", said)
		}
	})
}
