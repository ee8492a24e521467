package etcd

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// The flags of a request in its value.
const (
	flagFixed     = "f"
	flagBroken    = "b" // an operator ended it
	flagTombstone = "g" // it has ended; a late copy of its acquire finds the key in use
)

// record is a request as it stands under a key.
type record struct {
	driver.Entry
	key       string
	rev       int64 // create revision: the place in the queue, and the token unless it is a join
	mod       int64 // mod revision: equal to rev, unless an operator broke the hold
	lease     int64
	arrived   time.Time // by its client's clock: for people
	tombstone bool
	foreign   bool // it cannot be read: another version of dlock or another program wrote it
	native    bool // it is foreign: of dlock's own layout, in a queue of the peers'

	// In the peers' layout: the record's key in the queue, and that key's mod revision.
	queueKey string
	queueMod int64
}

// valueOf returns the value of a request's key, or of its tombstone.
func valueOf(r driver.Request, tombstone bool) string {
	return (&record{Entry: driver.Entry{Request: r}, arrived: time.Now(), tombstone: tombstone}).encode()
}

// encode writes the value of a request's key: format, ID, flags, mode, limit, TTL (ms), client,
// owner, token, arrival (ms), label.
func (r *record) encode() string {
	v := make([]byte, 0, 192+len(r.Label))
	id := func(id driver.ID) {
		v = append(hex.AppendEncode(v, id[:]), ' ')
	}
	num := func(n int64) {
		v = append(strconv.AppendInt(v, n, 10), ' ')
	}
	v = append(v, format+" "...)
	id(r.ID)
	v = append(v, '-')
	flag := func(is bool, flag string) {
		if is {
			v = append(v, flag...)
		}
	}
	flag(r.Fixed, flagFixed)
	flag(r.Broken, flagBroken)
	flag(r.tombstone, flagTombstone)
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

// foreignLabel is the label of a key that cannot be read.
const foreignLabel = "(not readable: written by another version of dlock, or not by dlock)"

// decode reads a key and its value. A key that cannot be read counts as an exclusive hold, since it
// may be one of another version.
func decode(name string, kv *mvccpb.KeyValue) *record {
	r, err := parseValue(string(kv.Value))
	if err != nil {
		r = &record{foreign: true}
		r.Mode, r.Label = driver.Exclusive, foreignLabel
	}
	r.Name, r.key, r.rev, r.mod, r.lease = name, string(kv.Key), kv.CreateRevision, kv.ModRevision, kv.Lease
	if !r.Join() {
		r.Token = driver.Token(r.rev)
	}
	return r
}

func parseValue(v string) (*record, error) {
	f := strings.SplitN(v, " ", 11)
	if len(f) != 11 || f[0] != format {
		return nil, fmt.Errorf("%q is not a request in format %s", v, format)
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
	r.Fixed, r.Broken, r.tombstone = strings.Contains(f[2], flagFixed), strings.Contains(f[2], flagBroken), strings.Contains(f[2], flagTombstone)
	return r, bad
}
