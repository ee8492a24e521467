//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Renew implements [driver.Backend]. It makes a system call for a request only if the slot of its
// name has changed.
func (b *Backend) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	out := make([]driver.Renewal, len(rs))
	fail := func(err error) []driver.Renewal {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	since := time.Now()
	err := b.begin(ctx)
	if err == nil {
		defer b.calls.Done()
		err = b.table.moved() // a path that cannot be followed is an error too
	}
	if err != nil {
		if errors.Is(err, errMoved) {
			b.finishAll(rs)
		}
		return fail(lostIf(err))
	}
	now, err := b.clock()
	if err != nil {
		return fail(err)
	}
	b.purgeTombstones()
	for i := range rs {
		own := b.own(rs[i].ID)
		if own == nil {
			out[i].Err = driver.ErrLost
			continue
		}
		out[i] = driver.Renewal{TTL: own.ttl, SentAt: since, Err: b.prove(own, now)}
	}
	return out
}

// finishAll makes every later proof of the requests fail, even if the directory comes back.
func (b *Backend) finishAll(rs []driver.Request) {
	for i := range rs {
		if own := b.own(rs[i].ID); own != nil {
			own.finish()
		}
	}
}

// prove arms a granted request: its TTL begins again at now, which the caller has read before. It
// returns nil if the request still holds. The race with updates that drop expired requests is
// decided in tidy.
func (b *Backend) prove(own *ownRequest, now int64) error {
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.over {
		return driver.ErrLost
	}
	if err := b.verify(own); err != nil { // a broken request must not be armed again
		return err
	}
	if now >= own.armed+int64(own.ttl) {
		own.over = true // it may still be in the queue, but another client may have seen it expire
		return driver.ErrLost
	}
	b.at("arm")
	if err := raise(own.word, uint64(now)); err != nil {
		return err
	}
	own.armed = max(own.armed, now)
	b.at("armed")
	return b.verify(own)
}

// verify returns nil if the request is in its queue, neither broken nor suspect. own.mu is held.
func (b *Backend) verify(own *ownRequest) error {
	for {
		w, err := load(b.table.word(own.slot))
		if err != nil {
			return err
		}
		if w == own.seen {
			return nil
		}
		s, err := b.read(own.slot)
		if err != nil {
			return err
		}
		switch e := s.find(own.name, own.id); {
		case e == nil || e.session != b.session.id || e.Broken:
			own.over = true
			return driver.ErrLost
		case e.Token == 0:
			return driver.ErrNotHeld
		case e.suspect:
			if err := b.update(context.Background(), own.slot, nil); err != nil {
				return err
			}
		default:
			own.seen = s.word
		}
	}
}
