package etcd

import (
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
