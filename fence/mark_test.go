package fence

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

func open(t *testing.T) *dlock.Client {
	t.Helper()
	c, err := dlock.Open(t.Context(), "memory:?ttl=10s", dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func lock(t *testing.T, m dlock.Mutex) *dlock.Lease {
	t.Helper()
	l, err := m.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Unlock(t.Context()) })
	return l
}

// bare is a backend without tokens.
type bare struct{ *memory.Backend }

func (b bare) Capabilities() driver.Capabilities {
	caps := b.Backend.Capabilities()
	caps.Fencing = false
	return caps
}

func (b bare) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	g.Token = 0
	return g, err
}

func TestOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t)
		l := lock(t, c.Mutex("a"))
		m, err := Of(l)
		if err != nil || m.Token != l.Token() || m.check() != nil {
			t.Fatalf("%+v, %v", m, err)
		}
		again := lock(t, joined{c.Mutex("a"), l})
		if n, err := Of(again); n != m || err != nil {
			t.Errorf("another lease of the hold: %+v, %v, want %+v", n, err, m)
		}
		if strings.Contains(l.Owner().String(), m.Owner) {
			t.Error("the mark allows joining the hold")
		}
		again.Unlock(t.Context())
		l.Unlock(t.Context())
		if _, err := Of(l); !errors.Is(err, dlock.ErrNotHeld) {
			t.Errorf("released: %v", err)
		}
		next := lock(t, c.Mutex("a", dlock.FixedLease(time.Second)))
		n, err := Of(next)
		if err != nil || n.Token <= m.Token || n.Owner == m.Owner {
			t.Errorf("the next hold: %+v after %+v, %v", n, m, err)
		}
		time.Sleep(time.Second)
		if _, err := Of(next); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("lost: %v", err)
		}
		if _, err := Of(nil); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("nil: %v", err)
		}
		if _, err := Of(lock(t, dlock.All(c.Mutex("b"), c.Mutex("c")))); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("of All: %v", err)
		}
		b, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		without, err := dlock.New(bare{b})
		if err != nil {
			t.Fatal(err)
		}
		defer without.Close()
		if _, err := Of(lock(t, without.Mutex("a"))); !errors.Is(err, dlock.ErrUnsupported) {
			t.Errorf("without tokens: %v", err)
		}
	})
}

// joined locks under a lease's context.
type joined struct {
	dlock.Mutex
	l *dlock.Lease
}

func (j joined) Lock(ctx context.Context) (*dlock.Lease, error) {
	return j.Mutex.Lock(j.l.Context(ctx))
}

func TestTextOfMarks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Mark{dlock.Token(rapid.Uint64Min(1).Draw(t, "token")), rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`).Draw(t, "owner")}
		if got, err := ParseMark(m.String()); got != m || err != nil {
			t.Fatalf("%q is read as %+v, %v", m, got, err)
		}
	})
	for _, text := range []string{
		"", ".", "1", "1.", ".a", "0.a", "01.a", "+1.a", "-1.a", " 1.a", "1.a ", "1.a.b", "1.ä", "1.a b", "18446744073709551616.a", "0x1.a", "1.a\r\nX: y",
		"1." + strings.Repeat("a", 65),
	} {
		if m, err := ParseMark(text); !errors.Is(err, dlock.ErrInvalid) || m != (Mark{}) {
			t.Errorf("%q is read as %+v, %v", text, m, err)
		}
	}
	if text := (Mark{}).String(); text != "" {
		t.Errorf("the text of nothing is %q", text)
	}
}

func TestCheck(t *testing.T) {
	good := Mark{1, "a"}
	for _, resource := range []string{"a", "ä b/c", strings.Repeat("x", 255)} {
		if err := Check(resource, good); err != nil {
			t.Errorf("%q: %v", resource, err)
		}
	}
	for _, resource := range []string{"", strings.Repeat("x", 256), "a\x00", "\xff", "a\n"} {
		if err := Check(resource, good); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%q: %v", resource, err)
		}
	}
	for _, m := range []Mark{{}, {0, "a"}, {1, ""}, {1, "a b"}, {1, strings.Repeat("a", 65)}} {
		if err := Check("a", m); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

func TestContext(t *testing.T) {
	if m, ok := FromContext(t.Context()); ok || m != (Mark{}) {
		t.Errorf("%+v, %v, want none", m, ok)
	}
	ctx := NewContext(NewContext(t.Context(), Mark{1, "a"}), Mark{2, "b"})
	if m, ok := FromContext(ctx); !ok || m != (Mark{2, "b"}) {
		t.Errorf("%+v, %v, want the innermost", m, ok)
	}
}
