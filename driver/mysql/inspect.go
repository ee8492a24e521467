package mysql

import (
	"context"
	"encoding/hex"
	"strconv"

	"github.com/dlock-go/dlock/driver"
)

// listPage is how many names are read at once.
const listPage = 5000

// Inspect implements [driver.Backend]. A long queue is read in pieces, each in a statement of its
// own: what comes or goes meanwhile may be there or not.
func (b *Backend) Inspect(ctx context.Context, name string) (q driver.Queue, err error) {
	err = b.ask(ctx, func(t *task) error {
		l, err := b.readAll(t, name)
		if err == nil {
			q = l.queue()
		}
		return err
	})
	return q, err
}

// readAll reads a lock with all that stands beside it. What is due there is written first.
func (b *Backend) readAll(t *task, name string) (*lock, error) {
	for range maxTries {
		l, err := b.read(t, name, func(*lock) bool { return false })
		if err != nil || l.others == 0 {
			return l, err
		}
		if done, _, err := b.write(t, l, driver.ID{}); done || err != nil {
			return l, err
		}
	}
	return nil, errBusy
}

// ask does a task that leaves nothing to clean up.
func (b *Backend) ask(ctx context.Context, do func(*task) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.life.Over() {
		return driver.ErrClosed
	}
	t := b.newTask(true)
	return t.run(ctx, b.life.Closed(), func() error { return do(t) })
}

// Break implements [driver.Breaker].
func (b *Backend) Break(ctx context.Context, name string, token driver.Token, force bool) error {
	return b.ask(ctx, func(t *task) error {
		found, err := b.markBroken(t, name, token)
		if err != nil || !force {
			if err == nil && found == nil {
				err = driver.ErrNotHeld
			}
			return err
		}
		if len(found) == 0 && t.copies == 0 {
			return driver.ErrNotHeld
		}
		for _, e := range found { // the tombstones are what its client reads
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
	})
}

// markBroken marks what belongs to the hold with that token, and looks again, until nothing has
// joined it meanwhile. It returns all of it.
func (b *Backend) markBroken(t *task, name string, token driver.Token) (found []*driver.Entry, err error) {
	for range maxTries {
		l, err := b.readAll(t, name)
		if err != nil {
			return nil, err
		}
		q := l.queue()
		found = found[:0]
		var ids []driver.ID
		lock := false
		for _, e := range q.Holders() {
			if e.Token != token {
				continue
			}
			found = append(found, e)
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
		if !lock {
			return found, nil
		}
	}
	return nil, errBusy
}

// List implements [driver.Lister]. Many names are read in pieces.
func (b *Backend) List(ctx context.Context) (names []string, err error) {
	err = b.ask(ctx, func(t *task) error {
		for after := "X''"; ; {
			a, err := t.send(fill(list, ":prefix", b.prefix, ":after", after, ":most", strconv.Itoa(listPage)))
			if err != nil {
				return err
			}
			for _, row := range a.rows {
				name, err := hex.DecodeString(row[0])
				if err != nil {
					return err
				}
				names = append(names, string(name))
			}
			if len(a.rows) < listPage {
				return nil
			}
			after = hexOf(names[len(names)-1])
		}
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}
