package kit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestOutcomes(t *testing.T) {
	for _, no := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrUpgrade, driver.ErrConflict} {
		if !IsNo(fmt.Errorf("acquire: %w", no)) {
			t.Errorf("%v is no answer", no)
		}
	}
	for _, other := range []error{nil, driver.ErrClosed, driver.ErrInvalid, context.Canceled} {
		if IsNo(other) {
			t.Errorf("%v is an answer", other)
		}
	}
	refused := errors.New("connection refused")
	if err := fmt.Errorf("dial: %w", &NotSent{refused}); !WasNotSent(err) || !errors.Is(err, refused) || err.Error() != "dial: connection refused" {
		t.Errorf("%v, not sent: %t", err, WasNotSent(err))
	}
	if WasNotSent(refused) || WasNotSent(nil) {
		t.Error("any error means that the call was not sent")
	}
	if Answered.String() != "answered" || NotDone.String() != "not done" || Unknown.String() != "unknown" {
		t.Error(Answered, NotDone, Unknown)
	}
}
