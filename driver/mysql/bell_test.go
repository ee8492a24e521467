package mysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// belfry is a client of a scripted server, whose GET_LOCK answers as the test says.
func belfry(t *testing.T, listened func() (got string, err error)) (*Backend, *scripted) {
	t.Helper()
	s := &scripted{answer: func(stmt string) ([]string, error) {
		if strings.HasPrefix(stmt, "CALL dlock_look(") {
			return []string{"6", "0", ""}, nil
		}
		if strings.Contains(stmt, ", 1)") {
			got, err := listened()
			return []string{got, "1"}, err
		}
		return []string{"1"}, nil
	}}
	db := sql.OpenDB(s)
	b, err := New(db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		db.Close()
	})
	return b, s
}

// said returns the statements that contain a text.
func (s *scripted) said(text string) (stmts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stmt := range s.stmts {
		if strings.Contains(stmt, text) {
			stmts = append(stmts, stmt)
		}
	}
	return stmts
}

// queuesUp adds a request of the client that waits.
func queuesUp(b *Backend, name string, place int64) *request {
	r := driver.Request{Name: name, ID: driver.NewID(), TTL: time.Minute, Wait: true}
	b.mu.Lock()
	m := b.requests.Begin(r)
	m.place = place
	b.mu.Unlock()
	b.attach(m)
	return m
}

// TestBellsAreHungAndRung: a client that hears of others in a queue hangs a bell for each of its
// requests there, rings that of each which goes, and gives its session back when it has none.
func TestBellsAreHungAndRung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := belfry(t, func() (string, error) { time.Sleep(time.Second); return "0", nil })
		first, second := queuesUp(b, "x", 7), queuesUp(b, "x", 8)
		alone := queuesUp(b, "y", 3)
		synctest.Wait()
		if hung := s.said("GET_LOCK"); len(hung) > 0 {
			t.Errorf("of others nothing is known, and it says %q", hung)
		}
		b.mu.Lock()
		b.readAhead("x", []string{"6", "7", driver.NewID().String()}, driver.ID{})
		b.mu.Unlock()
		synctest.Wait()
		for m, want := range map[*request]int{first: 1, second: 1, alone: 0} {
			if n := len(s.said("GET_LOCK(" + bellOf(m.ID) + ", 0)")); n != want {
				t.Errorf("the bell of %s/%d is hung %d times; want %d", m.Name, m.place, n, want)
			}
		}
		for i, m := range []*request{first, second} {
			b.mu.Lock()
			b.remove(m)
			b.mu.Unlock()
			synctest.Wait()
			if n := len(s.said("RELEASE_LOCK(" + bellOf(m.ID) + ")")); n != 1 {
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
// looking as if there were no bells.
func TestBellsThatAreNoUse(t *testing.T) {
	for what, listened := range map[string]func() (string, error){
		"they ring for nothing":    func() (string, error) { return "1", nil },
		"the server refuses":       func() (string, error) { return "", errors.New("no named locks here") },
		"the server says nonsense": func() (string, error) { return "", nil },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var looks atomic.Int64
				b, s := belfry(t, func() (string, error) { looks.Store(0); return listened() })
				answer, ahead := s.answer, driver.NewID().String()
				s.answer = func(stmt string) ([]string, error) {
					if !strings.HasPrefix(stmt, "CALL dlock_look(") {
						return answer(stmt)
					}
					if looks.Add(1) > 1 { // the first one after a bell finds whom it was of
						ahead = driver.NewID().String()
					}
					return []string{"6", "7", ahead}, nil
				}
				queuesUp(b, "x", 7)
				time.Sleep(time.Minute)
				if n := len(s.said(", 1)")); n < 5 || n > 20 {
					t.Errorf("it listens %d times in a minute", n)
				}
				if n := s.count("look"); n < 550 {
					t.Errorf("it looks %d times in a minute; want 600", n)
				}
			})
		})
	}
}

// TestABellThatIsNotThere: who is behind one who never waited, and so has no bell, listens to it
// once, and to the next one's bell without delay, however long that took.
func TestABellThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		without, with := driver.NewID(), driver.NewID()
		b, s := belfry(t, nil)
		var ahead atomic.Value
		ahead.Store(without)
		answer := s.answer
		s.answer = func(stmt string) ([]string, error) {
			switch {
			case strings.HasPrefix(stmt, "CALL dlock_look("):
				return []string{"6", "7", ahead.Load().(driver.ID).String()}, nil
			case strings.Contains(stmt, bellOf(without)+", 1"):
				return []string{"1", "1"}, nil
			case strings.Contains(stmt, bellOf(with)+", 1"):
				time.Sleep(time.Second)
				return []string{"0", ""}, nil
			}
			return answer(stmt)
		}
		queuesUp(b, "x", 7)
		time.Sleep(5 * time.Second)
		if n := len(s.said(bellOf(without) + ", 1")); n != 1 {
			t.Errorf("it listens %d times to a bell that is not there; want once", n)
		}
		ahead.Store(with)
		time.Sleep(2 * maxPoll)
		if n := len(s.said(bellOf(with) + ", 1")); n != 1 {
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
		b, s := belfry(t, func() (string, error) { return "1", nil })
		answer, ahead := s.answer, driver.NewID().String()
		s.answer = func(stmt string) ([]string, error) {
			if strings.HasPrefix(stmt, "CALL dlock_look(") {
				return []string{strconv.FormatInt(head.Load(), 10), "7", ahead}, nil
			}
			return answer(stmt)
		}
		queuesUp(b, "x", 7)
		for moves := range 3 {
			time.Sleep(5 * time.Second)
			if n := len(s.said(", 1)")); n != moves+1 {
				t.Errorf("when the queue has moved %d times it has listened %d times; want %d", moves, n, moves+1)
			}
			head.Add(1)
		}
	})
}

// TestABellThatRingsIsAnsweredAtOnce: whoever hears it looks without delay, in that queue.
func TestABellThatRingsIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rings := make(chan struct{})
		b, s := belfry(t, func() (string, error) { <-rings; return "1", nil })
		queuesUp(b, "x", 7)
		queuesUp(b, "y", 7)
		time.Sleep(20 * time.Second) // now it polls each 100 ms
		b.mu.Lock()
		b.readAhead("x", []string{"6", "7", driver.NewID().String()}, driver.ID{})
		b.mu.Unlock()
		time.Sleep(35 * time.Millisecond)
		before := s.count("look")
		close(rings)
		synctest.Wait()
		looks := s.said("CALL dlock_look(")
		if len(looks) != before+1 || !strings.Contains(looks[len(looks)-1], "X'78'") {
			t.Errorf("at once there are the looks %q", looks[before:])
		}
	})
}

// TestBellsOfASessionThatBreaks: they are not hung again, and requests that come later have bells.
func TestBellsOfASessionThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := belfry(t, func() (string, error) { time.Sleep(time.Second); return "0", nil })
		broken := true
		answer := s.answer
		s.answer = func(stmt string) ([]string, error) {
			if broken && strings.Contains(stmt, ", 0)") {
				return nil, errors.New("reset")
			}
			return answer(stmt)
		}
		lost := queuesUp(b, "x", 7)
		b.mu.Lock()
		b.readAhead("x", []string{"6", "7", driver.NewID().String()}, driver.ID{})
		b.mu.Unlock()
		synctest.Wait()
		broken = false
		later := queuesUp(b, "x", 8)
		b.mustWait(b.waiters.Group("x").All()[1], verdict{place: 8})
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
			b, s := belfry(t, func() (string, error) { time.Sleep(time.Second); return "0", nil })
			db := b.pool.db
			db.SetMaxOpenConns(most)
			queuesUp(b, "x", 7)
			b.mu.Lock()
			b.readAhead("x", []string{"6", "7", driver.NewID().String()}, driver.ID{})
			b.mu.Unlock()
			time.Sleep(5 * time.Second)
			hung := slices.DeleteFunc(s.said("SELECT GET_LOCK"), func(stmt string) bool { return strings.Contains(stmt, ", 1)") })
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

// TestABellOfANameThatNobodyWaitsFor: one that rang when the last waiter of its name had gone keeps
// the client from no other bell.
func TestABellOfANameThatNobodyWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := belfry(t, func() (string, error) { time.Sleep(time.Second); return "0", nil })
		m := queuesUp(b, "x", 7)
		b.mu.Lock()
		b.bells.rung, b.bells.name = driver.NewID(), "gone"
		b.heardOf(b.waiters.Group("x"), m, driver.NewID())
		ahead := m.ahead
		b.mu.Unlock()
		synctest.Wait()
		if asked := s.said("GET_LOCK(" + bellOf(ahead) + ", 1)"); len(asked) == 0 {
			t.Error("it does not listen to the bell of who is ahead")
		}
	})
}
