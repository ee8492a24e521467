package pair_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/internal/pair"
)

const ttl = 3 * time.Second

// quiet is a backend that reports no losses, and records what it is sent. Its errors replace the
// answers of its service.
type quiet struct {
	driver.Backend
	caps driver.Capabilities

	mu                          sync.Mutex
	acquired, released          []driver.Request
	acquire, renew, failRelease error
}

func (b *quiet) Capabilities() driver.Capabilities { return b.caps }

func (b *quiet) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	b.mu.Lock()
	b.acquired = append(b.acquired, r)
	err := b.acquire
	b.mu.Unlock()
	if err != nil {
		return driver.Grant{}, err
	}
	return b.Backend.Acquire(ctx, r)
}

func (b *quiet) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	ns := b.Backend.Renew(ctx, rs)
	for i := range ns {
		if b.renew != nil {
			ns[i] = driver.Renewal{Err: b.renew}
		}
	}
	return ns
}

func (b *quiet) Release(ctx context.Context, r driver.Request) error {
	b.mu.Lock()
	b.released = append(b.released, r)
	err := b.failRelease
	b.failRelease = nil
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.Backend.Release(ctx, r)
}

// scene is a pair of two spaces, the first of which is the new one.
type scene struct {
	t      *testing.T
	spaces [2]*memory.Space
	sides  [2]*quiet
	pair   driver.Backend
	client driver.ID
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, spaces: [2]*memory.Space{new(memory.Space), new(memory.Space)}, client: pair.ClientID()}
	s.sides, s.pair = s.open()
	return s
}

// open opens a pair on the two spaces.
func (s *scene) open() (sides [2]*quiet, p driver.Backend) {
	for i, identity := range []string{"a", "b"} {
		of := side(s.t, s.spaces[i], "", identity)
		of.Caps.Raises = false
		sides[i] = &quiet{Backend: of.Backend, caps: of.Caps}
	}
	p, err := pair.New(pair.Side{Backend: sides[0], Caps: sides[0].caps, Identity: "a"}, pair.Side{Backend: sides[1], Caps: sides[1].caps, Identity: "b"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Close() })
	return sides, p
}

// alone returns a client of one side.
func (s *scene) alone(i int) *memory.Backend {
	b := side(s.t, s.spaces[i], "", "").Backend.(*memory.Backend)
	s.t.Cleanup(func() { b.Close() })
	return b
}

func (s *scene) request() driver.Request {
	id := driver.NewID()
	return driver.Request{Name: "n", ID: id, Owner: id, Client: s.client, TTL: ttl, Wait: true}
}

func (s *scene) get(b driver.Backend, r driver.Request) driver.Grant {
	s.t.Helper()
	g, err := b.Acquire(s.t.Context(), r)
	if err != nil {
		s.t.Fatalf("Acquire: %v", err)
	}
	return g
}

// forgets fails the test unless the pair has no record left.
func (s *scene) forgets() {
	s.t.Helper()
	if n := pair.Records(s.pair.(*pair.Backend)); n != 0 {
		s.t.Errorf("%d records are left", n)
	}
}

// begin starts an Acquire, and returns when it waits.
func (s *scene) begin(ctx context.Context, r driver.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.pair.Acquire(ctx, r)
		done <- err
	}()
	synctest.Wait()
	return done
}

// TestParked: a request that waits at the second side keeps the lock at the first, and its grant
// has the whole TTL there.
func TestParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		old, new := s.alone(1), s.alone(0)
		held := s.request()
		held.TTL = time.Hour
		s.get(old, held)
		r, long := s.request(), s.request()
		long.Name, long.TTL = "other", time.Hour // its renewal is due later
		heldToo := held
		heldToo.Name, heldToo.ID = "other", driver.NewID()
		heldToo.Owner = heldToo.ID
		s.get(old, heldToo)
		ctx, cancel := context.WithCancel(t.Context())
		other := s.begin(ctx, long)
		done := s.begin(t.Context(), r)
		for range 10 {
			time.Sleep(ttl)
			try := s.request()
			try.Wait = false
			if _, err := new.Acquire(t.Context(), try); !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("the first side, while the request waits at the second: %v", err)
			}
		}
		if n := s.pair.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(n.Err, driver.ErrNotHeld) {
			t.Errorf("Renew of a request that waits: %v", n.Err)
		}
		time.Sleep(ttl / 4)
		if err := old.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for i, b := range []driver.Backend{new, old, s.pair} {
			q, err := b.Inspect(t.Context(), "n")
			if err != nil || q.Len() != 1 || q.Arrivals[0].Left != ttl {
				t.Errorf("backend %d after the grant: %d requests, %v", i, q.Len(), err)
			}
		}
		if err := s.pair.Release(t.Context(), r); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-other; !driver.HasWaited(err) {
			t.Errorf("a wait that was cancelled at the second side: %v", err)
		}
		if err := s.pair.Release(t.Context(), long); err != nil {
			t.Error(err)
		}
		s.forgets()
	})
}

// TestLostWhileParked: if the first side loses a request that waits at the second, it does not hold
// when the second grants it.
func TestLostWhileParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		old, new := s.alone(1), s.alone(0)
		held := s.request()
		held.TTL = time.Hour
		s.get(old, held)
		r := s.request()
		done := s.begin(t.Context(), r)
		q, _ := new.Inspect(t.Context(), "n")
		if err := new.Break(t.Context(), "n", q.Arrivals[0].Token, true); err != nil {
			t.Fatal(err)
		}
		from := time.Now()
		err := <-done
		if !errors.Is(err, driver.ErrLost) || driver.Refused(err) || errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v", err)
		}
		if d := time.Since(from); d > ttl/3 {
			t.Errorf("it waited for %s more", d)
		}
		r.Uncertain = true
		if err := s.pair.Release(t.Context(), r); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		if q, _ := old.Inspect(t.Context(), "n"); q.Len() != 1 {
			t.Errorf("%d requests stand at the second side", q.Len())
		}
		s.forgets()
	})
}

// TestReleasedWhileItRetries: a request that is released while it is between two attempts at a side
// that cannot queue is not sent there again.
func TestReleasedWhileItRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.sides[1].acquire = &driver.RetryError{After: time.Second}
		r := s.request()
		done := s.begin(t.Context(), r)
		time.Sleep(10 * time.Second)
		ids := map[driver.ID]bool{}
		s.sides[1].mu.Lock()
		attempts := slices.Clone(s.sides[1].acquired)
		s.sides[1].mu.Unlock()
		for _, a := range attempts {
			if ids[a.ID] || !pair.Matches(a.ID, r.ID) || a.Owner != a.ID {
				t.Errorf("attempt %v of owner %v for request %v", a.ID, a.Owner, r.ID)
			}
			ids[a.ID] = true
		}
		if len(ids) < 5 {
			t.Errorf("%d attempts", len(ids))
		}
		r.Uncertain = true
		if err := s.pair.Release(t.Context(), r); err != nil {
			t.Errorf("Release: %v", err)
		}
		s.sides[1].mu.Lock()
		s.sides[1].acquire = nil
		s.sides[1].mu.Unlock()
		if err := <-done; err == nil {
			t.Error("a request that was released was granted")
		}
		for i := range 2 {
			if q, _ := s.alone(i).Inspect(t.Context(), "n"); q.Len() != 0 {
				t.Errorf("side %d has %d requests", i, q.Len())
			}
		}
		s.pair.Release(t.Context(), r)
		s.forgets()
	})
}

// TestRenewNeedsBoth: a hold is lost if one side lost it, and of unknown state if one did not
// answer.
func TestRenewNeedsBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 2 {
			s := newScene(t)
			r := s.request()
			s.get(s.pair, r)
			unknown := errors.New("no answer")
			s.sides[i].renew = unknown
			if n := s.pair.Renew(t.Context(), []driver.Request{r})[0]; n.Err != unknown {
				t.Errorf("side %d did not answer: %v", i, n.Err)
			}
			s.sides[i].renew = nil
			if n := s.pair.Renew(t.Context(), []driver.Request{r})[0]; n.Err != nil || n.TTL != ttl {
				t.Errorf("both answered: %v, %s", n.Err, n.TTL)
			}
			s.sides[i].renew, s.sides[1-i].renew = driver.ErrLost, unknown
			if n := s.pair.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(n.Err, driver.ErrLost) {
				t.Errorf("side %d lost it, and the other did not answer: %v", i, n.Err)
			}
		}
	})
}

// TestReleaseIsRepeated: the repetition of a release goes to the side that has not answered, and
// the answer of the other side counts.
func TestReleaseIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 2 {
			s := newScene(t)
			r := s.request()
			s.get(s.pair, r)
			unknown := errors.New("no answer")
			s.sides[i].failRelease = unknown
			if err := s.pair.Release(t.Context(), r); err != unknown {
				t.Errorf("side %d did not answer: %v", i, err)
			}
			if err := s.pair.Release(t.Context(), r); err != nil {
				t.Errorf("repeated: %v", err)
			}
			if n, m := len(s.sides[i].released), len(s.sides[1-i].released); n != 2 || m != 1 {
				t.Errorf("%d and %d releases, want 2 and 1", n, m)
			}
			s.forgets()
		}
	})
}

// TestRefusedBySecond: a request that the second side refuses is released at the first at once.
func TestRefusedBySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.get(s.alone(1), s.request())
		r := s.request()
		r.Wait = false
		if _, err := s.pair.Acquire(t.Context(), r); !driver.Refused(err) || !errors.Is(err, driver.ErrHeld) {
			t.Errorf("Acquire: %v", err)
		}
		if q, _ := s.alone(0).Inspect(t.Context(), "n"); q.Len() != 0 {
			t.Errorf("the first side has %d requests", q.Len())
		}
		s.forgets()
		s.sides[0].failRelease = errors.New("no answer")
		r = s.request()
		r.Wait = false
		if _, err := s.pair.Acquire(t.Context(), r); driver.Refused(err) || !errors.Is(err, driver.ErrHeld) {
			t.Errorf("Acquire whose clean-up got no answer: %v", err)
		}
		if err := s.pair.Release(t.Context(), r); err != nil {
			t.Error(err)
		}
		s.forgets()
	})
}

// TestJoinsHaveTheTokensOfTheirSides: a join is sent to each side with the token that the hold has
// there, also if the hold is another client's, which passed one token only.
func TestJoinsHaveTheTokensOfTheirSides(t *testing.T) {
	s := newScene(t)
	r := s.request()
	g := s.get(s.pair, r)
	sides, second := s.open()
	for k, c := range []struct {
		sides [2]*quiet
		b     driver.Backend
	}{{s.sides, s.pair}, {sides, second}} {
		j := s.request()
		j.Owner, j.Token = r.ID, g.Token
		if got := s.get(c.b, j); got.Token != g.Token {
			t.Errorf("client %d: the join has token %d, its hold %d", k, got.Token, g.Token)
		}
		for i, side := range c.sides {
			q, err := s.alone(i).Inspect(t.Context(), "n")
			if err != nil {
				t.Fatal(err)
			}
			if sent := side.acquired[len(side.acquired)-1]; sent.Token != q.Arrivals[0].Token {
				t.Errorf("client %d: the join was sent to side %d with token %d, want %d", k, i, sent.Token, q.Arrivals[0].Token)
			}
		}
	}
}

func TestEarlier(t *testing.T) {
	at := time.Now()
	grant := func(sent, ttl time.Duration) driver.Grant { return driver.Grant{SentAt: at.Add(sent), TTL: ttl} }
	for _, c := range []struct {
		a, b      driver.Grant
		sent, ttl time.Duration
	}{
		{grant(0, 10), grant(0, 10), 0, 10},
		{grant(0, 10), grant(5, 10), 0, 10},
		{grant(0, 100), grant(5, 10), 0, 15},
		{grant(5, 1), grant(0, 3), 0, 3},
	} {
		for range 2 {
			if ttl, sent := pair.Earlier(c.a, c.b); ttl != c.ttl || !sent.Equal(at.Add(c.sent)) {
				t.Errorf("%v and %v: %s from %s", c.a, c.b, ttl, sent.Sub(at))
			}
			c.a, c.b = c.b, c.a
		}
	}
}

// TestInspect: a hold is broken if it is on one side, ends when it ends on one of them, and waits
// while it waits on one of them.
func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 2 {
			s := newScene(t)
			r := s.request()
			s.get(s.pair, r)
			time.Sleep(ttl / 2)
			if n := s.sides[1-i].Backend.Renew(t.Context(), []driver.Request{r})[0]; n.Err != nil {
				t.Fatal(n.Err)
			}
			b := s.alone(i)
			q, _ := b.Inspect(t.Context(), "n")
			if err := b.Break(t.Context(), "n", q.Arrivals[0].Token, false); err != nil {
				t.Fatal(err)
			}
			q, err := s.pair.Inspect(t.Context(), "n")
			if err != nil || q.Len() != 1 {
				t.Fatalf("%d requests, %v", q.Len(), err)
			}
			if e := q.Arrivals[0]; !e.Broken || e.Left != ttl/2 || e.ID != r.ID {
				t.Errorf("side %d: broken %v, %s left", i, e.Broken, e.Left)
			}
		}
		s := newScene(t)
		held := s.request()
		s.get(s.alone(1), held)
		first, second := s.request(), s.request()
		ctx, cancel := context.WithCancel(t.Context())
		a := s.begin(ctx, first)
		b := s.begin(ctx, second)
		q, err := s.pair.Inspect(t.Context(), "n")
		if err != nil || len(q.Holders()) != 1 || len(q.Waiters()) != 2 {
			t.Fatalf("%d hold, %d wait, %v", len(q.Holders()), len(q.Waiters()), err)
		}
		if q.Arrivals[0].ID != held.ID || q.Arrivals[1].ID != first.ID || q.Arrivals[2].ID != second.ID {
			t.Error("they are in another order")
		}
		if n := s.pair.Renew(t.Context(), []driver.Request{second})[0]; !errors.Is(n.Err, driver.ErrNotHeld) {
			t.Errorf("Renew of a request that waits at the first side: %v", n.Err)
		}
		cancel()
		<-a
		<-b
	})
}

// TestLateProof: a request whose hold at the first side cannot be proved when the second grants it
// is not granted, and its release finds both.
func TestLateProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, why := range []error{driver.ErrLost, errors.New("no answer")} {
			s := newScene(t)
			old := s.alone(1)
			held := s.request()
			s.get(old, held)
			r := s.request()
			done := s.begin(t.Context(), r)
			time.Sleep(ttl / 4)
			s.sides[0].renew = why
			if err := old.Release(t.Context(), held); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, why) || driver.Refused(err) {
				t.Errorf("Acquire: %v, want %v, not as a refusal", err, why)
			}
			if err := s.pair.Release(t.Context(), r); err != nil {
				t.Errorf("Release: %v", err)
			}
			s.forgets()
		}
	})
}

// TestCancelledWhileItRetries: a wait at a side that cannot queue ends as a wait.
func TestCancelledWhileItRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		s.sides[1].acquire = &driver.RetryError{After: time.Second}
		r := s.request()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.pair.Acquire(ctx, r); !driver.HasWaited(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: %v", err)
		}
		if err := s.pair.Release(t.Context(), r); err != nil {
			t.Error(err)
		}
		s.forgets()
	})
}

func TestToken(t *testing.T) {
	caps := driver.Capabilities{Backend: "x", Fencing: true, Raises: true}
	fixed, none := caps, caps
	fixed.Raises, none.Raises, none.Fencing = false, false, false
	for _, c := range []struct {
		new, old                  driver.Capabilities
		exclusive, shared, permit [2]driver.Token // with 3 (new) and 7 (old), and the reverse
	}{
		{caps, caps, [2]driver.Token{7, 7}, [2]driver.Token{3, 3}, [2]driver.Token{3, 7}},
		{fixed, caps, [2]driver.Token{7, 7}, [2]driver.Token{7, 3}, [2]driver.Token{7, 3}},
		{caps, fixed, [2]driver.Token{7, 3}, [2]driver.Token{7, 3}, [2]driver.Token{7, 3}},
		{caps, none, [2]driver.Token{3, 7}, [2]driver.Token{3, 7}, [2]driver.Token{3, 7}},
		{none, caps, [2]driver.Token{7, 7}, [2]driver.Token{7, 3}, [2]driver.Token{7, 3}},
	} {
		p, err := pair.New(pair.Side{Backend: &quiet{}, Caps: c.new, Identity: "a"}, pair.Side{Backend: &quiet{}, Caps: c.old, Identity: "b"})
		if err != nil {
			t.Fatal(err)
		}
		tokens := func(mode driver.Mode, limit int) (got [2]driver.Token) {
			for i, ts := range [2][2]driver.Token{{3, 7}, {7, 3}} {
				got[i] = pair.TokenOf(p, &driver.Request{Mode: mode, Limit: limit}, ts[0], ts[1])
			}
			return got
		}
		if e, s, p := tokens(driver.Exclusive, 0), tokens(driver.Shared, 0), tokens(driver.Shared, 2); e != c.exclusive || s != c.shared || p != c.permit {
			t.Errorf("%+v: %d, %d and %d", c, e, s, p)
		}
	}
}

// TestCopies: two copies of one request get the same grant, and its record stays until its release.
func TestCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		old := s.alone(1)
		held := s.request()
		held.TTL = time.Hour
		s.get(old, held)
		r := s.request()
		ctx, cancel := context.WithCancel(t.Context())
		first := s.begin(ctx, r)
		second := s.begin(t.Context(), r)
		cancel()
		if err := <-first; err == nil {
			t.Error("the copy that was cancelled was granted")
		}
		time.Sleep(2 * ttl)
		if n := s.pair.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(n.Err, driver.ErrNotHeld) {
			t.Errorf("Renew while a copy waits: %v", n.Err)
		}
		if err := old.Release(t.Context(), held); err != nil {
			t.Error(err)
		}
		if err := <-second; err != nil {
			t.Errorf("the other copy: %v", err)
		}
		if err := s.pair.Release(t.Context(), r); err != nil {
			t.Error(err)
		}
		s.forgets()

		s.get(old, held)
		first, second = s.begin(t.Context(), r), s.begin(t.Context(), r) // released while they wait
		r.Uncertain = true
		if err := s.pair.Release(t.Context(), r); err != nil {
			t.Error(err)
		}
		<-first
		<-second
		s.forgets()
	})
}

// after is a backend that calls a function when it has granted a request.
type after struct {
	driver.Backend
	f func()
}

func (b *after) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	if b.f != nil {
		b.f()
	}
	return g, err
}

// TestReleasedBetweenTheSides: a request that is released after the first side has granted it, and
// before it is sent to the second, is not sent there.
func TestReleasedBetweenTheSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		one := &after{Backend: s.sides[0]}
		p, err := pair.New(pair.Side{Backend: one, Caps: s.sides[0].caps, Identity: "a"}, pair.Side{Backend: s.sides[1], Caps: s.sides[1].caps, Identity: "b"})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		r := s.request()
		one.f = func() {
			u := r
			u.Uncertain = true
			if err := p.Release(t.Context(), u); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
		if _, err := p.Acquire(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Acquire of a request that was released: %v", err)
		}
		if q, _ := s.alone(1).Inspect(t.Context(), "n"); q.Len() != 0 {
			t.Errorf("the second side has %d requests", q.Len())
		}
	})
}

// withoutQueue returns a pair of the scene's first space and a side that has neither queue nor
// tokens, in the second space.
func (s *scene) withoutQueue() driver.Backend {
	p, err := pair.New(sharedQueueless(side(s.t, s.spaces[1], "", "b")), side(s.t, s.spaces[0], "", "a"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Close() })
	return p
}

// holders returns how many requests hold at a side.
func (s *scene) holders(i int) int {
	q, err := s.alone(i).Inspect(s.t.Context(), "n")
	if err != nil {
		s.t.Fatal(err)
	}
	return len(q.Holders())
}

// TestJoinAfterRetries: the hold of a request that retried at a side without a queue, where each
// attempt has another ID, can be joined by another client.
func TestJoinAfterRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		a, b, lone := s.withoutQueue(), s.withoutQueue(), s.alone(1)
		held, r := s.request(), s.request()
		s.get(lone, held)
		done := make(chan driver.Grant, 1)
		go func() { done <- s.get(a, r) }()
		time.Sleep(ttl / 2)
		if err := lone.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		j := s.request()
		j.Owner, j.Token, j.Wait = r.ID, (<-done).Token, false
		if g := s.get(b, j); g.Token != j.Token {
			t.Errorf("the join has the token %d; want %d", g.Token, j.Token)
		}
		if err := a.Release(t.Context(), r); err != nil {
			t.Error(err)
		}
		k := j // the hold is that of its join now
		k.ID = driver.NewID()
		s.get(a, k)
		for i := range s.spaces {
			if n := s.holders(i); n != 2 {
				t.Errorf("%d requests hold at side %d; want the two joins", n, i)
			}
		}
		for c, r := range map[driver.Backend]driver.Request{b: j, a: k} {
			if err := c.Release(t.Context(), r); err != nil {
				t.Error(err)
			}
		}
		for i := range s.spaces {
			if n := s.holders(i); n != 0 {
				t.Errorf("%d requests hold at side %d", n, i)
			}
		}
	})
}

// TestBreakOneOfTwoReaders: a break of one reader leaves the other one, also at a side without
// tokens, and by force nothing is left of the first at either side.
func TestBreakOneOfTwoReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, force := range []bool{false, true} {
			s := newScene(t)
			a, b := s.withoutQueue(), s.withoutQueue()
			one, two := s.request(), s.request()
			one.Mode, two.Mode = driver.Shared, driver.Shared
			token := s.get(a, one).Token
			s.get(b, two)
			if err := b.(driver.Breaker).Break(t.Context(), "n", token, force); err != nil {
				t.Fatalf("force %t: %v", force, err)
			}
			if n := a.Renew(t.Context(), []driver.Request{one})[0]; !errors.Is(n.Err, driver.ErrLost) {
				t.Errorf("force %t: Renew of what was broken: %v", force, n.Err)
			}
			if n := b.Renew(t.Context(), []driver.Request{two})[0]; n.Err != nil {
				t.Errorf("force %t: Renew of the other: %v", force, n.Err)
			}
			want := 2 // it stands until its time
			if force {
				want = 1
			}
			for i := range s.spaces {
				if n := s.holders(i); n != want {
					t.Errorf("force %t: %d requests hold at side %d; want %d", force, n, i, want)
				}
			}
			if err := a.Release(t.Context(), one); !errors.Is(err, driver.ErrLost) {
				t.Errorf("force %t: Release of what was broken: %v", force, err)
			}
			if err := b.Release(t.Context(), two); err != nil {
				t.Errorf("force %t: Release of the other: %v", force, err)
			}
		}
	})
}

// TestClosedWhileItWaits: Close leaves nothing of a fixed request that waits at the second side,
// although the first has granted it and leaves what it granted.
func TestClosedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t)
		other := s.alone(1)
		held := s.request()
		s.get(other, held)
		r := s.request()
		r.Fixed, r.TTL = true, time.Hour
		done := s.begin(t.Context(), r)
		synctest.Wait()
		if err := s.pair.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, driver.ErrClosed) {
			t.Errorf("Acquire: %v, want ErrClosed", err)
		}
		if err := other.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		for i := range s.spaces {
			if q, err := s.alone(i).Inspect(t.Context(), r.Name); err != nil || q.Len() > 0 {
				t.Errorf("side %d: %d requests are left, %v", i, q.Len(), err)
			}
		}
	})
}
