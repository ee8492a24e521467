package kit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// service takes a second for each call and each batch. The first letter of a call is its key.
type service struct {
	line kit.Line[string]

	mu       sync.Mutex
	began    []string // what was sent, in order: calls of a batch with spaces between
	underWay int
	most     int
	late     []string
	refuses  bool // calls that are sent alone
}

func (s *service) take(what string) {
	s.mu.Lock()
	s.began = append(s.began, what)
	s.underWay++
	s.most = max(s.most, s.underWay)
	s.mu.Unlock()
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay--
}

// newService returns a service with a line that never has two calls of one key in a batch.
func newService(few, most int, slow time.Duration) *service {
	s := &service{}
	s.line = kit.Line[string]{
		Alone: func(_ context.Context, c string) bool {
			s.mu.Lock()
			refuses := s.refuses
			s.mu.Unlock()
			if refuses {
				time.Sleep(time.Second)
				return false
			}
			s.take("alone:" + c)
			return true
		},
		Together: func(batch []string) { s.take(strings.Join(batch, " ")) },
		Late: func(c string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.late = append(s.late, c)
		},
		Key: func(c string) string { return c[:1] },
		Few: few, Most: most, Slow: slow,
	}
	return s
}

// send sends calls in this order, without waiting. The name of an urgent call ends in '!'.
func (s *service) send(t *testing.T, calls ...string) {
	for _, c := range calls {
		go func() {
			if fate := s.line.Do(t.Context(), nil, strings.HasSuffix(c, "!"), c); fate != kit.Over {
				t.Errorf("%s: %v", c, fate)
			}
		}()
		synctest.Wait()
	}
}

// sent waits until all calls have ended, and compares what was sent.
func (s *service) sent(t *testing.T, want ...string) {
	t.Helper()
	time.Sleep(time.Hour)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.began, want) {
		t.Errorf("sent:\n%q\nwant:\n%q", s.began, want)
	}
	if kept := s.line.Kept(); kept != 0 {
		t.Errorf("the line keeps %d records when all calls have ended", kept)
	}
}

// begun waits for the given time, and compares how much was sent by then.
func (s *service) begun(t *testing.T, after time.Duration, want int) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.began) != want || s.most > s.line.Most {
		t.Errorf("sent by now: %q; want %d, and at most %d under way", s.began, want, s.line.Most)
	}
}

func TestLine(t *testing.T) {
	for what, f := range map[string]func(t *testing.T){
		"what comes meanwhile goes together": func(t *testing.T) {
			s := newService(2, 2, 0)
			s.send(t, "a", "b", "c", "d", "e")
			s.sent(t, "alone:a", "alone:b", "c d e")
		},
		"of one key one at a time, in order": func(t *testing.T) {
			s := newService(1, 1, 0)
			s.send(t, "a", "b1", "b2", "c1", "b3", "c2", "d")
			s.sent(t, "alone:a", "b1 c1 d", "b2 c2", "b3")
		},
		"without keys all calls are sent together": func(t *testing.T) {
			s := newService(1, 1, 0)
			s.line.Key = nil
			s.send(t, "a", "b1", "b2", "c1!", "b3")
			s.sent(t, "alone:a", "c1! b1 b2 b3")
		},
		"no more than fits": func(t *testing.T) {
			s := newService(1, 1, 0)
			s.line.Fits = func(batch []string, next string) bool {
				return len(strings.Join(batch, ""))+len(next) <= 4
			}
			s.send(t, "a", "bb", "cc", "d", "eeeeeee", "f")
			s.sent(t, "alone:a", "bb cc", "d", "eeeeeee", "f")
		},
		"urgent ones first": func(t *testing.T) {
			s := newService(1, 1, 0)
			s.line.Fits = func(batch []string, _ string) bool { return len(batch) < 2 }
			s.send(t, "a", "b", "c", "d", "x!", "c!", "y!", "c!!")
			s.sent(t, "alone:a", "x! c!", "y! c!!", "b d", "c")
		},
		"urgent ones at once": func(t *testing.T) {
			s := newService(1, 2, 0)
			s.send(t, "a", "b", "b!")
			time.Sleep(time.Second / 2)
			s.send(t, "c!")
			s.sent(t, "alone:a", "alone:b!", "c! b")
		},
		"more while the service is slow": func(t *testing.T) {
			s := newService(1, 3, 300*time.Millisecond)
			s.send(t, "a", "b1", "b2", "b3", "b4")
			s.begun(t, 900*time.Millisecond, 3)
			s.sent(t, "alone:a", "b1", "b2", "b3", "b4")
		},
		"when slow calls have made them many, what can travel together waits for more": func(t *testing.T) {
			s := newService(1, 3, 300*time.Millisecond)
			s.send(t, "a", "b", "c")
			time.Sleep(350 * time.Millisecond) // b and c are under way
			s.send(t, "d")
			time.Sleep(350 * time.Millisecond) // d is
			s.send(t, "e")
			time.Sleep(350 * time.Millisecond) // a has ended
			s.send(t, "f")
			s.sent(t, "alone:a", "b c", "d", "e f")
		},
		"a call that cannot join a batch takes the place of one that has ended": func(t *testing.T) {
			s := newService(1, 2, 300*time.Millisecond)
			s.send(t, "a", "b1", "b2", "b3")
			s.begun(t, 1100*time.Millisecond, 3) // b2 when a had ended
			s.sent(t, "alone:a", "b1", "b2", "b3")
		},
		"a call that did not fit takes the place of one that has ended": func(t *testing.T) {
			s := newService(1, 3, 300*time.Millisecond)
			s.line.Fits = func([]string, string) bool { return false }
			s.send(t, "a", "b", "c", "d", "e")
			s.begun(t, 400*time.Millisecond, 3) // b and c, after Slow
			s.begun(t, 700*time.Millisecond, 4) // d when a had ended
			s.begun(t, time.Minute, 5)
		},
		"a call that came while Most were under way is sent soon after one has ended": func(t *testing.T) {
			s := newService(1, 2, 300*time.Millisecond)
			s.line.Alone = nil
			s.send(t, "a")
			time.Sleep(400 * time.Millisecond)
			s.send(t, "b") // is sent at 700 ms
			time.Sleep(400 * time.Millisecond)
			s.send(t, "c")
			s.begun(t, 400*time.Millisecond, 2)
			s.begun(t, 200*time.Millisecond, 3) // 400 ms after a ended
			s.sent(t, "a", "b", "c")
		},
		"a call that Alone did not send is sent by Together": func(t *testing.T) {
			s := newService(1, 1, 0)
			s.refuses = true
			s.send(t, "a", "b")
			s.sent(t, "b a")
		},
		"with nothing that sends alone": func(t *testing.T) {
			s := newService(1, 1, 0)
			s.line.Alone = nil
			s.send(t, "a", "b", "c!")
			s.sent(t, "a", "c! b")
		},
	} {
		t.Run(what, func(t *testing.T) { synctest.Test(t, f) })
	}
}

// TestLineLeft: a call whose caller leaves before it is sent is never sent, and the end of a call
// whose caller leaves later is reported.
func TestLineLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(1, 1, 0)
		do := func(c string, after time.Duration, byClosing bool) kit.Fate {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			closed := make(chan struct{})
			time.AfterFunc(after, func() {
				if byClosing {
					close(closed)
				} else {
					cancel()
				}
			})
			return s.line.Do(ctx, closed, false, c)
		}
		for _, byClosing := range []bool{false, true} {
			s.send(t, "a")
			if f := do("b", time.Second/2, byClosing); f != kit.Unsent {
				t.Errorf("before it was sent: %v", f)
			}
			time.Sleep(time.Second)
			s.send(t, "a")
			if f := do("c", 3*time.Second/2, byClosing); f != kit.Left {
				t.Errorf("under way: %v", f)
			}
			time.Sleep(time.Second)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if f := s.line.Do(over, nil, false, "d"); f != kit.Unsent {
			t.Errorf("with a context that has ended: %v", f)
		}
		closed := make(chan struct{})
		close(closed)
		if f := s.line.Do(t.Context(), closed, true, "e"); f != kit.Unsent {
			t.Errorf("after the end: %v", f)
		}
		s.refuses = true
		if f := do("f", time.Second/2, false); f != kit.Unsent {
			t.Errorf("sent alone without success, and left meanwhile: %v", f)
		}
		s.sent(t, "alone:a", "alone:a", "c", "alone:a", "alone:a", "c")
		if !slices.Equal(s.late, []string{"c", "c"}) {
			t.Errorf("late: %q", s.late)
		}
	})
}

// TestLineLeftAtTheEnd: if the caller leaves while its call ends, either Do returns Over, or Late
// is called.
func TestLineLeftAtTheEnd(t *testing.T) {
	var left, late atomic.Int64
	l := kit.Line[context.CancelFunc]{
		Together: func(batch []context.CancelFunc) { batch[0]() },
		Late:     func(context.CancelFunc) { late.Add(1) },
		Few:      1, Most: 1,
	}
	for range 20_000 {
		ctx, cancel := context.WithCancel(t.Context())
		if l.Do(ctx, nil, false, cancel) == kit.Left {
			left.Add(1)
		}
	}
	last := l.Do(t.Context(), nil, false, func() {}) // is sent when all earlier ones have ended
	if left.Load() != late.Load() || last != kit.Over {
		t.Errorf("%d were left, and the end of %d was reported", left.Load(), late.Load())
	}
}

// TestLinePatience: a caller learns at once that its call has ended, and soon that it has to leave.
func TestLinePatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(1, 1, 0)
		s.line.Patience = 300 * time.Millisecond
		began := time.Now()
		do := func(c string, leaves, after time.Duration, want kit.Fate) {
			ctx, cancel := context.WithTimeout(t.Context(), leaves)
			defer cancel()
			if f := s.line.Do(ctx, nil, false, c); f != want || time.Since(began) != after {
				t.Errorf("%s: %v, after %s; want %v, after %s", c, f, time.Since(began), want, after)
			}
		}
		go do("a", time.Minute, time.Second, kit.Over)
		synctest.Wait()
		go do("b", time.Minute, 2*time.Second, kit.Over)
		synctest.Wait()
		go do("c", 100*time.Millisecond, 300*time.Millisecond, kit.Unsent)
		go do("d", 700*time.Millisecond, 700*time.Millisecond, kit.Unsent)
		go do("e", 1500*time.Millisecond, 1500*time.Millisecond, kit.Left)
		time.Sleep(1900 * time.Millisecond)
		do("f", 50*time.Millisecond, 2200*time.Millisecond, kit.Left)
		time.Sleep(time.Hour)
		if kept := s.line.Kept(); kept != 0 {
			t.Errorf("the line keeps %d records when all calls have ended", kept)
		}
	})
}

// TestLineOverdue: a stream of urgent calls does not block other calls, even if Most are under way
// nearly always.
func TestLineOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, slow = 3, 10 * time.Millisecond
		s := newService(1, most, slow)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range most + 1 {
			wg.Go(func() {
				for ctx.Err() == nil {
					s.line.Do(t.Context(), nil, true, fmt.Sprint(i, "!"))
				}
			})
		}
		time.Sleep(10*time.Second + slow)
		began := time.Now()
		s.line.Do(t.Context(), nil, false, "x")
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("it took %s, with calls that take a second", took)
		}
		cancel()
		wg.Wait()
		if s.most > most {
			t.Errorf("%d were under way", s.most)
		}
	})
}

// TestLineOfMany: however calls arrive and callers leave, each call is sent once, or not at all if
// Do returns Unsent; a key is in a batch once, the bound is kept, and no record remains.
func TestLineOfMany(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 200 {
		synctest.Test(t, func(t *testing.T) {
			few := 1 + r.IntN(3)
			most := few + r.IntN(4)
			s := newService(few, most, time.Duration(r.IntN(3))*300*time.Millisecond)
			s.line.Patience = time.Duration(r.IntN(2)) * 200 * time.Millisecond
			size := 1 + r.IntN(5)
			s.line.Fits = func(batch []string, _ string) bool { return len(batch) < size }
			fates := map[string]kit.Fate{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i := range 50 {
				c := fmt.Sprintf("%c%02d", 'a'+r.IntN(6), i)
				urgent := r.IntN(5) == 0 && most > 1
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(3) == 0 {
					time.AfterFunc(time.Duration(r.IntN(8000))*time.Millisecond, cancel)
				}
				wg.Go(func() {
					defer cancel()
					fate := s.line.Do(ctx, nil, urgent, c)
					mu.Lock()
					defer mu.Unlock()
					fates[c] = fate
				})
				time.Sleep(time.Duration(r.IntN(2)*r.IntN(600)) * time.Millisecond)
				synctest.Wait()
			}
			wg.Wait()
			time.Sleep(time.Hour)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.most > most {
				t.Errorf("%d were under way; want at most %d", s.most, most)
			}
			times, last := map[string]int{}, map[byte]string{}
			for _, batch := range s.began {
				keys := map[byte]bool{}
				for c := range strings.FieldsSeq(strings.TrimPrefix(batch, "alone:")) {
					times[c]++
					if keys[c[0]] {
						t.Errorf("one key twice in %q", batch)
					}
					if most == 1 && c < last[c[0]] {
						t.Errorf("%s after %s", c, last[c[0]])
					}
					keys[c[0]], last[c[0]] = true, c
				}
			}
			left := 0
			for c, fate := range fates {
				if want := map[kit.Fate]int{kit.Over: 1, kit.Left: 1, kit.Unsent: 0}[fate]; times[c] != want {
					t.Errorf("%s was sent %d times, and is %v", c, times[c], fate)
				}
				if fate == kit.Left {
					left++
				}
			}
			if kept := s.line.Kept(); kept != 0 || left != len(s.late) {
				t.Errorf("the line keeps %d records when all calls have ended; %d were left, and %d late", kept, left, len(s.late))
			}
		})
		if t.Failed() {
			t.Fatalf("round %d of seed %d", round, seed)
		}
	}
}

// TestLineUrgentAhead: however calls arrive and callers leave, no call is sent while an urgent one
// is queued whose key is not in the batch.
func TestLineUrgentAhead(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 500 {
		synctest.Test(t, func(t *testing.T) {
			s := newService(1, 1, 0)
			s.line.Alone = nil
			size := 1 + r.IntN(3)
			s.line.Fits = func(batch []string, _ string) bool { return len(batch) < size }
			// guarded by s.mu: those that were sent, and the urgent ones that were not
			sent, queued := map[string]bool{}, map[string]context.Context{}
			s.line.Together = func(batch []string) {
				s.mu.Lock()
				keys := map[byte]bool{}
				for _, c := range batch {
					keys[c[0]], sent[c] = true, true
					delete(queued, c)
				}
				for c, ctx := range queued {
					if last := batch[len(batch)-1]; !strings.HasSuffix(last, "!") && !keys[c[0]] && ctx.Err() == nil {
						t.Errorf("%s was sent, and %s was not", last, c)
					}
				}
				s.mu.Unlock()
				time.Sleep(time.Second)
			}
			for i := range 40 {
				c, ctx, cancel := fmt.Sprintf("%c%02d", 'a'+r.IntN(5), i), t.Context(), func() {}
				if r.IntN(3) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(6000))*time.Millisecond)
				}
				urgent := r.IntN(3) == 0
				if urgent {
					c += "!"
				}
				go func() {
					defer cancel()
					s.line.Do(ctx, nil, urgent, c)
				}()
				synctest.Wait()
				s.mu.Lock()
				if urgent && !sent[c] {
					queued[c] = ctx
				}
				s.mu.Unlock()
				time.Sleep(time.Duration(1+r.IntN(2)*r.IntN(400)) * time.Millisecond)
			}
			s.sent(t)
		})
		if t.Failed() {
			t.Fatalf("round %d of seed %d", round, seed)
		}
	}
}

// TestLineForgets: a call that has ended is not kept, however many were queued before.
func TestLineForgets(t *testing.T) {
	var calls []weak.Pointer[[100]byte]
	open := make(chan struct{})
	l := kit.Line[*[100]byte]{Together: func([]*[100]byte) { <-open }, Few: 1, Most: 1}
	var wg sync.WaitGroup
	for range 1000 {
		c := new([100]byte)
		calls = append(calls, weak.Make(c))
		wg.Go(func() { l.Do(t.Context(), nil, false, c) })
	}
	close(open)
	wg.Wait()
	kept := len(calls)
	for end := time.Now().Add(10 * time.Second); kept > 0 && time.Now().Before(end); {
		runtime.GC()
		kept = 0
		for _, c := range calls {
			if c.Value() != nil {
				kept++
			}
		}
	}
	if kept > 0 {
		t.Errorf("%d calls that have ended are kept", kept)
	}
	runtime.KeepAlive(&l)
}
