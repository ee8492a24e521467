package adapt_test

import (
	"context"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
)

// start opens a backend on the shelf, which the test closes.
func start(t *testing.T, u setUp, s *shelf) (*adapt.Backend, *client) {
	t.Helper()
	b, c, err := u.open(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, c
}

// ask returns a new request for the name.
func ask(name string, ttl time.Duration) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, Client: driver.NewID(), TTL: ttl}
}

// wait is ask for a request that waits.
func wait(name string, ttl time.Duration) driver.Request {
	r := ask(name, ttl)
	r.Wait = true
	return r
}

// keep returns a fixed request that joins the hold of r.
func keep(r driver.Request, ttl time.Duration) driver.Request {
	r.ID, r.TTL, r.Fixed, r.Wait = driver.NewID(), ttl, true, false
	return r
}

// get acquires the request.
func get(t *testing.T, b *adapt.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// begin acquires the request in the background.
func begin(ctx context.Context, b *adapt.Backend, r driver.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, r)
		done <- err
	}()
	return done
}

// release releases the request.
func release(t *testing.T, b *adapt.Backend, r driver.Request) {
	t.Helper()
	if err := b.Release(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}
