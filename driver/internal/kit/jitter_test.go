package kit

import (
	"testing"
	"time"
)

func TestJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 1000 {
		d := Jitter(time.Second, 200*time.Millisecond)
		if seen[d] = true; d <= 800*time.Millisecond || d > time.Second {
			t.Fatal(d)
		}
		if d := AfterExpiry(time.Second); d < time.Second+time.Millisecond || d > time.Second+21*time.Millisecond {
			t.Fatal(d)
		}
	}
	if len(seen) < 900 {
		t.Errorf("%d of 1000 are different", len(seen))
	}
	if Jitter(time.Second, 0) != time.Second {
		t.Error("jitter without a spread")
	}
}
