package conn

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
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
	ready []byte // the part of it that Read has not returned yet
	err   error  // what Read returns after that
}

func newSocket(c *Conn, tcp net.Conn) *socket {
	return &socket{Conn: tcp, conn: c, made: time.Now(), in: bufio.NewReader(tcp)}
}

// Write is net.Conn's. The library writes whole packets, the greeting first.
func (s *socket) Write(p []byte) (int, error) {
	if !s.greeted.Load() {
		return s.Conn.Write(p)
	}
	q := s.conn.translateWatch(s.conn.translateCall(p))
	s.conn.sent()
	n, err := s.Conn.Write(q)
	if err == nil {
		n = len(p)
	}
	return min(n, len(p)), err
}

// Read is net.Conn's. It gives the library whole packets only, and an event for each of the
// driver's watches before the error by which the connection ends.
func (s *socket) Read(p []byte) (int, error) {
	if len(s.ready) == 0 && s.err == nil {
		s.ready, s.err = s.packet()
		switch {
		case s.err == nil:
		case s.greeted.Load():
			s.ready = s.conn.endWatches()
		default: // no events: the library would take them for the greeting
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

const (
	// maxPacket is how much is read in one piece, at most: a server's packets have no bound.
	maxPacket = 64 << 20
	// maxSkipped is more than a server can send.
	maxSkipped = 1 << 30
)

// greetingLen is the length of the part of the server's greeting that matters: its length, the
// version, the timeout and the session's ID.
const greetingLen = 4 + 4 + 4 + 8

// packet reads one packet, its length first.
func (s *socket) packet() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	switch {
	case n > maxSkipped, n > maxPacket && !s.greeted.Load():
		return nil, fmt.Errorf("a packet of %d bytes: the server is not ZooKeeper", n)
	case n > s.conn.maxPacket && s.greeted.Load():
		return s.skip(n)
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
		return s.conn.translateAnswer(p), nil
	}
	if len(p) >= greetingLen {
		timeout, id := parseGreeting(p)
		s.conn.greet(timeout, id, s.made)
	}
	s.greeted.Store(true)
	return p, nil
}

// skip reads a packet of n bytes that is too large to be kept, and returns one with which its call
// fails with [tooLarge]. The library would close the connection, and the next one would fare no
// better.
func (s *socket) skip(n int) ([]byte, error) {
	p := make([]byte, bodyAt)
	if _, err := io.ReadFull(s.in, p[4:]); err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, s.in, int64(n-(bodyAt-4))); err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(p, bodyAt-4)
	code := int32(codeTooLarge)
	binary.BigEndian.PutUint32(p[errorAt:], uint32(code))
	s.conn.received(p)
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

// sent records that a packet is sent.
func (c *Conn) sent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unanswered = append(c.unanswered, time.Now())
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
