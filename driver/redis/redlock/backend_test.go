package redlock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

func masters(addrs ...string) []redis.UniversalClient {
	var cs []redis.UniversalClient
	for _, a := range addrs {
		cs = append(cs, redis.NewClient(&redis.Options{Addr: a}))
	}
	return cs
}

// TestNewRefusesNil: New refuses a nil client of each type.
func TestNewRefusesNil(t *testing.T) {
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil)} {
		if _, err := New(append(masters("127.0.0.1:1", "127.0.0.2:1"), rdb), Options{}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("New over %T(nil): %v", rdb, err)
		}
	}
}

func TestNew(t *testing.T) {
	one := masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1")
	for _, bad := range [][]redis.UniversalClient{nil, one[:2], {one[0], one[1], one[0]}, masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1", "127.0.0.2:1")} {
		if _, err := New(bad, Options{}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%d masters: %v", len(bad), err)
		}
	}
	for _, bad := range []Options{{NodeTimeout: -1}, {RetryDelay: time.Microsecond}, {MinUptime: -1}} {
		if _, err := New(one, bad); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for n, need := range map[int]int{3: 2, 4: 3, 5: 3, 6: 4, 7: 4} {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprint("127.0.0.1:", i+1))
		}
		b, err := New(masters(all...), Options{})
		if err != nil || b.majority != need || b.impossible(n-need) || !b.impossible(n-need+1) {
			t.Errorf("of %d masters %d are needed, %v; want %d", n, b.majority, err, need)
		}
	}
	// with a key of other software, one master will do
	for _, bad := range []Options{{Key: "lock"}, {Key: "dlock:{name}"}, {Key: "lock:{name}", NodeTimeout: -1}} {
		if _, err := New(one[:1], bad); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("one master with %+v: %v", bad, err)
		}
	}
	if _, err := New(nil, Options{Key: "lock:{name}"}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no master: %v", err)
	}
	for n, need := range map[int]int{1: 1, 2: 2, 3: 2} {
		b, err := New(one[:n], Options{Key: "lock:{name}"})
		if err != nil || b.majority != need || b.caps.Format != "setnx" {
			t.Errorf("of %d masters with a key %d are needed, %+v, %v; want %d", n, b.majority, b.caps, err, need)
		}
	}
	lonely, _ := New(one[:1], Options{Key: "lock:{name}"})
	if got := []time.Duration{lonely.timeout(300 * time.Millisecond), lonely.timeout(time.Hour)}; got[0] != 100*time.Millisecond || got[1] != 3*time.Second {
		t.Errorf("a single master has %s to answer", got)
	}
	x, _ := New(one, Options{})
	if x.caps.Identity != "" {
		t.Errorf("the identity is %q; want none, as the options give none", x.caps.Identity)
	}
	if got := x.timeout(time.Second); got != 100*time.Millisecond {
		t.Errorf("the node timeout of a TTL of 1s is %s", got)
	}
	if got := x.timeout(time.Hour); got != 250*time.Millisecond {
		t.Errorf("the node timeout of a TTL of 1h is %s", got)
	}
}

func TestRefusesWhatItCannot(t *testing.T) {
	t.Run("redlock", func(t *testing.T) {
		b, err := New(masters("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		refusesWhatItCannot(t, b, "docs/redlock.md")
	})
	t.Run("setnx", func(t *testing.T) {
		b, err := New(masters("127.0.0.1:1"), Options{Key: "lock:{name}"})
		if err != nil {
			t.Fatal(err)
		}
		refusesWhatItCannot(t, b, "docs/setnx.md")
	})
}

func refusesWhatItCannot(t *testing.T, b *Backend, page string) {
	id := driver.NewID()
	r := driver.Request{Name: "n", ID: id, Owner: id, Client: id, TTL: time.Second}
	permit, join := r, r
	permit.Mode, permit.Limit = driver.Shared, 2
	join.Owner, join.Mode, join.Limit = driver.NewID(), driver.Shared, 2
	for _, r := range []driver.Request{permit, join} {
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), page) {
			t.Errorf("Acquire of %+v: %v", r, err)
		}
	}
	if len(b.requests) != 0 {
		t.Errorf("%d requests are remembered", len(b.requests))
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	_, acquire := b.Acquire(t.Context(), r)
	_, inspect := b.Inspect(t.Context(), "n")
	for what, err := range map[string]error{
		"Acquire": acquire, "Inspect": inspect, "Renew": b.Renew(t.Context(), []driver.Request{r})[0].Err,
		"Release": b.Release(t.Context(), r), "Break": b.Break(t.Context(), "n", 0, true),
	} {
		if !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// TestNewRefusesARing: a Ring is not a single server.
func TestNewRefusesARing(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := New([]redis.UniversalClient{ring, ring, ring}, Options{}); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("New over a Ring: %v", err)
	}
}

// TestRefusesNames: a name whose key dlock cannot keep is refused, and nothing is sent.
func TestRefusesNames(t *testing.T) {
	b, err := New([]redis.UniversalClient{redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})}, Options{Key: "{name}"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range []string{"dlock:{a}", "a}"} {
		id := driver.NewID()
		_, acquire := b.Acquire(t.Context(), driver.Request{Name: name, ID: id, Owner: id, Client: id, TTL: time.Second})
		_, inspect := b.Inspect(t.Context(), name)
		for what, err := range map[string]error{"Acquire": acquire, "Inspect": inspect, "Break": b.Break(t.Context(), name, 0, true)} {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "docs/setnx.md") {
				t.Errorf("%s of %q: %v", what, name, err)
			}
		}
	}
	if len(b.requests) != 0 {
		t.Errorf("%d requests are remembered", len(b.requests))
	}
}
