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

func TestHoldShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		releases := []func(){c.HoldShared("a"), c.HoldShared("a")}
		orders := c.RWMutex("a", dlock.Wait(time.Second))
		l, err := orders.Read().Lock(t.Context())
		if err != nil {
			t.Fatalf("a reader beside readers: %v", err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		for _, release := range releases {
			if _, err := orders.Write().Lock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
				t.Errorf("a writer beside a reader: %v, want ErrHeld", err)
			}
			release()
		}
		if _, err := orders.Write().Lock(t.Context()); err != nil {
			t.Errorf("after the readers were released: %v", err)
		}
	})
}

func TestHoldPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		release := c.HoldPermit("a", 2)
		permits := c.Semaphore("a", 2, dlock.Wait(time.Second))
		l, err := permits.Lock(t.Context())
		if err != nil {
			t.Fatalf("the second permit: %v", err)
		}
		if _, err := permits.Lock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("a third permit of two: %v, want ErrHeld", err)
		}
		release()
		if _, err := permits.Lock(t.Context()); err != nil {
			t.Errorf("after the release: %v", err)
		}
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A loss leaves other names alone, and the next waiter is granted the lock.
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
			t.Error("the next waiter does not hold it")
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

// A release does nothing once the hold has ended: the code under test broke the hold, or the test
// has ended and a timer calls release too late.
func TestReleaseOfAnEndedHold(t *testing.T) {
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

// A delay is on the way to the service: a call takes that long, and trust counts from before it.
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
			t.Errorf("the queue has %d requests, %v", q.Len(), err)
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

// A call that cannot do what it promises fails the test.
func TestImpossibleCallsFailTheTest(t *testing.T) {
	f := &failures{TB: t}
	c := dlocktest.New(f)
	c.Hold("held")
	for what, call := range map[string]func(){
		"Hold of a held lock":             func() { c.Hold("held") },
		"HoldShared of a held lock":       func() { c.HoldShared("held") },
		"HoldPermit of a held lock":       func() { c.HoldPermit("held", 2) },
		"HoldPermit with the limit 0":     func() { c.HoldPermit("free", 0) },
		"Lose of a free lock":             func() { c.Lose("free") },
		"Lose of another client's holder": func() { c.Lose("held") },
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
