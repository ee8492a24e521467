package memory

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const ttl = 10 * time.Second

// open returns a client of the space, or of a new one if it is nil.
func open(t testing.TB, s *Space) *Backend {
	t.Helper()
	b, err := New(Options{Space: s})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ask returns a new request for an exclusive lock, which waits.
func ask(name string) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, TTL: ttl, Wait: true}
}

// try returns a new request for an exclusive lock, which does not wait.
func try(name string) driver.Request {
	r := ask(name)
	r.Wait = false
	return r
}

// permit returns a new request for a permit of a semaphore; with limit 0 for a read lock.
func permit(name string, limit int) driver.Request {
	r := ask(name)
	r.Mode, r.Limit = driver.Shared, limit
	return r
}

// join returns a new request that joins the hold that r began.
func join(r driver.Request) driver.Request {
	j := r
	j.ID = driver.NewID()
	return j
}

// answer is what an Acquire returned.
type answer struct {
	driver.Grant
	err error
}

// start calls Acquire in a goroutine and returns once it has its place in the queue.
func start(ctx context.Context, b *Backend, r driver.Request) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		g, err := b.Acquire(ctx, r)
		c <- answer{g, err}
	}()
	synctest.Wait()
	return c
}

// must acquires a request, which has to be granted at once.
func must(t *testing.T, b *Backend, r driver.Request) driver.Grant {
	t.Helper()
	r.Wait = false
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

// wants fails the test if err does not match the sentinel, or, for a nil sentinel, is not nil.
func wants(t *testing.T, err, sentinel error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Fatalf("got %v, want %v", err, sentinel)
	}
}

// waits fails the test if the Acquire behind c has returned.
func waits(t *testing.T, c <-chan answer) {
	t.Helper()
	synctest.Wait()
	if len(c) > 0 {
		t.Fatalf("Acquire returned: %v", <-c)
	}
}

// returns is what the Acquire behind c returned by now.
func returns(t *testing.T, c <-chan answer) answer {
	t.Helper()
	synctest.Wait()
	if len(c) == 0 {
		t.Fatal("Acquire did not return")
	}
	return <-c
}

// empty fails the test if the space still keeps anything, tombstones aside.
func empty(t *testing.T, s *Space) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queues)+len(s.requests) > 0 {
		t.Fatalf("left behind: %d queues, %d requests", len(s.queues), len(s.requests))
	}
}

// atRest fails the test if a space at rest is not in order.
func atRest(t *testing.T, s *Space) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	stand := 0
	for name, q := range s.queues {
		stand += q.Len()
		if q.Len() == 0 || q.name != name {
			t.Fatalf("%q: a queue of %d requests under name %q", q.name, q.Len(), name)
		}
		if q.granted != q.Granted() {
			t.Fatalf("%d granted, the rule says %d", q.granted, q.Granted())
		}
		for _, e := range slices.Concat(q.Joins, q.Arrivals) {
			r := s.requests[e.ID]
			switch {
			case &r.Entry != e || r.Name != name:
				t.Fatalf("request %v is not in its queue", e.ID)
			case r.client.closed:
				t.Fatal("a closed client has a request")
			case r.granted() != (e.Token != 0):
				t.Fatalf("token %d, expires %v", e.Token, r.expires)
			case r.granted() != slices.Contains(q.Holders(), e):
				t.Fatalf("request %v: granted %v, the rule says otherwise", e.ID, r.granted())
			case r.granted() && r.wait != nil:
				t.Fatal("a granted request still waits")
			case r.granted() && r.expires.Before(q.next):
				t.Fatal("a request expires before the queue checks")
			}
		}
		if waiting := q.granted < len(q.Arrivals); waiting && !q.fires.Equal(q.next) {
			t.Fatalf("a request waits until %v, but the timer is set for %v", q.next, q.fires)
		}
	}
	if stand != len(s.requests) {
		t.Fatalf("%d requests, but %d in queues", len(s.requests), stand)
	}
}

// inBubble runs a law on two clients of one space under a fake clock. Nothing may be left once they
// are closed; synctest fails the test if a goroutine is left.
func inBubble(t *testing.T, law func(t *testing.T, a, b *Backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := new(Space)
		a, b := open(t, s), open(t, s)
		law(t, a, b)
		atRest(t, s)
		a.Close()
		b.Close()
		synctest.Wait()
		empty(t, s)
	})
}
