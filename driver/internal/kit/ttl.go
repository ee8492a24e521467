package kit

import (
	"fmt"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// CheckFixed is [CheckTTL] for a Fixed request.
func CheckFixed(ttl time.Duration, c driver.Capabilities) error {
	if c.MaxFixed > 0 {
		c.MaxTTL = c.MaxFixed
	}
	return CheckTTL(ttl, c)
}

// CheckTTL returns an error that matches [driver.ErrInvalid] if the backend does not support the
// TTL.
func CheckTTL(ttl time.Duration, c driver.Capabilities) error {
	switch {
	case ttl >= c.MinTTL && (ttl <= c.MaxTTL || c.MaxTTL == 0):
		return nil
	case c.MaxTTL == 0:
		return fmt.Errorf("%w TTL of %s; the least is %s", driver.ErrInvalid, ttl, c.MinTTL)
	}
	return fmt.Errorf("%w TTL of %s; %s to %s are allowed", driver.ErrInvalid, ttl, c.MinTTL, c.MaxTTL)
}

// SurelyExpired returns the time after its last renewal at which a request with the TTL has
// certainly expired, even if a copy of its Acquire or the service's clock was late.
func SurelyExpired(ttl time.Duration) time.Duration { return 2*ttl + 10*time.Second }
