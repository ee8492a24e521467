package redlock

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

func TestNoAnswerIsNobodysTimeout(t *testing.T) {
	b, err := New(masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := b.unanswered(time.Second)
	e.record(0, nil)
	e.record(1, b.explain("n", &net.OpError{Op: "dial", Err: context.DeadlineExceeded}))
	if errors.Is(e, context.DeadlineExceeded) || errors.Is(e, context.Canceled) || errors.Is(e, driver.ErrHeld) {
		t.Errorf("%v matches the end of a context, or ErrHeld", e)
	}
	if want := "1 of 3 masters answered within 1s, and 2 have to; 127.0.0.2:1: no answer in time; 127.0.0.3:1: no answer in time"; e.Error() != want {
		t.Errorf("%q; want %q", e, want)
	}
}

// TestAHoldThatHasExpired: its release is answered although no master is there.
func TestAHoldThatHasExpired(t *testing.T) {
	b, err := New(masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	id := driver.NewID()
	r := driver.Request{Name: "n", ID: id, Owner: id, Client: id, TTL: time.Second}
	lasts := kit.SurelyExpired(r.TTL)
	for what, c := range map[string]struct {
		failed, held time.Duration // how long ago; 0: never
		over         bool
	}{
		"it held":                          {0, lasts + time.Second, true},
		"it held until a while ago":        {0, lasts - time.Second, false},
		"it failed":                        {lasts + time.Second, 0, true},
		"it failed, and was renewed since": {lasts + time.Minute, lasts - time.Second, false},
		"it held, and failed a while ago":  {lasts - time.Second, lasts + time.Minute, false},
		"it is being asked for":            {0, 0, false},
	} {
		q := &request{r: r, votes: []vote{granted, granted, sent}}
		if c.failed > 0 {
			q.failed = time.Now().Add(-c.failed)
		}
		if c.held > 0 {
			q.until = time.Now().Add(-c.held)
		}
		b.mu.Lock()
		b.requests[id] = q
		b.mu.Unlock()
		err := b.Release(t.Context(), r)
		b.mu.Lock()
		if _, is := b.requests[id]; errors.Is(err, driver.ErrLost) != c.over || err == nil || is == c.over {
			t.Errorf("%s: %v, and it is in the record: %t", what, err, is)
		}
		b.mu.Unlock()
	}
}
