package etcd

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/internal/alarm"
)

const (
	// The first attempt of a call may take firstTry; each next one takes twice as long, up to
	// lastTry.
	firstTry = 500 * time.Millisecond
	lastTry  = 4 * time.Second
	// patience bounds a call that no server answers. Package dlock's own bound is 10 s.
	patience = 8 * time.Second
)

// callOptions allow answers of any size.
var callOptions = []grpc.CallOption{grpc.MaxCallRecvMsgSize(math.MaxInt32)}

// repeat calls f until it is answered, ctx ends, or patience has passed. Attempts get longer: a
// slow server is not a dead one.
func (c *cluster) repeat(ctx context.Context, f func(ctx context.Context) error) error {
	return c.again(ctx, func(ctx context.Context, bound time.Duration) (queued time.Duration, err error) {
		return 0, c.attempt(ctx, bound, f)
	})
}

// again is repeat for a function that bounds its attempts itself. f returns how long the attempt
// was queued in this client before it was sent; that time does not count as silence of the server.
func (c *cluster) again(ctx context.Context, f func(ctx context.Context, bound time.Duration) (queued time.Duration, err error)) error {
	end := time.Now().Add(patience)
	wait := 2 * time.Millisecond
	var why error // why there was no answer, as text
	for bound := firstTry; ; bound = min(2*bound, lastTry) {
		queued, err := f(ctx, min(bound, time.Until(end)))
		// from now on a member without a leader refuses at once, and the next attempt goes to
		// another
		if end = end.Add(queued); bound == firstTry {
			ctx = clientv3.WithRequireLeader(ctx)
		}
		// an attempt that was merely cut short explains nothing
		if last := plain(err); why == nil || last != errNoAnswer {
			why = last
		}
		switch {
		case err == nil:
			return nil
		case c.life.Over():
			return driver.ErrClosed
		case ctx.Err() != nil:
			return &ended{ctx.Err(), why}
		case outcomeOf(err) == kit.Answered:
			return explain(err)
		case time.Until(end) < firstTry:
			return &unanswered{why}
		}
		if read(err).handling == another {
			wait = min(wait, 20*time.Millisecond)
			c.skipMember(2 * wait)
		}
		_ = kit.Pause(ctx, c.life.Closed(), wait)
		wait = min(2*wait, 250*time.Millisecond)
	}
}

// skipMember sends one extra call within a time, so that another member has the next turn. Calls go
// to the members in turn. An operation of two calls (a stream asks for an auth token first) would
// otherwise reach the same refusing member each time, if there are two members and no other calls.
func (c *cluster) skipMember(within time.Duration) {
	c.life.Go(func() {
		if kit.Pause(c.life.Context(), nil, rand.N(within)) == nil {
			_ = c.attempt(c.life.Context(), firstTry, func(ctx context.Context) error {
				_, err := c.status.Status(ctx, &pb.StatusRequest{}, callOptions...)
				return err
			})
		}
	})
}

// attempt calls f with a bound; Close ends it earlier. A call that is not answered in time makes
// its connection suspect.
func (c *cluster) attempt(ctx context.Context, bound time.Duration, f func(ctx context.Context) error) error {
	return attempt(ctx, c.life.Context(), &c.alarms, bound, c.suspect, f)
}

// attempt calls f with a bound; the end of the second context ends it earlier. It calls late if the
// bound was exceeded. The bound is an alarm, not a deadline, and the caller's deadline is hidden:
// gRPC would send a deadline to the server, where it costs more than here.
func attempt(parent, closed context.Context, alarms *alarm.Clock, bound time.Duration, late func(), f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(untimed{parent})
	defer cancel()
	stop := alarms.After(bound, cancel)
	defer context.AfterFunc(closed, cancel)()
	err := f(ctx)
	if !stop() && err != nil && parent.Err() == nil && closed.Err() == nil {
		late()
		return noAnswer(bound)
	}
	return err
}

// untimed is a context that hides its deadline.
type untimed struct{ context.Context }

func (untimed) Deadline() (time.Time, bool) { return time.Time{}, false }

// takeTurn waits until it can put the token into a channel, so that one caller makes the call that
// all callers need. It waits for at most patience, as for an answer: if no server answers, all
// callers learn that at the same time, and not one after the other.
func (c *cluster) takeTurn(ctx context.Context, turn chan struct{}) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case turn <- struct{}{}:
		return nil
	case <-timer.C:
		return &unanswered{noAnswer(patience)}
	case <-ctx.Done():
		return ctx.Err()
	case <-c.life.Closed():
		return driver.ErrClosed
	}
}

// hedged calls ask until there is an answer or ctx ends. If an answer takes long it calls ask
// again, which may reach another member, and takes the first answer that comes: so neither a dead
// member nor a slow connection delays it.
func hedged[T any](c *cluster, ctx context.Context, ttl time.Duration, ask func(ctx context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	const most = 4 // calls at a time
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	answers := make(chan answer, most)
	asked := 0
	begin := func() {
		asked++
		go func() {
			var a answer
			a.err = c.attempt(ctx, 2*lastTry, func(ctx context.Context) (err error) {
				a.v, err = ask(ctx)
				return err
			})
			answers <- a
		}()
	}
	begin()
	late, wait := min(max(ttl/8, 100*time.Millisecond), time.Second), 5*time.Millisecond
	next := time.NewTimer(late)
	defer next.Stop()
	last := errNoAnswer
	for {
		var none T
		select {
		case a := <-answers:
			switch {
			case a.err == nil:
				return a.v, nil
			case c.life.Over():
				return none, driver.ErrClosed
			case ctx.Err() != nil:
				return none, &ended{ctx.Err(), last}
			case outcomeOf(a.err) == kit.Answered:
				return none, explain(a.err)
			}
			last = plain(a.err)
			if asked--; asked == 0 {
				if read(a.err).handling == another {
					c.skipMember(2 * wait)
				}
				_ = kit.Pause(ctx, c.life.Closed(), wait)
				wait = min(2*wait, 100*time.Millisecond)
				begin()
			}
		case <-next.C:
			c.suspect()
			if asked < most {
				begin()
			}
			late *= 2
			next.Reset(late)
		case <-ctx.Done():
			return none, &ended{ctx.Err(), last}
		case <-c.life.Closed():
			return none, driver.ErrClosed
		}
	}
}

// unanswered is the error of a call that no server answered within patience. The call may succeed
// if it is sent again.
type unanswered struct{ error }

func (u *unanswered) Unwrap() error { return u.error }

// ended is the error of a call whose context ended. Its text says what delayed the call; the code
// that made the context adds the rest.
type ended struct{ err, why error }

func (e *ended) Error() string { return e.why.Error() }

// Unwrap returns the context's error alone: the other one is only text.
func (e *ended) Unwrap() error { return e.err }
