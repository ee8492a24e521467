package redlock

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestNoAnswerIsNobodysTimeout(t *testing.T) {
	b, err := New(masters("127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := b.unanswered(time.Second)
	e.record(0, nil)
	e.record(1, b.explain("n", &net.OpError{Op: "dial", Err: context.DeadlineExceeded}))
	if errors.Is(e, context.DeadlineExceeded) || errors.Is(e, context.Canceled) || errors.Is(e, driver.ErrHeld) {
		t.Errorf("%v matches the end of a context, or ErrHeld", e)
	}
	if want := "1 of 3 masters answered within 1s, and 2 have to; 127.0.0.2:1: no answer in time; 127.0.0.3:1: no answer in time"; e.Error() != want {
		t.Errorf("%q; want %q", e, want)
	}
}
