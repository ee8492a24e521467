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
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
)

// pulse is how long the subscription may be silent before it has to show that it lives, and then
// again before it is made anew.
const pulse = 3 * time.Second

// ears are the one subscription of the backend: to the channels of its clients, which the requests
// name. There is none until somebody waits. The backend's mu guards them.
type ears struct {
	clients []driver.ID // whose channels are wanted
	sub     *redis.PubSub
	err     error // why the server refuses it
	tasks   sync.WaitGroup
}

func (b *Backend) channel(client driver.ID) string { return b.space.Channels() + client.String() }

// listen sees to it that the backend is or will be subscribed to the client's channel. Once it is,
// all who wait ask again. It does not wait for that.
func (b *Backend) listen(client driver.ID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &b.ears
	if b.closed || slices.Contains(e.clients, client) {
		return e.err
	}
	e.clients = append(e.clients, client)
	if len(e.clients) == 1 {
		e.tasks.Go(b.hear)
	} else if sub := e.sub; sub != nil {
		// hear learns what becomes of it
		e.tasks.Go(func() { _ = sub.Subscribe(b.ctx, b.channel(client)) })
	}
	return e.err
}

// hear keeps the subscription until the backend is closed.
func (b *Backend) hear() {
	const first = 50 * time.Millisecond
	for wait := first; b.ctx.Err() == nil; wait = min(2*wait, lookout) {
		sub := b.rdb.Subscribe(b.ctx) // not connected yet
		b.mu.Lock()
		b.ears.sub = sub
		var channels []string
		for _, c := range b.ears.clients {
			channels = append(channels, b.channel(c))
		}
		b.mu.Unlock()
		quit := context.AfterFunc(b.ctx, func() { sub.Close() })
		_ = sub.Subscribe(b.ctx, channels...) // attend sees what is wrong
		if b.attend(sub) {
			wait = first
		}
		quit()
		sub.Close()
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-b.stop:
			t.Stop()
		}
	}
}

// attend passes on what the server tells, until the connection is lost or the server refuses. It
// reports whether it heard anything. It never blocks on anybody.
func (b *Backend) attend(sub *redis.PubSub) (heard bool) {
	for asked := false; ; {
		m, err := sub.ReceiveTimeout(b.ctx, pulse)
		var ne net.Error
		switch {
		case err == nil:
			heard, asked = true, false
		case errors.As(err, &ne) && ne.Timeout() && !asked && b.ctx.Err() == nil:
			if sub.Ping(b.ctx) != nil {
				return heard
			}
			asked = true
			continue
		default:
			if fault.Refused(err) && !fault.Transient(err) {
				b.deaf(err)
			}
			return heard
		}
		switch m := m.(type) {
		case *redis.Message:
			b.told(m.Payload)
		case *redis.Subscription: // what was published before went unheard
			b.deaf(nil)
			b.wakeAll()
		}
	}
}

// deaf takes note of whether the server refuses the subscription. Those who wait learn of it.
func (b *Backend) deaf(err error) {
	b.mu.Lock()
	b.ears.err = err
	b.mu.Unlock()
	if err != nil {
		b.wakeAll()
	}
}
