package memory

import (
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func openURL(t *testing.T, raw, prefix string) (*Backend, error) {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	b, err := driver.Lookup("memory")(t.Context(), driver.Config{
		URL: u, Prefix: prefix, TTL: time.Minute, Client: driver.NewID(), Logger: slog.Default(),
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { b.Close() })
	return b.(*Backend), nil
}

func mustOpen(t *testing.T, raw, prefix string) *Backend {
	t.Helper()
	b, err := openURL(t, raw, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNamedSpaceIsShared(t *testing.T) {
	a, b, other := mustOpen(t, "memory:x", ""), mustOpen(t, "memory:x", ""), mustOpen(t, "memory:X", "")
	must(t, a, ask("lock"))
	_, err := b.Acquire(t.Context(), try("lock"))
	wants(t, err, driver.ErrHeld)
	must(t, other, ask("lock"))
	x, y, z := a.Capabilities().Identity, b.Capabilities().Identity, other.Capabilities().Identity
	if x != y || x == z {
		t.Errorf("identities %q and %q of one space, %q of another", x, y, z)
	}
}

func TestSpaceWithoutNameIsPrivate(t *testing.T) {
	clients := []*Backend{mustOpen(t, "memory:", ""), mustOpen(t, "memory:", ""), open(t, nil), open(t, nil)}
	seen := map[string]bool{}
	for _, c := range clients {
		must(t, c, ask("lock"))
		seen[c.Capabilities().Identity] = true
	}
	if len(seen) != len(clients) {
		t.Errorf("%d clients have the identities %v", len(clients), seen)
	}
}

func TestNamedSpaceIsForgottenByTheLastClose(t *testing.T) {
	a, b := mustOpen(t, "memory:forget", ""), mustOpen(t, "memory:forget", "")
	before := must(t, a, ask("lock")).Token
	for range 2 { // a second Close has no effect
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c := mustOpen(t, "memory:forget", "")
	must(t, b, ask("lock"))
	_, err := c.Acquire(t.Context(), try("lock"))
	wants(t, err, driver.ErrHeld)
	b.Close()
	c.Close()
	if s := named.spaces["forget"]; s != nil {
		t.Fatalf("the space is still there, with %d clients", s.clients)
	}
	if after := must(t, mustOpen(t, "memory:forget", ""), ask("lock")).Token; after <= before {
		t.Errorf("token %d, then %d from a space made again", before, after)
	}
}

func TestPrefix(t *testing.T) {
	plain, p := mustOpen(t, "memory:prefix", ""), mustOpen(t, "memory:prefix", "p/")
	r := ask("lock")
	must(t, p, r)
	must(t, plain, ask("lock"))
	_, err := plain.Acquire(t.Context(), try("p/lock"))
	wants(t, err, driver.ErrHeld)
	if plain.Capabilities().Identity == p.Capabilities().Identity {
		t.Error("two prefixes have one identity")
	}
	if names, _ := p.List(t.Context()); len(names) != 1 || names[0] != "lock" {
		t.Errorf("List with the prefix: %q", names)
	}
	if names, _ := plain.List(t.Context()); len(names) != 2 {
		t.Errorf("List without: %q", names)
	}
	if q, _ := p.Inspect(t.Context(), "lock"); len(q.Arrivals) != 1 || q.Arrivals[0].Name != "lock" {
		t.Errorf("Inspect: %v", q)
	}
	wants(t, p.Renew(t.Context(), []driver.Request{r})[0].Err, nil)
	wants(t, p.Release(t.Context(), r), nil)
}

func TestBadURLs(t *testing.T) {
	for _, raw := range []string{
		"memory://host", "memory:///path", "memory:/path", "memory://host/path", "memory://user:canary@",
		"memory://user:canary@host/x", "memory:x?size=canary", "memory:?size=canary",
	} {
		_, err := openURL(t, raw, "")
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the error shows a secret: %v", raw, err)
		}
		if !strings.Contains(err.Error(), "memory:name") && !strings.Contains(err.Error(), "valid are") {
			t.Errorf("%s: the error does not say what is allowed: %v", raw, err)
		}
	}
	if named.spaces["x"] != nil {
		t.Error("a refused URL left a space behind")
	}
}
