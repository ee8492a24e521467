package memory

import (
	"maps"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// tombstones are the IDs of requests that must not be created again, each until its time: a late
// copy of such a request creates nothing. The lock of the space guards them.
type tombstones struct {
	until map[driver.ID]time.Time
	limit int // the number above which expired ones are removed
}

func (t *tombstones) add(id driver.ID, until time.Time) {
	if t.until == nil {
		t.until = map[driver.ID]time.Time{}
	}
	if until.After(t.until[id]) { // one that lasts longer is kept
		t.until[id] = until
	}
	if len(t.until) > t.limit {
		now := time.Now()
		maps.DeleteFunc(t.until, func(_ driver.ID, until time.Time) bool { return !now.Before(until) })
		t.limit = 2*len(t.until) + 64 // so the cost of a removal is constant, on average
	}
}

func (t *tombstones) has(id driver.ID, now time.Time) bool { return now.Before(t.until[id]) }
