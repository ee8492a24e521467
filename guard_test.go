package dlock

import (
	"context"
	"errors"
	"testing"
)

func TestGuard(t *testing.T) {
	c, b := newHooked(t)
	fails := errors.New("of fn")
	run := Guard(func(id string) Mutex {
		if id == "free" {
			return nil
		}
		return c.Mutex(Name("orders", id), Wait(0))
	}, func(ctx context.Context, id string) (int, error) {
		if id == "free" {
			return 1, nil
		}
		l, err := c.Mutex(Name("orders", id)).TryLock(ctx)
		if err != nil {
			t.Errorf("it does not re-enter: %v", err)
			return 0, err
		}
		defer l.Unlock(ctx)
		if id == "bad" {
			return 2, fails
		}
		return 3, nil
	})
	if n, err := run(t.Context(), "free"); n != 1 || err != nil || b.acquires.Load() != 0 {
		t.Errorf("without a lock: %d, %v, after %d calls", n, err, b.acquires.Load())
	}
	if n, err := run(t.Context(), "42"); n != 3 || err != nil || b.acquires.Load() != 1 || b.releases.Load() != 1 {
		t.Errorf("under a lock: %d, %v, after %d and %d calls", n, err, b.acquires.Load(), b.releases.Load())
	}
	if n, err := run(t.Context(), "bad"); n != 2 || err != fails {
		t.Errorf("what fn returned: %d, %v", n, err)
	}
	l, err := c.Mutex("orders/42").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := run(t.Context(), "42"); n != 0 || !errors.Is(err, ErrHeld) {
		t.Errorf("a lock that is held: %d, %v", n, err)
	}
	if n, err := run(l.Context(t.Context()), "42"); n != 3 || err != nil {
		t.Errorf("under the hold: %d, %v", n, err)
	}
	if n, err := run(t.Context(), ""); n != 3 || err != nil {
		t.Errorf("an empty part: %d, %v", n, err)
	}
}

func TestGuardReportsALoss(t *testing.T) {
	c, _ := newHooked(t)
	run := Guard(func(name string) Mutex { return c.Mutex(name) }, func(ctx context.Context, name string) (int, error) {
		q, err := c.Inspect(ctx, name)
		if err != nil {
			return 0, err
		}
		return 1, c.Break(ctx, name, q.Holders[0].Token, Force())
	})
	if n, err := run(t.Context(), "a"); n != 1 || !errors.Is(err, ErrLost) {
		t.Errorf("%d, %v, want what fn returned, and ErrLost", n, err)
	}
}

func TestGuardOfNothing(t *testing.T) {
	pick := func(int) Mutex { return nil }
	fn := func(context.Context, int) (int, error) { return 1, nil }
	for _, run := range []func(context.Context, int) (int, error){
		Guard(nil, fn), Guard[int, int](pick, nil),
	} {
		if n, err := run(t.Context(), 1); n != 0 || !errors.Is(err, ErrInvalid) {
			t.Errorf("%d, %v, want ErrInvalid", n, err)
		}
	}
}
