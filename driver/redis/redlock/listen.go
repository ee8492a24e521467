package redlock

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
	"github.com/dlock-go/dlock/internal/background"
)

// silenceMax is how long a subscription may be silent before it is checked, and how long the check
// may go unanswered before the subscription is made again.
const silenceMax = 10 * time.Second

// channels returns the prefix of the channels on which masters publish broken requests. A client's
// ID follows it.
func channels(space keyspace.Space) string { return space.Channels() + "redlock:" }

// listenFor subscribes to the channel of the client on all masters, once. mu is held.
func (b *Backend) listenFor(client driver.ID) {
	if b.notify == nil || b.listens {
		return
	}
	b.listens = true
	for i := range b.masters {
		b.life.Go(func() {
			loop := background.Loop{Min: 50 * time.Millisecond, Max: 30 * time.Second}
			loop.Run(b.life.Context(), func(ctx context.Context) background.Step {
				if b.listen(ctx, i, channels(b.space)+client.String()) {
					return background.Next
				}
				return background.Failed
			})
		})
	}
}

// listen acts on a master's messages on the channel, until the connection is lost or the master
// refuses the subscription. It reports whether the subscription ever stood.
func (b *Backend) listen(ctx context.Context, i int, channel string) (stood bool) {
	sub := b.masters[i].rdb.Subscribe(ctx) // not connected yet
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { sub.Close() })()
	if sub.Subscribe(ctx, channel) != nil {
		return false
	}
	for asked := false; ; {
		m, err := sub.ReceiveTimeout(ctx, silenceMax)
		var ne net.Error
		switch {
		case err == nil:
			asked = false
		case errors.As(err, &ne) && ne.Timeout() && !asked && ctx.Err() == nil:
			if sub.Subscribe(ctx, channel) != nil { // a master answers that each time
				return stood
			}
			asked = true
			continue
		default:
			return stood
		}
		switch m := m.(type) {
		case *redis.Message:
			var id driver.ID
			if id.UnmarshalText([]byte(m.Payload)) == nil {
				b.brokenAt(i, id)
			}
		case *redis.Subscription:
			if !stood { // earlier messages were missed
				stood = true
				b.life.Go(func() { b.checkGranted(i) })
			}
		}
	}
}

// brokenAt records that a request was broken on a master. Once no majority can be left that has it,
// the request is lost.
func (b *Backend) brokenAt(i int, id driver.ID) {
	b.mu.Lock()
	q, lost := b.requests[id], false
	if q != nil && !q.ended && !slices.Contains(q.brokenAt, i) {
		q.brokenAt = append(q.brokenAt, i)
		lost = b.lostNow(q)
	}
	notify := b.notify
	b.mu.Unlock()
	if lost {
		notify(id)
	}
}

// lostNow reports, once, that a request was broken and that no majority can be left that has it. A
// master counts as having it if it granted the request, or may have, and has not reported it as
// broken. mu is held.
func (b *Backend) lostNow(q *ownRequest) bool {
	if q.reported || q.ended || len(q.brokenAt) == 0 {
		return false
	}
	left := 0
	for i, v := range q.votes {
		if (v == granted || v == unknown || v == sent) && !slices.Contains(q.brokenAt, i) {
			left++
		}
	}
	q.reported = left < b.majority
	return q.reported
}

// checkGranted asks a master whether the requests that it granted still stand, and are not broken.
func (b *Backend) checkGranted(i int) {
	var qs []*ownRequest
	b.mu.Lock()
	for _, q := range b.requests {
		// what has ended meanwhile was not broken
		if q.votes[i] == granted && (q.until.IsZero() || time.Now().Before(q.until)) {
			qs = append(qs, q)
		}
	}
	b.mu.Unlock()
	for some := range slices.Chunk(qs, renewMax) {
		calls := make([]*script.Call, len(some))
		for k, q := range some {
			calls[k] = withoutTombstone(b.call(b.layout.inspect, q.r.Name, "-"))
		}
		ctx, cancel := context.WithTimeout(b.life.Context(), b.o.NodeTimeout)
		script.Exec(ctx, b.masters[i].rdb, calls)
		cancel()
		for k, q := range some {
			es, err := parseMembers(q.r.Name, calls[k])
			there := slices.ContainsFunc(es, func(e *driver.Entry) bool { return e.ID == q.r.ID && !e.Broken })
			if err == nil && !there {
				b.brokenAt(i, q.r.ID)
			}
		}
	}
}
