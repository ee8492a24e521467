package conn

import "time"

// sign is a sign of life: a packet that the server has answered. The server received it after it
// was sent and before the answer was received.
type sign struct{ sent, answered time.Time }

// At most signsPerLag signs are recorded in each lag, and those of two lags are kept.
const (
	signsPerLag = 4
	signsKept   = 2*signsPerLag + 1
)

// recordSign records the sign, unless one has just been recorded. c.mu is held.
func (c *Conn) recordSign(s sign) {
	if n := len(c.signs); n > 0 && s.answered.Sub(c.signs[n-1].answered) < c.lag/signsPerLag {
		return
	}
	if len(c.signs) == signsKept {
		c.signs = append(c.signs[:0], c.signs[1:]...)
	}
	c.signs = append(c.signs, s)
}

// KnownAlive returns a time at which the session was alive, as its server knew at t: when the last
// packet was sent that the server had answered by then. If there is none it is the time of the
// greeting, of which the leader knows at once.
func (c *Conn) KnownAlive(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.signs) - 1; i >= 0; i-- {
		if !c.signs[i].answered.After(t) {
			return c.signs[i].sent
		}
	}
	return c.greeted
}

// stalled reports whether the server has answered nothing since then although a call from before
// waits. A busy server that still answers one call after the other is not stalled.
func (c *Conn) stalled(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unanswered) > 0 && c.unanswered[0].Before(since) && c.answered.Before(since)
}
