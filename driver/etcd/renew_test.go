package etcd

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestRenewBesideRelease: a request whose key was removed is lost, although the release has not
// returned yet.
func TestRenewBesideRelease(t *testing.T) {
	for _, releasing := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, _, rq := holding(oneTerm())
			defer b.life.End()
			b.mu.Lock()
			rq.releasing = releasing
			b.removed(rq, time.Time{})
			b.mu.Unlock()
			if p := b.Renew(t.Context(), []driver.Request{rq.Request})[0]; !errors.Is(p.Err, driver.ErrLost) {
				t.Errorf("Renew: %v", p.Err)
			}
		})
	}
}
