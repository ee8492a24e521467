package postgres

import (
	"context"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// mostToken is the greatest token to which a hold can be raised: the column is a signed bigint.
const mostToken = 1 << 62

// Raise implements [driver.Raiser].
func (b *Backend) Raise(ctx context.Context, r driver.Request, token driver.Token) error {
	if err := kit.CheckRaise(token, mostToken); err != nil {
		return err
	}
	_, err := ask(ctx, b, func(t *task) (struct{}, error) {
		args := []any{b.prefix, []byte(r.Name), r.ID[:], int64(token)}
		lifted := &op{sql: lift, args: args}
		_, err := t.send(append(t.p.planned(), &op{sql: gate, args: args[:2]}, lifted, &op{sql: liftJoins, args: args})...)
		if err == nil && lifted.affected == 0 {
			err = driver.ErrLost
		}
		return struct{}{}, err
	})
	return err
}
