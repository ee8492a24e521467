//go:build linux || darwin

package file

import (
	"context"
	"errors"

	"github.com/dlock-go/dlock/driver"
)

// Release implements [driver.Backend]. It ignores its context: a release that has begun is
// completed.
func (b *Backend) Release(_ context.Context, r driver.Request) error {
	if err := b.begin(context.Background()); err != nil {
		if errors.Is(err, errMoved) { // the request in the moved directory ends with this client
			b.finishAll([]driver.Request{r})
		}
		return lostIf(err)
	}
	defer b.calls.Done()
	name := b.prefix + r.Name
	own := b.own(r.ID)
	if own != nil {
		own.finish()
		if b.neverQueued(own) {
			b.forget(own)
			return driver.ErrLost
		}
	}
	var until int64
	err := b.update(context.Background(), slot(name), func(s *state, now int64) error {
		e := s.find(name, r.ID)
		s.remove(name, r.ID)
		if r.Uncertain && !r.ID.IsZero() { // Acquire refuses a zero ID anyway
			until = now + int64(min(r.TTL, maxTTL))
			s.addTombstone(tombstone{name, r.ID, until})
		}
		if e == nil || e.Broken {
			return driver.ErrLost
		}
		return nil
	})
	if own != nil && (err == nil || errors.Is(err, driver.ErrLost)) {
		b.forget(own)
	}
	if until != 0 {
		b.rememberTombstone(slot(name), until)
	}
	b.purgeTombstones()
	return err
}
