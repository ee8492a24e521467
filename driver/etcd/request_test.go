package etcd

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/dlock-go/dlock/driver"
)

// TestHoldThatIsNotRenewed: it ends at its TTL, although another hold under the same lease is
// renewed.
func TestHoldThatIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, l, forgotten := holding(s)
		defer b.life.End()
		b.leases.pools[6] = newPool(l)
		id := driver.NewID()
		kept := newOwnRequest(driver.Request{Name: "kept", ID: id, Owner: id, TTL: l.ttl})
		b.mu.Lock()
		kept.rev, kept.until = 6, forgotten.until
		kept.lease, l.requests = l, l.requests+1
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

// TestAcquireOfALostHold: as long as its key may stand it has to be released, whether it was lost
// before the call or meanwhile.
func TestAcquireOfALostHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, rq := holding(oneTerm()) // a cluster on which no key can be removed
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

// TestAnAcquireThatWasRefused: it is forgotten at once if it has no key. Otherwise it has to be
// released, and whether that leaves a tombstone depends on what the client knows of it.
func TestAnAcquireThatWasRefused(t *testing.T) {
	for _, c := range []struct {
		what              string
		stands, uncertain bool
	}{{"it stands nowhere", false, false}, {"it stands", true, false}, {"a copy may be under way", false, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := oneTerm()
			b, l, rq := holding(s)
			put, deleted := 0, 0
			s.txn = func(r *pb.TxnRequest) (*pb.TxnResponse, error) {
				if r.Success[0].GetRequestPut() != nil {
					put++
				} else {
					deleted++
				}
				return readBy(9, true), nil
			}
			b.mu.Lock()
			if rq.until = (time.Time{}); !c.stands {
				rq.rev = 0
			}
			rq.uncertain = c.uncertain
			err := b.failed(rq, driver.ErrHeld)
			_, recorded := b.requests[rq.ID]
			b.mu.Unlock()
			nowhere := !c.stands && !c.uncertain
			if driver.Refused(err) != nowhere || !errors.Is(err, driver.ErrHeld) || recorded == nowhere || (l.requests == 0) != nowhere {
				t.Errorf("%s: %v, which is a refusal: %t; recorded: %t; its lease has %d keys", c.what, err, driver.Refused(err), recorded, l.requests)
			}
			r := rq.Request
			r.Uncertain = true
			if err := b.Release(t.Context(), r); err != nil && !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: Release: %v", c.what, err)
			}
			if (put == 1) != c.uncertain || (deleted == 1) != (c.stands && !c.uncertain) || put+deleted > 1 {
				t.Errorf("%s: its release puts %d tombstones and deletes %d keys", c.what, put, deleted)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.requests) > 0 || l.requests > 0 {
				t.Errorf("%s: after its release %d requests are recorded, and its lease has %d keys", c.what, len(b.requests), l.requests)
			}
			b.life.End()
		})
	}
}
