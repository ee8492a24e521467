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
	reply, err := c.run(ctx, false, tryScript, keys, r.ID.String(), millis(r.TTL), modeOf(r), r.Owner.String(),
		r.Client.String(), strconv.FormatInt(r.TTL.Milliseconds(), 10), c.layout.Field(r), r.Label)
	if err != nil {
		return 0, err
	}
	l, _ := reply.([]any)
	if len(l) == 0 {
		return 0, unexpected(reply)
	}
	switch {
	case l[0] == int64(1) && counter == "":
		return 0, nil
	case l[0] == int64(1):
		return tokenOf(l[1])
	case l[0] == int64(-1):
		return 0, refusal(l[1])
	}
	es, left, err := parseHolders(key, l)
	if err != nil {
		return 0, err
	}
	if len(es) == 0 {
		return 0, unexpected(reply)
	}
	return 0, &adapt.HeldError{By: driver.HeldError{Label: es[0].Label, Age: es[0].Age}, Left: left}
}

// modeOf returns the mode of a request, and whether it is fixed, as the scripts have them.
func modeOf(r driver.Request) string {
	mode := "x"
	if r.Mode == driver.Shared {
		mode = "s"
	}
	if r.Fixed {
		mode += "f"
	}
	return mode
}

// refusal returns the error for a reason of lua/try.lua.
func refusal(why any) error {
	switch why {
	case "released":
		return fmt.Errorf("%w: it was released", driver.ErrLost)
	case "lost":
		return fmt.Errorf("%w: the hold has ended", driver.ErrLost)
	case "upgrade":
		return driver.ErrUpgrade
	case "unfenced":
		return fmt.Errorf("%w: the hold was begun without fencing tokens; want fenced=true in all clients that share it", driver.ErrInvalid)
	}
	return unexpected(why)
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
