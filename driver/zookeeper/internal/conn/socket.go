package conn

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// socket is a network connection whose packets are read on their way.
type socket struct {
	net.Conn
	conn    *Conn
	made    time.Time
	greeted atomic.Bool // the server has answered the greeting

	// for Read, which one goroutine calls at a time
	in    *bufio.Reader
	buf   []byte // the packet
	ready []byte // what Read has not returned of it yet
	err   error  // follows that
}

func newSocket(c *Conn, tcp net.Conn) *socket {
	return &socket{Conn: tcp, conn: c, made: time.Now(), in: bufio.NewReader(tcp)}
}

// Write is net.Conn's. The library writes whole packets, the greeting first.
func (s *socket) Write(p []byte) (int, error) {
	if s.greeted.Load() {
		s.conn.sent(p)
	}
	return s.Conn.Write(p)
}

// Read is net.Conn's. It gives the library whole packets only, and an event for each watch before
// the error by which the connection ends. So the library has no watches left to set again on the
// next connection, which it does in a way that races with itself.
func (s *socket) Read(p []byte) (int, error) {
	if len(s.ready) == 0 && s.err == nil {
		s.ready, s.err = s.packet()
		switch {
		case s.err == nil:
		case s.greeted.Load():
			s.ready = s.conn.endWatches()
		default: // the library would take the events for the greeting
			s.conn.fault.set(fmt.Errorf("%s: %w", s.Conn.RemoteAddr(), ungreeted(s.err)))
		}
	}
	if len(s.ready) == 0 {
		return 0, s.err
	}
	n := copy(p, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// maxPacket is more than a server sends.
const maxPacket = 64 << 20

// greetingLen is how much of the server's greeting matters: its length, the version, the timeout
// and the session's ID.
const greetingLen = 4 + 4 + 4 + 8

// packet reads one packet, its length first.
func (s *socket) packet() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > maxPacket {
		return nil, fmt.Errorf("a packet of %d bytes: that is not ZooKeeper", n)
	}
	if cap(s.buf) < 4+n {
		s.buf = make([]byte, 4+n)
	}
	p := s.buf[:4+n]
	copy(p, head[:])
	if _, err := io.ReadFull(s.in, p[4:]); err != nil {
		return nil, err
	}
	if s.greeted.Load() {
		s.conn.received(p)
		return p, nil
	}
	if len(p) >= greetingLen {
		timeout, id := parseGreeting(p)
		s.conn.greet(timeout, id, s.made)
	}
	s.greeted.Store(true)
	return p, nil
}

func parseGreeting(p []byte) (timeout time.Duration, id int64) {
	return time.Duration(int32At(p, 8)) * time.Millisecond, int64(binary.BigEndian.Uint64(p[12:]))
}

// A packet has its length first, then the number of the call (-1: an event). A call has its
// operation next; an answer has a zxid, an error, and then a body.
const (
	numberAt  = 4
	opAt      = 8
	pathAt    = 16 // of a call that has one, after its length
	errorAt   = 16
	bodyAt    = 20
	typeAt    = bodyAt
	eventAt   = bodyAt + 12 // the path of an event
	anEvent   = -1
	opGetData = 4
)

func int32At(p []byte, at int) int32 { return int32(binary.BigEndian.Uint32(p[at:])) }

// sent records a packet that is sent.
func (c *Conn) sent(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unanswered = append(c.unanswered, time.Now())
	if len(p) <= pathAt || int32At(p, opAt) != opGetData || p[len(p)-1] == 0 || c.root == "" {
		return
	}
	if at := string(p[pathAt : len(p)-1]); strings.HasPrefix(at, c.root) {
		c.asked[int32At(p, numberAt)] = at
	}
}

// received records a packet from the server: an answer, or an event. The server answers in order.
func (c *Conn) received(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = time.Now()
	answer := len(p) >= bodyAt && int32At(p, numberAt) != anEvent
	c.recordWatch(p, answer)
	if !answer || len(c.unanswered) == 0 {
		return
	}
	c.answered = c.heard
	c.recordSign(sign{c.unanswered[0], c.heard})
	c.unanswered = c.unanswered[1:]
}

// recordWatch keeps an exact account of the driver's watches that the library has. One begins with
// the answer to its call, and ends with an event.
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

// endWatches returns the events that tell the library that the driver's watches are over.
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
