package zookeeper

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
)

// TestWithParents: a create whose parents vanish is made again as often as it takes, at once the
// first time and soon after that, and until its context ends or the client is closed.
func TestWithParents(t *testing.T) {
	// The root is always there, so nothing is sent to make it.
	create := func(s *session, ctx context.Context, vanishes int) (tries int, err error) {
		err = s.withParents(ctx, "/x", func() error {
			if tries++; tries <= vanishes {
				return zk.ErrNoNode
			}
			return nil
		})
		return tries, err
	}
	const ever = 1 << 30
	synctest.Test(t, func(t *testing.T) {
		s := newFakeSession(&fakeServer{})
		for vanishes, most := range map[int]time.Duration{0: 0, 1: 0, 100: 100 * vanishPause} {
			began := time.Now()
			tries, err := create(s, t.Context(), vanishes)
			if took := time.Since(began); err != nil || tries != vanishes+1 || took > most {
				t.Errorf("parents that vanished %d times: %v after %d tries in %s", vanishes, err, tries, took)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := create(s, ctx, ever); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("parents that vanish until the context ends: %v", err)
		}
		time.AfterFunc(time.Second, func() { s.b.life.End() })
		if _, err := create(s, t.Context(), ever); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("parents that vanish until Close: %v", err)
		}
	})
}
