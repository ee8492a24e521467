package mysql

import (
	"context"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/dlock-go/dlock/driver"
)

// listPage is how many names are read at once.
const listPage = 5000

// Inspect implements [driver.Backend]. A long queue is read in pieces, each with a statement of its
// own: a request that comes or goes meanwhile may be missing or present.
func (b *Backend) Inspect(ctx context.Context, name string) (driver.Queue, error) {
	return ask(ctx, b, false, func(t *task) (q driver.Queue, err error) {
		l, err := b.readAll(t, name)
		if err == nil {
			q = l.queue()
		}
		return q, err
	})
}

// readAll reads a lock with all rows beside it. It first writes what is due there. While others is
// 0, a row beside the lock has not arrived yet, or does not count any more.
func (b *Backend) readAll(t *task, name string) (*lock, error) {
	for range maxTries {
		l, err := b.read(t, name, func(*lock) bool { return false })
		if err != nil {
			return nil, err
		}
		if l.others == 0 {
			l.beside = nil
			return l, nil
		}
		if done, _, err := b.write(t, l, driver.ID{}); done || err != nil {
			return l, err
		}
	}
	return nil, errBusy
}

// ask runs a task that leaves nothing to clean up. One that lets others go on is urgent; a view of
// the locks is not, however often it is asked for.
func ask[V any](ctx context.Context, b *Backend, urgent bool, do func(*task) (V, error)) (v V, err error) {
	if err := ctx.Err(); err != nil {
		return v, err
	}
	if b.life.Over() {
		return v, driver.ErrClosed
	}
	t := b.newTask(urgent)
	return run(ctx, t, b.life.Closed(), func() (V, error) { return do(t) })
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, token driver.Token, force bool) error {
	_, err := ask(ctx, b, true, func(t *task) (struct{}, error) { return struct{}{}, b.end(t, name, token, force) })
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
	for _, e := range found { // its client reads the tombstones
		if _, err := t.send(b.about(fill(entomb, ":ended", "1", ":lasts", micros(max(e.TTL, endAge))), &e.Request)); err != nil {
			return err
		}
	}
	if _, err := t.send(b.about(fill(raise, ":level", "2"), &driver.Request{Name: name})); err != nil {
		return err
	}
	_, _, err = b.advance(t, name, found[0].Owner)
	b.pollName(name)
	return err
}

// markBroken marks the requests of the hold with that token, and reads again, until none has joined
// it meanwhile. It returns all of them, also those that have gone since they were marked: a holder
// releases what it finds to be broken.
func (b *Backend) markBroken(t *task, name string, token driver.Token) (found []*driver.Entry, err error) {
	for range maxTries {
		l, err := b.readAll(t, name)
		if err == nil && l.token == 0 { // as in readHeld
			l, err = b.readAll(t, name)
		}
		if err != nil {
			return nil, err
		}
		q := l.queue()
		var ids []driver.ID
		lock := false
		for _, e := range q.Holders() {
			if e.Token != token {
				continue
			}
			if !slices.ContainsFunc(found, func(f *driver.Entry) bool { return f.ID == e.ID }) {
				found = append(found, e)
			}
			switch {
			case e.Broken:
			case e == &l.holder:
				lock = true
				if _, err := t.send(b.about(breakLock, &e.Request)); err != nil {
					return nil, err
				}
			default:
				ids = append(ids, e.ID)
			}
		}
		for len(ids) > 0 {
			n := min(len(ids), b.pool.room()/pairSize)
			if _, err := t.send(fill(breakRequests, ":ids", hexIDs(ids[:n]))); err != nil {
				return nil, err
			}
			ids, lock = ids[n:], true
		}
		if lock { // a join that is not committed yet has locked the row
			if _, err := t.send(b.about(fill(raise, ":level", "2"), &driver.Request{Name: name})); err != nil {
				return nil, err
			}
		}
		if !lock {
			return found, nil
		}
	}
	return nil, errBusy
}

// List implements [driver.Lister]. Many names are read in pieces.
func (b *Backend) List(ctx context.Context) ([]string, error) {
	return ask(ctx, b, false, func(t *task) (names []string, err error) {
		for after := "X''"; ; {
			a, err := t.send(fill(list, ":prefix", b.prefix, ":after", after, ":most", strconv.Itoa(listPage)))
			if err != nil {
				return nil, err
			}
			for _, row := range a.rows {
				name, err := hex.DecodeString(row[0])
				if err != nil {
					return nil, err
				}
				names = append(names, string(name))
			}
			if len(a.rows) < listPage {
				return names, nil
			}
			after = hexOf(names[len(names)-1])
		}
	})
}
