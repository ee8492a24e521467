package mysql

import (
	"context"
	"strconv"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// mostToken is the greatest token to which a hold can be raised: the column is a signed BIGINT.
const mostToken = 1 << 62

// Raise implements [driver.Raiser].
func (b *Backend) Raise(ctx context.Context, r driver.Request, token driver.Token) error {
	if err := kit.CheckRaise(token, mostToken); err != nil {
		return err
	}
	stmt := b.about(fill(lift, ":least", strconv.FormatUint(uint64(token), 10)), &r)
	_, err := ask(ctx, b, true, func(t *task) (struct{}, error) {
		a, err := t.send(stmt)
		if err == nil && a.id == 0 { // a KILL QUERY may have cut it short
			a, err = t.send(stmt)
		}
		if err == nil && a.id == 0 {
			err = driver.ErrLost
		}
		return struct{}{}, err
	})
	return err
}
