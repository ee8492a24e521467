// Package dlocktest is for tests of programs that use dlock. Its client locks within the process,
// and a test can make it meet what happens in production: a lock that another process holds, a
// lease that is lost in the middle of the work, a service that is slow or down.
//
//	c := dlocktest.New(t)
//	shop := NewShop(c.Client) // the code under test
//	c.Hold("orders/42")       // by another process
//
// It is made for testing/synctest, where a wait of an hour takes no time. A client that was made in
// a bubble must be used in that bubble.
package dlocktest

import (
	"context"
	"fmt"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver/memory"
)

// Client is a client for a test, with a service of its own behind it. The code under test gets the
// embedded [dlock.Client]. It is safe for concurrent use. [New] makes one; the methods of the
// dlock.Client of a zero Client fail with [dlock.ErrInvalid], and those defined here panic.
type Client struct {
	*dlock.Client

	t       testing.TB
	service *service
	other   *dlock.Client // of the same service, without its faults
}

// New returns a client, which is closed at the end of the test. The client logs to the log of the
// test, unless the options set another logger.
func New(t testing.TB, opts ...dlock.Option) *Client {
	t.Helper()
	log := &testLog{t: t}
	t.Cleanup(log.end)
	space := new(memory.Space)
	open := func(b *service, opts ...dlock.Option) *dlock.Client {
		client, err := dlock.New(b, opts...)
		if err != nil {
			t.Fatalf("dlocktest: %v", err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	c := &Client{t: t, service: newService(space)}
	c.other = open(newService(space), dlock.Logger(nil), dlock.Label("another process"))
	c.Client = open(c.service, append([]dlock.Option{dlock.Logger(log.logger())}, opts...)...)
	t.Cleanup(c.service.heal) // runs first, so that Close can release what the test left behind
	return c
}

// Hold makes another process hold the lock of that name exclusively, until release is called, the
// test ends, or the hold is broken with [dlock.Client.Break]. After the first of these release does
// nothing. Hold fails the test if it does not get the lock at once.
func (c *Client) Hold(name string) (release func()) {
	c.made()
	c.t.Helper()
	return c.hold(fmt.Sprintf("Hold(%q)", name), c.other.Mutex(name))
}

// HoldShared is Hold for a reader of the [dlock.RWMutex] of that name: other readers get in, and a
// writer waits. Each call adds a reader.
func (c *Client) HoldShared(name string) (release func()) {
	c.made()
	c.t.Helper()
	return c.hold(fmt.Sprintf("HoldShared(%q)", name), c.other.RWMutex(name).Read())
}

// HoldPermit is Hold for one permit of the [dlock.Semaphore] of that name and limit, which must be
// the limit that the code under test uses. Each call takes another permit.
func (c *Client) HoldPermit(name string, limit int) (release func()) {
	c.made()
	c.t.Helper()
	return c.hold(fmt.Sprintf("HoldPermit(%q, %d)", name, limit), c.other.Semaphore(name, limit))
}

func (c *Client) hold(call string, m dlock.Mutex) (release func()) {
	c.t.Helper()
	l, err := m.TryLock(context.Background())
	if err != nil {
		c.t.Fatalf("dlocktest: %s: %v", call, err)
	}
	return func() { l.Unlock(context.Background()) } // it fails if the hold has ended already
}

// Lose makes the client lose all its holds of that name. The contexts of its leases end a moment
// later (in a bubble, by the next synctest.Wait), and the next waiter is granted the lock. Lose
// fails the test if the client holds nothing of that name.
func (c *Client) Lose(name string) {
	c.made()
	c.t.Helper()
	ctx := context.Background()
	q, err := c.other.Inspect(ctx, name)
	if err != nil {
		c.t.Fatalf("dlocktest: Lose(%q): %v", name, err)
	}
	lost := false
	for _, h := range q.Holders {
		if h.Client != c.service.client().String() {
			continue
		}
		if err := c.other.Break(ctx, name, h.Token, dlock.Force()); err == nil {
			lost = true
		}
	}
	if !lost {
		c.t.Fatalf("dlocktest: Lose(%q): the client does not hold this lock; its queue: %s", name, show(q))
	}
}

// made panics if New did not make the Client.
func (c *Client) made() {
	if c == nil || c.t == nil {
		panic("dlocktest: the Client is nil or its zero value; New makes one")
	}
}

// show lists the requests of a queue.
func show(q dlock.Queue) string {
	if q.Len() == 0 {
		return "empty"
	}
	text := ""
	for _, r := range append(q.Holders, q.Waiters...) {
		mode := "exclusive"
		if r.Shared {
			mode = "shared"
		}
		text += fmt.Sprintf("[%s %s]", r.Label, mode)
	}
	return text
}
