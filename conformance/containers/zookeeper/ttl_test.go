package zookeeper

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// TestZooKeeperTTLs: a few sessions serve all TTLs, and a TTL that no session can keep is refused.
func TestZooKeeperTTLs(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, usual())
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	c, err := dlock.Open(await.Bounded(t, 30*time.Second), zkBehind(t, s.URL, p, ""), dlock.Logger(nil))
	if err != nil {
		t.Fatalf("Open without a TTL: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	caps := c.Capabilities()
	if caps.MinTTL != 2200*time.Millisecond || caps.MaxTTL != 30*time.Second || !caps.FixedOutlives || caps.ServerEndsFixed || caps.MaxFixed != 24*time.Hour {
		t.Errorf("%+v", caps)
	}
	if left := time.Until(steps.MustLock(t, c.Mutex("default")).Until()); left > caps.MaxTTL || left < 25*time.Second {
		t.Errorf("a lease without a TTL has %s", left)
	}
	for _, ttl := range []time.Duration{24 * time.Hour, caps.MaxTTL + time.Millisecond, caps.MinTTL - time.Millisecond, time.Millisecond} {
		for o, most := range map[dlock.LockOption]time.Duration{dlock.TTL(ttl): caps.MaxTTL, dlock.FixedLease(ttl): caps.MaxFixed} {
			l, err := c.Mutex("refused", o).TryLock(await.Bounded(t, 30*time.Second))
			if err == nil && ttl > caps.MaxTTL && most == caps.MaxFixed { // no session bounds it
				if left := time.Until(l.Until()); left > ttl || left < ttl*9/10 {
					t.Errorf("a fixed lease of %s is trusted for %s", ttl, left)
				}
				mustUnlock(t, l)
				continue
			}
			if !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), most.String()) {
				t.Errorf("a TTL of %s: %v", ttl, err)
			}
		}
	}
	for i := range 100 { // as FixedLease(time.Until(deadline))
		ttl := 2500*time.Millisecond + time.Duration(i)*257*time.Millisecond
		l, err := c.Mutex(fmt.Sprint("fixed-", i), dlock.FixedLease(ttl)).Lock(await.Bounded(t, 30*time.Second))
		if err != nil {
			t.Fatalf("a fixed lease of %s: %v", ttl, err)
		}
		if left := time.Until(l.Until()); left > ttl {
			t.Errorf("a fixed lease of %s is trusted for %s", ttl, left)
		}
		mustUnlock(t, l)
	}
	if n := p.Counts().Open; n > 6 {
		t.Errorf("100 TTLs made %d connections", n)
	}
	// dlock's own default, as users write it, by a URL and over their own connection
	const usualTTL = 30 * time.Second
	given, err := dlock.Open(await.Bounded(t, 30*time.Second), s.URL+"?ttl=30s", dlock.Logger(nil))
	if err != nil {
		t.Fatalf("Open with a TTL of 30 s: %v", err)
	}
	t.Cleanup(func() { given.Close() })
	whole := func(what string, l *dlock.Lease) {
		const margin = time.Second // of trust
		if left := time.Until(l.Until()); left > usualTTL || left < usualTTL-margin-5*time.Second {
			t.Errorf("%s: a lease of 30 s has %s", what, left)
		}
	}
	whole("by a URL", steps.MustLock(t, given.Mutex("given")))
	side := zkOnConn(t, s, netfault.NewProxy(), 40*time.Second, zookeeper.Options{})
	if caps := side.Capabilities(); caps.MaxTTL != usualTTL {
		t.Errorf("a connection with a session of 40 s allows %s", caps.MaxTTL)
	}
	whole("over a connection", steps.MustLock(t, steps.ClientOf(t, side, dlock.TTL(usualTTL)).Mutex("side")))
	for _, more := range []string{"?session_timeout=20s", "?session_timeout=20s&ttl=10s"} {
		c, err := dlock.Open(await.Bounded(t, 30*time.Second), s.URL+more, dlock.Logger(nil))
		if err != nil {
			t.Fatalf("%s: %v", more, err)
		}
		caps := c.Capabilities()
		if caps.MaxTTL > 20*time.Second*3/4 || caps.MinTTL > caps.MaxTTL/2+time.Millisecond || caps.MinTTL < caps.MaxTTL/2 {
			t.Errorf("%s: %s to %s", more, caps.MinTTL, caps.MaxTTL)
		}
		steps.MustLock(t, c.Mutex(more))
		c.Close()
	}
}
