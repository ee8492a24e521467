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

// withInjector runs a test in virtual time with a fault injector, and another client of the same
// queues.
func withInjector(t *testing.T, run func(t *testing.T, f *FaultInjector, other driver.Backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		space := new(memory.Space)
		f, other := NewFaultInjector(newMemory(space)), newMemory(space)
		defer other.Close()
		defer f.Close()
		run(t, f, other)
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
		t.Fatalf("the queue has %d requests (error %v); want %d", q.Len(), err, want)
	}
}

// behind begins the Acquire of a request that waits behind another one, and returns its error.
func behind(t *testing.T, f *FaultInjector, other driver.Backend) (driver.Request, <-chan error) {
	t.Helper()
	r := request()
	r.Wait = true
	done := make(chan error, 1)
	go func() {
		_, err := f.Acquire(t.Context(), r)
		done <- err
	}()
	standing(t, other, 2)
	return r, done
}

func TestFaultInjectorPartition(t *testing.T) {
	withInjector(t, func(t *testing.T, f *FaultInjector, other driver.Backend) {
		heal := f.Partition()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := f.Acquire(ctx, request()); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Fatalf("cut off Acquire returned %v after %s", err, time.Since(start))
		}
		late := request()
		go func() {
			time.Sleep(time.Second)
			standing(t, other, 0)
			heal()
		}()
		if _, err := f.Acquire(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		standing(t, other, 1)
		if n := f.Calls(); n != 2 {
			t.Errorf("%d calls; want 2", n)
		}
	})
}

// A request that waits while its client is cut off ends at its TTL, as in a service that its client
// cannot reach.
func TestFaultInjectorPartitionExpiresWaiters(t *testing.T) {
	withInjector(t, func(t *testing.T, f *FaultInjector, other driver.Backend) {
		held := request()
		held.TTL = time.Hour
		if _, err := other.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		r, done := behind(t, f, other)
		heal := f.Partition()
		time.Sleep(r.TTL - 1)
		standing(t, other, 2)
		time.Sleep(time.Nanosecond)
		standing(t, other, 1)
		select {
		case err := <-done:
			t.Fatalf("cut off Acquire returned %v", err)
		default:
		}
		heal()
		if err := <-done; !errors.Is(err, driver.ErrLost) {
			t.Errorf("Acquire returned %v; want ErrLost", err)
		}
	})
}

// A request that is granted while its client is cut off ends at its TTL too. The client does not
// learn of the grant, which came after the partition began and has not expired yet.
func TestFaultInjectorPartitionExpiresWhatIsGranted(t *testing.T) {
	withInjector(t, func(t *testing.T, f *FaultInjector, other driver.Backend) {
		held := request()
		if _, err := other.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		r, done := behind(t, f, other)
		heal := f.Partition()
		time.Sleep(r.TTL / 2)
		if err := other.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		time.Sleep(r.TTL / 2)
		standing(t, other, 0)
		heal()
		if err := <-done; !errors.Is(err, driver.ErrLost) {
			t.Errorf("Acquire returned %v; want ErrLost", err)
		}
	})
}

// lateCopies is memory behind a network that delivers a copy of an Acquire a second after its end.
type lateCopies struct{ *memory.Backend }

func (l lateCopies) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := l.Backend.Acquire(ctx, r)
	if err != nil {
		time.AfterFunc(time.Second, func() {
			r.Wait = false
			l.Backend.Acquire(context.Background(), r)
		})
	}
	return g, err
}

// An expired request is removed for good: a late copy of its Acquire creates nothing.
func TestFaultInjectorPartitionExpiresLateCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memory.Space)
		f, other := NewFaultInjector(lateCopies{newMemory(space)}), newMemory(space)
		defer other.Close()
		defer f.Close()
		held := request()
		held.TTL *= 2
		if _, err := other.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		r := request()
		r.Wait = true
		go f.Acquire(t.Context(), r)
		standing(t, other, 2)
		heal := f.Partition()
		time.Sleep(r.TTL)
		standing(t, other, 1)
		if err := other.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		standing(t, other, 0)
		heal()
	})
}

// An expired request stays expired when further partitions begin, whether they last or were
// replaced.
func TestFaultInjectorPartitionsExpireOnce(t *testing.T) {
	withInjector(t, func(t *testing.T, f *FaultInjector, other driver.Backend) {
		held := request()
		if _, err := other.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		r := request()
		r.Wait = true
		done := make(chan error, 1)
		go func() {
			_, err := f.Acquire(t.Context(), r)
			done <- err
		}()
		standing(t, other, 2)
		heals := []func(){f.Partition()}
		time.Sleep(r.TTL / 2)
		if err := other.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		time.Sleep(r.TTL)
		standing(t, other, 0)
		heals = append(heals, f.Partition(), f.Partition())
		time.Sleep(r.TTL / 2)
		heals = append(heals, f.Partition())
		time.Sleep(r.TTL * 3 / 4)
		for _, heal := range heals {
			heal()
		}
		if err := <-done; !errors.Is(err, driver.ErrLost) {
			t.Errorf("Acquire returned %v; want ErrLost", err)
		}
	})
}

func TestFaultInjectorHoldReplies(t *testing.T) {
	withInjector(t, func(t *testing.T, f *FaultInjector, other driver.Backend) {
		heal := f.HoldReplies()
		r := request()
		got := make(chan error, 1)
		go func() {
			_, err := f.Acquire(t.Context(), r)
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
		heal = f.HoldReplies()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.Release(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Release returned %v", err)
		}
		standing(t, other, 0)
		heal()
	})
}

func TestFaultInjectorDropReply(t *testing.T) {
	withInjector(t, func(t *testing.T, f *FaultInjector, other driver.Backend) {
		r := request()
		f.DropReply()
		if _, err := f.Acquire(t.Context(), r); !errors.Is(err, ErrDropped) {
			t.Fatalf("Acquire returned %v", err)
		}
		standing(t, other, 1) // until its caller releases it
		r.Uncertain = true
		if err := f.Release(t.Context(), r); err != nil {
			t.Fatalf("Release returned %v", err)
		}
		standing(t, other, 0)
		if _, err := f.Acquire(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Acquire of a released request returned %v", err)
		}
		r = request()
		if _, err := f.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		f.DropReply()
		if res := f.Renew(t.Context(), []driver.Request{r, r}); len(res) != 2 || res[0].Err != ErrDropped || res[1].Err != ErrDropped {
			t.Fatalf("Renew returned %v", res)
		}
		f.DropReply()
		if err := f.Release(t.Context(), r); !errors.Is(err, ErrDropped) {
			t.Fatalf("Release returned %v", err)
		}
		standing(t, other, 0)
	})
}

func TestFaultInjectorRecord(t *testing.T) {
	withInjector(t, func(t *testing.T, f *FaultInjector, other driver.Backend) {
		replay := f.Record()
		r := request()
		if _, err := f.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if err := f.Release(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		standing(t, other, 0)
		replay()
		standing(t, other, 1) // it was not released as uncertain
	})
}

// Five methods and nothing else.
type plain struct{ driver.Backend }

func TestFaultInjectorForwards(t *testing.T) {
	m := newMemory(nil)
	f := NewFaultInjector(m)
	if f.Capabilities() != m.Capabilities() {
		t.Errorf("the fault injector changes capabilities")
	}
	if err := f.Break(t.Context(), "name", 1, false); err != driver.ErrNotHeld {
		t.Errorf("Break returned %v", err)
	}
	if _, err := f.List(t.Context()); err != nil {
		t.Errorf("List returned %v", err)
	}
	f.Close()
	f.Close()
	if _, err := m.List(t.Context()); err != driver.ErrClosed {
		t.Errorf("the backend was not closed: List returned %v", err)
	}
	p := NewFaultInjector(plain{m})
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
