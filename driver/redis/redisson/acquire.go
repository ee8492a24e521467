package redisson

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
	"github.com/dlock-go/dlock/driver/redis/internal/rlock"
)

// Try implements [adapt.Calls].
func (c *calls) Try(ctx context.Context, r driver.Request) error {
	_, err := c.try(ctx, r, "")
	return err
}

// TryFenced implements [adapt.Fencer].
func (c *fencedCalls) TryFenced(ctx context.Context, r driver.Request) (driver.Token, error) {
	return c.try(ctx, r, c.layout.Counter(c.layout.Key(r.Name)))
}

// try takes the lock, and returns the token if there is a counter.
func (c *calls) try(ctx context.Context, r driver.Request, counter string) (driver.Token, error) {
	key := c.layout.Key(r.Name)
	keys := []string{key, rlock.Tombstone(key, r.ID)}
	if counter != "" {
		keys = append(keys, counter)
	}
	reply, err := c.run(ctx, false, tryScript, keys, c.layout.Field(r), millis(r.TTL),
		r.ID.String()+" "+r.Client.String(), strconv.FormatInt(r.TTL.Milliseconds(), 10)+" "+r.Label)
	if err != nil {
		return 0, err
	}
	l, _ := reply.([]any)
	if len(l) == 0 {
		return 0, unexpected(reply)
	}
	switch l[0] {
	case int64(1):
		if counter == "" {
			return 0, nil
		}
		return tokenOf(l[1])
	case int64(-1):
		return 0, fmt.Errorf("%w: it was released", driver.ErrLost)
	}
	e, err := parseHolder(key, l)
	if err != nil {
		return 0, err
	}
	return 0, &adapt.HeldError{By: driver.HeldError{Label: e.Label, Age: e.Age}, Left: e.Left}
}

// tokenOf reads a counter.
func tokenOf(reply any) (driver.Token, error) {
	text, _ := reply.(string)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("the counter of fencing tokens has %q, which is no token", text)
	}
	return driver.Token(n), nil
}

func unexpected(reply any) error {
	return errors.New("unexpected reply " + strconv.Quote(fmt.Sprint(reply)))
}
