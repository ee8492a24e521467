package etcd

import (
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// queue has the records under one name.
type queue struct {
	records  map[string]*record // by key, tombstones too
	arrivals []*record          // all but the joins, by create revision
	joins    []*record
	rule     driver.Queue // the same, for the rule
	foreign  int          // the number of arrivals that cannot be read
}

// newQueue makes a queue of the keys under a name.
func newQueue(name string, kvs []*mvccpb.KeyValue) *queue {
	q := &queue{records: make(map[string]*record, len(kvs))}
	for _, kv := range kvs {
		q.put(decode(name, kv))
	}
	return q
}

// put adds a record, or replaces the one under its key.
func (q *queue) put(r *record) {
	q.drop(r.key)
	q.records[r.key] = r
	switch {
	case r.tombstone:
	case r.Join():
		q.joins, q.rule.Joins = append(q.joins, r), append(q.rule.Joins, &r.Entry)
	default:
		i := q.place(r.rev)
		q.arrivals, q.rule.Arrivals = slices.Insert(q.arrivals, i, r), slices.Insert(q.rule.Arrivals, i, &r.Entry)
		if r.foreign {
			q.foreign++
		}
	}
}

// drop removes the record under a key.
func (q *queue) drop(key string) {
	r := q.records[key]
	if r == nil {
		return
	}
	delete(q.records, key)
	if i := slices.Index(q.joins, r); i >= 0 {
		q.joins, q.rule.Joins = slices.Delete(q.joins, i, i+1), slices.Delete(q.rule.Joins, i, i+1)
	}
	if i := slices.Index(q.arrivals, r); i >= 0 {
		q.arrivals, q.rule.Arrivals = slices.Delete(q.arrivals, i, i+1), slices.Delete(q.rule.Arrivals, i, i+1)
		if r.foreign {
			q.foreign--
		}
	}
}

// place returns the number of arrivals ahead of that revision.
func (q *queue) place(rev int64) int {
	i := len(q.arrivals)
	for i > 0 && q.arrivals[i-1].rev >= rev {
		i--
	}
	return i
}

// ahead returns the requests that arrived before that revision.
func (q *queue) ahead(rev int64) driver.Queue {
	var d driver.Queue
	for _, r := range q.joins {
		if r.rev < rev {
			d.Joins = append(d.Joins, &r.Entry)
		}
	}
	d.Arrivals = q.rule.Arrivals[:q.place(rev)]
	return d
}

// admit calls the rule's [driver.Queue.Admit] for a request, on the requests that arrived before
// that revision (0: on all). No request is admitted behind a record that cannot be read: the error
// says so.
func (q *queue) admit(r driver.Request, rev int64) (driver.Request, error) {
	if q.foreign > 0 {
		for _, x := range q.arrivals {
			if x.foreign && (rev == 0 || x.rev < rev) {
				return r, errForeign(x)
			}
		}
	}
	if rev == 0 {
		return q.rule.Admit(r)
	}
	return q.ahead(rev).Admit(r)
}

// grants reports whether an arrival would be granted if it were put now.
func (q *queue) grants(r driver.Request) bool {
	d := q.rule
	d.Arrivals = append(d.Arrivals[:len(d.Arrivals):len(d.Arrivals)], &driver.Entry{Request: r})
	return d.Granted() == len(d.Arrivals)
}

// holders returns the granted requests.
func (q *queue) holders() []*record {
	g := q.rule.Granted()
	return append(q.arrivals[:g:g], q.joins...)
}

// held returns ErrHeld with the label and the age of a holder. The age is measured by the clock of
// the holder's client; in the queue of the peers it is not known. The request with the given key
// does not count as a holder: its grant came too late.
func (q *queue) held(key string) error {
	for _, r := range q.holders() {
		switch {
		case r.key == key || r.foreign:
		case r.arrived.IsZero():
			return fmt.Errorf("%w, %q", driver.ErrHeld, r.Label)
		default:
			return &driver.HeldError{Label: r.Label, Age: max(0, time.Since(r.arrived))}
		}
	}
	return driver.ErrHeld
}

// hold returns the requests of the hold with that token.
func (q *queue) hold(t driver.Token) []*record {
	var hold []*record
	for _, r := range q.holders() {
		if r.Token == t {
			hold = append(hold, r)
		}
	}
	return hold
}

// covering returns a request of the hold to which a join was admitted, in a mode that covers the
// join's.
func (q *queue) covering(r driver.Request) *record {
	for _, x := range q.holders() {
		if x.Owner == r.Owner && x.Mode.Covers(r.Mode) {
			return x
		}
	}
	return nil
}
