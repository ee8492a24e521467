package mysql

import (
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// waits adds a request of the client that waits at that place.
func (b *Backend) waits(r driver.Request, place int64) *kit.Waiter[*request] {
	r.Wait = true
	b.mu.Lock()
	m := b.requests.Begin(r)
	m.place, m.Stands = place, true
	b.mu.Unlock()
	return b.attach(m)
}

// standsStill is what a poll reads of a queue in which nothing happens. The name is in hexadecimal.
func standsStill(name string) []string {
	return []string{name, "0", "1", driver.ID{1}.String(), "0", "60000000", "1000", ""}
}
