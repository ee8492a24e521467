package etcd

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// The value of a key starts with this. What starts otherwise was written by a later version.
const version = "1"

// Root, prefix and name in a key have neither '/' nor, but for these two, '%'.
var escape, unescape = strings.NewReplacer("%", "%25", "/", "%2F"), strings.NewReplacer("%25", "%", "%2F", "/")

// folder returns what all keys of a name begin with: root/name/. Names of which one begins with the
// other never share one.
func (b *Backend) folder(name string) string { return b.base + escape.Replace(name) + "/" }

// nameOf returns the name that a key stands under, and whether it is a key of this driver.
func (b *Backend) nameOf(key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, b.base)
	name, last, found := strings.Cut(rest, "/")
	return unescape.Replace(name), ok && found && last != "" && !strings.Contains(last, "/")
}

// end returns the end of the range of all keys with the prefix, which is never empty, and ends in a
// byte of UTF-8.
func end(prefix string) []byte {
	e := []byte(prefix)
	e[len(e)-1]++
	return e
}

// flags of a request, as written.
const (
	flagFixed  = "f"
	flagBroken = "b" // an operator ended it
	flagGrave  = "g" // it is gone; a late copy of its acquire finds the key in use
)

// record is a request as it stands under a key.
type record struct {
	driver.Entry
	key     string
	rev     int64 // create revision: the place in the queue, and the token of a stranger
	mod     int64 // mod revision: the same, unless an operator broke the hold
	lease   int64
	arrived time.Time // by its client's clock: for people
	grave   bool
}

// encode writes the value of a request's key: version, ID, flags, mode, limit, TTL (ms), client,
// owner, token, arrival (ms), label.
func (r *record) encode() string {
	v := make([]byte, 0, 192+len(r.Label))
	id := func(id driver.ID) {
		v = append(hex.AppendEncode(v, id[:]), ' ')
	}
	num := func(n int64) {
		v = append(strconv.AppendInt(v, n, 10), ' ')
	}
	v = append(v, version+" "...)
	id(r.ID)
	v = append(v, '-')
	mark := func(is bool, flag string) {
		if is {
			v = append(v, flag...)
		}
	}
	mark(r.Fixed, flagFixed)
	mark(r.Broken, flagBroken)
	mark(r.grave, flagGrave)
	v = append(v, ' ')
	num(int64(r.Mode))
	num(int64(r.Limit))
	num(r.TTL.Milliseconds())
	id(r.Client)
	if r.Join() {
		id(r.Owner)
	} else {
		v = append(v, "- "...) // its own ID
	}
	num(int64(r.Token))
	num(r.arrived.UnixMilli())
	return string(append(v, r.Label...))
}

// foreign is the label of a key that this version cannot read.
const foreign = "(not readable: written by another version of dlock, or not by dlock)"

// decode reads a key and its value. What cannot be read stands in everybody's way: it may be the
// hold of a later version.
func decode(name string, kv *mvccpb.KeyValue) *record {
	r, err := parseValue(string(kv.Value))
	if err != nil {
		r = &record{}
		r.Mode, r.Label = driver.Exclusive, foreign
	}
	r.Name, r.key, r.rev, r.mod, r.lease = name, string(kv.Key), kv.CreateRevision, kv.ModRevision, kv.Lease
	if !r.Join() {
		r.Token = driver.Token(r.rev)
	}
	return r
}

func parseValue(v string) (*record, error) {
	f := strings.SplitN(v, " ", 11)
	if len(f) != 11 || f[0] != version {
		return nil, fmt.Errorf("%q is not a request of version %s", v, version)
	}
	var bad error
	id := func(s string) (id driver.ID) {
		if err := id.UnmarshalText([]byte(s)); err != nil {
			bad = err
		}
		return id
	}
	num := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			bad = err
		}
		return n
	}
	r := &record{arrived: time.UnixMilli(num(f[9]))}
	r.Request = driver.Request{
		ID: id(f[1]), Mode: driver.Mode(num(f[3])), Limit: int(num(f[4])), TTL: time.Duration(num(f[5])) * time.Millisecond,
		Client: id(f[6]), Token: driver.Token(num(f[8])), Label: f[10],
	}
	r.Owner = r.ID
	if f[7] != "-" {
		r.Owner = id(f[7])
	}
	r.Fixed, r.Broken, r.grave = strings.Contains(f[2], flagFixed), strings.Contains(f[2], flagBroken), strings.Contains(f[2], flagGrave)
	return r, bad
}

// queue is what stands under one name.
type queue struct {
	records map[string]*record // by key, with those that are gone and have a tombstone
	order   []*record          // the strangers, by create revision
	joins   []*record
	d       driver.Queue // the same, as the rule sees it
}

// read makes a queue of the keys under a name.
func read(name string, kvs []*mvccpb.KeyValue) *queue {
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
	case r.grave:
	case r.Join():
		q.joins, q.d.Joins = append(q.joins, r), append(q.d.Joins, &r.Entry)
	default:
		i := q.place(r.rev)
		q.order, q.d.Arrivals = slices.Insert(q.order, i, r), slices.Insert(q.d.Arrivals, i, &r.Entry)
	}
}

// place returns how many strangers stand ahead of that revision.
func (q *queue) place(rev int64) int {
	i := len(q.order)
	for i > 0 && q.order[i-1].rev >= rev {
		i--
	}
	return i
}

// drop removes what stands under a key.
func (q *queue) drop(key string) {
	r := q.records[key]
	if r == nil {
		return
	}
	delete(q.records, key)
	if i := slices.Index(q.joins, r); i >= 0 {
		q.joins, q.d.Joins = slices.Delete(q.joins, i, i+1), slices.Delete(q.d.Joins, i, i+1)
	}
	if i := slices.Index(q.order, r); i >= 0 {
		q.order, q.d.Arrivals = slices.Delete(q.order, i, i+1), slices.Delete(q.d.Arrivals, i, i+1)
	}
}

// ahead returns what arrived before that revision.
func (q *queue) ahead(rev int64) driver.Queue {
	var d driver.Queue
	for _, r := range q.joins {
		if r.rev < rev {
			d.Joins = append(d.Joins, &r.Entry)
		}
	}
	d.Arrivals = q.d.Arrivals[:q.place(rev)]
	return d
}
