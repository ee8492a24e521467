package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/background"
)

const (
	// linger is how long a client goes on listening after its last waiter has gone.
	linger = 5 * time.Second
	// silence is how long nothing may be heard before the connection is checked.
	silence = 10 * time.Second
)

// listenSoon listens for the grants of this client's requests, if it does not. b.mu is held.
func (b *Backend) listenSoon() {
	if b.listening || b.pool.pooled.Load() || b.client.IsZero() {
		return
	}
	if most, _ := b.pool.usage(); most > 0 && most < 3 {
		return // the connection is needed
	}
	b.listening = b.life.Go(func() {
		loop := background.Loop{Min: 50 * time.Millisecond, Max: 10 * time.Second}
		loop.Run(b.life.Context(), func(ctx context.Context) background.Step {
			b.mu.Lock()
			b.listening = b.waiters.Len() > 0
			on := b.listening
			b.mu.Unlock()
			switch {
			case !on:
				return background.Done
			case b.listen(ctx):
				return background.Next
			}
			return background.Failed
		})
	})
}

// listen polls for each request that another client reports as granted, until nothing waits any
// more or the connection breaks. It reports whether it ever listened.
func (b *Backend) listen(ctx context.Context) (stood bool) {
	channel := "dlock_" + b.client.String()
	_, _ = b.pool.with(ctx, func(conn *pgx.Conn) error {
		within, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := conn.Exec(within, "LISTEN "+channel, pgx.QueryExecModeExec)
		cancel()
		if err != nil {
			return err
		}
		stood = true
		b.subscribe(true)
		defer b.subscribe(false)
		for idle := time.Duration(0); ; {
			within, cancel := context.WithTimeout(ctx, time.Second)
			n, err := conn.WaitForNotification(within)
			quiet := within.Err() != nil
			cancel()
			switch {
			case err == nil:
				idle = 0
				var id driver.ID
				if n.Channel == channel && id.UnmarshalText([]byte(n.Payload)) == nil {
					b.notified(id)
				}
				continue
			case ctx.Err() != nil || !quiet || conn.IsClosed():
				conn.Close(context.Background())
				return err
			}
			idle += time.Second
			waits := b.waits()
			switch {
			case !waits && idle >= linger: // it goes back to the pool as it was
				within, cancel := context.WithTimeout(ctx, callTimeout)
				defer cancel()
				_, err := conn.Exec(within, "UNLISTEN "+channel, pgx.QueryExecModeExec)
				return err
			case idle >= silence:
				idle = 0
				within, cancel := context.WithTimeout(ctx, callTimeout)
				err := conn.Ping(within)
				cancel()
				if err != nil {
					return err
				}
			}
		}
	})
	return stood
}

// waits reports whether anything waits.
func (b *Backend) waits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiters.Len() > 0
}

// subscribe records whether the client listens. When that begins, earlier grants may have been
// missed.
func (b *Backend) subscribe(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribed = on
	for _, g := range b.waiters.Groups() {
		g.State.polled = time.Time{}
	}
	b.sooner.Set()
}
