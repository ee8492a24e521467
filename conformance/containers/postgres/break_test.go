package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// TestPostgresBreaks breaks holds as operators do.
func TestPostgresBreaks(t *testing.T) {
	t.Parallel()
	abreast(t, shared(t),
		part{"by force", breaksByForce},
		part{"in good time", breaksInGoodTime},
	)
}

// breaksByForce: the holder learns of it long before its renewal would fail, with the default
// TTL: a client of a URL, one of a pool, and one that joined the hold.
func breaksByForce(t *service.Trial, s *service.Server) {
	const soon = 5 * time.Second // it is a second, and the renewal comes after 10
	own, _ := ownSide(t, s)
	operator := steps.ClientOf(t, sideOf(t, s))
	for what, b := range map[string]driver.Backend{"by URL": own, "over a pool": sideOf(t, s)} {
		holder, joiner := steps.ClientOf(t, b), steps.ClientOf(t, sideOf(t, s))
		l := steps.MustLock(t, holder.Mutex(what))
		joined, err := joiner.Mutex(what).Lock(dlock.WithOwner(t.Context(), l.Owner()))
		if err != nil {
			t.Fatal(err)
		}
		broken := time.Now()
		if err := operator.Break(t.Context(), what, l.Token(), dlock.Force()); err != nil {
			t.Fatal(err)
		}
		for party, l := range map[string]*dlock.Lease{"the holder": l, "the joined lease": joined} {
			select {
			case <-l.Lost():
				t.Logf("%s: %s learned of it after %s", what, party, time.Since(broken).Round(time.Millisecond))
			case <-time.After(time.Until(broken.Add(soon))):
				t.Errorf("%s: %s has not learned of it after %s", what, party, soon)
			}
			if err := l.Unlock(t.Context()); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: Unlock by %s: %v", what, party, err)
			}
		}
	}
}

// breaksInGoodTime: a broken hold ends with its release, and the next in line has the lock at
// once, although the hold had an hour left.
func breaksInGoodTime(t *service.Trial, s *service.Server) {
	holder, joiner, operator, next := sideOf(t, s), sideOf(t, s), sideOf(t, s), sideOf(t, s)
	for _, name := range []string{"alone", "joined"} {
		r := steps.Asked(holder, name, time.Hour)
		held := steps.Acquired(t, holder, r)
		j := steps.Asked(joiner, name, time.Hour)
		j.Owner, j.Token = r.ID, held.Token
		if name == "joined" {
			steps.Acquired(t, joiner, j)
		}
		waited := steps.Acquiring(next, steps.Waiting(next, name, time.Hour))
		await.That(t, name+": one waits", func() bool { return len(steps.Queue(t, operator, name).Waiters()) == 1 })
		if err := operator.Break(t.Context(), name, held.Token, false); err != nil {
			t.Fatal(err)
		}
		if err := steps.Renewed(holder, r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: a renewal of a broken hold: %v", name, err)
		}
		select {
		case err := <-waited:
			service.Strict(t).Fatalf("%s: the next is granted before the hold was released: %v", name, err)
		case <-time.After(300 * time.Millisecond):
		}
		if name == "joined" {
			if err := joiner.Release(t.Context(), j); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: a release of a broken hold: %v", name, err)
			}
		}
		released := time.Now()
		if err := holder.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: a release of a broken hold: %v", name, err)
		}
		select {
		case err := <-waited:
			if err != nil {
				t.Fatalf("%s: the next: %v", name, err)
			}
			t.Logf("%s: the next is granted %s after the release", name, time.Since(released).Round(time.Millisecond))
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the next is not granted ten seconds after the release", name)
		}
	}
}
