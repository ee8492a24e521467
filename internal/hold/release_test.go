package hold

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestWhatAnAcquireMayHaveLeftIsReleased(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		what                string
		err                 error
		released, uncertain bool
	}{
		{"a refusal", driver.ErrHeld, false, false},
		{"a refusal with more to say", &driver.HeldError{Label: "x"}, false, false},
		{"a refusal that says when to retry", &driver.RetryError{}, false, false},
		{"a closed backend", driver.ErrClosed, false, false},
		{"the end of a wait", driver.Waited(ended), true, false},
		{"the end of the context", context.Canceled, true, true},
		{"an unknown outcome", errors.New("connection reset"), true, true},
		{"a refusal of one copy", driver.Unsettled(driver.ErrHeld), true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &backend{acquire: func(context.Context, driver.Request) (driver.Grant, error) { return driver.Grant{}, c.err }}
			s := newSet(t, b, nil)
			r := request("a")
			if _, err := s.Acquire(t.Context(), r); err != c.err {
				t.Error(err)
			}
			synctest.Wait()
			switch {
			case b.releases() > 1 || c.released != (b.releases() == 1):
				t.Errorf("%s: released %d times", c.what, b.releases())
			case c.released && (b.released[0].ID != r.ID || b.released[0].Uncertain != c.uncertain):
				t.Errorf("%s: released as %+v", c.what, b.released[0])
			}
			if n := s.remembered(); n != 0 {
				t.Errorf("%s: %d remembered", c.what, n)
			}
			s.Close()
		})
	}
}

// TestReleasesAreSentTogether lets 5,000 waits end while a call takes a second: their requests must
// not block the queue for an hour.
func TestReleasesAreSentTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var under, most atomic.Int32
		b := &backend{release: func(context.Context, driver.Request) error {
			n := under.Add(1)
			defer under.Add(-1)
			most.Store(max(most.Load(), n))
			time.Sleep(time.Second)
			return nil
		}}
		s := newSet(t, b, nil)
		began := time.Now()
		for range 5000 {
			s.ReleaseLater(request("a"))
		}
		for s.remembered() > 0 {
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took > 5000/maxReleases*2*time.Second || most.Load() > maxReleases {
			t.Errorf("%d releases took %s, up to %d at a time", b.releases(), took, most.Load())
		}
		s.Close()
	})
}

// TestReleasesOfABackendThatIsDown counts the calls to a backend that fails for an hour, and holds
// that it gets all releases soon afterwards.
func TestReleasesOfABackendThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		var down atomic.Bool
		down.Store(true)
		b := &backend{release: func(context.Context, driver.Request) error {
			if down.Load() {
				return errors.New("connection refused")
			}
			return nil
		}}
		s := newSet(t, b, nil)
		for range n {
			s.ReleaseLater(request("a"))
		}
		time.Sleep(time.Hour)
		if tries := b.releases() - n; tries < 600 || tries > 1800 {
			t.Errorf("%d tries in an hour", tries)
		}
		down.Store(false)
		time.Sleep(10 * time.Second)
		if left := s.remembered(); left != 0 {
			t.Errorf("%d are left 10 s after the backend answers again", left)
		}
		s.Close()
	})
}

// TestReleasesThatExpireWhileTheBackendIsDown: a driver answers for expired requests without a call
// to the backend. That does not mean that the backend answers again.
func TestReleasesThatExpireWhileTheBackendIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, ttl = 3600, time.Minute
		var mu sync.Mutex
		added, called := map[driver.ID]time.Time{}, 0
		b := &backend{release: func(_ context.Context, r driver.Request) error {
			mu.Lock()
			defer mu.Unlock()
			if time.Since(added[r.ID]) > ttl {
				return driver.ErrLost
			}
			called++
			return errors.New("connection refused")
		}}
		s := newSet(t, b, nil)
		for range n {
			r := request("a")
			mu.Lock()
			added[r.ID] = time.Now()
			mu.Unlock()
			s.ReleaseLater(r)
			time.Sleep(time.Second)
		}
		mu.Lock()
		if called > 4*n {
			t.Errorf("the backend was called %d times for %d releases", called, n)
		}
		mu.Unlock()
		if left := s.remembered(); left > 3*int(ttl/time.Second) {
			t.Errorf("%d are left, and most of them have expired", left)
		}
		s.Close()
	})
}

func TestAReleaseThatAlwaysFailsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := request("bad")
		var other atomic.Int32
		b := &backend{release: func(_ context.Context, r driver.Request) error {
			if r.ID == bad.ID {
				return errors.New("no rights")
			}
			if other.Add(1) == 1 {
				return errors.New("connection reset")
			}
			return nil
		}}
		s := newSet(t, b, nil)
		s.ReleaseLater(bad)
		time.Sleep(time.Hour) // its pauses have reached their maximum
		s.ReleaseLater(request("a"))
		synctest.Wait()
		time.Sleep(15 * time.Second)
		if other.Load() != 2 {
			t.Fatalf("the release that failed once was sent %d times", other.Load())
		}
		began := time.Now()
		s.ReleaseLater(request("b"))
		for other.Load() != 3 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Errorf("a new release was sent after %s", took)
		}
		s.Close()
		s.Wait()
		if err := s.ReleaseAll(); err == nil || !strings.Contains(err.Error(), `1 releases failed (names ["bad"]); what is left expires within its TTL: no rights`) {
			t.Error(err)
		}
	})
}

// TestCloseEndsTheReleasesInTime closes a Set while a backend answers nothing.
func TestCloseEndsTheReleasesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{release: func(ctx context.Context, _ driver.Request) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		s := newSet(t, b, nil)
		for range 3 * maxReleases {
			s.ReleaseLater(request("a"))
		}
		synctest.Wait()
		began := time.Now()
		s.Close()
		s.Wait()
		err := s.ReleaseAll()
		if took := time.Since(began); err == nil || took > Grace {
			t.Errorf("%v after %s", err, took)
		}
		if want := "384 releases failed"; err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

// TestAnAcquireThatCloseOvertakes: an acquire fails with unknown outcome after Close, and
// ReleaseAll sends its release.
func TestAnAcquireThatCloseOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{}
		s := newSet(t, b, nil)
		b.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			s.Close()
			return driver.Grant{}, context.Canceled
		}
		r := request("a")
		if _, err := s.Acquire(t.Context(), r); err != context.Canceled {
			t.Error(err)
		}
		s.Wait()
		if b.releases() != 0 {
			t.Error("released in the background of a Set that is closed")
		}
		if err := s.ReleaseAll(); err != nil || b.releases() != 1 || b.released[0].ID != r.ID || !b.released[0].Uncertain {
			t.Errorf("%v, released %+v", err, b.released)
		}
	})
}
