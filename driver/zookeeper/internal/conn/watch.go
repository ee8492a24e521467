package conn

import (
	"encoding/binary"
	"strings"

	"github.com/go-zookeeper/zk"
)

// After a reconnect the library sets the watches again that it knows of, and reads a number for
// that while the answers of the new connection change it: a data race, as soon as one of those
// answers begins a watch. So the watches are hidden from the library. To it a call that watches is
// a plain read of a path with watchMark, which is translated on its way; the events come by its
// callback all the same.

// watchMark follows the path in a read that sets a watch. No node of the driver has that name.
const watchMark = "/:watch"

// translateWatch returns a packet of the library as the server has to receive it, and records the
// watch that it sets.
func (c *Conn) translateWatch(p []byte) []byte {
	if len(p) <= pathAt || int32At(p, opAt) != opGetData {
		return p
	}
	at, marked := strings.CutSuffix(string(p[pathAt:len(p)-1]), watchMark)
	if !marked {
		return p
	}
	q := append([]byte(nil), p[:pathAt-4]...)
	q = binary.BigEndian.AppendUint32(q, uint32(len(at)))
	q = append(append(q, at...), 1)
	binary.BigEndian.PutUint32(q, uint32(len(q)-4))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[int32At(p, numberAt)] = at
	return q
}

// recordWatch keeps an exact account of the driver's watches. A watch begins with the answer to its
// call, and ends with an event.
func (c *Conn) recordWatch(p []byte, answer bool) {
	if answer {
		call := int32At(p, numberAt)
		at, ours := c.asked[call]
		delete(c.asked, call)
		if ours && int32At(p, errorAt) == 0 {
			c.watched[at] = struct{}{}
		}
	} else if len(p) >= eventAt {
		t := zk.EventType(int32At(p, typeAt))
		if t == zk.EventNodeDataChanged || t == zk.EventNodeDeleted {
			delete(c.watched, string(p[eventAt:]))
		}
	}
}

// endWatches returns the events that end the driver's watches.
func (c *Conn) endWatches() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	var p []byte
	for at := range c.watched {
		p = binary.BigEndian.AppendUint32(p, uint32(4+8+4+4+4+4+len(at)))
		p = binary.BigEndian.AppendUint32(p, ^uint32(0)) // an event
		p = binary.BigEndian.AppendUint64(p, ^uint64(0)) // no zxid
		p = binary.BigEndian.AppendUint32(p, 0)          // no error
		p = binary.BigEndian.AppendUint32(p, uint32(zk.EventNodeDataChanged))
		p = binary.BigEndian.AppendUint32(p, uint32(zk.StateSyncConnected))
		p = binary.BigEndian.AppendUint32(p, uint32(len(at)))
		p = append(p, at...)
	}
	clear(c.watched)
	clear(c.asked)
	return p
}
