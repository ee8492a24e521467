// Package dlocktest is for the tests of programs that use dlock: a client that locks within the
// process, and that a test can make meet what happens elsewhere: a lock that another one holds, a
// lease that is lost in the middle of the work, a service that is slow or down.
//
//	c := dlocktest.New(t)
//	shop := NewShop(c.Client) // what is tested
//	c.Hold("orders/42")       // by somebody else
//
// It is made for testing/synctest, where a wait of an hour takes no time; made in a bubble, it has
// to be used there.
package dlocktest

import (
	"context"
	"fmt"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver/memory"
)

// Client is a client for a test, with a service of its own behind it. What is tested gets the
// [dlock.Client]. It is safe for concurrent use. [New] makes one; the zero Client refuses, and its
// methods of tests panic.
type Client struct {
	*dlock.Client

	t       testing.TB
	service *service
	other   *dlock.Client // of the same service, without its faults
}

// New returns a client, which is closed at the end of the test. What the client logs goes to the
// log of the test, unless the options say otherwise.
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
	t.Cleanup(c.service.heal) // first: so that Close gives back what the test left
	return c
}

// Hold has another process hold the exclusive lock of that name, until release, the end of the
// test, or a [dlock.Client.Break] of it: after these release does nothing. It fails the test if
// somebody holds the lock already.
func (c *Client) Hold(name string) (release func()) {
	c.made()
	c.t.Helper()
	l, err := c.other.Mutex(name).TryLock(context.Background())
	if err != nil {
		c.t.Fatalf("dlocktest: Hold(%q): %v", name, err)
	}
	return func() { l.Unlock(context.Background()) } // an error says that the hold is over already
}

// Lose has the client lose all that it holds of that name: the contexts of its leases end a moment
// later (in a bubble, by the next synctest.Wait), and the next waiter is in. It fails the test if
// the client holds nothing there.
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
		c.t.Fatalf("dlocktest: Lose(%q): the client holds nothing there; the queue is %s", name, show(q))
	}
}

// made stops a test that uses a Client which New did not make.
func (c *Client) made() {
	if c == nil || c.t == nil {
		panic("dlocktest: the Client is nil or its zero value; New makes one")
	}
}

// show names those who stand in a queue.
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
