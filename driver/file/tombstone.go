//go:build linux || darwin

package file

import (
	"cmp"
	"context"
	"slices"
)

// leftTombstone is the slot of a tombstone that this client has left, and its time.
type leftTombstone struct {
	slot  int
	until int64
}

// rememberTombstone records a tombstone that this client has left.
func (b *Backend) rememberTombstone(slot int, until int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, _ := slices.BinarySearchFunc(b.tombstones, until, func(t leftTombstone, until int64) int {
		return cmp.Compare(t.until, until)
	})
	b.tombstones = slices.Insert(b.tombstones, at, leftTombstone{slot, until})
}

// purgeTombstones removes some of the client's tombstones whose time has passed: otherwise they
// would remain in slots that are never used again.
func (b *Backend) purgeTombstones() {
	const some = 2
	var over []leftTombstone
	b.mu.Lock()
	if len(b.tombstones) > 0 {
		if now, err := b.clock(); err == nil {
			for len(over) < some && len(b.tombstones) > 0 && b.tombstones[0].until <= now {
				over, b.tombstones = append(over, b.tombstones[0]), b.tombstones[1:]
			}
		}
	}
	b.mu.Unlock()
	for _, t := range over {
		b.update(context.Background(), t.slot, nil) // if it fails the next use of the slot does it
	}
}
