package mysql

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// together calls do n times at once, and returns what the calls return.
func together[V any](n int, do func(i int) V) []V {
	all := make([]V, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i] = do(i) })
	}
	wg.Wait()
	return all
}

// numbered returns n requests for as many names.
func numbered(n int) []driver.Request {
	rs := make([]driver.Request, n)
	for i := range rs {
		rs[i] = exclusive(fmt.Sprint("name ", i))
	}
	return rs
}

// TestTakesTravelTogether: the first is sent at once, and alone; those that come meanwhile travel
// together. The outcome of their statement changes no answer of a single one.
func TestTakesTravelTogether(t *testing.T) {
	const n = 40
	for what, tt := range map[string]struct {
		err        error // of those that travel together
		taken      []int // by others
		statements int
		uncertain  bool
	}{
		"all are free":          {nil, nil, 2, false},
		"some are taken":        {nil, []int{3, 4, 39}, 2, false},
		"it was rolled back":    {serverError(1213, "40001"), nil, n + 1, false},
		"it is refused":         {serverError(1406, "22001"), nil, n + 1, false},
		"it is not answered":    {errors.New("reset"), nil, n + 1, true},
		"there is no room":      {serverError(1153, "08S01"), nil, n + 1, false},
		"it is refused for now": {serverError(1290, "HY000"), nil, n + 1, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := free{holders: map[string]string{}}
				s := &scripted{takes: time.Millisecond, answer: func(stmt string) (answer, error) {
					if is(stmt, take) && len(takenRow.FindAllString(stmt, 2)) > 1 && tt.err != nil {
						return answer{}, tt.err
					}
					return f.answer(stmt)
				}}
				b := s.client(t, Options{})
				rs, want := numbered(n), make([]error, n)
				for _, i := range tt.taken {
					f.holders[fmt.Sprintf("%x", rs[i].Name)] = driver.NewID().String()
					want[i] = driver.ErrHeld
				}
				_, _ = b.Inspect(t.Context(), "") // reads max_allowed_packet
				errs := together(n, func(i int) error {
					g, err := b.Acquire(t.Context(), rs[i])
					if err == nil && g.Token != token {
						return fmt.Errorf("the token is %d", g.Token)
					}
					return err
				})
				for i, err := range errs {
					if !errors.Is(err, want[i]) {
						t.Errorf("%d: %v; want %v", i, err, want[i])
					}
				}
				if got := s.count("LAST_INSERT_ID(TIMESTAMPDIFF"); got != tt.statements {
					t.Errorf("%d statements take; want %d", got, tt.statements)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				uncertain := 0
				for m := range b.requests.All() {
					if m.Uncertain {
						uncertain++
					}
				}
				if want := map[bool]int{true: n - 1}[tt.uncertain]; uncertain != want {
					t.Errorf("%d of %d are uncertain; want %d", uncertain, n, want)
				}
			})
		})
	}
}

// TestGivesTravelTogether: each release succeeds, also if others in its statement need more, and if
// the server released its lock and the answer was lost.
func TestGivesTravelTogether(t *testing.T) {
	const n = 40
	for what, tt := range map[string]struct {
		err    error // of those that travel together
		done   bool  // but they are released
		queued []int // others wait for them
	}{
		"all are released":           {},
		"others wait for some":       {queued: []int{0, 7, 8}},
		"it was rolled back":         {err: serverError(1213, "40001")},
		"it is refused":              {err: serverError(1406, "22001")},
		"it is not answered":         {err: errors.New("reset")},
		"the answer is lost":         {err: errors.New("reset"), done: true},
		"the answer of some is lost": {err: errors.New("reset"), done: true, queued: []int{0, 7, 8}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := free{queued: map[string]bool{}}
				s := &scripted{takes: time.Millisecond, answer: func(stmt string) (answer, error) {
					if is(stmt, give) && strings.Count(stmt, ", X'") > 0 && tt.err != nil {
						if tt.done {
							_, _ = f.answer(stmt)
						}
						return answer{}, tt.err
					}
					return f.answer(stmt)
				}}
				b := s.client(t, Options{})
				rs := numbered(n)
				for _, r := range rs {
					if _, err := b.Acquire(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				}
				for _, i := range tt.queued {
					f.queued[fmt.Sprintf("%x", rs[i].Name)] = true
				}
				for i, err := range together(n, func(i int) error { return b.Release(t.Context(), rs[i]) }) {
					if err != nil {
						t.Errorf("%d: %v", i, err)
					}
				}
				if len(f.holders) > 0 {
					t.Errorf("%d are not released", len(f.holders))
				}
				if got := s.count("FORCE INDEX (PRIMARY) SET holder"); got != 2 {
					t.Errorf("%d statements release; want 2", got)
				}
				for i, err := range together(n, func(i int) error { return b.Release(t.Context(), rs[i]) }) {
					if !errors.Is(err, driver.ErrLost) {
						t.Errorf("%d, once more: %v; want %v", i, err, driver.ErrLost)
					}
				}
			})
		})
	}
}

// TestReleasesOfAnotherClientsRequests: they are sent alone, since the client does not know that
// they held.
func TestReleasesOfAnotherClientsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := free{holders: map[string]string{}}
		s := &scripted{takes: time.Millisecond, answer: f.answer}
		b := s.client(t, Options{})
		rs := numbered(20)
		for _, r := range rs[1:] {
			f.holders[fmt.Sprintf("%x", r.Name)] = r.ID.String()
		}
		for i, err := range together(len(rs), func(i int) error { return b.Release(t.Context(), rs[i]) }) {
			if want := map[bool]error{true: driver.ErrLost}[i == 0]; !errors.Is(err, want) {
				t.Errorf("%d: %v; want %v", i, err, want)
			}
		}
	})
}

// TestArrivalsAndLooksTravelTogether: each look has its own answer.
func TestArrivalsAndLooksTravelTogether(t *testing.T) {
	const n = 40
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: time.Millisecond}
		s.answer = func(stmt string) (a answer, err error) {
			if is(stmt, take) {
				a.id = isQueued
			}
			if strings.HasPrefix(stmt, "(SELECT ") {
				for i, part := range strings.Split(stmt, " UNION ALL ") {
					name := quoted.FindAllStringSubmatch(part, -1)[1][1]
					place := name[len(name)-2:] // the last digit of its number, in hexadecimal
					a.rows = append(a.rows, []string{fmt.Sprint(i), "1000", "20", "1", driver.ID{1}.String(), "0", "60000000", "request", place, "10000000", "0", ""})
				}
			}
			return a, nil
		}
		b := s.client(t, Options{})
		_, _ = b.Inspect(t.Context(), "")
		rs := numbered(n)
		for i, err := range together(n, func(i int) error { return b.arrive(b.newTask(true), rs[i]) }) {
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		together(n, func(i int) error {
			p, err := b.look(b.newTask(true), &rs[i], i%2 == 0)
			if want := int64(30 + i%10); err != nil || p.place != want {
				t.Errorf("%d: at place %d, %v; want %d", i, p.place, err, want)
			}
			return nil
		})
		if got := s.count("INSERT INTO dlock_requests"); got != 2 {
			t.Errorf("%d statements for the arrivals; want 2", got)
		}
		looks, locking := s.said("(SELECT "), 0
		for _, stmt := range looks {
			locking += strings.Count(stmt, "LIMIT 1 LOCK IN SHARE MODE)")
		}
		if len(looks) != 2 || locking != n/2 {
			t.Errorf("%d statements look, and %d looks lock; want 2, and %d", len(looks), locking, n/2)
		}
	})
}

// TestABatchIsInTheOrderOfNames: so two batches do not wait for each other.
func TestABatchIsInTheOrderOfNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := free{}
		s := &scripted{takes: time.Millisecond, answer: f.answer}
		b := s.client(t, Options{})
		_, _ = b.Inspect(t.Context(), "")
		rs := numbered(60)
		together(len(rs), func(i int) error { _, err := b.Acquire(t.Context(), rs[i]); return err })
		for _, stmt := range s.said("LAST_INSERT_ID(TIMESTAMPDIFF") {
			last := ""
			for _, row := range takenRow.FindAllStringSubmatch(stmt, -1) {
				if row[1] < last {
					t.Errorf("%s follows %s", row[1], last)
				}
				last = row[1]
			}
		}
	})
}

// TestACallThatIsLeftIsNotSent: an abandoned call does not travel with others.
func TestACallThatIsLeftIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := free{}
		s := &scripted{takes: time.Second, answer: f.answer}
		b := s.client(t, Options{})
		_, _ = b.Inspect(t.Context(), "")
		first, left, last := exclusive("a"), b.newTask(false), exclusive("c")
		var wg sync.WaitGroup
		for _, do := range []func(){
			func() { _, _, _ = b.take(b.newTask(false), first) },
			func() {
				if _, _, err := b.take(left, exclusive("b")); !errors.Is(err, errLeft) {
					t.Errorf("a task that was left: %v", err)
				}
			},
			func() {
				if code, _, err := b.take(b.newTask(false), last); code != token || err != nil {
					t.Errorf("the last: %d, %v", code, err)
				}
			},
		} {
			wg.Go(do)
			synctest.Wait()
		}
		left.left.Store(true)
		wg.Wait()
		if got := s.count(hexOf("b")); got != 0 || left.doubt.Load() != 0 {
			t.Errorf("it is sent %d times, and %d copies are in doubt", got, left.doubt.Load())
		}
	})
}

// TestATakeThatIsNotReadBack: statements for several calls took locks, and the server did not
// answer which ones until the calls were abandoned. The locks are released.
func TestATakeThatIsNotReadBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 4
		var f free
		rs, refuses := numbered(n), false
		s := &scripted{takes: time.Millisecond}
		s.answer = func(stmt string) (answer, error) {
			s.mu.Lock()
			refused := refuses
			refuses = refuses || is(stmt, take) && len(takenRow.FindAllString(stmt, 2)) > 1
			s.mu.Unlock()
			if refused {
				return answer{}, serverError(1290, "HY000")
			}
			said, err := f.answer(stmt)
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, r := range rs { // each release looks at one name
				id := r.ID.String()
				if f.holders[hex.EncodeToString([]byte(r.Name))] != id || !strings.Contains(stmt, hexOf(r.Name)) {
					continue
				}
				if is(stmt, look) {
					said.rows[0][4], said.rows[0][6] = id, "60000000"
				} else if is(stmt, read) {
					lock := []string{"1000", "0", "0", id, none, "", "60000000", "0", "0", "0", "60000000"}
					said = reads(append(lock, make([]string, 14)...)...)
				}
			}
			return said, err
		}
		b := s.client(t, Options{})
		_, _ = b.Inspect(t.Context(), "") // reads max_allowed_packet
		errs := together(n, func(i int) error { _, err := b.Acquire(t.Context(), rs[i]); return err })
		s.mu.Lock()
		refuses = false
		s.mu.Unlock()
		failed := 0
		for i, err := range errs {
			if err != nil {
				failed++
				rs[i].Uncertain = true
			}
			if err := b.Release(t.Context(), rs[i]); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Errorf("Release: %v", err)
			}
		}
		if failed != n-1 || len(f.holders) > 0 || b.requests.Len() > 0 {
			t.Errorf("%d of %d failed, and %d hold; %d are in the record", failed, n, len(f.holders), b.requests.Len())
		}
	})
}

// TestViewsDelayNoLock: a page that reads all locks again and again takes its turn among the calls
// for locks.
func TestViewsDelayNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{takes: 20 * time.Millisecond, answer: func(stmt string) (a answer, err error) {
			if is(stmt, take) {
				a.id = isHeld
			}
			return a, nil
		}}
		b := s.client(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var views, wait sync.WaitGroup
		for range 100 {
			views.Go(func() {
				for ctx.Err() == nil {
					_, _ = b.Inspect(ctx, "x")
					_, _ = b.List(ctx)
				}
			})
		}
		time.Sleep(time.Second)
		r := exclusive("y")
		r.Wait = true
		wait.Go(func() { _, _ = b.Acquire(ctx, r) })
		time.Sleep(time.Second)
		if n := s.count("GREATEST(others, VALUES(others))"); n == 0 {
			t.Error("beside the views a request did not arrive within a second")
		}
		cancel()
		views.Wait()
		wait.Wait()
	})
}

// TestStatementsAtOnce: a client has at most 30 statements at a server that does not answer, and an
// attempt to join a hold needs one of its own.
func TestStatementsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{}
		b := s.client(t, Options{})
		_, _ = b.Inspect(t.Context(), "x") // reads what the session is like
		s.takes = time.Second
		var joins sync.WaitGroup
		for i := range 100 {
			joins.Go(func() {
				r := exclusive(fmt.Sprint(i))
				r.Owner = driver.NewID()
				_, _ = b.Acquire(t.Context(), r)
			})
		}
		synctest.Wait()
		if n := b.pool.db.Stats().InUse; n != 30 {
			t.Errorf("%d connections are in use; want 30", n)
		}
		joins.Wait()
	})
}
