package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
)

// explain adds to an error of the server or of the connection what can be done about it. Unless
// the caller's ctx has ended, the error does not match that of a context.
func (b *Backend) explain(ctx context.Context, name string, err error) error {
	if err == nil || errors.As(err, new(*driver.HeldError)) { // it has a label, which is any text
		return err
	}
	if !b.pipes.answered.Load() {
		err = fault.Closed(err)
	}
	if ctx.Err() == nil {
		err = kit.Hide(ctx, fault.Late(err))
	}
	err = fault.WithoutArguments(err)
	s := err.Error()
	key, queue := b.space.Keys(name)
	if strings.Contains(s, queue) {
		key = queue
	}
	switch {
	case fault.OtherFormat(err):
		return fmt.Errorf("%w: the key %q was written by another version of dlock; clients of both cannot share a prefix: %w",
			driver.ErrUnsupported, key, err)
	case strings.Contains(s, "WRONGTYPE") || strings.Contains(s, "is not of dlock"):
		return fmt.Errorf("the key %q holds something that dlock did not write; remove it, or use another prefix: %w", key, err)
	}
	return fault.Explain(err, page)
}
