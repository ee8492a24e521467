package etcd

import (
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/dlock-go/dlock/driver"
)

// A notice informs a client that holds of it were broken, long before its next renewal detects
// that. It is a key that the transaction of a break puts beside the broken keys, under the same
// lease, with the IDs of the requests as its value:
//
//	<root>/<prefix of the holder>%broken-<backend of the holder>-<lease>
//
// No key of a name begins like this, since each % in a name is escaped, so a notice is in no name's
// range. A client watches the range of its own notices while it has leases: one watch, however many
// locks it holds, which has no events until a hold is broken.
//
// A notice that is lost (its watch ended, or its stream's member lags) is read when the watch is
// renewed, and the next renewal of the hold finds the key missing. A notice that comes twice, or
// late, names a request that has ended, and changes nothing.
//
// If the holder's prefix is shorter than the breaking client's, no notice is put, since the
// breaking client may lack the right to write there.

// newBackendID returns the backend's part of its keys: random digits, and the length of the prefix,
// from which other clients compute the keys of its notices.
func newBackendID(prefix string) string {
	id := driver.NewID().String()[:16]
	if prefix != "" {
		id += "." + strconv.Itoa(len(prefix))
	}
	return id
}

func noticesUnder(base, id string) string { return base + "%broken-" + id + "-" }

// noticesOf returns the prefix of the notices to the backend that put a key. It is "" if this
// client may lack the right to put them.
func (b *Backend) noticesOf(key string) string {
	root, slash := strings.IndexByte(key, '/'), strings.LastIndexByte(key, '/')
	id, _, _ := strings.Cut(key[slash+1:], "-")
	if len(id) < 2 {
		return ""
	}
	_, digits, found := strings.Cut(id[1:], ".")
	length, err := strconv.Atoi(digits)
	if found && (err != nil || length < 0 || root+1+length > slash) {
		return ""
	}
	base := key[:root+1+length]
	if !strings.HasPrefix(base, b.base) {
		return ""
	}
	return noticesUnder(base, id[1:])
}

// awaitNotices begins the watch of the client's notices, unless there is one. b.mu is held.
func (b *Backend) awaitNotices() {
	if b.notices.watch == nil && !b.life.Over() {
		b.notices.watch = b.watches.add(noticesUnder(b.base, b.id), ofNotices{b})
	}
}

// endNotices ends the watch of a client that has had no lease for a while. b.mu is held.
func (b *Backend) endNotices(now time.Time, leases bool) {
	if leases {
		b.notices.idleSince = now
	} else if b.notices.watch != nil && now.Sub(b.notices.idleSince) > linger {
		b.watches.cancel(b.notices.watch)
		b.notices.watch = nil
	}
}

// ofNotices is the listener of the watch of the client's notices. A notice that comes after the
// watch was cancelled does no harm.
type ofNotices struct{ b *Backend }

func (l ofNotices) found(_ *watch, kvs []*mvccpb.KeyValue, _ int64) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	for _, kv := range kvs {
		l.b.heed(kv)
	}
}

func (l ofNotices) changed(_ *watch, events []*mvccpb.Event) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	for _, e := range events {
		l.b.heed(e.Kv)
	}
}

// Missed notices are read when the next watch begins, or the next renewal detects the break.
func (ofNotices) unknown(*watch)        {}
func (ofNotices) refused(*watch, error) {}

// heed acts on a notice. b.mu is held.
func (b *Backend) heed(kv *mvccpb.KeyValue) {
	for text := range strings.FieldsSeq(string(kv.Value)) {
		var id driver.ID
		if id.UnmarshalText([]byte(text)) != nil {
			continue
		}
		rq := b.requests[id]
		if rq == nil {
			continue
		}
		if rq.until.IsZero() && b.lost != nil { // its grant is on the way to the caller
			go b.lost(id)
		}
		rq.broken = true
		b.vanished(rq)
	}
}
