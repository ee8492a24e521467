package mysql

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// waits adds a request of the client that waits at that place.
func (b *Backend) waits(r driver.Request, place int64) *kit.Waiter[*ownRequest] {
	r.Wait = true
	b.mu.Lock()
	m := b.requests.Begin(r)
	m.place, m.Stands = place, true
	b.mu.Unlock()
	return b.attach(m)
}

// goes ends the wait of a request, and removes it.
func (b *Backend) goes(w *kit.Waiter[*ownRequest]) {
	b.detach(w)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(w.Request)
}

// polledNames are the names that a poll is for, in hexadecimal.
func polledNames(stmt string) (names []string) {
	for _, m := range inList.FindAllStringSubmatch(stmt, -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		names = append(names, quoted.FindAllStringSubmatch(stmt, 2)[1][1])
	}
	return names
}

var inList = regexp.MustCompile(`X'([0-9a-f]*)' AS name`)

// rowOfPoll is what a poll reads of a queue of exclusive requests where a hold has a minute left,
// and that request is ahead.
func rowOfPoll(name string, head int64, ahead driver.ID) []string {
	return []string{name, strconv.FormatInt(head, 10), "1", ahead.String(), "0", "60000000", "1000", "", "10000000", "0"}
}

// standsStill answers polls of queues in which nothing happens.
func standsStill(stmt string) (a answer, err error) {
	if is(stmt, poll) {
		for _, name := range polledNames(stmt) {
			a.rows = append(a.rows, rowOfPoll(name, 0, driver.ID{}))
		}
	}
	return a, nil
}

// TestPollsFollowTheQueue: the time to the next poll follows from how long the wait lasts, and how
// fast the queue moves.
func TestPollsFollowTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ms := time.Millisecond
		for _, c := range []struct {
			what  string
			waits time.Duration // since the queue moved
			turn  time.Duration
			want  time.Duration
		}{
			{"just begun", 0, 0, minPoll},
			{"a while", 200 * ms, 0, 25 * ms},
			{"long", time.Hour, 0, maxPoll},
			{"a fast queue", 0, 12 * ms, 2 * ms},
			{"a very fast queue", 0, ms, minPoll},
			{"a slow queue", 0, time.Second, maxNextPoll},
			{"a slow queue, a while", 400 * ms, time.Second, 50 * ms},
		} {
			q := &nameState{head: 100, moved: time.Now(), turn: c.turn}
			time.Sleep(c.waits)
			q.polled = time.Now()
			for seldom, want := range map[bool]time.Duration{false: c.want, true: maxPoll} {
				q.polled = time.Now()
				if soon, at := q.next(seldom); at.Sub(q.polled) != want || soon.Sub(q.polled) != want/2 {
					t.Errorf("%s, a wake-up lock is listened to %t: got %s and %s, want %s", c.what, seldom, soon.Sub(q.polled), at.Sub(q.polled), want)
				}
				if q.polled = (time.Time{}); !earlier(q.next(seldom)).IsZero() {
					t.Errorf("%s, and it is to be polled now: it is not", c.what)
				}
			}
		}
	})
}

// TestTheTurnOfAQueue: it is how long the moves of the queue take, with more weight on the last
// ones. The first head that is read is no move.
func TestTheTurnOfAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ms := time.Millisecond
		q := &nameState{moved: time.Now(), ignored: driver.ID{1}}
		for i, c := range []struct {
			after time.Duration
			head  int64
			turn  time.Duration
		}{
			{time.Second, 0, 0}, {time.Second, 50, 0}, {8 * ms, 51, 8 * ms}, {16 * ms, 52, 10 * ms}, {5 * ms, 52, 10 * ms}, {5 * ms, 54, 10 * ms}, {10 * ms, 53, 10 * ms},
		} {
			time.Sleep(c.after)
			q.advance(c.head)
			if q.turn != c.turn {
				t.Errorf("%d: a move takes %s; want %s", i, q.turn, c.turn)
			}
			if moved := c.head > 0; moved != (q.ignored == driver.ID{}) {
				t.Errorf("%d: a wake-up lock that is not listened to: %v", i, q.ignored)
			}
		}
		if q.head != 54 {
			t.Errorf("the head went back to %d", q.head)
		}
	})
}

// TestPollsGrowRarer: a wait begins with many polls, and comes to ten in a second. When another
// request is granted there are many again.
func TestPollsGrowRarer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var head atomic.Int64
		head.Store(1)
		s := &scripted{answer: func(stmt string) (a answer, err error) {
			if is(stmt, poll) {
				a = reads(rowOfPoll(polledNames(stmt)[0], head.Load(), driver.ID{})...)
			}
			return a, nil
		}}
		b := s.client(t, Options{})
		defer b.goes(b.waits(exclusive("x"), 1000))
		polls := func(d time.Duration) int {
			before := s.count("SELECT HEX(l.name), l.head")
			time.Sleep(d)
			return s.count("SELECT HEX(l.name), l.head") - before
		}
		time.Sleep(maxPoll) // the first one is not sooner: the waiter has just looked
		for i := range 3 {
			if n := polls(time.Second); n < 15 || n > 60 {
				t.Errorf("in the first second after %d moves it polls %d times", i, n)
			}
			time.Sleep(2 * time.Second)
			if n := polls(10 * time.Second); n < 98 || n > 101 {
				t.Errorf("after %d moves it comes to %d polls in 10 s; want 100", i, n)
			}
			head.Add(1)
			time.Sleep(maxPoll)
		}
	})
}

// TestAFastQueueIsPolledAsItMoves: it is polled six times for each move.
func TestAFastQueueIsPolledAsItMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, turn := time.Now(), 30*time.Millisecond
		s := &scripted{answer: func(stmt string) (a answer, err error) {
			if is(stmt, poll) {
				a = reads(rowOfPoll(polledNames(stmt)[0], 1+int64(time.Since(begun)/turn), driver.ID{})...)
			}
			return a, nil
		}}
		b := s.client(t, Options{})
		defer b.goes(b.waits(exclusive("x"), 1<<40))
		time.Sleep(5 * time.Second)
		before := s.count("SELECT HEX(l.name), l.head")
		time.Sleep(100 * turn)
		if n := s.count("SELECT HEX(l.name), l.head") - before; n < 500 || n > 700 {
			t.Errorf("in a hundred moves it polls %d times; want 600", n)
		}
	})
}

// TestNoiseDelaysNoPoll: waits that begin under other names bring the next poll nearer, and never
// put it off. Nor does a server that does not answer.
func TestNoiseDelaysNoPoll(t *testing.T) {
	for what, err := range map[string]error{"it answers": nil, "it does not answer": errors.New("reset")} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{answer: func(stmt string) (answer, error) {
				a, _ := standsStill(stmt)
				return a, err
			}}
			b := s.client(t, Options{})
			w := b.waits(exclusive("waits"), 1)
			time.Sleep(10 * time.Second) // now it polls each 100 ms
			before := s.count(hexOf("waits"))
			for range 250 {
				noise := b.waits(exclusive("noise"), 1)
				time.Sleep(40 * time.Millisecond)
				b.goes(noise)
			}
			if polls := s.count(hexOf("waits")) - before; polls < 98 || polls > 102 {
				t.Errorf("%s: beside noise it polled %d times in 10 s; want 100", what, polls)
			}
			b.goes(w)
		})
	}
}

// TestWhatWaitsIsKeptAlive: one statement each three seconds keeps all waiting requests alive, or
// three in the TTL of a shared request, or one each second while the server does not answer. While
// no request waits nothing is sent.
func TestWhatWaitsIsKeptAlive(t *testing.T) {
	for what, c := range map[string]struct {
		mode driver.Mode
		ttl  time.Duration
		err  error
		want int // in a minute
	}{
		"exclusive":              {driver.Exclusive, 500 * time.Millisecond, nil, 20},
		"shared":                 {driver.Shared, time.Minute, nil, 20},
		"shared, with a TTL":     {driver.Shared, 1500 * time.Millisecond, nil, 120},
		"the server is not well": {driver.Exclusive, time.Minute, errors.New("reset"), 60},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{answer: func(stmt string) (answer, error) {
					if is(stmt, keep) {
						return answer{}, c.err
					}
					return standsStill(stmt)
				}}
				b := s.client(t, Options{})
				_, _ = b.Inspect(t.Context(), "a") // reads max_allowed_packet
				var ws []*kit.Waiter[*ownRequest]
				for i := range 20 {
					r := exclusive(fmt.Sprint(i % 10))
					r.Client, r.Mode, r.TTL = driver.ID{1}, c.mode, c.ttl
					ws = append(ws, b.waits(r, int64(i+1)))
				}
				time.Sleep(time.Minute)
				kept := s.said("INTERVAL IF(mode = 'shared'")
				if n := len(kept); n < c.want || n > c.want*12/10+1 {
					t.Errorf("it keeps alive %d times in a minute; want %d", n, c.want)
				}
				for _, w := range ws { // all had begun to wait by then
					if !strings.Contains(kept[1], hexID(w.Request.ID)) {
						t.Errorf("%s is not kept alive", w.Request.ID)
					}
				}
				for _, w := range ws {
					b.goes(w)
				}
				synctest.Wait()
				before := s.count("")
				time.Sleep(time.Minute)
				if n := s.count("") - before; n > 0 {
					t.Errorf("nothing waits, and it says %q", s.said("")[before:])
				}
			})
		})
	}
}

// TestTheFirstOfEachNameAsksAboutAKeepThatFails: its statement finds out what is wrong.
func TestTheFirstOfEachNameAsksAboutAKeepThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: func(stmt string) (answer, error) {
			if is(stmt, keep) {
				return answer{}, serverError(1142, "42000")
			}
			return standsStill(stmt)
		}}
		b := s.client(t, Options{})
		first, second := b.waits(exclusive("x"), 1), b.waits(exclusive("x"), 2)
		if err := first.Sleep(t.Context(), nil, 2*time.Second); err != nil {
			t.Error(err)
		}
		begun := time.Now()
		if err := first.Sleep(t.Context(), nil, time.Minute); err != nil || time.Since(begun) > 2*keepAlive {
			t.Errorf("the first was woken after %s, %v", time.Since(begun), err)
		}
		begun = time.Now()
		if _ = second.Sleep(t.Context(), nil, time.Minute); time.Since(begun) < time.Minute {
			t.Error("the second was woken too")
		}
		b.goes(first)
		b.goes(second)
	})
}

// TestWhatHasExpiredArrivesAgain: the first request of a name does when a poll finds that its row
// has expired; all do when they were not kept alive for so long that their rows may have.
func TestWhatHasExpiredArrivesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone, fails atomic.Bool
		s := &scripted{answer: func(stmt string) (answer, error) {
			a, err := standsStill(stmt)
			for _, row := range a.rows {
				if gone.Load() {
					row[8] = "0"
				}
			}
			if is(stmt, keep) && fails.Load() {
				err = errors.New("reset")
			}
			return a, err
		}}
		b := s.client(t, Options{})
		first, second := b.waits(exclusive("x"), 1), b.waits(exclusive("x"), 2)
		woken := func(w *kit.Waiter[*ownRequest], most time.Duration) bool {
			begun := time.Now()
			_ = w.Sleep(t.Context(), nil, most)
			return time.Since(begun) < most
		}
		if woken(first, 20*time.Second) || woken(second, time.Second) {
			t.Error("it was woken while nothing happened")
		}
		gone.Store(true)
		if !woken(first, time.Second) || woken(second, time.Second) {
			t.Error("the first was not woken, or the second was too")
		}
		gone.Store(false)
		for _, outage := range []time.Duration{4 * time.Second, 11 * time.Second} {
			woken(second, time.Second)
			fails.Store(true)
			time.Sleep(outage)
			fails.Store(false)
			if long := outage > maxWait; woken(second, 5*time.Second) != long {
				t.Errorf("after %s without a sign of life it was woken: %t", outage, !long)
			}
		}
		b.goes(first)
		b.goes(second)
	})
}

// TestAPollOfManyNames: what is read of each name is the same as in a poll of that name alone, in
// which the name, the place and the ID are constants.
func TestAPollOfManyNames(t *testing.T) {
	b := (&scripted{}).client(t, Options{})
	one := due{names: []string{"a"}, places: []int64{7}, first: []driver.ID{{1}}}
	two := due{names: []string{"a", "b"}, places: []int64{7, 8}, first: []driver.ID{{1}, {2}}}
	list := "(SELECT " + hexOf("a") + " AS name, 7 AS place, " + hexID(driver.ID{1}) + " AS first UNION ALL SELECT " +
		hexOf("b") + " AS name, 8 AS place, " + hexID(driver.ID{2}) + " AS first) p STRAIGHT_JOIN "
	many := b.pollOf(two)
	alone := strings.NewReplacer(list, "", "p.name", hexOf("a"), "p.place", "7", "p.first", hexID(driver.ID{1})).Replace(many)
	if want := b.pollOf(one); !strings.Contains(many, list) || strings.Join(strings.Fields(alone), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("the poll of two names is\n%s\nfor the first alone\n%s\nwant\n%s", many, alone, want)
	}
}

// TestTheCostOfManyNames: one statement reads two hundred names, and one is sent each 100 ms.
func TestTheCostOfManyNames(t *testing.T) {
	const names = 2 * maxNames
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: standsStill}
		b := s.client(t, Options{})
		_, _ = b.Inspect(t.Context(), "a") // reads max_allowed_packet
		var ws []*kit.Waiter[*ownRequest]
		for i := range names {
			for j := range 3 {
				r := exclusive(fmt.Sprint("name ", i))
				r.Client = driver.ID{1}
				ws = append(ws, b.waits(r, int64(i+j+1)))
			}
		}
		time.Sleep(5 * time.Second)
		before := len(s.said(""))
		time.Sleep(3 * time.Second)
		all := s.said("")[before:]
		polls, count := 0, map[string]int{}
		for _, stmt := range all {
			if is(stmt, poll) {
				polls++
				n := 0
				for _, name := range polledNames(stmt) {
					count[name]++
					n++
				}
				if n > maxNames || strings.Count(stmt, "dlock_locks") > 1 {
					t.Errorf("a poll reads %d names, want at most %d and no part for each: %.300s", n, maxNames, stmt)
				}
			}
		}
		if polls < 29 || polls > 31 {
			t.Errorf("%d polls in 3 s for %d names; want 30", polls, names)
		}
		if others := len(all) - polls; others > 4 { // once or twice: keep and sweep
			t.Errorf("%d statements beside the polls", others)
		}
		for i := range names {
			if n := count[hex.EncodeToString([]byte(fmt.Sprint("name ", i)))]; n < 14 || n > 16 {
				t.Errorf("name %d is read %d times in 3 s; want 15", i, n)
			}
		}
		for _, w := range ws {
			b.goes(w)
		}
	})
}

// TestWhatAPollFinds: a grant that a poll found is proved from before the poll was sent, if it
// leaves the client time to renew it. One that does not, and one of a fixed lease, only makes the
// client look. Of shared requests only the first is read.
func TestWhatAPollFinds(t *testing.T) {
	const ttl, took = time.Minute, 50 * time.Millisecond
	const x, s = driver.Exclusive, driver.Shared
	for what, c := range map[string]struct {
		mode   driver.Mode
		holds  bool
		broken string
		left   time.Duration
		fixed  bool
		token  driver.Token // 0: it is not proved
		wakes  bool
	}{
		"its whole TTL":              {x, true, "0", ttl, false, 1000, true},
		"more than its TTL":          {x, true, "0", 2 * ttl, false, 1000, true},
		"enough":                     {x, true, "0", took + maxWait/2, false, 1000, true},
		"too little":                 {x, true, "0", took + maxWait/2 - 1000, false, 0, true},
		"nothing":                    {x, true, "0", 0, false, 0, true},
		"less than nothing":          {x, true, "0", -time.Second, false, 0, true},
		"a fixed lease":              {x, true, "0", ttl, true, 0, true},
		"a broken one":               {x, true, "1", ttl, false, 0, true},
		"another's":                  {x, false, "0", ttl, false, 0, false},
		"another's that has expired": {x, false, "0", -1000, false, 0, true},
		"shared":                     {s, true, "0", ttl, false, 998, true},
		"shared, too little":         {s, true, "0", took + time.Second/2 - 1000, false, 0, true},
		"shared, and fixed":          {s, true, "0", ttl, true, 0, true},
		"shared, and not granted":    {s, false, "0", ttl, false, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := (&scripted{answer: standsStill}).client(t, Options{})
			r := exclusive(what)
			r.TTL, r.Fixed, r.Wait, r.Mode = ttl, c.fixed, true, c.mode
			b.mu.Lock()
			m := b.requests.Begin(r)
			m.place = 7
			w, g, _ := b.waiters.Add(m)
			g.State.swept = time.Now()
			row := rowOfPoll(hex.EncodeToString([]byte(what)), 6, driver.ID{1})
			switch {
			case c.mode == s && c.holds:
				row[1], row[2], row[3], row[5], row[8] = "9", "2", none, "-1", micros(c.left)
			case c.mode == s:
				row[2], row[3], row[5], row[8] = "2", none, "-1", micros(c.left)
			default:
				row[4], row[5] = c.broken, micros(c.left)
				if c.holds {
					row[1], row[3] = "7", r.ID.String()
				}
			}
			sent := time.Now()
			time.Sleep(took) // the answer takes its time
			b.polled(what, row, sent, due{first: []driver.ID{r.ID}})
			switch g := m.grant; {
			case c.token == 0 && (g != nil || m.Granted()):
				t.Errorf("%s: granted %+v", what, g)
			case c.token > 0 && (g == nil || g.TTL != min(c.left, ttl) || !g.SentAt.Equal(sent) || g.Token != c.token):
				t.Errorf("%s: granted %+v; want it proved at %s, with token %d", what, g, sent, c.token)
			case c.token > 0 && !m.Until.Equal(sent.Add(c.left)):
				t.Errorf("%s: it cannot have expired before %s", what, m.Until.Sub(sent))
			}
			b.mu.Unlock()
			begun := time.Now()
			_ = w.Sleep(t.Context(), nil, time.Second)
			if woken := time.Since(begun) == 0; woken != c.wakes {
				t.Errorf("%s: its caller is woken: %t", what, woken)
			}
			b.goes(w) // or Close would release it
		})
	}
}

// TestOneSharedRequestIsProvedByAPoll: others of the client that were granted with it are woken,
// and look.
func TestOneSharedRequestIsProvedByAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := (&scripted{answer: standsStill}).client(t, Options{})
		b.mu.Lock()
		var ws []*kit.Waiter[*ownRequest]
		for place := range int64(4) {
			r := exclusive("x")
			r.Mode, r.Wait = driver.Shared, true
			m := b.requests.Begin(r)
			m.place = 7 + place
			w, g, _ := b.waiters.Add(m)
			g.State.swept = time.Now()
			ws = append(ws, w)
		}
		row := []string{hex.EncodeToString([]byte("x")), "9", "2", none, "0", "-1", "1000", "", "60000000", "0"}
		b.polled("x", row, time.Now(), due{first: []driver.ID{ws[0].Request.ID}})
		b.mu.Unlock()
		for i, w := range ws {
			begun := time.Now()
			_ = w.Sleep(t.Context(), nil, time.Second)
			if woken, proved := time.Since(begun) == 0, w.Request.grant != nil; woken != (i < 3) || proved != (i == 0) {
				t.Errorf("at place %d: woken %t, proved %t", w.Request.place, woken, proved)
			}
			b.goes(w)
		}
	})
}

// TestWhatAPollWakes: it wakes the requests for which there is something to do, and no others.
func TestWhatAPollWakes(t *testing.T) {
	first, second := exclusive("x"), exclusive("x")
	for what, c := range map[string]struct {
		row   []string // nil: the lock has none
		after time.Duration
		wakes []bool
	}{
		"nothing happens":               {[]string{"6", "1", driver.ID{1}.String(), "60000000"}, 0, []bool{false, false}},
		"the row is gone":               {nil, 0, []bool{true, false}},
		"nothing is known to wait":      {[]string{"6", "0", driver.ID{1}.String(), "60000000"}, 0, []bool{true, false}},
		"the holder has expired":        {[]string{"6", "1", driver.ID{1}.String(), "-1"}, 0, []bool{true, false}},
		"nothing holds":                 {[]string{"6", "1", none, "-1"}, 0, []bool{true, false}},
		"the first was passed over":     {[]string{"7", "1", driver.ID{1}.String(), "60000000"}, 0, []bool{true, false}},
		"both were passed over":         {[]string{"9", "1", driver.ID{1}.String(), "60000000"}, 0, []bool{true, true}},
		"the second holds":              {[]string{"6", "1", second.ID.String(), "60000000"}, 0, []bool{false, true}},
		"readers are there":             {[]string{"6", "2", none, "-1"}, 0, []bool{false, false}},
		"readers are there for a while": {[]string{"6", "2", none, "-1"}, time.Second, []bool{true, false}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var now atomic.Pointer[[]string]
			s := &scripted{answer: func(stmt string) (a answer, err error) {
				if row := *now.Load(); is(stmt, poll) && row != nil {
					a = reads(polledNames(stmt)[0], row[0], row[1], row[2], "0", row[3], "1000", "", "10000000", "0")
				}
				return a, nil
			}}
			b := s.client(t, Options{})
			still := []string{"6", "1", driver.ID{1}.String(), "60000000"}
			now.Store(&still)
			ws := []*kit.Waiter[*ownRequest]{b.waits(first, 7), b.waits(second, 8)}
			time.Sleep(maxPoll + time.Millisecond + c.after)
			now.Store(&c.row)
			time.Sleep(maxPoll)
			now.Store(&still)
			got := make([]bool, 2)
			for i, w := range ws {
				begun := time.Now()
				_ = w.Sleep(t.Context(), nil, time.Minute)
				got[i] = time.Since(begun) == 0
				b.goes(w)
			}
			if !slices.Equal(got, c.wakes) {
				t.Errorf("%s: woken %v; want %v", what, got, c.wakes)
			}
		})
	}
}

// TestWhatAPollFoundMayBeOver: a poll finds a grant that expires, and the request is granted again
// before the first grant was confirmed. It gets the token of the second grant, or of its second
// place.
func TestWhatAPollFoundMayBeOver(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		synctest.Test(t, func(t *testing.T) {
			r := exclusive("x")
			r.Mode, r.Wait = mode, true
			s := &scripted{answer: func(stmt string) (a answer, err error) {
				switch {
				case is(stmt, poll):
					return standsStill(stmt)
				case is(stmt, look) && mode == driver.Exclusive:
					a = reads("0", "2000", "9", "1", r.ID.String(), "0", "60000000", "request", "9", "60000000", "0", "")
				case is(stmt, look):
					a = reads("0", "2000", "9", "2", none, "0", "-1", "request", "9", "60000000", "0", "")
				case is(stmt, renewLocks) && !strings.Contains(stmt, "token = 1000"),
					is(stmt, renewRequests) && !strings.Contains(stmt, "place = 7"):
					a.affected = 1
				}
				return a, nil
			}}
			b := s.client(t, Options{})
			w := b.waits(r, 7)
			b.mu.Lock()
			m := w.Request
			m.found = &position{token: 1000, head: 7, place: 7}
			b.mu.Unlock()
			g, waits, err := b.enter(b.newTask(true), m, m.OwnRequest.Request)
			if err != nil || waits || g.Token != 2000 {
				t.Errorf("%s: granted %+v, waits %t, %v; want token 2000", mode, g, waits, err)
			}
			b.goes(w)
		})
	}
}

// TestAMisplacedRequestStands: a request that was inserted at a place where it would seem to hold,
// and that could not be removed there, is released.
func TestAMisplacedRequestStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: func(stmt string) (answer, error) {
			switch {
			case is(stmt, admit):
				return answer{id: 5, affected: 1}, nil
			case is(stmt, leave):
				return answer{}, serverError(1142, "42000")
			}
			return answer{}, nil
		}}
		b := s.client(t, Options{})
		ahead, r := exclusive("x"), exclusive("x")
		ahead.Mode, r.Mode = driver.Shared, driver.Shared
		b.mu.Lock()
		_, g, _ := b.waiters.Add(b.requests.Begin(ahead))
		g.State.head, g.State.known = 100, true
		m := b.requests.Begin(r)
		b.mu.Unlock()
		if _, _, err := b.queue(b.newTask(false), m, r); err == nil {
			t.Fatal("it is admitted")
		}
		if !m.Stands {
			t.Error("the client does not know that it stands")
		}
	})
}
