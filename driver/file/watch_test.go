//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// notified returns the losses that the driver reports.
func notified(b *Backend) <-chan driver.ID {
	lost := make(chan driver.ID, 100)
	b.Notify(func(id driver.ID) { lost <- id })
	return lost
}

func reported(t testing.TB, lost <-chan driver.ID, want driver.Request) {
	t.Helper()
	select {
	case id := <-lost:
		if id != want.ID {
			t.Fatalf("reported is %s; want %s", id, want.ID)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the loss was not reported")
	}
}

// A forced break reaches the holder's client through its pipe, and, if the pipe cannot be written
// to, at the next fallback.
func TestBreakIsReported(t *testing.T) {
	for _, c := range []struct {
		name string
		tick time.Duration
		deaf bool
	}{
		{"by the pipe", time.Minute, false}, // the fallback would come in 25 minutes
		{"without the pipe", tick, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, conf := t.TempDir(), testConfig()
			conf.tick = c.tick
			a, b := openTestConfig(t, dir, conf), openTest(t, dir)
			lost := notified(a)
			kept, plain, limited, own := request("kept", long), request("plain", long), fixed("fixed", long), request("own", long)
			acquire(t, a, kept)
			for _, r := range []driver.Request{plain, limited, own} {
				g := acquire(t, a, r)
				by := b
				if r.ID == own.ID {
					by = a
				}
				if c.deaf {
					if err := os.Remove(filepath.Join(a.table.pipes.path, pipeName(a.session.id))); err != nil && !os.IsNotExist(err) {
						t.Fatal(err)
					}
				}
				if err := by.Break(t.Context(), r.Name, g.Token, true); err != nil {
					t.Fatal(err)
				}
				reported(t, lost, r)
				if err := renew(a, r); !errors.Is(err, driver.ErrLost) {
					t.Errorf("Renew: %v", err)
				}
				if err := a.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
					t.Errorf("Release: %v", err)
				}
			}
			if err := renew(a, kept); err != nil {
				t.Errorf("the hold that was not broken: %v", err)
			}
			release(t, a, kept)
			if len(lost) > 0 {
				t.Errorf("%d more losses are reported", len(lost))
			}
			if len(a.held) > 0 {
				t.Errorf("a request that is not held any more is watched: %v", a.held)
			}
		})
	}
}

// Holds cost their client next to nothing while nothing happens: a wake-up four times a second,
// which loads a word for each.
func TestIdleHolders(t *testing.T) {
	const names, period = 10_000, 3 * time.Second
	b := openTest(t, t.TempDir())
	lost := notified(b)
	for i := range names {
		acquire(t, b, request(fmt.Sprint("name", i), long))
	}
	time.Sleep(time.Second)
	before, start := cpu(t), time.Now()
	time.Sleep(period)
	share := float64(cpu(t)-before) / float64(time.Since(start))
	t.Logf("%d names that are held cost %.2f %% of a core", names, 100*share)
	if share > 0.25 { // 30 times the usual, for busy machines and the race detector
		t.Errorf("%d names that are held cost %.0f %% of a core", names, 100*share)
	}
	if len(lost) > 0 {
		t.Errorf("%d losses are reported", len(lost))
	}
}
