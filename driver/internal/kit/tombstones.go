package kit

import (
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Tombstones are the IDs of requests that must not be created again, each until its time: a late
// copy of such a request creates nothing. The zero value is empty. The lock of the backend guards
// them.
type Tombstones struct {
	until map[driver.ID]time.Time
	limit int // the number of tombstones above which expired ones are purged
}

// Add adds a tombstone that lasts until the given time. A tombstone that lasts longer is kept.
func (t *Tombstones) Add(id driver.ID, until time.Time) {
	if t.until == nil {
		t.until = map[driver.ID]time.Time{}
	}
	if until.After(t.until[id]) {
		t.until[id] = until
	}
	if len(t.until) > t.limit {
		t.Purge(time.Now())
		// A purge costs little for each tombstone, and at most half of them have expired.
		t.limit = 2*len(t.until) + 64
	}
}

// Remove removes the tombstone of a request.
func (t *Tombstones) Remove(id driver.ID) { delete(t.until, id) }

// Has reports whether there is a tombstone of the request.
func (t *Tombstones) Has(id driver.ID, now time.Time) bool { return now.Before(t.until[id]) }

// Purge removes the expired tombstones. Add does so now and then.
func (t *Tombstones) Purge(now time.Time) {
	for id, until := range t.until {
		if !now.Before(until) {
			delete(t.until, id)
		}
	}
}

// Len returns how many there are, including expired ones that are not purged yet.
func (t *Tombstones) Len() int { return len(t.until) }
