package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// TestNewRefusesARing: it has no one server for a name and its channel.
func TestNewRefusesARing(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := New(ring, Options{}); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("New over a Ring: %v", err)
	}
}
