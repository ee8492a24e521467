package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
)

// Inspect implements [driver.Backend]. A queue is read in one statement, as it was at one time.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	return ask(ctx, b, func(t *task) (q driver.Queue, err error) {
		for range maxTries {
			l, err := b.read(t, read, name, allRows)
			if err != nil {
				return q, err
			}
			if !l.due() {
				return l.queue(), nil
			}
			if err := b.visit(&call{t: t, r: driver.Request{Name: name}}); err != nil {
				return q, err
			}
		}
		return q, errBusy
	})
}

// ask runs a task that leaves nothing to clean up.
func ask[V any](ctx context.Context, b *Backend, do func(*task) (V, error)) (v V, err error) {
	if err := ctx.Err(); err != nil {
		return v, err
	}
	if b.life.Over() {
		return v, driver.ErrClosed
	}
	t := b.newTask()
	return run(ctx, t, b.life.Closed(), func() (V, error) { return do(t) })
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, token driver.Token, force bool) error {
	_, err := ask(ctx, b, func(t *task) (struct{}, error) { return struct{}{}, b.end(t, name, token, force) })
	return err
}

// end breaks a hold, and removes it if force is set.
func (b *Backend) end(t *task, name string, token driver.Token, force bool) error {
	found, err := b.markBroken(t, name, token)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return driver.ErrNotHeld
	case !force:
		return nil
	}
	results := make(chan error, len(found))
	for _, r := range found { // its client reads the tombstones
		go func() {
			own := b.newTask()
			results <- b.visit(&call{t: own, r: r, do: leaves, entombs: true, ended: true, lasts: max(r.TTL, endAge)})
		}()
	}
	for range found {
		if e := <-results; e != nil {
			err = e
		}
	}
	b.pollName(name)
	return err
}

// markBroken marks the requests of the hold with that token, and returns them.
func (b *Backend) markBroken(t *task, name string, token driver.Token) (found []driver.Request, err error) {
	each := func(rows pgx.Rows) error {
		var id, owner, client hexed
		var ttl int64
		if err := rows.Scan(&id, &owner, &client, &ttl); err != nil {
			return err
		}
		found = append(found, driver.Request{Name: name, ID: driver.ID(id), Owner: driver.ID(owner), Client: driver.ID(client), TTL: span(ttl)})
		return nil
	}
	args := []any{b.prefix, []byte(name), int64(token)}
	err = t.try(false, func() error {
		found = nil
		_, err := t.p.call(context.Background(), t.timeout, append(t.p.planned(), &op{sql: gate, args: args[:2]},
			&op{sql: breakLock, args: args, each: each}, &op{sql: breakRequests, args: args, each: each})...)
		return err
	})
	return found, err
}

// List implements [driver.Lister].
func (b *Backend) List(ctx context.Context) ([]string, error) {
	return ask(ctx, b, func(t *task) (names []string, err error) {
		o := &op{sql: list, args: []any{b.prefix}, each: func(rows pgx.Rows) error {
			var name hexed
			err := rows.Scan(&name)
			names = append(names, string(name))
			return err
		}}
		err = t.try(false, func() error {
			names = nil
			_, err := t.p.call(context.Background(), t.timeout, o)
			return err
		})
		return names, err
	})
}
