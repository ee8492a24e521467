package kit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSettle(t *testing.T) {
	failed := errors.New("failed")
	synctest.Test(t, func(t *testing.T) {
		n := 0
		if !Settle(t.Context(), time.Minute, func(context.Context) error {
			if n++; n < 5 {
				return failed
			}
			return nil
		}) || n != 5 {
			t.Errorf("settled after %d tries", n)
		}

		began := time.Now()
		settled := Settle(t.Context(), time.Minute, func(context.Context) error { return failed })
		if took := time.Since(began); !settled || took < SurelyExpired(time.Minute) || took > SurelyExpired(time.Minute)+3*time.Second {
			t.Errorf("settled %t after %s of failures", settled, took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		began = time.Now()
		if Settle(ctx, 0, func(context.Context) error { return failed }) || time.Since(began) != 24*time.Hour {
			t.Errorf("without a TTL it ended after %s", time.Since(began))
		}
	})
}
