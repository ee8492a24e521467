package redlock

import (
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// five returns a backend over five masters that do not exist, and the losses that it reports.
func five(t *testing.T) (*Backend, <-chan driver.ID) {
	t.Helper()
	b, err := New(masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1", "127.0.0.4:1", "127.0.0.5:1"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		clear(b.requests) // no master exists that could release them
		b.Close()
	})
	lost := make(chan driver.ID, 10)
	b.Notify(func(id driver.ID) { lost <- id })
	return b, lost
}

// TestBrokenOnAMajority: a hold is lost once too few masters are left that can have it, and the
// loss is reported once.
func TestBrokenOnAMajority(t *testing.T) {
	for _, c := range []struct {
		what   string
		votes  []vote
		broken []int // at these, in that order
		lost   int   // after so many of them; 0: never
	}{
		{"all have it", []vote{granted, granted, granted, granted, granted}, []int{0, 0, 1, 2, 3}, 4},
		{"a bare majority has it", []vote{granted, granted, granted, absent, absent}, []int{0, 1}, 1},
		{"a bare majority, and one that may", []vote{granted, granted, granted, absent, unknown}, []int{0, 1}, 2},
		{"a bare majority, and two that did not answer", []vote{granted, granted, granted, sent, sent}, []int{0, 1, 2}, 3},
		{"by masters that do not have it", []vote{granted, granted, granted, absent, absent}, []int{3, 4}, 0},
	} {
		b, lost := five(t)
		q := &ownRequest{r: driver.Request{Name: "n", ID: driver.NewID()}, votes: slices.Clone(c.votes)}
		b.requests[q.r.ID] = q
		for i, at := range c.broken {
			b.brokenAt(at, q.r.ID)
			want := 0
			if c.lost > 0 && i+1 >= c.lost {
				want = 1
			}
			if len(lost) != want {
				t.Errorf("%s: broken at %v, the loss was said %d times; want %d", c.what, c.broken[:i+1], len(lost), want)
			}
		}
	}
}

// TestBrokenBeforeTheLastVotes: masters that might have had the request vote that they do not.
func TestBrokenBeforeTheLastVotes(t *testing.T) {
	b, lost := five(t)
	q := &ownRequest{r: driver.Request{Name: "n", ID: driver.NewID()}, votes: []vote{granted, granted, granted, sent, sent}}
	b.requests[q.r.ID] = q
	b.brokenAt(0, q.r.ID)
	b.brokenAt(1, q.r.ID)
	if len(lost) != 0 {
		t.Fatal("it is lost although three may have it")
	}
	b.mu.Lock()
	for _, i := range []int{3, 4} {
		b.voted(q, answer{i, []*script.Call{{Reply: []any{int64(0), int64(1)}}}})
	}
	b.mu.Unlock()
	select {
	case id := <-lost:
		if id != q.r.ID {
			t.Errorf("%v is lost", id)
		}
	case <-time.After(time.Minute):
		t.Fatal("the loss was not reported")
	}
	b.life.Wait()
	if len(lost) != 0 {
		t.Error("it was said twice")
	}
}
