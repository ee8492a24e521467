package redis

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzKeys: two names never share a key, a key tells its name, and all keys of a name are in one slot of a cluster.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{"a", "A", "a ", "a/b", "a/", "{", "}", "{}", "{a}", "a}b{c", "%", "%7B", "%257B", "%25", "a:q", "a:w", "a:redlock", "*", "ä", "\u00a0"} {
		f.Add("", s, "a")
		f.Add(s, "a", s)
		f.Add("p", s, s+":q")
	}
	f.Fuzz(func(t *testing.T, prefix, x, y string) {
		if !utf8.ValidString(x+y+prefix) || x == "" || y == "" {
			t.Skip() // no names
		}
		s := newSpace(prefix)
		kx, ky := s.keys(x), s.keys(y)
		if got, ok := s.name(kx[0]); !ok || got != x {
			t.Errorf("the key %q is of the name %q, not %q (%t)", kx[0], got, x, ok)
		}
		for i, k := range kx {
			if hashTag(k) != hashTag(kx[0]) || hashTag(k) == "" {
				t.Errorf("the keys %q are in several slots", kx)
			}
			if _, ok := s.name(k); ok != (i == 0) {
				t.Errorf("the key %q is taken for a name's first: %t", k, ok)
			}
			for j, other := range ky {
				if (k == other) != (x == y && i == j) {
					t.Errorf("%q and %q have the keys %q and %q", x, y, k, other)
				}
			}
		}
		if p := newSpace(y); prefix != y { // nor do two prefixes
			if p.keys(x)[0] == kx[0] || p.channels() == s.channels() {
				t.Errorf("the prefixes %q and %q share %q", prefix, y, kx[0])
			}
		}
	})
}

// hashTag is what a cluster hashes of a key: what stands in its first braces, if that is anything.
func hashTag(key string) string {
	_, rest, ok := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !ok || !closed || tag == "" {
		return key
	}
	return tag
}

func TestGlobEscape(t *testing.T) {
	for s, want := range map[string]string{"a": "a", "*": `\*`, "a?[b]": `a\?\[b\]`, `\`: `\\`} {
		if got := globEscape(s); got != want {
			t.Errorf("%q becomes %q, not %q", s, got, want)
		}
	}
}
