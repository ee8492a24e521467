package dlock

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Queue is the queue of one name at one moment, as [Client.Inspect] returns it. The zero Queue is
// that of a lock that is free.
type Queue struct {
	// the granted requests in order of arrival, then those that joined a hold from another client,
	// or in another mode than its own
	Holders []Request
	Waiters []Request // in order of arrival
}

// Len returns how many requests the queue has, granted and waiting.
func (q Queue) Len() int { return len(q.Holders) + len(q.Waiters) }

// Request is one request in a [Queue]. ID, Owner and Client have 32 hexadecimal digits each.
type Request struct {
	ID      string // unique to each acquisition
	Owner   string // requests with the same owner share a hold
	Client  string // the same in all requests of one client
	Label   string // see [Label]
	Shared  bool   // a reader, or a permit of a semaphore
	Limit   int    // of a semaphore; 0: no semaphore
	Token   Token  // of a holder, where Capabilities.Fencing is set; otherwise 0
	TTL     time.Duration
	Fixed   bool          // see [FixedLease]
	Broken  bool          // by [Client.Break]: it expires, and can be neither renewed nor joined
	Foreign bool          // of other software that locks in the same format; its Label describes it
	Age     time.Duration // since it arrived, by the clock of the backend
	Left    time.Duration // until it expires, by the clock of the backend, unless it is renewed
}

// Inspect returns the holders and the waiters of a name, as the backend has them now. It is meant
// for people and tests: the queue may have changed by the time Inspect returns.
//
// Errors: [ErrInvalidName], [ErrClosed], [ErrUnsupported], the context's error, the backend's own,
// or that the backend did not answer within 10 s.
func (c *Client) Inspect(ctx context.Context, name string) (Queue, error) {
	q, err := c.inspect(ctx, name)
	if err != nil {
		return Queue{}, err
	}
	return Queue{Holders: requests(q.Holders()), Waiters: requests(q.Waiters())}, nil
}

// inspect returns the queue as the driver has it.
func (c *Client) inspect(ctx context.Context, name string) (driver.Queue, error) {
	q, err := call(c, ctx, name, func(ctx context.Context) (driver.Queue, error) { return c.b.Inspect(ctx, name) })
	return q, wrap("inspect", name, c.backend(), err)
}

func requests(es []*driver.Entry) []Request {
	var rs []Request
	for _, e := range es {
		rs = append(rs, Request{
			ID: e.ID.String(), Owner: e.Owner.String(), Client: e.Client.String(), Label: e.Label,
			Shared: e.Mode == driver.Shared, Limit: e.Limit, Token: e.Token, TTL: e.TTL, Fixed: e.Fixed, Broken: e.Broken, Foreign: e.Foreign, Age: e.Age, Left: e.Left,
		})
	}
	return rs
}
