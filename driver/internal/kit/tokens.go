package kit

import (
	"fmt"
	"strconv"

	"github.com/dlock-go/dlock/driver"
)

// CheckRaise returns an error that matches [driver.ErrInvalid] if a hold cannot be raised to the
// token. A backend that keeps tokens up to a bound raises none near it, so that later tokens fit.
func CheckRaise(t, most driver.Token) error {
	if t <= most {
		return nil
	}
	return fmt.Errorf("%w token %d; the greatest to which a hold can be raised is %d", driver.ErrInvalid, t, most)
}

// TokenBase is what a driver adds to every token of a service whose own tokens cannot be raised, so
// that a fleet can move there from a backend with greater ones. The service itself never has the
// sum, and neither has the driver but at its methods.
type TokenBase driver.Token

// maxTokenBase leaves room for the service's tokens.
const maxTokenBase = 1 << 62

// Add returns the token for the caller. 0, no token, stays 0.
func (b TokenBase) Add(t driver.Token) driver.Token {
	if t == 0 {
		return 0
	}
	return t + driver.Token(b)
}

// Sub returns the service's token for one of the caller; 0 if the service cannot have it.
func (b TokenBase) Sub(t driver.Token) driver.Token { return max(t, driver.Token(b)) - driver.Token(b) }

// Shown returns the queue with the tokens for the caller. It changes the entries.
func (b TokenBase) Shown(q driver.Queue) driver.Queue {
	for _, es := range [][]*driver.Entry{q.Joins, q.Arrivals} {
		for _, e := range es {
			e.Token = b.Add(e.Token)
		}
	}
	return q
}

// Check returns an error that matches [driver.ErrInvalid] if the base is too large.
func (b TokenBase) Check() error {
	if b > maxTokenBase {
		return fmt.Errorf("%w options: the token base is %d; the greatest is %d", driver.ErrInvalid, b, uint64(maxTokenBase))
	}
	return nil
}

// ReadTokenBase reads the parameter token_base of a URL, 0 if it is missing.
func ReadTokenBase(p *driver.Params) (driver.Token, error) {
	n, err := strconv.ParseUint(p.String("token_base", "0"), 10, 64)
	if err != nil || n > maxTokenBase {
		return 0, fmt.Errorf("%w URL: parameter \"token_base\": want a whole number from 0 to %d", driver.ErrInvalid, uint64(maxTokenBase))
	}
	return driver.Token(n), nil
}
