package mysql

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Backend].
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	c := newCall("inspect", b.prefix, bin(name), driver.ID{}, b.window())
	if err := b.ask(ctx, name, c); err != nil {
		return driver.Queue{}, err
	}
	last, err := c.sets.single(2)
	if err != nil {
		return driver.Queue{}, err
	}
	if err := whole(c.sets[0], last[1]); err != nil {
		return driver.Queue{}, err
	}
	var q driver.Queue
	for _, row := range c.sets[0] {
		e, err := parseEntry(name, row)
		if err != nil {
			return driver.Queue{}, err
		}
		if e.Join() {
			q.Joins = append(q.Joins, e)
		} else {
			q.Arrivals = append(q.Arrivals, e)
		}
	}
	return q, nil
}

// parseEntry reads a row of dlock_inspect: id, owner, client, shared, permits, token, ttl, fixed,
// broken, left, age, label.
func parseEntry(name string, row []string) (*driver.Entry, error) {
	if len(row) != 12 {
		return nil, fmt.Errorf("unexpected request %q", row)
	}
	var errs []error
	num := func(i int) int64 {
		n, err := strconv.ParseInt(row[i], 10, 64)
		errs = append(errs, err)
		return n
	}
	id := func(i int) (id driver.ID) {
		errs = append(errs, id.UnmarshalText([]byte(row[i])))
		return id
	}
	label, err := hex.DecodeString(row[11])
	errs = append(errs, err)
	us := time.Microsecond
	e := &driver.Entry{Broken: num(8) != 0, Left: time.Duration(num(9)) * us, Age: time.Duration(num(10)) * us}
	e.Request = driver.Request{
		Name: name, ID: id(0), Owner: id(1), Client: id(2), Limit: int(num(4)), Token: driver.Token(num(5)),
		TTL: time.Duration(num(6)) * us, Fixed: num(7) != 0, Label: string(label),
	}
	if num(3) != 0 {
		e.Mode = driver.Shared
	}
	return e, errors.Join(errs...)
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	c := newCall("break", b.prefix, bin(name), t, force, driver.ID{}, b.window())
	if err := b.ask(ctx, name, c); err != nil {
		return err
	}
	row, err := c.sets.single(2)
	if err != nil {
		return err
	}
	b.receive(c, row[1])
	// By force, a copy whose answer was lost may have removed it.
	if row[0] == "0" && (c.doubt.Load() == 0 || !force) {
		return driver.ErrNotHeld
	}
	return nil
}

// List implements [driver.Lister].
func (b *Backend) List(ctx context.Context) ([]string, error) {
	c := newCall("list", b.prefix)
	if err := b.ask(ctx, "", c); err != nil {
		return nil, err
	}
	last, err := c.sets.single(1)
	if err != nil {
		return nil, err
	}
	if err := whole(c.sets[0], last[0]); err != nil {
		return nil, err
	}
	var names []string
	for _, row := range c.sets[0] {
		name, err := hex.DecodeString(row[0])
		if err != nil {
			return nil, err
		}
		names = append(names, string(name))
	}
	return names, nil
}

// ask sends a call that leaves nothing to clean up.
func (b *Backend) ask(ctx context.Context, name string, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.life.Over() {
		return driver.ErrClosed
	}
	return explain(b.send(ctx, b.life.Closed(), name, true, c))
}
