package etcd

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLeasesOfOtherTTLs: a lease whose calls are not answered, and that has time left, does not
// delay the renewal of another one.
func TestLeasesOfOtherTTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		s.hung = 8
		b, l, _ := holding(s)
		defer b.life.End()
		start := time.Now()
		long := &lease{of: b.leases, id: 8, ttl: 10 * time.Minute, since: start.Add(-5 * time.Minute), used: start, waiting: 1}
		l.waiting, l.since = 1, start.Add(-3*time.Second) // so that both are due
		b.leases.pools[600] = newPool(long)
		b.leases.fixed[l] = true
		b.life.Go(b.keep)
		time.Sleep(20 * time.Second)
		b.mu.Lock()
		defer b.mu.Unlock()
		if age := time.Since(l.since); age > l.ttl/2 {
			t.Errorf("a lease of %s was last renewed %s ago", l.ttl, age)
		}
	})
}
