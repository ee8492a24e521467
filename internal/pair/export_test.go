package pair

import "github.com/dlock-go/dlock/driver"

// For tests.
var Earlier, Matches = earlier, matches

// Records returns how many requests the pair has a record of.
func Records(p *Backend) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.requests) + len(p.renamed) + len(p.parked)
}

// TokenOf returns the token of a hold by the tokens of the two sides.
func TokenOf(b driver.Backend, r *driver.Request, first, second driver.Token) driver.Token {
	return b.(*Backend).token(r, first, second)
}
