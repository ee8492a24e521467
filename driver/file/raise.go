//go:build linux || darwin

package file

import (
	"context"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// mostToken is the greatest token to which a hold can be raised: words of states are made of the
// same counter, doubled.
const mostToken = 1 << 62

// Raise implements [driver.Raiser]. The tokens of all names in the directory are then greater,
// since they come from one counter. The joins of the hold get the token too.
func (b *Backend) Raise(ctx context.Context, r driver.Request, t driver.Token) error {
	if err := kit.CheckRaise(t, mostToken); err != nil {
		return err
	}
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.calls.Done()
	name := b.prefix + r.Name
	return b.update(ctx, slot(name), func(s *state, _ int64) error {
		e := s.find(name, r.ID)
		if e == nil || e.session != b.session.id || e.Token == 0 || e.Broken {
			return driver.ErrLost
		}
		if err := raise(b.table.mem.word(headClock), uint64(t)); err != nil {
			return err
		}
		s.each(name, func(h *entry) *entry {
			if h.Owner != e.Owner || h.Token >= t {
				return h
			}
			return h.change(func(h *entry) { h.Token = t })
		})
		return nil
	})
}
