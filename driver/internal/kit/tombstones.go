package kit

import (
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Tombstones are the IDs of requests that must not come to life again, each until its time: a late
// copy of such a request creates nothing. The zero value has none. The lock of the backend guards
// them.
type Tombstones struct {
	until map[driver.ID]time.Time
	limit int // the number of tombstones at which those that are over are purged
}

// Add adds a tombstone that stands until then. One that stands longer stays as it is.
func (t *Tombstones) Add(id driver.ID, until time.Time) {
	if t.until == nil {
		t.until = map[driver.ID]time.Time{}
	}
	if until.After(t.until[id]) {
		t.until[id] = until
	}
	if len(t.until) > t.limit {
		t.Purge(time.Now())
		// A purge costs little for each tombstone, and at most half of them are over.
		t.limit = 2*len(t.until) + 64
	}
}

// Remove removes the tombstone of a request.
func (t *Tombstones) Remove(id driver.ID) { delete(t.until, id) }

// Has reports whether there is a tombstone of the request.
func (t *Tombstones) Has(id driver.ID, now time.Time) bool { return now.Before(t.until[id]) }

// Purge removes the tombstones that are over. Add does so now and then.
func (t *Tombstones) Purge(now time.Time) {
	for id, until := range t.until {
		if !now.Before(until) {
			delete(t.until, id)
		}
	}
}

// Len returns how many there are, those included that are over and not purged yet.
func (t *Tombstones) Len() int { return len(t.until) }
