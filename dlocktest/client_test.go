package dlocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
)

func TestHoldUntilRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		release := c.Hold("a")
		start := time.Now()
		time.AfterFunc(time.Hour, release)
		l, err := c.Mutex("a").Lock(t.Context())
		if err != nil || time.Since(start) != time.Hour {
			t.Fatalf("after %s: %v", time.Since(start), err)
		}
		release() // a second time does nothing
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A loss leaves other names alone, and the next waiter is in.
func TestLose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		a, _ := c.Mutex("a").Lock(t.Context())
		b, _ := c.Mutex("b").Lock(t.Context())
		next := make(chan *dlock.Lease)
		go func() {
			l, _ := c.Mutex("a").Lock(t.Context())
			next <- l
		}()
		synctest.Wait()
		c.Lose("a")
		synctest.Wait()
		if !errors.Is(a.Err(), dlock.ErrLost) || b.Err() != nil {
			t.Errorf("a: %v, b: %v", a.Err(), b.Err())
		}
		if l := <-next; l.Err() != nil || l.Token() <= a.Token() {
			t.Error("the next has it not")
		}
	})
}

// While calls fail nothing is renewed; afterwards all is as before.
func TestFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t, dlock.TTL(10*time.Second))
		l, _ := c.Mutex("a").Lock(t.Context())
		c.Fail(errors.New("down"))
		time.Sleep(5 * time.Second)
		c.Fail(nil)
		time.Sleep(time.Hour)
		if err := l.Err(); err != nil {
			t.Errorf("an outage of half a TTL: %v", err)
		}
		start, down := time.Now(), errors.New("down")
		c.Fail(down)
		<-l.Lost()
		if took := time.Since(start); took > 10*time.Second || took < 5*time.Second {
			t.Errorf("lost after %s", took)
		}
		for what, err := range map[string]error{
			"Inspect": second(c.Inspect(t.Context(), "a")),
			"List":    second(c.List(t.Context())),
			"Break":   c.Break(t.Context(), "a", l.Token()),
			"TryLock": second(c.Mutex("b").TryLock(t.Context())),
		} {
			if !errors.Is(err, down) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// A release of what is over already does nothing: a tool under test broke the hold, or the test has
// ended, as for a timer that comes too late.
func TestReleaseOfWhatIsOver(t *testing.T) {
	c := dlocktest.New(t)
	release := c.Hold("a")
	q, err := c.Inspect(t.Context(), "a")
	if err != nil || len(q.Holders) != 1 {
		t.Fatalf("%d holders, %v", len(q.Holders), err)
	}
	if err := c.Break(t.Context(), "a", q.Holders[0].Token, dlock.Force()); err != nil {
		t.Fatal(err)
	}
	release()
	t.Run("a test that ends", func(t *testing.T) { release = dlocktest.New(t).Hold("a") })
	release()
}

func second[T any](_ T, err error) error { return err }

// A delay is one of the way to the service: a call takes that long, and trust begins before it.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t, dlock.TTL(10*time.Second))
		c.Delay(2 * time.Second)
		start := time.Now()
		l, err := c.Mutex("a").Lock(t.Context())
		if err != nil || time.Since(start) != 2*time.Second {
			t.Fatalf("after %s: %v", time.Since(start), err)
		}
		if left := time.Until(l.Until()); left > 8*time.Second {
			t.Errorf("it is trusted for %s", left)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Unlock(ctx); err == nil {
			t.Error("Unlock without an answer returned nil")
		}
		time.Sleep(time.Minute)
		if q, err := c.Inspect(t.Context(), "a"); err != nil || q.Len() != 0 {
			t.Errorf("%d stand there, %v", q.Len(), err)
		}
	})
}

// failures is a test that records that it failed.
type failures struct {
	testing.TB
	failed bool
}

func (f *failures) Helper()               {}
func (f *failures) Fatalf(string, ...any) { f.failed = true; panic(f) }

// What a test asks for and cannot be fails it.
func TestWhatCannotBeFails(t *testing.T) {
	f := &failures{TB: t}
	c := dlocktest.New(f)
	c.Hold("held")
	for what, call := range map[string]func(){
		"Hold of what is held": func() { c.Hold("held") },
		"Lose of nothing":      func() { c.Lose("free") },
		"Lose of another's":    func() { c.Lose("held") },
	} {
		f.failed = false
		func() {
			defer func() { recover() }()
			call()
		}()
		if !f.failed {
			t.Errorf("%s did not fail the test", what)
		}
	}
}
