package rlock

import (
	"errors"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func layout(t *testing.T, prefix, key, field string, fenced, cluster bool) *Layout {
	t.Helper()
	l, err := Parse(prefix, key, field, fenced, cluster)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestNames has the names that Redisson gives to what belongs to a lock.
func TestNames(t *testing.T) {
	for _, c := range []struct{ prefix, key, name, want, now, first, counter string }{
		{"", "", "a", "a", "redisson_lock__channel:{a}", "redisson_lock__channel__{a}", "redisson_lock_token:{a}"},
		{"p/", "", "a", "p/a", "redisson_lock__channel:{p/a}", "redisson_lock__channel__{p/a}", "redisson_lock_token:{p/a}"},
		{"p/", "lock:{name}:x", "a", "lock:p/a:x", "redisson_lock__channel:{lock:p/a:x}", "redisson_lock__channel__{lock:p/a:x}", "redisson_lock_token:{lock:p/a:x}"},
		{"", "{{name}}", "a", "{a}", "redisson_lock__channel:{a}", "redisson_lock__channel__{{a}}", "redisson_lock_token:{a}"},
		{"", "", "b{a}", "b{a}", "redisson_lock__channel:b{a}", "redisson_lock__channel__{b{a}}", "redisson_lock_token:b{a}"},
	} {
		l := layout(t, c.prefix, c.key, "", true, true)
		key := l.Key(c.name)
		now, first := Channels(key)
		if key != c.want || now != c.now || first != c.first || l.Counter(key) != c.counter {
			t.Errorf("%+v: the key %q, the channels %q and %q, the counter %q", c, key, now, first, l.Counter(key))
		}
		if name, ok := l.Name(key); name != c.name || !ok {
			t.Errorf("%q is the key of %q, %v", key, name, ok)
		}
		tombstone := Tombstone(key, driver.NewID())
		for _, other := range []string{now, l.Counter(key), tombstone} {
			if tag(other) != tag(key) {
				t.Errorf("%q and %q are in different slots", key, other)
			}
		}
		if !strings.HasPrefix(tombstone, own) {
			t.Errorf("the tombstone %q is no key of dlock", tombstone)
		}
	}
	if l := layout(t, "", "", "", false, false); l.Counter("a") != "" {
		t.Error("a counter although there are no tokens")
	}
}

func TestTombstonesDiffer(t *testing.T) {
	id := driver.NewID()
	seen := map[string]bool{}
	for _, key := range []string{"a", "{a}", "{a}b", "b{a}", "a:" + id.String(), "{a", "a}"} {
		for _, id := range []driver.ID{id, {}} {
			if k := Tombstone(key, id); seen[k] {
				t.Errorf("two requests have the tombstone %q", k)
			} else {
				seen[k] = true
			}
		}
	}
}

// TestCheck: a name is refused if its key is dlock's own, and in a Cluster if not all that belongs
// to it is in its slot.
func TestCheck(t *testing.T) {
	for name, fails := range map[string]struct{ alone, cluster bool }{
		"a": {}, "a b": {}, "b{a}": {}, "{a}": {}, "a*?[": {},
		"{": {cluster: true}, "a}": {cluster: true}, "{}a": {cluster: true}, "a}{": {cluster: true},
		"dlock:a": {true, true},
	} {
		for _, cluster := range []bool{false, true} {
			l := layout(t, "", "", "", false, cluster)
			err := l.Check(name)
			want := fails.alone || cluster && fails.cluster
			if errors.Is(err, driver.ErrInvalid) != want || (err != nil) != want {
				t.Errorf("%q, in a Cluster %v: %v", name, cluster, err)
			}
			if _, ok := l.Name(l.Key(name)); ok == want {
				t.Errorf("%q, in a Cluster %v: it can be the name of a key: %v", name, cluster, ok)
			}
		}
	}
	l := layout(t, "p/", "lock:{name}", "", false, false)
	for _, key := range []string{"lock:p/", "lock:a", "p/a", "xlock:p/a"} {
		if name, ok := l.Name(key); ok {
			t.Errorf("%q is the key of %q", key, name)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		prefix, key, want string
		narrow            bool
	}{{"", "", "*", false}, {"p*", "", `p\**`, true}, {"", "lock:{name}", "lock:*", true}, {"", `[\?]{name}x`, `\[\\\?\]*x`, true}} {
		if pattern, narrow := layout(t, c.prefix, c.key, "", false, false).Glob(); pattern != c.want || narrow != c.narrow {
			t.Errorf("%+v: %q, %v", c, pattern, narrow)
		}
	}
}

func TestField(t *testing.T) {
	r := driver.Request{ID: driver.ID{15: 1}, Client: driver.ID{0: 0xab, 15: 0xcd}}
	for field, want := range map[string]string{
		"":              "ab000000-0000-0000-0000-0000000000cd:00000000000000000000000000000001",
		"{id}":          "00000000000000000000000000000001",
		"go/{id}@x":     "go/00000000000000000000000000000001@x",
		"{id}:{client}": "00000000000000000000000000000001:ab000000-0000-0000-0000-0000000000cd",
	} {
		if got := layout(t, "", "", field, false, false).Field(r); got != want {
			t.Errorf("%q: %q", field, got)
		}
	}
}
