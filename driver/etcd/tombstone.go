package etcd

import (
	"time"

	"github.com/dlock-go/dlock/driver"
)

// An abandoned request must not be revived. Two kinds of tombstones prevent it: one of its ID in
// the client, which refuses an Acquire, and one under its key in the server, so that a late copy of
// the acquire finds the key in use.

// addTombstone makes the client refuse an ID. b.mu is held.
func (b *Backend) addTombstone(id driver.ID, ttl time.Duration) {
	b.tombstones.Add(id, time.Now().Add(2*ttl+time.Second))
	b.startKeeper()
}
