package dlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

func openURL(t *testing.T, url string, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.Open(t.Context(), url, append(opts, dlock.Logger(nil))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestTwoURLs: a client of two URLs excludes those that lock on one of the two alone, and its Close
// releases and closes both.
func TestTwoURLs(t *testing.T) {
	ctx := t.Context()
	memory, dir := "memory:"+t.Name(), "file://"+t.TempDir()
	both, old, new := openURL(t, memory+" "+dir), openURL(t, memory), openURL(t, dir)
	if got := both.Capabilities().Backend; got != "file and memory" {
		t.Errorf("the backend is %q", got)
	}
	l, err := both.Mutex("orders/42").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*dlock.Client{old, new} {
		if _, err := c.Mutex("orders/42").TryLock(ctx); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("on %s: %v", c.Capabilities().Backend, err)
		}
	}
	again, err := both.Mutex("orders/42").Lock(l.Context(ctx))
	if err != nil || again.Token() != l.Token() {
		t.Fatalf("locked again: %v", err)
	}
	other := openURL(t, memory+" "+dir)
	joined, err := other.Mutex("orders/42").Lock(dlock.WithOwner(ctx, l.Owner()))
	if err != nil || joined.Token() != l.Token() {
		t.Fatalf("joined from another client: %v", err)
	}
	for _, l := range []*dlock.Lease{again, l, joined} {
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []*dlock.Client{old, new} {
		l, err := c.Mutex("orders/42").TryLock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := both.Mutex("orders/42").TryLock(ctx); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("held on %s: %v", c.Capabilities().Backend, err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := both.Mutex("orders/43").Lock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := both.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []*dlock.Client{old, new} {
		if _, err := c.Mutex("orders/43").TryLock(ctx); err != nil {
			t.Errorf("after Close, on %s: %v", c.Capabilities().Backend, err)
		}
	}
}

// TestAlsoLoses: a hold that ends on one of the two backends is lost, and released on the other.
func TestAlsoLoses(t *testing.T) {
	ctx := t.Context()
	a, b := "memory:"+t.Name()+"a", "memory:"+t.Name()+"b"
	both := openURL(t, a+" "+b, dlock.TTL(time.Minute))
	for _, url := range []string{a, b} {
		l, err := both.Mutex("n").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		operator := openURL(t, url)
		if err := operator.Break(ctx, "n", l.Token(), dlock.Force()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.Lost():
		case <-time.After(10 * time.Second):
			t.Fatalf("a break on %s is not noticed", url)
		}
		if err := l.Unlock(ctx); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		next, err := both.Mutex("n").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		next.Unlock(ctx)
	}
}

// TestAlsoOldDown: while one of the two backends does not answer, no lock is granted, nothing stays
// on the other, and locks are granted again when it is back.
func TestAlsoOldDown(t *testing.T) {
	ctx := t.Context()
	space := "memory:" + t.Name()
	b, err := dlock.OpenBackend(ctx, "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	down := &unreachable{Backend: b}
	old, err := dlock.New(down)
	if err != nil {
		t.Fatal(err)
	}
	both, alone := openURL(t, space, dlock.Also(old)), openURL(t, space)
	down.err.Store(true)
	if _, err := both.Mutex("n").TryLock(ctx); err == nil || errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), "is down") {
		t.Errorf("TryLock with the old backend down: %v", err)
	}
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := both.Mutex("n").Lock(soon); err == nil {
		t.Error("Lock with the old backend down succeeded")
	}
	down.err.Store(false)
	l, err := both.Mutex("n").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if l, err = alone.Mutex("n").Lock(ctx); err != nil {
		t.Fatal(err)
	}
	l.Unlock(ctx)
}

func TestAlsoRefuses(t *testing.T) {
	ctx := t.Context()
	closed, lent := openURL(t, "memory:"+t.Name()+"closed"), openURL(t, "memory:"+t.Name()+"lent")
	closed.Close()
	pair := openURL(t, "memory:"+t.Name(), dlock.Also(lent))
	for want, try := range map[string]func() error{
		"is nil or its zero value":                    func() error { return fails(dlock.Open(ctx, "memory:", dlock.Also(nil))) },
		"nil or its zero":                             func() error { return fails(dlock.Open(ctx, "memory:", dlock.Also(new(dlock.Client)))) },
		"is closed":                                   func() error { return fails(dlock.Open(ctx, "memory:", dlock.Also(closed))) },
		"given to another client":                     func() error { return fails(dlock.Open(ctx, "memory:", dlock.Also(lent))) },
		"locks on two backends already":               func() error { return fails(dlock.Open(ctx, "memory:x", dlock.Also(pair))) },
		"Also is given twice":                         func() error { return fails(dlock.Open(ctx, "memory:x memory:y", dlock.Also(openURL(t, "memory:z")))) },
		"use the client that it was given to":         func() error { return fails(lent.Mutex("n").Lock(ctx)) },
		"3 URLs":                                      func() error { return fails(dlock.Open(ctx, "memory:x memory:y memory:z")) },
		"the TTL of the new backend is 20s, and that": func() error { return fails(dlock.Open(ctx, "memory:x?ttl=10s memory:y?ttl=20s")) },
		"nothing tells them apart":                    func() error { return fails(dlock.Open(ctx, "memory:x memory:x")) },
		"lead to the same locks": func() error {
			b, err := dlock.OpenBackend(ctx, "memory:same")
			if err != nil {
				return err
			}
			hidden, err := dlock.New(anonymous{b})
			if err != nil {
				return err
			}
			_, err = openURL(t, "memory:same", dlock.Also(hidden)).Mutex("n").Lock(ctx)
			return err
		},
		"and a scheme each":                     func() error { return fails(dlock.Open(ctx, "file:///tmp/a cache:6379")) },
		"check each of them by itself":          func() error { _, err := dlock.Check(ctx, "memory:x memory:y"); return err },
		`unknown parameter "tll"`:               func() error { return fails(dlock.Open(ctx, "memory:x?tll=1s memory:y")) },
		`unknown parameter "tlll"`:              func() error { return fails(dlock.Open(ctx, "memory:x memory:y?tlll=1s")) },
		"the driver of scheme \"redis\" is not": func() error { return fails(dlock.Open(ctx, "memory:x redis://h")) },
	} {
		if err := try(); !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want ErrInvalid with %q", err, want)
		}
	}
	if err := lent.Close(); err != nil {
		t.Errorf("Close of a client given to Also: %v", err)
	}
	if l, err := pair.Mutex("n").Lock(ctx); err != nil {
		t.Errorf("after that Close: %v", err)
	} else {
		l.Unlock(ctx)
	}
	c := openURL(t, "memory:x?ttl=10s memory:y")
	l, err := c.Mutex("n").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock(ctx)
	if left := time.Until(l.Until()); left > 10*time.Second {
		t.Errorf("the TTL of the old URL does not count: %s are left", left)
	}
}

// fails returns the error of a call that has another result too.
func fails[T any](_ T, err error) error { return err }

// unreachable is a backend that can be down.
type unreachable struct {
	driver.Backend
	err atomic.Bool
}

func (b *unreachable) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if b.err.Load() {
		return driver.Grant{}, errors.New("it is down")
	}
	return b.Backend.Acquire(ctx, r)
}

// anonymous is a backend that does not say which queues it has.
type anonymous struct{ driver.Backend }

func (b anonymous) Capabilities() driver.Capabilities {
	caps := b.Backend.(driver.Capable).Capabilities()
	caps.Identity = "another name"
	return caps
}

// TestAlsoIdentity: two clients with an identity for each backend, which name them in opposite
// order, know that their holds are of one lock.
func TestAlsoIdentity(t *testing.T) {
	ctx := t.Context()
	a, b := "memory:"+t.Name()+"a?identity=a", "memory:"+t.Name()+"b?identity=b"
	there, back := openURL(t, a+" "+b), openURL(t, b+" "+a)
	l, err := there.Mutex("n").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock(ctx)
	for what, ctx := range map[string]context.Context{"its context": l.Context(ctx), "its Owner": dlock.WithOwner(ctx, l.Owner())} {
		soon, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		joined, err := back.Mutex("n").Lock(soon)
		if err != nil {
			t.Errorf("joined by %s: %v", what, err)
			continue
		}
		if err := joined.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := dlock.All(there.Mutex("m"), back.Mutex("m")).TryLock(ctx); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("All of one lock twice: %v", err)
	}
}
