//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// Release implements [driver.Backend].
func (b *Backend) Release(_ context.Context, r driver.Request) error {
	if err := b.begin(context.Background()); err != nil {
		if errors.Is(err, errMoved) { // what stands in the other directory ends with this client
			b.finishAll([]driver.Request{r})
		}
		return lostIf(err)
	}
	defer b.calls.Done()
	name := b.prefix + r.Name
	own := b.own(r.ID)
	if own != nil {
		own.finish()
	}
	var until int64
	err := b.update(context.Background(), slot(name), func(s *state, now int64) error {
		e := s.find(name, r.ID)
		s.remove(name, r.ID)
		if r.Uncertain {
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

// abandon removes a request whose Acquire failed. What takes longer goes on in the background.
func (b *Backend) abandon(own *ownRequest) {
	own.finish()
	done := make(chan struct{})
	b.calls.Go(func() {
		defer close(done)
		for b.remove(own) != nil {
			if kit.Pause(context.Background(), b.closing, 50*time.Millisecond) != nil {
				return // Close tries once more
			}
		}
	})
	kit.Pause(context.Background(), done, 50*time.Millisecond)
}

// remove removes the request from its queue. After an error it stands there as before.
func (b *Backend) remove(own *ownRequest) error {
	err := b.update(context.Background(), own.slot, func(s *state, _ int64) error {
		s.remove(own.name, own.id)
		return nil
	})
	if err == nil {
		b.forget(own)
	}
	return err
}
