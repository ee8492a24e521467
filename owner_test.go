package dlock_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/dlock-go/dlock"
)

func TestOwnerText(t *testing.T) {
	c, err := dlock.New(newMemory(nil), dlock.Identity("eu.west"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, name := range []string{"a", "a.b/c d", "ключ", strings.Repeat("x", 255), "a."} {
		l, err := c.Mutex(name).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o := l.Owner()
		text := o.String()
		if strings.ContainsFunc(text, func(r rune) bool {
			return !(r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._-", r)))
		}) {
			t.Errorf("%q does not fit into a header", text)
		}
		got, err := dlock.ParseOwner(text)
		if err != nil || got != o || got.Name() != name {
			t.Errorf("ParseOwner(%q) = %v, %v", text, got, err)
		}
		for i := range text { // a truncated text is refused, or names another owner
			if bad, err := dlock.ParseOwner(text[:i]); i > 0 && err == nil && bad == o {
				t.Errorf("%q was read as the whole", text[:i])
			}
		}
		var v struct{ O dlock.Owner }
		v.O = o
		js, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		v.O = dlock.Owner{}
		if err := json.Unmarshal(js, &v); err != nil || v.O != o {
			t.Errorf("JSON: %v, %v", v.O, err)
		}
	}
	if o, err := dlock.ParseOwner(""); err != nil || !o.IsZero() || o.String() != "" {
		t.Error("the zero Owner does not round-trip")
	}
	for _, bad := range []string{"x", "dlock1", "dlock2.bQ..YQ.00.0", "dlock1.bQ..YQ." + strings.Repeat("0", 32) + ".0",
		"dlock1.bQ..YQ." + strings.Repeat("A", 32) + ".1", "dlock1.bQ...." + strings.Repeat("a", 32) + ".1",
		"dlock1.bQ...." + strings.Repeat("a", 32) + ".-1", "dlock1.b.Q..YQ." + strings.Repeat("a", 32) + ".1"} {
		if _, err := dlock.ParseOwner(bad); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("ParseOwner(%q): %v", bad, err)
		}
	}
}

func FuzzParseOwner(f *testing.F) {
	f.Add("dlock1.bWVtb3J5..YQ.0123456789abcdef0123456789abcdef.2a")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if o, err := dlock.ParseOwner(text); err == nil && o.String() != text {
			t.Errorf("%q was read, and is written %q", text, o)
		}
	})
}
