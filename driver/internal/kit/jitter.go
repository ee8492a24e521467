package kit

import (
	"math/rand/v2"
	"time"
)

// Jitter returns a random time that is less than d by up to spread. Without it, clients that began
// at the same time would repeat their calls at the same time for ever.
func Jitter(d, spread time.Duration) time.Duration {
	if spread <= 0 {
		return d
	}
	return d - rand.N(spread)
}

// AfterExpiry returns how long to wait for the expiry of something that has the given time left: a
// little longer, and a different time for each waiter.
func AfterExpiry(left time.Duration) time.Duration {
	return Jitter(left+21*time.Millisecond, 20*time.Millisecond)
}
