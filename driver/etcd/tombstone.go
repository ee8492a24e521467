package etcd

import (
	"context"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// A request that was given up must not come to life again. Two kinds of tombstones prevent it: in
// the client one of its ID, which refuses an Acquire; in the server one under its key, which a late
// copy of the acquire finds in use.

// addTombstone makes the client refuse an ID. b.mu is held.
func (b *Backend) addTombstone(id driver.ID, ttl time.Duration) {
	b.tombstones.Add(id, time.Now().Add(2*ttl+time.Second))
	b.startKeeper()
}

// tombstoneLease returns a lease for a tombstone in the server that has to stand for the TTL, and
// when it ends. Nobody keeps it alive.
func (b *Backend) tombstoneLease(ctx context.Context, ttl time.Duration) (id int64, until time.Time, err error) {
	c := class(ttl)
	b.mu.Lock()
	l := b.tombstoneLeases[c]
	// the end of a lease deletes all its keys at once
	usable := l != nil && time.Since(l.since) <= l.ttl-ttl-time.Second && l.keys < maxKeys
	if usable {
		l.keys++
	}
	b.mu.Unlock()
	if !usable {
		if l, err = b.grant(ctx, 2*ttl+2*time.Second); err != nil {
			return 0, time.Time{}, err
		}
		b.mu.Lock()
		l.keys++
		b.tombstoneLeases[c] = l
		b.mu.Unlock()
	}
	return l.id, l.since.Add(l.ttl), nil
}
