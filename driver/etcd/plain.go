package etcd

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// plainKeys is the layout of the peers: etcd's own concurrency.Mutex and concurrency.Election,
// etcdctl lock and etcdctl elect, and the service v3lock. All of them put a key
//
//	<key>/<lease in hexadecimal digits>
//
// and hold once no key under <key>/ has a smaller create revision. They read no other part of the
// keys, except that an election shows the value of the first as what its leader proclaims. dlock
// puts such a key for each of its requests, with the label as its value:
//
//	<before><prefix and name><after>/<lease>[-<slot>]
//
// where before and after are the parts of the parameter key around {name}. The slot 0 is not
// written: so the key of a client with one request under the name is just as a peer's. Peers that
// share a lease share a lock; two requests of one client of dlock exclude each other. Nothing else
// of dlock's stands there: a tombstone or a format would block the peers.
//
// The record of a request is put and removed in the same transactions. It stands where dlock's own
// layout has it, in a root of its own:
//
//	<root>%plain/<before, prefix, name and after>/s<backend>-<slot>
//
// So a late copy of an acquire finds the record or its tombstone, and puts nothing in the queue.
type plainKeys struct {
	before, after string // before with the prefix of the names
}

// newPlainKeys reads the template of the peers' keys.
func newPlainKeys(key, prefix, root string) (*plainKeys, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w key %.200q: "+format, append([]any{driver.ErrInvalid, key}, args...)...)
	}
	before, after, found := strings.Cut(key, "{name}")
	switch {
	case !found || strings.Contains(after, "{name}"):
		return nil, bad("it must have {name} exactly once, as in /locks/{name}: that is what the peers lock under the name")
	case !utf8.ValidString(key):
		return nil, bad("it must be UTF-8")
	case strings.HasPrefix(before, plainRoot(root)):
		return nil, bad("dlock's own records stand there; use another key, or another root")
	case strings.Contains(prefix, "/"):
		return nil, bad("the prefix %q must have no '/' with keys=plain; put it into the key, before {name}", prefix)
	}
	return &plainKeys{before + prefix, after}, nil
}

// plainRoot is the beginning of all records. No root of dlock's own layout contains it, since a %
// is escaped there.
func plainRoot(root string) string { return escape.Replace(root) + "%plain/" }

// String returns what the peers lock under a name.
func (p *plainKeys) String() string { return p.before + "{name}" + p.after }

func (p *plainKeys) queueOf(name string) string { return p.before + name + p.after + "/" }

// queueKey returns the key in the queue of a name for a request at a slot under a lease.
func (p *plainKeys) queueKey(name string, lease int64, slot int) string {
	key := p.queueOf(name) + strconv.FormatInt(lease, 16)
	if slot > 0 {
		key += "-" + strconv.Itoa(slot)
	}
	return key
}

// split returns the name in whose queue a key stands, and what follows the queue's prefix. A name
// has no '/', but a peer's key may have more of them behind it.
func (p *plainKeys) split(key string) (name, last string, ok bool) {
	rest, ok := strings.CutPrefix(key, p.before)
	i := strings.IndexByte(rest, '/') - strings.IndexByte(p.after+"/", '/')
	if !ok || i <= 0 {
		return "", "", false
	}
	last, ok = strings.CutPrefix(rest[i:], p.after+"/")
	return rest[:i], last, ok
}

// splitKey returns the name and the slot of one of dlock's keys under that lease.
func (p *plainKeys) splitKey(key string, lease int64) (name string, slot int, ok bool) {
	name, last, ok := p.split(key)
	id, number, found := strings.Cut(last, "-")
	if !ok || id != strconv.FormatInt(lease, 16) {
		return "", 0, false
	}
	if found {
		n, err := strconv.Atoi(number)
		slot, ok = n, err == nil && n > 0
	}
	return name, slot, ok
}

// decodePlain reads a key in a queue. All requests there are exclusive. A key of dlock's own
// layout, which does not belong there, counts as one that cannot be read.
func decodePlain(name string, kv *mvccpb.KeyValue) *record {
	r := &record{key: string(kv.Key), rev: kv.CreateRevision, mod: kv.ModRevision, lease: kv.Lease}
	r.Name, r.Label, r.Token = name, string(kv.Value), driver.Token(r.rev)
	_, err := parseValue(r.Label)
	if r.native = err == nil || strings.HasPrefix(r.Label, formatWords); r.native {
		r.foreign, r.Label = true, "(a key of dlock without keys=plain)"
	}
	if r.Label == "" {
		r.Label = r.key
	}
	return r
}

// describedAsForeign is the label of a peer's request: its key, and the value of an election.
func (r *record) describedAsForeign() string {
	if r.foreign || r.Label == r.key {
		return r.Label
	}
	return fmt.Sprintf("%s %q", r.key, r.Label)
}

// errPeer is the error of a Break of a peer's hold.
func errPeer(r *record, t driver.Token) error {
	how := "etcdctl del '" + r.key + "'"
	if r.lease != 0 {
		how = fmt.Sprintf("etcdctl lease revoke %x, or %s", r.lease, how)
	}
	return fmt.Errorf("%w: the hold with token %d is not dlock's, and its holder would not be notified of a break; stop the holder, or end the hold with %s",
		driver.ErrUnsupported, t, how)
}
