package kit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestRepeat(t *testing.T) {
	failed := errors.New("failed")
	synctest.Test(t, func(t *testing.T) {
		n := 0
		if !Repeat(t.Context(), func(context.Context) error {
			if n++; n < 5 {
				return failed
			}
			return nil
		}) || n != 5 {
			t.Errorf("done after %d tries", n)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		began := time.Now()
		if Repeat(ctx, func(context.Context) error { return failed }) || time.Since(began) != 24*time.Hour {
			t.Errorf("it ended after %s", time.Since(began))
		}
	})
}
