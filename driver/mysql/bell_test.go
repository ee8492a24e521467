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

// tower is what a server says of the queues of a client that listens.
type tower struct {
	head  int64
	ahead driver.ID // of the first that waits, in each queue; zero: none
}

// listens tells the statements that listen from those that hang bells.
func listens(stmt string) bool {
	return strings.HasPrefix(stmt, "SELECT GET_LOCK(") && strings.Contains(stmt, ", 1), RELEASE_LOCK(")
}

// belfry is a client of a scripted server whose GET_LOCK answers as the test says. looks is nil if
// the polls find nothing.
func belfry(t *testing.T, looks func() tower, listened func(stmt string) (got string, err error)) (*Backend, *scripted) {
	t.Helper()
	s := &scripted{answer: func(stmt string) (a answer, err error) {
		switch {
		case is(stmt, poll):
			saw := tower{head: 6}
			if looks != nil {
				saw = looks()
			}
			for part := range strings.SplitSeq(stmt, " UNION ALL ") {
				a.rows = append(a.rows, pollRow(nameIn(part), saw.head, saw.ahead))
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

// silent is a bell that does not ring.
func silent(string) (string, error) { time.Sleep(listenTime * time.Second); return "0", nil }

// queuesUp adds a request of the client that waits.
func queuesUp(b *Backend, name string, place int64) *ownRequest {
	return b.waits(exclusive(name), place).Request
}

// hears makes the client learn that a request of another client is ahead.
func (b *Backend) hears(m *ownRequest, ahead driver.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hear(b.waiters.Group(m.Name), m, ahead)
}

// listened returns the statements that listen.
func (s *scripted) listened() []string {
	return slices.DeleteFunc(s.said("GET_LOCK"), func(stmt string) bool { return !listens(stmt) })
}

// TestBellsAreHungAndRung: a client that learns of others in a queue hangs a bell for each of its
// requests there, rings that of each which goes, and gives its session back when it has none.
func TestBellsAreHungAndRung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := belfry(t, nil, silent)
		first, second := queuesUp(b, "x", 7), queuesUp(b, "x", 8)
		alone := queuesUp(b, "y", 3)
		synctest.Wait()
		if hung := s.said("GET_LOCK"); len(hung) > 0 {
			t.Errorf("of others nothing is known, and it says %q", hung)
		}
		b.hears(first, driver.NewID())
		synctest.Wait()
		for m, want := range map[*ownRequest]int{first: 1, second: 1, alone: 0} {
			if n := s.count("GET_LOCK(" + bellOf(m.ID) + ", 0)"); n != want {
				t.Errorf("the bell of %s/%d is hung %d times; want %d", m.Name, m.place, n, want)
			}
		}
		for i, m := range []*ownRequest{first, second} {
			b.mu.Lock()
			b.remove(m)
			b.mu.Unlock()
			time.Sleep(maxPoll + time.Millisecond) // it did not hold, so that may wait for more
			synctest.Wait()
			if n := s.count("RELEASE_LOCK(" + bellOf(m.ID) + ")"); n != 1 {
				t.Errorf("the bell of %s/%d is rung %d times", m.Name, m.place, n)
			}
			b.mu.Lock()
			if runs := b.bells.runs; runs != (i == 0) {
				t.Errorf("after %d of two have gone the session is kept: %t", i+1, runs)
			}
			b.mu.Unlock()
		}
	})
}

// TestBellsThatAreNoUse: a client that listens in vain does so ever more rarely, and goes on
// polling as if there were no bells.
func TestBellsThatAreNoUse(t *testing.T) {
	for what, listened := range map[string]func() (string, error){
		"they ring without need":   func() (string, error) { return "1", nil },
		"the server refuses":       func() (string, error) { return "", errors.New("no named locks here") },
		"the server says nonsense": func() (string, error) { return "", nil },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var polls atomic.Int64
				ahead := driver.NewID()
				b, s := belfry(t, func() tower {
					if polls.Add(1) > 1 { // the first after a bell finds whose it was
						ahead = driver.NewID()
					}
					return tower{6, ahead}
				}, func(string) (string, error) { polls.Store(0); return listened() })
				queuesUp(b, "x", 7)
				time.Sleep(time.Minute)
				if n := len(s.listened()); n < 5 || n > 20 {
					t.Errorf("it listens %d times in a minute", n)
				}
				if n := s.count("(SELECT HEX(l.name)"); n < 550 {
					t.Errorf("it polls %d times in a minute; want 600", n)
				}
			})
		})
	}
}

// TestABellThatIsNotThere: who is behind one that never waited, and so has no bell, listens to it
// once, and to the next one's bell without delay, however long that took.
func TestABellThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		without, with := driver.NewID(), driver.NewID()
		var ahead atomic.Value
		ahead.Store(without)
		b, s := belfry(t, func() tower { return tower{6, ahead.Load().(driver.ID)} }, func(stmt string) (string, error) {
			if strings.Contains(stmt, bellOf(without)) {
				return "1", nil
			}
			return silent(stmt)
		})
		queuesUp(b, "x", 7)
		time.Sleep(5 * time.Second)
		if n := s.count(bellOf(without) + ", 1"); n != 1 {
			t.Errorf("it listens %d times to a bell that is not there; want once", n)
		}
		ahead.Store(with)
		time.Sleep(2 * maxPoll)
		if n := s.count(bellOf(with) + ", 1"); n != 1 {
			t.Errorf("it listens %d times to the next one's; want once", n)
		}
	})
}

// TestABellIsTriedAgainWhenTheQueueMoves: one that was not hung yet when it was listened to is by
// then. As long as the queue stands it is tried once.
func TestABellIsTriedAgainWhenTheQueueMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var head atomic.Int64
		head.Store(4)
		ahead := driver.NewID()
		b, s := belfry(t, func() tower { return tower{head.Load(), ahead} }, func(string) (string, error) { return "1", nil })
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

// TestABellThatRingsIsAnsweredAtOnce: the client polls without delay, in that queue alone.
func TestABellThatRingsIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rings := make(chan struct{})
		b, s := belfry(t, nil, func(string) (string, error) { <-rings; return "1", nil })
		m := queuesUp(b, "x", 7)
		queuesUp(b, "y", 7)
		time.Sleep(20 * time.Second) // now it polls each 100 ms
		before := s.count("(SELECT HEX(l.name)")
		for s.count("(SELECT HEX(l.name)") == before {
			time.Sleep(time.Millisecond)
		}
		b.hears(m, driver.NewID())
		time.Sleep(35 * time.Millisecond)
		before = s.count("(SELECT HEX(l.name)")
		close(rings)
		synctest.Wait()
		polls := s.said("(SELECT HEX(l.name)")
		if len(polls) != before+1 || !strings.Contains(polls[before], hexOf("x")) || strings.Contains(polls[before], hexOf("y")) {
			t.Errorf("at once there are the polls %q", polls[before:])
		}
	})
}

// TestBellsOfASessionThatBreaks: they are not hung again, and requests that come later have bells.
func TestBellsOfASessionThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := belfry(t, nil, silent)
		var mended atomic.Bool
		said := s.answer
		s.answer = func(stmt string) (answer, error) {
			if !mended.Load() && strings.Contains(stmt, ", 0)") && strings.HasPrefix(stmt, "SELECT GET_LOCK") {
				return answer{}, errors.New("reset")
			}
			return said(stmt)
		}
		lost := queuesUp(b, "x", 7)
		b.hears(lost, driver.NewID())
		synctest.Wait()
		mended.Store(true)
		later := queuesUp(b, "x", 8)
		b.mustWait(later, 6, 0, driver.ID{})
		synctest.Wait()
		hung := s.said("GET_LOCK(" + bellOf(later.ID) + ", 0)")
		again := slices.ContainsFunc(hung, func(stmt string) bool { return strings.Contains(stmt, lost.ID.String()) })
		if len(hung) != 1 || again {
			t.Errorf("hung is %q", hung)
		}
		b.mu.Lock()
		b.remove(lost)
		b.mu.Unlock()
		synctest.Wait()
		if rung := s.said("SELECT RELEASE_LOCK"); len(rung) > 0 {
			t.Errorf("a bell that fell is rung: %q", rung)
		}
	})
}

// TestBellsLeaveThePoolToOthers: a small pool has none, and one whose connections are all wanted
// gets theirs back.
func TestBellsLeaveThePoolToOthers(t *testing.T) {
	for most, want := range map[int]int{bellPool - 1: 0, bellPool: 1} {
		synctest.Test(t, func(t *testing.T) {
			b, s := belfry(t, nil, silent)
			db := b.pool.db
			db.SetMaxOpenConns(most)
			m := queuesUp(b, "x", 7)
			b.hears(m, driver.NewID())
			time.Sleep(5 * time.Second)
			hung := slices.DeleteFunc(s.said("SELECT GET_LOCK"), listens)
			if n := len(hung); n != want {
				t.Errorf("%d connections: %d bells are hung; want %d", most, n, want)
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

// TestABellOfANameWhereNothingWaits: one that rang when the last waiter of its name had gone keeps
// the client from no other bell.
func TestABellOfANameWhereNothingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := belfry(t, nil, silent)
		m, ahead := queuesUp(b, "x", 7), driver.NewID()
		b.mu.Lock()
		b.bells.rung, b.bells.name = driver.NewID(), "gone"
		b.mu.Unlock()
		b.hears(m, ahead)
		synctest.Wait()
		if s.count("GET_LOCK("+bellOf(ahead)+", 1)") == 0 {
			t.Error("it does not listen to the bell of the request ahead")
		}
	})
}

// TestBellsOfTheClientItself: it does not listen to those of its own requests, whose releases it
// knows.
func TestBellsOfTheClientItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var own atomic.Value
		own.Store(driver.ID{})
		b, s := belfry(t, func() tower { return tower{6, own.Load().(driver.ID)} }, silent)
		first, second := queuesUp(b, "x", 7), queuesUp(b, "x", 8)
		own.Store(first.ID)
		b.mustWait(second, 6, 0, first.ID)
		time.Sleep(time.Minute)
		if said := s.said("GET_LOCK"); len(said) > 0 {
			t.Errorf("no other client is there, and it says %q", said)
		}
	})
}
