package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
)

// silenceMax is how long the subscription may be silent before the server is asked whether it
// lives, and then again before it is made again.
const silenceMax = 3 * time.Second

// subscription is the one subscription of the backend, to the channels of the clients that its
// requests name. There is none until somebody waits. Backend.mu guards it.
type subscription struct {
	clients []driver.ID   // whose channels are wanted
	sub     *redis.PubSub // the one that is in use
	err     error         // why the server refuses it
	tasks   sync.WaitGroup
}

func (b *Backend) channel(client driver.ID) string { return b.space.Channels() + client.String() }

// subscribe makes sure that the backend is or will be subscribed to the client's channel. Once it
// is, all who wait ask the server again. It does not wait for that. It fails if the server refuses
// subscriptions.
func (b *Backend) subscribe(client driver.ID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.subscription
	if b.life.Over() || slices.Contains(s.clients, client) {
		return s.err
	}
	s.clients = append(s.clients, client)
	if len(s.clients) == 1 {
		s.tasks.Go(b.keepSubscription)
	} else if sub := s.sub; sub != nil {
		// What becomes of it, receiveMessages learns.
		s.tasks.Go(func() { _ = sub.Subscribe(b.life.Context(), b.channel(client)) })
	}
	return s.err
}

// keepSubscription keeps the subscription until the backend is closed.
func (b *Backend) keepSubscription() {
	const first = 50 * time.Millisecond
	ctx := b.life.Context()
	for wait := first; ctx.Err() == nil; wait = min(2*wait, checkInterval) {
		sub := b.rdb.Subscribe(ctx) // not connected yet
		b.mu.Lock()
		b.subscription.sub = sub
		var channels []string
		for _, c := range b.subscription.clients {
			channels = append(channels, b.channel(c))
		}
		b.mu.Unlock()
		quit := context.AfterFunc(ctx, func() { sub.Close() })
		_ = sub.Subscribe(ctx, channels...) // what is wrong, receiveMessages learns
		if b.receiveMessages(ctx, sub) {
			wait = first
		}
		quit()
		sub.Close()
		_ = kit.Pause(ctx, nil, wait)
	}
}

// receiveMessages acts on what the server sends, until the connection is lost or the server refuses
// the subscription. It reports whether the server sent anything.
func (b *Backend) receiveMessages(ctx context.Context, sub *redis.PubSub) (received bool) {
	for asked := false; ; {
		m, err := sub.ReceiveTimeout(ctx, silenceMax)
		var ne net.Error
		switch {
		case err == nil:
			received, asked = true, false
		case errors.As(err, &ne) && ne.Timeout() && !asked && ctx.Err() == nil:
			if sub.Ping(ctx) != nil {
				return received
			}
			asked = true
			continue
		default:
			if fault.Refused(err) && !fault.Transient(err) {
				b.setRefused(err)
				b.wakeAll()
			}
			return received
		}
		switch m := m.(type) {
		case *redis.Message:
			b.receive(m.Payload)
		case *redis.Subscription: // what was published before it did not arrive
			b.setRefused(nil)
			b.wakeAll()
		}
	}
}

// setRefused records why the server refuses the subscription, or that it does not any more.
func (b *Backend) setRefused(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscription.err = err
}
