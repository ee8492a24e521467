package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
)

// silenceMax is how long the subscription may be silent before a ping is sent, and how long the
// ping may go unanswered before the subscription is made again.
const silenceMax = 3 * time.Second

// heldFor is how long a request has to hold until its client subscribes. A shorter hold is not
// worth a connection.
const heldFor = 300 * time.Millisecond

// subscription is the one subscription of the backend, to the channels of the clients that its
// requests name. It begins when a request waits or has held for a while, since the client then has
// to learn at once that the request was granted or ended by force. Backend.mu guards it.
type subscription struct {
	clients []driver.ID   // whose channels are wanted
	sub     *redis.PubSub // the one that is in use
	err     error         // why the server refuses it
	watch   *time.Timer   // runs listenForHolds; nil: never set
	armed   bool          // watch is running
	tasks   sync.WaitGroup
}

// holds records that a request was granted. mu is held.
func (b *Backend) holds(m *ownRequest) {
	m.held = time.Now()
	if s := &b.subscription; !s.armed && !slices.Contains(s.clients, m.Client) {
		b.watchHolds(heldFor)
	}
}

// watchHolds runs listenForHolds after d. mu is held.
func (b *Backend) watchHolds(d time.Duration) {
	s := &b.subscription
	if s.armed = true; s.watch == nil {
		s.watch = time.AfterFunc(d, b.listenForHolds)
	} else {
		s.watch.Reset(d)
	}
}

// listenForHolds subscribes the clients of requests that have held for a while.
func (b *Backend) listenForHolds() {
	b.mu.Lock()
	s := &b.subscription
	s.armed = false
	var clients []driver.ID
	left := time.Duration(0) // until the next one has held for a while
	for m := range b.requests.All() {
		if m.held.IsZero() || m.Releases > 0 || slices.Contains(s.clients, m.Client) {
			continue
		}
		if d := heldFor - time.Since(m.held); d <= 0 {
			clients = append(clients, m.Client)
		} else if left == 0 || d < left {
			left = d
		}
	}
	if left > 0 && !b.life.Over() {
		b.watchHolds(left)
	}
	b.mu.Unlock()
	for _, c := range clients {
		_ = b.subscribe(c) // if the server refuses it, renewals detect lost holds
	}
}

func (b *Backend) channel(client driver.ID) string { return b.space.Channels() + client.String() }

// subscribe makes sure that the backend is or will be subscribed to the client's channel. Once it
// is, all waiters ask the server again. subscribe does not wait for that. It fails if the server
// refuses subscriptions.
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
		// receiveMessages sees the outcome.
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
		_ = sub.Subscribe(ctx, channels...) // receiveMessages sees errors
		if b.receiveMessages(ctx, sub) {
			wait = first
		}
		quit()
		sub.Close()
		_ = kit.Pause(ctx, nil, wait)
	}
}

// receiveMessages acts on the server's messages, until the connection is lost or the server refuses
// the subscription. It reports whether the server sent any.
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
		case *redis.Subscription: // messages published before it were missed
			b.setRefused(nil)
			b.wakeAll()
			var client driver.ID
			if client.UnmarshalText([]byte(strings.TrimPrefix(m.Channel, b.space.Channels()))) == nil {
				b.life.Go(func() { b.proveHolds(b.life.Context(), client) })
			}
		}
	}
}

// setRefused records why the server refuses the subscription; nil: it no longer does.
func (b *Backend) setRefused(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscription.err = err
}
