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

const (
	inspectPage = 1000 // requests in one answer: each may have some 2 kB
	listPage    = 5000 // names in one answer
)

// Inspect implements [driver.Backend]. A long queue is read in pieces, each in a statement of its
// own: who comes or goes meanwhile may be there or not.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	if b.life.Over() {
		return driver.Queue{}, driver.ErrClosed
	}
	var q driver.Queue
	for after := null; ; {
		c := newCall("inspect", b.prefix, bin(name), driver.ID{}, b.window(), after, inspectPage)
		if err := b.ask(ctx, name, c); err != nil {
			return driver.Queue{}, err
		}
		last, err := c.sets.single(2)
		if err != nil {
			return driver.Queue{}, err
		}
		page := c.sets[0]
		if err := whole(page, last[1]); err != nil {
			return driver.Queue{}, err
		}
		for _, row := range page {
			e, place, err := parseEntry(name, row)
			if err != nil {
				return driver.Queue{}, err
			}
			if after = place; e.Join() {
				q.Joins = append(q.Joins, e)
			} else {
				q.Arrivals = append(q.Arrivals, e)
			}
		}
		if len(page) < inspectPage {
			return q, nil
		}
	}
}

// parseEntry reads a row of dlock_inspect: id, owner, client, shared, permits, token, ttl, fixed,
// broken, left, age, label, place.
func parseEntry(name string, row []string) (e *driver.Entry, place number, err error) {
	if len(row) != 13 {
		return nil, "", fmt.Errorf("unexpected request %q", row)
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
	e = &driver.Entry{Broken: num(8) != 0, Left: time.Duration(num(9)) * us, Age: time.Duration(num(10)) * us}
	e.Request = driver.Request{
		Name: name, ID: id(0), Owner: id(1), Client: id(2), Limit: int(num(4)), Token: driver.Token(num(5)),
		TTL: time.Duration(num(6)) * us, Fixed: num(7) != 0, Label: string(label),
	}
	if num(3) != 0 {
		e.Mode = driver.Shared
	}
	place = number(strconv.FormatInt(num(12), 10))
	return e, place, errors.Join(errs...)
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, t driver.Token, force bool) error {
	if b.life.Over() {
		return driver.ErrClosed
	}
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

// List implements [driver.Lister]. Many names are read in pieces.
func (b *Backend) List(ctx context.Context) ([]string, error) {
	var names []string
	for after := ""; ; after = names[len(names)-1] {
		c := newCall("list", b.prefix, bin(after), listPage)
		if err := b.ask(ctx, "", c); err != nil {
			return nil, err
		}
		last, err := c.sets.single(1)
		if err != nil {
			return nil, err
		}
		page := c.sets[0]
		if err := whole(page, last[0]); err != nil {
			return nil, err
		}
		for _, row := range page {
			name, err := hex.DecodeString(row[0])
			if err != nil {
				return nil, err
			}
			names = append(names, string(name))
		}
		if len(page) < listPage {
			return names, nil
		}
	}
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
