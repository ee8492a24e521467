package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestHide(t *testing.T) {
	cause := &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	err := fmt.Errorf("no answer: %w (%w)", cause, driver.ErrHeld)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if Hide(over, err) != err {
		t.Error("hidden although the caller's context has ended")
	}
	other := errors.New("other")
	if Hide(t.Context(), other) != other || Hide(t.Context(), nil) != nil {
		t.Error("an error that matches no context's error was changed")
	}
	got := Hide(t.Context(), err)
	var op *net.OpError
	switch {
	case IsContext(got):
		t.Error("it matches a context's error")
	case got.Error() != err.Error():
		t.Errorf("its text is %q", got)
	case !errors.As(got, &op) || op != cause, !errors.Is(got, driver.ErrHeld):
		t.Error("it does not match what else the error matched")
	}
}

func TestEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	refused := errors.New("refused")
	if err := Ended(ctx, nil); err != context.Canceled {
		t.Error(err)
	}
	if err := Ended(ctx, refused); !errors.Is(err, context.Canceled) || !errors.Is(err, refused) {
		t.Error(err)
	}
	said := fmt.Errorf("read: %w", context.Canceled)
	if err := Ended(ctx, said); err != said {
		t.Error(err)
	}
}
