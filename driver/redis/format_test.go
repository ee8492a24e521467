package redis

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

func TestFormatOfURL(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://h?format=nonsense":                                    "known are redisson, setnx",
		"redis://h?format=SetNX&key=lock:{name}":                       "known are redisson, setnx",
		"redis://h?key=lock:{name}":                                    "the parameter key belongs to a format of other software",
		"redis://h?format=setnx&format=setnx&key=lock:{name}":          "is given 2 times",
		"redis://h?format=setnx":                                       "needs the key of each lock",
		"redis://h?format=setnx&key=":                                  "needs the key of each lock",
		"redis://h?format=setnx&key=lock":                              "{name} is there 0 times",
		"redis://h?format=setnx&key={name}/{name}":                     "{name} is there 2 times",
		"redis://h?format=setnx&key=dlock:{name}":                      "begins with dlock:",
		"redis://h?format=setnx&key=lock:{name}&grant_window=1s":       "unknown parameter",
		"redis://h?format=setnx&key=lock:{name}&keep_tokens=1h":        "unknown parameter",
		"redis://h?format=setnx&key=lock:{name}&wait_replicas=1":       "unknown parameter",
		"redis://h?format=setnx&key=lock:{name}&node_timeout=1s":       "unknown parameter",
		"redis://h?format=setnx&key=lock:{name}&retry_delay=0s":        "retry_delay must be positive",
		"redis://h?format=setnx&key=lock:{name}&retry_delay=1us":       "must be at least 1ms",
		"redis://h?retry_delay=1s":                                     "unknown parameter",
		"redis+cluster://h/1?format=setnx&key=lock:{name}":             "a Cluster has no databases",
		"redis+sentinel://u:canary@h?format=setnx&key=lock:{name}":     "NAME-OF-THE-MASTER",
		"redis://u:canary@127.0.0.1:1/0?format=setnx&key=lock:{canary": "{name} is there 0 times",
	} {
		_, err := open(t.Context(), config(t, raw))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: error %v; want one that matches ErrInvalid and says %q", raw, err, want)
		}
	}
}

func TestOpenSetNX(t *testing.T) {
	for raw, cluster := range map[string]bool{
		"redis://h/3?format=setnx&key=lock:{name}&retry_delay=20ms": false,
		"rediss://h?format=setnx&key=lock:{name}":                   false,
		"redis+sentinel://h/main?format=setnx&key=lock:{name}":      false,
		"redis+cluster://h?format=setnx&key=lock:{name}":            true,
	} {
		c := config(t, raw)
		s, err := parse(c)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		b, err := s.format.open(s, s.client(c.URL.Scheme), c.URL.Scheme)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		caps := b.(driver.Capable).Capabilities()
		want := driver.Capabilities{Backend: c.URL.Scheme, Format: "setnx", Shared: true, Joins: true, Inspect: true, Durable: true, ServerEndsFixed: true, FixedOutlives: true,
			MinTTL: 100 * time.Millisecond, MaxTTL: caps.MaxTTL}
		if caps != want || caps.MaxTTL <= 0 {
			t.Errorf("%s has the capabilities %+v", raw, caps)
		}
		if key := b.(*setNX).keys.Key("a"); key != "lock:pa" {
			t.Errorf("%s has the key %q; want that of the prefix and the name", raw, key)
		}
		// only in a Cluster do the keys of a name have to be in one slot; nothing is sent
		if _, err := b.Inspect(t.Context(), "a}"); errors.Is(err, driver.ErrInvalid) != cluster {
			t.Errorf("%s: a name without a hash tag: %v", raw, err)
		}
		for range 2 {
			if err := b.Close(); err != nil {
				t.Errorf("%s: Close: %v", raw, err)
			}
		}
		if _, err := b.(driver.Lister).List(t.Context()); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s: List after Close: %v", raw, err)
		}
	}
}

// TestSetNXDoesNotListAllKeys: with key={name} every string would be a lock.
func TestSetNXDoesNotListAllKeys(t *testing.T) {
	c := config(t, "redis://127.0.0.1:1?format=setnx&key={name}")
	c.Prefix = ""
	s, err := parse(c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.format.open(s, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "redis")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.(driver.Lister).List(t.Context()); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "lock:{name}") {
		t.Errorf("List: %v", err)
	}
}
