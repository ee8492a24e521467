package dlock

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestName(t *testing.T) {
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{"orders", "42"}, "orders/42"},
		{[]string{"a/b", "c"}, "a%2Fb/c"},
		{[]string{"a", "b/c"}, "a/b%2Fc"},
		{[]string{"100%", ""}, "100%25/"},
		{[]string{"", "a"}, "/a"},
		{[]string{"ä b\x00\u0085\xff"}, "ä b%00%C2%85%FF"},
		{[]string{"\uFFFD"}, "\uFFFD"},
		{[]string{strings.Repeat("x", 255)}, strings.Repeat("x", 255)},
		{nil, ""},
		{[]string{""}, ""},
	} {
		if got := Name(c.parts...); got != c.want {
			t.Errorf("Name(%q) = %q, want %q", c.parts, got, c.want)
		}
	}
	long := Name("jobs", strings.Repeat("é", 200))
	if len(long) > 255 || len(long) < 250 || !strings.HasPrefix(long, "jobs/éé") || !strings.Contains(long, "é%~") {
		t.Errorf("a long name is %q (%d bytes)", long, len(long))
	}
	c, _ := newHooked(t)
	if _, err := c.Mutex(Name("")).TryLock(t.Context()); !errors.Is(err, ErrInvalidName) {
		t.Errorf("the empty name: %v, want ErrInvalidName", err)
	}
}

// TestNameIsInjective holds that two lists of parts with one name are one list, also those over 255
// bytes and those that were made to look like a cut one, and that all names are valid.
func TestNameIsInjective(t *testing.T) {
	text := rapid.OneOf(
		rapid.StringOf(rapid.SampledFrom([]rune("a/%~25F\x00é\u0085"))),
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 6), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.IntRange(120, 300), func(n int) string { return strings.Repeat("é", n) }),
		rapid.Map(rapid.IntRange(200, 300), func(n int) string { return strings.Repeat("x", n) }),
	)
	list := rapid.SliceOfN(text, 1, 3)
	rapid.Check(t, func(t *rapid.T) {
		a := list.Draw(t, "a")
		b := rapid.OneOf(list, rapid.Just([]string{Name(a...)}), rapid.Just(strings.Split(Name(a...), "/"))).Draw(t, "b")
		x, y := Name(a...), Name(b...)
		if x == y && !slices.Equal(a, b) {
			t.Fatalf("%q and %q are both %q", a, b, x)
		}
		for _, name := range []string{x, y} {
			if err := checkName(name); err != nil && name != "" {
				t.Fatalf("%q: %v", name, err)
			}
		}
	})
}
