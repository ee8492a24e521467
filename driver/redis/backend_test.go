package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// TestNewRefusesNil: New refuses a nil client of each type.
func TestNewRefusesNil(t *testing.T) {
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil)} {
		if _, err := New(rdb, Options{}); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "nil") {
			t.Errorf("New over %T(nil): %v", rdb, err)
		}
	}
}

// TestIdentity: the identity follows from the options alone and is never guessed.
func TestIdentity(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	seen := map[string]Options{}
	for _, o := range []Options{{Identity: "a"}, {Identity: "a", Prefix: "b"}, {Identity: `a" b`}, {Identity: "b"}} {
		b, err := New(rdb, o)
		if err != nil {
			t.Fatal(err)
		}
		if other, is := seen[b.Capabilities().Identity]; is {
			t.Errorf("%+v and %+v have one identity", o, other)
		}
		seen[b.Capabilities().Identity] = o
	}
	for _, o := range []Options{{}, {Prefix: "b"}} {
		b, err := New(rdb, o)
		if err != nil || b.Capabilities().Identity != "" {
			t.Errorf("%+v: the identity %q, %v", o, b.Capabilities().Identity, err)
		}
	}
}

// TestNewRefusesARing: a Ring has no single server for a name and its channel.
func TestNewRefusesARing(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := New(ring, Options{}); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("New over a Ring: %v", err)
	}
}
