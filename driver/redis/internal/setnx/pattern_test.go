package setnx

import (
	"errors"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "{name} is there 0 times",
		"lock":                  "{name} is there 0 times",
		"{Name}":                "{name} is there 0 times",
		"lock:{name}:{name}":    "{name} is there 2 times",
		"dlock:{name}":          "begins with dlock:",
		"dlock:{orders}:{name}": "begins with dlock:",
	} {
		if _, err := Parse(text, "", false); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error that matches ErrInvalid and says %q", text, err, want)
		}
	}
	if _, err := Parse("{name}", "dlock:", false); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a prefix with which every key is one of dlock's: %v", err)
	}
}

func TestKeys(t *testing.T) {
	for _, c := range []struct {
		text, prefix, name, key, tag string
		refused                      bool // for a Cluster
	}{
		{"lock:{name}", "", "orders/42", "lock:orders/42", "lock:orders/42", false},
		{"lock:{name}", "shop/", "a", "lock:shop/a", "lock:shop/a", false},
		{"lock:{{name}}:v", "", "a", "lock:{a}:v", "a", false},
		{"lock:{{name}}", "", "a}b", "lock:{a}b}", "a", false},
		{"{name}", "", "{a}{b}", "{a}{b}", "a", false},
		{"{name}", "", "{a", "{a", "{a", false},
		{"{name}", "", "a{}b", "a{}b", "a{}b", true},
		{"{name}", "", "a}", "a}", "a}", true},
		{"{x}{name}", "", "a}", "{x}a}", "x", false},
	} {
		for _, cluster := range []bool{false, true} {
			p, err := Parse(c.text, c.prefix, cluster)
			if err != nil {
				t.Errorf("%q: %v", c.text, err)
				continue
			}
			if key := p.Key(c.name); key != c.key || tag(key) != c.tag {
				t.Errorf("%q of %q is %q with the tag %q; want %q with %q", c.text, c.name, key, tag(key), c.key, c.tag)
			}
			err = p.Check(c.name)
			if refused := cluster && c.refused; errors.Is(err, driver.ErrInvalid) != refused || (err != nil) != refused {
				t.Errorf("%q of %q, cluster %t: %v", c.text, c.name, cluster, err)
			}
			if name, ok := p.Name(c.key); ok == (err != nil) || ok && name != c.name {
				t.Errorf("%q is the key of %q, %t; want %q", c.key, name, ok, c.name)
			}
			if key := Beside(c.key, "held"); err == nil && tag(key) != c.tag && cluster {
				t.Errorf("%q is not in the slot of %q", key, c.key)
			}
		}
	}
	p, _ := Parse("{name}", "", false)
	if err := p.Check("dlock:{a}"); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a key of dlock's own: %v", err)
	}
	for _, key := range []string{"", "dlock:{a}:setnx:held:a"} {
		if name, ok := p.Name(key); ok {
			t.Errorf("%q is the key of %q", key, name)
		}
	}
	if _, narrow := p.Glob(); narrow {
		t.Error("the pattern of all keys is taken for a narrow one")
	}
	q, _ := Parse("[l]?*{name}", "", false)
	if glob, narrow := q.Glob(); glob != `\[l\]\?\**` || !narrow {
		t.Errorf("the pattern is %s", glob)
	}
}

// TestBesideIsInjective: no two locks share a key of dlock's own.
func TestBesideIsInjective(t *testing.T) {
	seen := map[string]string{}
	for _, key := range []string{"{x}a", "{x}a:held", "{x}held:a", "{x}", "x", "x}", "{x}:setnx:held:x", "a", "a:held", "held:a"} {
		for _, kind := range []string{"held", "kept", "0123456789abcdef0123456789abcdef"} {
			k := Beside(key, kind)
			if other, taken := seen[k]; taken {
				t.Errorf("%q is a key of %q and of %s %q", k, other, kind, key)
			}
			seen[k] = kind + " " + key
		}
	}
}
