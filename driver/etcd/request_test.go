package etcd

import (
	"errors"
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

// TestAcquireOfALostHold: as long as something of it may stand it is to be released, whether it is
// lost before the call or meanwhile.
func TestAcquireOfALostHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, rq := holding(oneTerm()) // where nothing is removed
		b.mu.Lock()
		b.lose(rq, false)
		meanwhile := b.failed(rq, driver.ErrLost)
		b.mu.Unlock()
		_, before := b.register(rq.Request)
		for what, err := range map[string]error{"before": before, "meanwhile": meanwhile} {
			if !errors.Is(err, driver.ErrLost) || driver.Refused(err) {
				t.Errorf("lost %s: %v, which is a refusal: %t", what, err, driver.Refused(err))
			}
		}
		b.mu.Lock()
		delete(b.losses, rq.ID) // it was removed
		b.mu.Unlock()
		if _, err := b.register(rq.Request); err != driver.ErrLost {
			t.Errorf("when nothing is left: %v", err)
		}
		b.life.End()
		b.life.Wait()
	})
}
