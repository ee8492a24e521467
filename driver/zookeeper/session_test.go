package zookeeper

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver"
)

func TestTimeouts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "ttl"))
		lag := time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "lag"))
		timeout := timeoutFor(ttl, lag)
		if got := ttlOf(timeout, lag); got < ttl || got > ttl+2 {
			t.Fatalf("a session for %s lasts %s, which allows %s", ttl, timeout, got)
		}
		// the sign of life before a proof is that much older, at most
		if older := timeout/signs + timeout/looks + lag; timeout-older < ttl {
			t.Fatalf("%s is too short for %s with a lag of %s", timeout, ttl, lag)
		}
		if ttl >= 15*lag && timeout > ttl*4/3+1 {
			t.Fatalf("%s is more than 4/3 of %s", timeout, ttl)
		}
	})
}

// TestClasses: a few sessions serve all TTLs, and the TTL of each session is at least that of its
// requests and less than twice as long.
func TestClasses(t *testing.T) {
	const own = 7 * time.Second
	b, err := newBackend(options{ttl: own, sessions: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.setBounds(ttlOf(4*time.Second, time.Second), ttlOf(40*time.Second, time.Second))
	if b.caps.MinTTL != 2200*time.Millisecond || b.caps.MaxTTL != 30*time.Second {
		t.Errorf("%s to %s are allowed", b.caps.MinTTL, b.caps.MaxTTL)
	}
	classes := map[class]bool{}
	for ttl := b.caps.MinTTL; ttl <= b.caps.MaxTTL; ttl += 7 * time.Millisecond {
		c := b.class(ttl, "n")
		if c.ttl < ttl || c.ttl >= 2*ttl {
			t.Fatalf("%s has sessions for %s", ttl, c.ttl)
		}
		classes[c] = true
	}
	if len(classes) > 6 || b.sessionTTL(own) != own {
		t.Errorf("%v, and %s for the client's own %s", classes, b.sessionTTL(own), own)
	}
	for _, ttl := range []time.Duration{0, b.caps.MinTTL - 1, b.caps.MaxTTL + 1, 24 * time.Hour} {
		if err := b.checkTTL(driver.Request{TTL: ttl}); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "2.2s to 30s") {
			t.Errorf("a TTL of %s: %v", ttl, err)
		}
	}
}
