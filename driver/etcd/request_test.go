package etcd

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestHoldThatNobodyRenews: it ends at its time, although another hold under the same lease is
// renewed all the time.
func TestHoldThatNobodyRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, l, forgotten := holding(s)
		defer b.life.End()
		b.pools[6] = newPool(l)
		id := driver.NewID()
		kept := newRequest(driver.Request{Name: "kept", ID: id, Owner: id, TTL: l.ttl})
		b.mu.Lock()
		kept.rev, kept.until = 6, forgotten.until
		kept.attach(l)
		b.assignKey(kept)
		b.requests[id] = kept
		b.mu.Unlock()
		s.keys = append(s.keys, kept.key)
		b.life.Go(b.keep)
		for range 6 {
			time.Sleep(l.ttl / 3)
			if p := b.Renew(t.Context(), []driver.Request{kept.Request})[0]; p.Err != nil {
				t.Fatalf("Renew: %v", p.Err)
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if !forgotten.ended || kept.ended || b.requests[forgotten.ID] != nil {
			t.Errorf("after %s the hold that was not renewed has ended: %t, the one that was: %t", 2*l.ttl, forgotten.ended, kept.ended)
		}
	})
}
