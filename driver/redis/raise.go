package redis

import (
	"context"
	"strconv"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// mostToken is the greatest token to which a hold can be raised. The scripts are exact up to 9e15,
// which leaves room for later tokens.
const mostToken = 8e15

// Raise implements [driver.Raiser]. If replicas must have a grant, they must have the raised token
// too.
func (b *Backend) Raise(ctx context.Context, r driver.Request, t driver.Token) error {
	if err := kit.CheckRaise(t, mostToken); err != nil {
		return err
	}
	if b.life.Over() {
		return driver.ErrClosed
	}
	reply, err := b.runAcquire(ctx, b.call(raiseScript, r.Name, r.ID.String(), strconv.FormatUint(uint64(t), 10)))
	if err == nil {
		_, err = parseAcquire(reply)
	}
	return b.explain(ctx, r.Name, err)
}
