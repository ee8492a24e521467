package conformance_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// inMemory returns a client of the space.
func inMemory(t conformance.T, space *memory.Space) *memory.Backend {
	b, err := memory.New(memory.Options{Space: space})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return b
}

// named records the names that are locked.
type named struct {
	*memory.Backend
	names *sync.Map
}

func (n named) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	n.names.Store(r.Name, true)
	return n.Backend.Acquire(ctx, r)
}

// wrong is memory that gives each request a name of its own, so that there is no exclusion.
type wrong struct{ *memory.Backend }

func (w wrong) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	r.Name += r.ID.String()
	return w.Backend.Acquire(ctx, r)
}

func (w wrong) Release(ctx context.Context, r driver.Request) error {
	r.Name += r.ID.String()
	return w.Backend.Release(ctx, r)
}

func TestCoreOutsideOfATest(t *testing.T) {
	var space memory.Space
	var names sync.Map
	h := conformance.Harness{Prefix: "mine/", Open: func(t conformance.T) driver.Backend { return named{inMemory(t, &space), &names} }}
	for _, l := range conformance.Core() {
		if skipped, err := l.Try(t.Context(), h); err != nil || skipped != "" {
			t.Errorf("%s: %v, %q", l.Name, err, skipped)
		}
	}
	n := 0
	for name := range names.Range {
		if n++; !strings.HasPrefix(name.(string), "mine/") {
			t.Errorf("a law locks %q", name)
		}
	}
	if want := 13; len(conformance.Core()) != want || n < want {
		t.Errorf("%d laws, %d names; want %d laws", len(conformance.Core()), n, want)
	}
}

func TestTrySaysWhatIsWrong(t *testing.T) {
	h := conformance.Harness{Open: func(t conformance.T) driver.Backend { return wrong{inMemory(t, nil)} }}
	if _, err := law(t, "one-holder").Try(t.Context(), h); err == nil || !strings.Contains(err.Error(), "owners hold the lock at once") {
		t.Error(err)
	}
	h.Open = func(t conformance.T) driver.Backend { t.Fatalf("no server"); return nil }
	if _, err := law(t, "one-holder").Try(t.Context(), h); err == nil || !strings.Contains(err.Error(), "no server") {
		t.Error(err)
	}
	h.Open = func(t conformance.T) driver.Backend { return struct{ driver.Backend }{inMemory(t, nil)} }
	if skipped, err := law(t, "arrival-order").Try(t.Context(), h); err != nil || !strings.Contains(skipped, "Capabilities.Queue") {
		t.Errorf("%v, %q", err, skipped)
	}
}

func TestTryEndsWithItsContext(t *testing.T) {
	late := errors.New("time is up")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, late)
	defer cancel()
	h := conformance.Harness{Open: func(t conformance.T) driver.Backend {
		<-ctx.Done()
		return inMemory(t, nil)
	}}
	if _, err := law(t, "one-holder").Try(ctx, h); !errors.Is(err, late) {
		t.Error(err)
	}
}

// TestTryAfterAFailure: a violation that was found before the context ended counts; a failure after
// that proves nothing.
func TestTryAfterAFailure(t *testing.T) {
	late := errors.New("time is up")
	for _, early := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		h := conformance.Harness{Open: func(t conformance.T) driver.Backend {
			t.Cleanup(func() {
				cancel(late)
				if early { // once more, too late
					t.Errorf("the clean-up failed")
				}
			})
			if early {
				return wrong{inMemory(t, nil)}
			}
			cancel(late)
			return wrong{inMemory(t, nil)}
		}}
		_, err := law(t, "one-holder").Try(ctx, h)
		cancel(nil)
		if errors.Is(err, late) == early || err == nil || early && !strings.Contains(err.Error(), "owners hold the lock at once") {
			t.Errorf("failed before the end %t: %v", early, err)
		}
	}
}

func law(t *testing.T, name string) conformance.Law {
	t.Helper()
	for _, l := range conformance.Laws() {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("no law %q", name)
	panic("unreachable")
}
