package conn

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

type closer func() error

func (c closer) Close() error { return c() }

// TestClose: a client that the library cannot close blocks nothing, and the errors of the others
// are returned.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why, end := errors.New("why"), make(chan struct{})
		closed := 0
		silent := closer(func() error { <-end; return nil })
		failing := closer(func() error { closed++; return why })
		began := time.Now()
		if err := Close(silent, failing); !errors.Is(err, why) || closed != 1 || time.Since(began) != closeTimeout {
			t.Errorf("beside one that hangs: %v after %s; %d were closed", err, time.Since(began), closed)
		}
		began = time.Now()
		if err := Close(closer(func() error { return nil })); err != nil || time.Since(began) > 0 {
			t.Errorf("one that is closed at once: %v after %s", err, time.Since(began))
		}
		if err := Close[closer](); err != nil {
			t.Errorf("none: %v", err)
		}
		close(end)
	})
}
