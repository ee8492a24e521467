package postgres

import "time"

// sweepTime is the time between two sweeps of a client that makes calls.
const sweepTime = 3 * time.Second

// sweepSoon deletes some expired rows in the background, if this client did not do so for a while.
// b.mu is held.
func (b *Backend) sweepSoon() {
	if b.sweepDue() {
		b.life.Go(b.sweepNow)
	}
}

// sweepDue reports whether a sweep is due, and records that it begins. b.mu is held.
func (b *Backend) sweepDue() bool {
	if time.Since(b.swept) <= sweepTime {
		return false
	}
	b.swept = time.Now()
	return true
}

func (b *Backend) sweepNow() { _, _ = b.pool.call(b.life.Context(), callTimeout, &op{sql: sweep}) }
