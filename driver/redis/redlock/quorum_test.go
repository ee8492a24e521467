package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

func TestNoAnswerIsNotTheCallersTimeout(t *testing.T) {
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
	if want := "1 of 3 masters answered within 1s, but 2 must; 127.0.0.2:1: no answer in time; 127.0.0.3:1: no answer in time"; e.Error() != want {
		t.Errorf("%q; want %q", e, want)
	}
}

// TestASlotThatMoves: the error of a call says that the slot of its key moves, although the time
// ends while a copy of it has no answer, and that copy counts as one that may have been executed.
func TestASlotThatMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1")
		for _, c := range clients {
			defer c.Close()
			c.AddHook(&moving{})
		}
		b, err := New(clients, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := b.call(b.layout.release, "n", "id")
		b.exec(ctx, b.masters[0], []*script.Call{c})
		end, _ := ctx.Deadline()
		if left := time.Until(end); left <= 0 || !fault.Unknown(c.Err) {
			t.Errorf("%v when %s of the call's time are left; want an unknown outcome, and some time", c.Err, left)
		}
		if err := b.explain("n", c.Err); err == nil || !strings.Contains(err.Error(), "is moving to another node") || kit.IsContext(err) {
			t.Errorf("the error for the caller: %v", err)
		}
	})
}

// moving is a node that refuses a call because its slot moves, and does not answer a second one.
type moving struct{ asked bool }

func (m *moving) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		err := error(tryAgain{})
		if m.asked {
			<-ctx.Done()
			err = ctx.Err()
		}
		m.asked = true
		c.SetErr(err)
		return err
	}
}

func (m *moving) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *moving) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// tryAgain is the answer of a node that does not have all keys of a slot.
type tryAgain struct{}

func (tryAgain) Error() string { return "TRYAGAIN Multiple keys request during rehashing of slot" }
func (tryAgain) RedisError()   {}

// TestAHoldThatHasExpired: its release returns although no master exists.
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
		q := &ownRequest{r: r, votes: []vote{granted, granted, sent}}
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

// TestAReleaseAfterAnAcquireThatFailed: the known votes decide to which masters the release is
// sent, and to which with a tombstone. If no Acquire has failed, only the caller knows whether a
// copy may be under way.
func TestAReleaseAfterAnAcquireThatFailed(t *testing.T) {
	votes := []vote{granted, unknown, sent, absent, absent}
	for what, c := range map[string]struct {
		failed bool
		want   string
	}{
		"it failed":     {true, "[plain tombstone tombstone - -]"},
		"it is unknown": {false, "[tombstone tombstone tombstone tombstone tombstone]"},
	} {
		b, _ := five(t)
		id := driver.NewID()
		q := &ownRequest{r: driver.Request{Name: "n", ID: id, Owner: id, Client: id, TTL: time.Minute, Uncertain: true}, votes: slices.Clone(votes)}
		if c.failed {
			q.failed = time.Now()
		}
		b.mu.Lock()
		b.requests[id] = q
		b.mu.Unlock()
		if err := b.Release(t.Context(), q.r); err == nil || errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: no master exists, and the release returned %v", what, err)
		}
		got := make([]string, len(b.masters))
		b.mu.Lock()
		for i, m := range b.masters {
			switch p := m.pending[id]; {
			case p == nil:
				got[i] = "-"
			case p.tombstone:
				got[i] = "tombstone"
			default:
				got[i] = "plain"
			}
			delete(m.pending, id)
		}
		b.mu.Unlock()
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: released %v; want %s", what, got, c.want)
		}
	}
}
