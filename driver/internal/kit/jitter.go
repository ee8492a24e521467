package kit

import (
	"math/rand/v2"
	"time"
)

// Jitter returns a random time that is less than d by up to spread. Without it many clients that
// began together would come together for ever.
func Jitter(d, spread time.Duration) time.Duration {
	if spread <= 0 {
		return d
	}
	return d - rand.N(spread)
}

// AfterExpiry returns how long to wait until something has expired that has so much time left: a
// little longer, and not as long as all the others who wait for the same.
func AfterExpiry(left time.Duration) time.Duration {
	return Jitter(left+21*time.Millisecond, 20*time.Millisecond)
}
