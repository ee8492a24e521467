package postgres

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dlock-go/dlock/driver"
)

// lock is what was read of a lock's row, and of the rows beside it.
type lock struct {
	token, head int64
	holder      driver.Entry // with a zero ID: there is no exclusive holder
	beside      []row        // in order: joins, requests by place
	whole       bool         // all rows beside it were read
	blocked     bool         // dlock_requests has rows of the name
}

// row is a row of dlock_requests.
type row struct {
	driver.Entry
	kind  string
	place int64
}

// How many rows beside a lock are read.
const (
	firstRows = 50
	allRows   = math.MaxInt32
)

// alive reports whether a request had not expired when it was read.
func alive(e *driver.Entry) bool { return e.Left > 0 }

// read reads a lock with the first rows beside it, in one statement: read or readHold. A lock
// without a row is returned as a free one.
func (b *Backend) read(t *task, sql, name string, most int) (*lock, error) {
	l := &lock{}
	o := &op{sql: sql, args: []any{b.prefix, []byte(name), int64(most)}}
	o.each = func(rows pgx.Rows) error { return l.scan(rows, name) }
	err := t.try(false, func() error {
		*l = lock{}
		_, err := t.p.call(context.Background(), t.timeout, o)
		return err
	})
	l.whole = len(l.beside) < most
	return l, err
}

// scan takes in a row of read.
func (l *lock) scan(rows pgx.Rows, name string) error {
	var holder, client, label, id, owner, rowClient, rowLabel hexed
	var ttl, age, left, rowToken, rowTTL, rowAge, rowLeft int64
	var exclusive bool
	h := driver.Entry{Request: driver.Request{Name: name}}
	r := row{Entry: driver.Entry{Request: driver.Request{Name: name}}}
	err := rows.Scan(&l.token, &l.head, &l.blocked, &holder, &client, &label, &ttl, &h.Fixed, &h.Broken, &age, &left,
		&r.kind, &r.place, &id, &owner, &rowClient, &exclusive, &r.Limit, &r.Fixed, &r.Broken, &rowToken, &rowTTL, &rowLabel, &rowAge, &rowLeft)
	if err != nil {
		return err
	}
	if copy(h.ID[:], holder) > 0 {
		copy(h.Client[:], client)
		h.Owner, h.Token, h.Label = h.ID, driver.Token(l.token), string(label)
		h.TTL, h.Age, h.Left = span(ttl), max(0, span(age)), span(left)
		l.holder = h
	}
	if r.kind == "" {
		return nil
	}
	copy(r.ID[:], id)
	copy(r.Owner[:], owner)
	copy(r.Client[:], rowClient)
	if !exclusive {
		r.Mode = driver.Shared
	}
	r.Token, r.Label = driver.Token(rowToken), string(rowLabel)
	r.TTL, r.Age, r.Left = span(rowTTL), max(0, span(rowAge)), span(rowLeft)
	if r.kind == "request" && r.Mode == driver.Shared && r.place <= l.head {
		r.Token = l.tokenAt(r.place)
	}
	l.beside = append(l.beside, r)
	return nil
}

// tokenAt is the token of a shared hold at that place. It is the same as long as the head and the
// token move together: until an exclusive request is granted.
func (l *lock) tokenAt(place int64) driver.Token { return driver.Token(l.token - (l.head - place)) }

// held reports whether an exclusive request holds the lock.
func (l *lock) held() bool { return !l.holder.ID.IsZero() && alive(&l.holder) }

// queue is the lock as the rule sees it: without expired requests.
func (l *lock) queue() driver.Queue {
	var q driver.Queue
	if l.held() {
		q.Arrivals = append(q.Arrivals, &l.holder)
	}
	for i := range l.beside {
		switch r := &l.beside[i]; {
		case !alive(&r.Entry):
		case r.kind == "join":
			q.Joins = append(q.Joins, &r.Entry)
		case r.place > l.head || r.Mode == driver.Shared:
			q.Arrivals = append(q.Arrivals, &r.Entry)
		}
	}
	return q
}

// due reports whether a visit has something to write: a request that is not granted although it
// holds by the rule, or an expired one.
func (l *lock) due() bool {
	q := l.queue()
	for _, e := range q.Holders() {
		if e.Token == 0 {
			return true
		}
	}
	return false
}

// find returns the row of a request.
func (l *lock) find(id driver.ID) *row {
	for i := range l.beside {
		if l.beside[i].ID == id {
			return &l.beside[i]
		}
	}
	return nil
}

// sponsor is a living request whose hold the join may join.
func (l *lock) sponsor(join *driver.Request) driver.ID {
	q := l.queue()
	for _, e := range q.Holders() {
		if e.Owner == join.Owner && !e.Broken && e.Mode.Covers(join.Mode) {
			return e.ID
		}
	}
	return driver.ID{}
}

// endAge is how long ago a hold may have been ended by force. A client that could not ask for so
// long, and for a third of its TTL, learns of it from its renewal.
const endAge = 10 * time.Second
