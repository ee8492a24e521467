package zookeeper

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// The end of a session is one transaction at the servers, which has the paths of all ephemeral
// nodes that the session owns. A server writes it to its log whatever its size, and sends it to its
// followers. But no server can read back a transaction that is larger than jute.maxbuffer and
// zookeeper.jute.maxbuffer.extrasize together (twice jute.maxbuffer, if the latter is not set): it
// would not start again. So the paths that a session owns take at most half of jute.maxbuffer, and
// what does not fit goes to another session of the client.
const usualBuffer = 0xfffff // the default of jute.maxbuffer

const (
	leastBuffer = 32 << 10
	mostBuffer  = 1 << 30
)

// errFull: the session owns as much as it may.
var errFull = &kit.NotSent{Err: errors.New("the session owns as many nodes as the servers can remove in one transaction")}

// sizeOfPath returns how many bytes a path takes in a transaction: its length comes before it.
func sizeOfPath(path string) int { return 4 + len(path) }

// sizeOfNode returns how many bytes the path of a request's node takes, at most: a join gets the
// limit of its hold, which is not known yet.
func (b *Backend) sizeOfNode(r driver.Request) int {
	const number = 11 // digits that the server adds, with a sign when the numbers are used up
	r.Limit = 1<<31 - 1
	return sizeOfPath(b.dir(r.Name)) + 1 + len(b.layout.stem(r)) + number
}

// owned are the nodes that a session owns at the servers, or may own: nodes whose creation is under
// way or in doubt count too.
type owned struct {
	most int // bytes; set once

	mu    sync.Mutex
	bytes int
	nodes map[string]struct{} // the known nodes
}

// fits reports whether there is room for a node of that size. Size 0 always fits.
func (o *owned) fits(size int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return size == 0 || o.bytes+size <= o.most
}

// reserve makes room for a node that is to be created, if there is any.
func (o *owned) reserve(size int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes+size > o.most {
		return false
	}
	o.bytes += size
	return true
}

// free frees what was reserved.
func (o *owned) free(size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes -= size
}

// add records a node that exists.
func (o *owned) add(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, is := o.nodes[path]; !is {
		o.nodes[path] = struct{}{}
		o.bytes += sizeOfPath(path)
	}
}

// remove records that a node is gone.
func (o *owned) remove(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, is := o.nodes[path]; is {
		delete(o.nodes, path)
		o.bytes -= sizeOfPath(path)
	}
}

// isGone reports whether a node is gone by the result of a delete, and records it then.
func (o *owned) isGone(path string, err error) bool {
	gone := err == nil || errors.Is(err, zk.ErrNoNode)
	if gone {
		o.remove(path)
	}
	return gone
}

// maxOwned is how many bytes of paths one session owns, at most.
func (b *Backend) maxOwned() int { return b.o.JuteMaxBuffer / 2 }

// sessionNode returns the path of a session's own node.
func (b *Backend) sessionNode(session uint64) string {
	return fmt.Sprintf("%s/sessions/%016x-%s", b.root, session, b.id)
}

// checkSizes returns an error if a request with the longest name and label would be too large. It
// sets how many requests one proof may check.
func (b *Backend) checkSizes() error {
	if b.o.JuteMaxBuffer < leastBuffer || b.o.JuteMaxBuffer > mostBuffer {
		return fmt.Errorf("%w jute_maxbuffer: it must be %d to %d bytes", driver.ErrInvalid, leastBuffer, mostBuffer)
	}
	const longest = 255 // bytes of a name, and of a label
	id := driver.NewID()
	r := driver.Request{Name: strings.Repeat("\n", longest), ID: id, Owner: driver.NewID(), Token: 1<<64 - 1,
		Mode: driver.Exclusive, Client: id, TTL: 24 * time.Hour, Fixed: true, Label: strings.Repeat("<", longest)}
	at := b.dir(r.Name) + "/" + b.layout.stem(r)
	b.checks = max(min(maxChecks, b.maxBytes()/sizeOf([]any{&zk.CheckVersionRequest{Path: at}})), 1)
	size := sizeOf([]any{
		&zk.CreateRequest{Path: at, Data: newData(r, path.Base(b.sessionNode(0)), ""), Acl: b.o.ACL},
		&zk.SetDataRequest{Path: b.dir(r.Name)}, &zk.CheckVersionRequest{Path: at},
	})
	if most := b.maxBytes(); size > most {
		return fmt.Errorf("%w options: with this chroot, prefix and ACL a request can have %d bytes, and with a jute.maxbuffer of %d bytes the limit is %d; shorten them, or raise jute.maxbuffer on the servers and in the options", driver.ErrInvalid, size, b.o.JuteMaxBuffer, most)
	}
	return nil
}

// maxBytes is how large a transaction of several requests is, at most: a server accepts up to
// jute.maxbuffer, and what it logs is larger.
func (b *Backend) maxBytes() int { return min(maxBytes, b.o.JuteMaxBuffer/4) }
