package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestRedissonURL(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://h?format=Redisson":                              "known are ",
		"redis://h?key=lock:{name}":                              "the parameter key belongs to a format of other software",
		"redis://h?field={id}":                                   "unknown parameter",
		"redis://h?fenced=true":                                  "unknown parameter",
		"redis://h?format=redisson&key=lock":                     "{name} is there 0 times",
		"redis://h?format=redisson&key={name}/{name}":            "{name} is there 2 times",
		"redis://h?format=redisson&key=dlock:{name}":             "begins with dlock:",
		"redis://h?format=redisson&field={client}":               "want {id} once",
		"redis://h?format=redisson&field={id}{id}":               "want {id} once",
		"redis://h?format=redisson&field={client}{client}:{id}":  "{client} at most once",
		"redis://h?format=redisson&field={id}:{label}":           "no other braces",
		"redis://h?format=redisson&fenced=perhaps":               "want true or false",
		"redis://h?format=redisson&grant_window=1s":              "unknown parameter",
		"redis://h?format=redisson&keep_tokens=1h":               "unknown parameter",
		"redis://h?format=redisson&wait_replicas=1":              "unknown parameter",
		"redis+cluster://h/1?format=redisson":                    "a Cluster has no databases",
		"redis://u:canary@127.0.0.1:1?format=redisson&key=canar": "{name} is there 0 times",
	} {
		_, err := open(t.Context(), config(t, raw))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canar") {
			t.Errorf("%s: error %v; want one that matches ErrInvalid and says %q", raw, err, want)
		}
	}
}

func TestOpenRedisson(t *testing.T) {
	for raw, fencing := range map[string]bool{
		"redis://h/3?format=redisson":                               false,
		"rediss://h?format=redisson&key=lock:{name}&fenced=false":   false,
		"redis+sentinel://h/main?format=redisson&fenced=true":       true,
		"redis+cluster://h?format=redisson&field={id}&pool_size=16": false,
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
		want := driver.Capabilities{Backend: c.URL.Scheme, Format: "redisson", Fencing: fencing, Shared: true, Joins: true, Inspect: true, Durable: true,
			ServerEndsFixed: true, FixedOutlives: true, MinTTL: caps.MinTTL, MaxTTL: caps.MaxTTL}
		if caps != want || caps.MinTTL <= 0 || caps.MaxTTL <= 0 {
			t.Errorf("%s has the capabilities %+v", raw, caps)
		}
		for range 2 {
			if err := b.Close(); err != nil {
				t.Errorf("%s: Close: %v", raw, err)
			}
		}
		if _, err := b.(driver.Lister).List(t.Context()); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s: List after Close: %v", raw, err)
		}
		if _, err := b.Inspect(t.Context(), "a"); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("%s: Inspect after Close: %v", raw, err)
		}
	}
}
