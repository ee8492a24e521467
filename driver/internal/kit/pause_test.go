package kit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Pause(t.Context(), nil, time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Pause(ctx, nil, time.Minute); err != context.DeadlineExceeded {
			t.Errorf("at the end of the context: %v", err)
		}
		closed := make(chan struct{})
		close(closed)
		if err := Pause(t.Context(), closed, time.Minute); err != driver.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Within(time.Minute, func() { time.Sleep(time.Second) }) || time.Since(began) != time.Second {
			t.Errorf("a function of one second took %s", time.Since(began))
		}
		if Within(time.Second, func() { time.Sleep(time.Minute) }) || time.Since(began) != 2*time.Second {
			t.Errorf("Within waited %s for a function of one minute", time.Since(began))
		}
		time.Sleep(time.Minute)
	})
}
