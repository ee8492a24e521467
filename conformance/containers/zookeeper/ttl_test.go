package zookeeper

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/netfault"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// usual is ZooKeeper with the bounds of sessions that a server has by itself: 4 and 40 s.
func usualZooKeeper() service.Kind {
	k := ZooKeeper
	k.Command = zookeeperCommand("minSessionTimeout=4000\nmaxSessionTimeout=40000\n", 0)
	return k
}

// TestZooKeeperTTLs: a few sessions serve all TTLs, and what a session cannot keep is refused.
func TestZooKeeperTTLs(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, usualZooKeeper())
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	c, err := dlock.Open(await.Bounded(t, 30*time.Second), zkBehind(t, s.URL, p, ""), dlock.Logger(nil))
	if err != nil {
		t.Fatalf("Open without a TTL: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	caps := c.Capabilities()
	if caps.MinTTL != 2250*time.Millisecond || caps.MaxTTL < 28*time.Second || caps.MaxTTL > 40*time.Second*5/7 || caps.FixedOutlives || caps.ServerEndsFixed {
		t.Errorf("%+v", caps)
	}
	if left := time.Until(steps.MustLock(t, c.Mutex("default")).Until()); left > caps.MaxTTL || left < 25*time.Second {
		t.Errorf("a lease without a TTL has %s", left)
	}
	for _, ttl := range []time.Duration{24 * time.Hour, caps.MaxTTL + time.Millisecond, caps.MinTTL - time.Millisecond, time.Millisecond} {
		for _, o := range []dlock.LockOption{dlock.TTL(ttl), dlock.FixedLease(ttl)} {
			_, err := c.Mutex("refused", o).TryLock(await.Bounded(t, 30*time.Second))
			if !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), caps.MaxTTL.String()) {
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
	for _, more := range []string{"?session_timeout=20s", "?session_timeout=20s&ttl=10s"} {
		c, err := dlock.Open(await.Bounded(t, 30*time.Second), s.URL+more, dlock.Logger(nil))
		if err != nil {
			t.Fatalf("%s: %v", more, err)
		}
		caps := c.Capabilities()
		if caps.MaxTTL > 20*time.Second*5/7 || caps.MinTTL > caps.MaxTTL/2+time.Millisecond || caps.MinTTL < caps.MaxTTL/2 {
			t.Errorf("%s: %s to %s", more, caps.MinTTL, caps.MaxTTL)
		}
		steps.MustLock(t, c.Mutex(more))
		c.Close()
	}
}
