package etcd

import (
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// queue is what stands under one name.
type queue struct {
	records  map[string]*record // by key, tombstones too
	arrivals []*record          // all but the joins, by create revision
	joins    []*record
	rule     driver.Queue // the same, as the rule sees it
	foreign  int          // those among the arrivals that cannot be read
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

// drop removes what stands under a key.
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

// place returns how many arrivals stand ahead of that revision.
func (q *queue) place(rev int64) int {
	i := len(q.arrivals)
	for i > 0 && q.arrivals[i-1].rev >= rev {
		i--
	}
	return i
}

// ahead returns what arrived before that revision.
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

// admit is the rule's [driver.Queue.Admit] of a request, by what arrived before that revision (0:
// by all). Nothing is admitted behind what cannot be read: the error says so.
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

// grants reports whether a request that is no join would be granted if it arrived now.
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

// held is ErrHeld with what stands there of a holder. The age goes by the clock of its client. The
// request with that ID is not taken for one: its grant came too late for it.
func (q *queue) held(id driver.ID) error {
	for _, r := range q.holders() {
		if r.ID != id && !r.foreign {
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

// covering returns a request of the hold that a join was admitted to, in a mode that covers its
// own.
func (q *queue) covering(r driver.Request) *record {
	for _, x := range q.holders() {
		if x.Owner == r.Owner && x.Mode.Covers(r.Mode) {
			return x
		}
	}
	return nil
}
