package keyspace

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzKeys: two names never share a key. The name can be read from the key, and is its hash tag.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{"a", "A", "a ", "a/b", "a/", "{", "}", "{}", "{a}", "a}b{c", "%", "%7B", "%257B", "%25", "a:redlock", "*", "ä", "\u00a0"} {
		f.Add("", s, "a")
		f.Add(s, "a", s)
		f.Add("p", s, s+":redlock")
	}
	f.Fuzz(func(t *testing.T, prefix, x, y string) {
		if !utf8.ValidString(x+y+prefix) || x == "" || y == "" {
			t.Skip() // no names
		}
		s := New(prefix)
		kx, ky := s.Key(x), s.Key(y)
		if got, ok := s.Name(kx); !ok || got != x {
			t.Errorf("the key %q is of the name %q, not %q (%t)", kx, got, x, ok)
		}
		if hashTag(kx) != encoder.Replace(x) {
			t.Errorf("the key %q is in the slot of %q", kx, hashTag(kx))
		}
		if (kx == ky) != (x == y) {
			t.Errorf("%q and %q have the keys %q and %q", x, y, kx, ky)
		}
		if p := New(y); prefix != y { // nor do two prefixes
			if p.Key(x) == kx || p.Channels() == s.Channels() {
				t.Errorf("the prefixes %q and %q share %q", prefix, y, kx)
			}
		}
	})
}

// hashTag returns the part of a key that a Cluster hashes: the text in its first braces, if any.
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
		if got := Glob(s); got != want {
			t.Errorf("%q becomes %q, not %q", s, got, want)
		}
	}
}
