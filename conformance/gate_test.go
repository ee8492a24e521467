package conformance

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// newMemory returns a backend of the space, or of its own one if that is nil.
func newMemory(space *memory.Space) *memory.Backend {
	b, err := memory.New(memory.Options{Space: space})
	if err != nil {
		panic(err)
	}
	return b
}

// gated runs f in virtual time on a gate, and on another client of the same queues.
func gated(t *testing.T, f func(t *testing.T, g *Gate, other driver.Backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		space := new(memory.Space)
		g, other := NewGate(newMemory(space)), newMemory(space)
		defer other.Close()
		defer g.Close()
		f(t, g, other)
	})
}

func request() driver.Request {
	id := driver.NewID()
	return driver.Request{Name: "name", ID: id, Owner: id, TTL: time.Minute}
}

func standing(t *testing.T, b driver.Backend, want int) {
	t.Helper()
	synctest.Wait()
	q, err := b.Inspect(t.Context(), "name")
	if err != nil || q.Len() != want {
		t.Fatalf("%d requests stand there (error %v); want %d", q.Len(), err, want)
	}
}

func TestGateCut(t *testing.T) {
	gated(t, func(t *testing.T, g *Gate, other driver.Backend) {
		heal := g.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := g.Acquire(ctx, request()); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Fatalf("off the line Acquire returned %v after %s", err, time.Since(start))
		}
		late := request()
		go func() {
			time.Sleep(time.Second)
			standing(t, other, 0)
			heal()
		}()
		if _, err := g.Acquire(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		standing(t, other, 1)
		if n := g.Calls(); n != 2 {
			t.Errorf("%d calls; want 2", n)
		}
	})
}

// A request that waits off the line goes at its TTL, as in a service that hears nothing of its
// client.
func TestGateCutExpiresWaiters(t *testing.T) {
	gated(t, func(t *testing.T, g *Gate, other driver.Backend) {
		held := request()
		held.TTL = time.Hour
		if _, err := other.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		r := request()
		r.Wait = true
		done := make(chan error, 1)
		go func() {
			_, err := g.Acquire(t.Context(), r)
			done <- err
		}()
		standing(t, other, 2)
		heal := g.Cut()
		time.Sleep(r.TTL - 1)
		standing(t, other, 2)
		time.Sleep(time.Nanosecond)
		standing(t, other, 1)
		select {
		case err := <-done:
			t.Fatalf("off the line Acquire returned %v", err)
		default:
		}
		heal()
		if err := <-done; !errors.Is(err, driver.ErrLost) {
			t.Errorf("Acquire returned %v; want ErrLost", err)
		}
	})
}

func TestGateDeafen(t *testing.T) {
	gated(t, func(t *testing.T, g *Gate, other driver.Backend) {
		heal := g.Deafen()
		r := request()
		got := make(chan error, 1)
		go func() {
			_, err := g.Acquire(t.Context(), r)
			got <- err
		}()
		standing(t, other, 1)
		if len(got) > 0 {
			t.Fatal("a reply came through")
		}
		heal()
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		heal = g.Deafen()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Release(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Release returned %v", err)
		}
		standing(t, other, 0)
		heal()
	})
}

func TestGateDropReply(t *testing.T) {
	gated(t, func(t *testing.T, g *Gate, other driver.Backend) {
		r := request()
		g.DropReply()
		if _, err := g.Acquire(t.Context(), r); !errors.Is(err, ErrDropped) {
			t.Fatalf("Acquire returned %v", err)
		}
		standing(t, other, 0) // given back in the background
		if _, err := g.Acquire(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Acquire of what was given back returned %v", err)
		}
		r = request()
		if _, err := g.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		g.DropReply()
		if res := g.Renew(t.Context(), []driver.Request{r, r}); len(res) != 2 || res[0].Err != ErrDropped || res[1].Err != ErrDropped {
			t.Fatalf("Renew returned %v", res)
		}
		g.DropReply()
		if err := g.Release(t.Context(), r); !errors.Is(err, ErrDropped) {
			t.Fatalf("Release returned %v", err)
		}
		standing(t, other, 0)
	})
}

func TestGateRecord(t *testing.T) {
	gated(t, func(t *testing.T, g *Gate, other driver.Backend) {
		replay := g.Record()
		r := request()
		if _, err := g.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if err := g.Release(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		standing(t, other, 0)
		replay()
		standing(t, other, 1) // it was not released as uncertain
	})
}

// Five methods and nothing else.
type plain struct{ driver.Backend }

func TestGateForwards(t *testing.T) {
	m := newMemory(nil)
	g := NewGate(m)
	if g.Capabilities() != m.Capabilities() {
		t.Errorf("the gate changes capabilities")
	}
	if err := g.Break(t.Context(), "name", 1, false); err != driver.ErrNotHeld {
		t.Errorf("Break returned %v", err)
	}
	if _, err := g.List(t.Context()); err != nil {
		t.Errorf("List returned %v", err)
	}
	g.Close()
	g.Close()
	if _, err := m.List(t.Context()); err != driver.ErrClosed {
		t.Errorf("the backend was not closed: List returned %v", err)
	}
	p := NewGate(plain{m})
	if c := p.Capabilities(); c != (driver.Capabilities{}) {
		t.Errorf("capabilities %+v of a backend without any", c)
	}
	if err := p.Break(t.Context(), "name", 1, false); err != driver.ErrUnsupported {
		t.Errorf("Break returned %v", err)
	}
	if _, err := p.List(t.Context()); err != driver.ErrUnsupported {
		t.Errorf("List returned %v", err)
	}
}
