package zookeeper

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// Line listens in on a connection of the client library, which tells neither the session timeout
// that the server gave, nor when the server was last heard, and drops events when nobody takes
// them. Give its methods to the connection:
//
//	line := zookeeper.NewLine(nil)
//	conn, _, err := zk.Connect(servers, 10*time.Second, zk.WithDialer(line.Dial), zk.WithEventCallback(line.Event))
//
// A line serves one connection, and one backend at a time. Its methods are for the library to call,
// and safe for concurrent use. The zero Line is of no use.
type Line struct {
	dial zk.Dialer
	own  bool          // the library must not go on with a second session
	lag  time.Duration // how late the leader may hear of the session

	mu      sync.Mutex
	conn    *heard        // the connection now; nil: none
	timeout time.Duration // of the session, as the server gave it; 0: there is none yet
	id      int64         // of the session; 0: none
	last    time.Time     // when the server was last heard
	// when the packets were sent that the server has not answered; it answers in order
	unheard  []time.Time
	answered time.Time // when it last answered one, or greeted
	signs    []sign    // of life, some of those since the greeting, the oldest first
	// when the connection was made on which the server gave the session or went on with it
	greeted time.Time
	up      bool           // the session is usable now
	over    bool           // dial no more
	taken   bool           // by a backend
	on      func(zk.Event) // told of every event, in order
	tried   bool           // Dial was called
	fault   *fault         // why no server is reached

	// What the library has to forget when a connection breaks: the watches of the driver.
	root string // the paths that the driver watches begin with it; empty: none
	// the paths of the watches that are under way, by the numbers of their calls
	asked map[int32]string
	armed map[string]struct{} // those that the library has
}

// fault is why no server is reached, for who gives up.
type fault struct {
	mu  sync.Mutex
	err error
}

func (f *fault) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fault) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// NewLine returns a line whose connections dial makes; nil: plain TCP.
func NewLine(dial zk.Dialer) *Line {
	if dial == nil {
		dial = net.DialTimeout
	}
	return &Line{dial: dial, fault: &fault{}, asked: map[int32]string{}, armed: map[string]struct{}{}}
}

var errOver = errors.New("the session is over")

// Dial is for zk.WithDialer. It dials as the dialer of the line does, and returns that one's
// errors.
func (l *Line) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	l.mu.Lock()
	l.tried = true
	over, session, known, last, silent := l.over, l.timeout, l.id != 0, l.conn, time.Since(l.last)
	l.mu.Unlock()
	if over {
		time.Sleep(50 * time.Millisecond) // the library asks again at once
		return nil, errOver
	}
	if known {
		timeout = min(timeout, max(session/4, 50*time.Millisecond))
	}
	switch mute := last != nil && !last.greeted.Load(); {
	case l.own && mute:
		breathe(session) // a server without a leader takes every connection, and closes it at once
	case mute && known && silent > session:
		// the servers may hear us, and we not them: then each greeting would prolong what is given
		// up for lost
		time.Sleep(time.Until(last.since.Add(session * 3 / 2)))
	}
	conn, err := l.dial(network, address, timeout)
	if err != nil {
		l.fault.set(plain(err))
		if l.own {
			breathe(session)
		}
		return nil, err
	}
	h := &heard{Conn: conn, line: l, since: time.Now(), in: bufio.NewReader(conn)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over { // the session was left meanwhile, and must not be taken up again
		conn.Close()
		return nil, errOver
	}
	l.conn = h
	return h, nil
}

// breathe pauses before the next attempt. The library's own pause, of a second, is too long for
// short sessions, so the driver's lines do without it.
func breathe(session time.Duration) {
	time.Sleep(max(min(session/20, 200*time.Millisecond), 10*time.Millisecond))
}

// Event is for zk.WithEventCallback. It does not block.
func (l *Line) Event(e zk.Event) {
	l.mu.Lock()
	if e.Type == zk.EventSession {
		switch e.State {
		case zk.StateHasSession:
			l.up = true
		case zk.StateExpired:
			l.up, l.id, l.over = false, 0, l.over || l.own
		default:
			l.up = false
		}
	}
	on := l.on
	l.mu.Unlock()
	if on != nil {
		on(e)
	}
}

// listen has f told of events from now on. f must not block. The paths that it watches begin with
// root.
func (l *Line) listen(f func(zk.Event), root string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on, l.root = f, root
}

// state is what the line knows of the session.
type state struct {
	id      int64
	timeout time.Duration
	lag     time.Duration
	last    time.Time
	up      bool
	tried   bool // it was dialled
}

func (l *Line) state() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	return state{l.id, l.timeout, l.lag, l.last, l.up, l.tried}
}

// stalled reports whether the server has answered nothing since then, although it was asked
// something before. One that has much to do answers one call after the other, so nobody who is slow
// himself takes it for dead.
func (l *Line) stalled(since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.unheard) > 0 && l.unheard[0].Before(since) && l.answered.Before(since)
}

// take makes the line serve a backend, unless it serves one already; free ends that.
func (l *Line) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.taken
	l.taken = true
	return !was
}

func (l *Line) free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = false
}

// end makes the line dial no more.
func (l *Line) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

func (l *Line) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// hangUp closes the connection if it was there before then. The library dials again, and the
// session goes on.
func (l *Line) hangUp(before time.Time) {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c != nil && c.since.Before(before) {
		c.Close()
	}
}

// dumb hangs up a connection whose server has not answered the greeting since then: the library
// would wait for longer than a session lasts.
func (l *Line) dumb(since time.Time) {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c == nil {
		return
	}
	if !c.greeted.Load() && c.since.Before(since) {
		c.Close()
	}
}

// heard is a connection that is listened to.
type heard struct {
	net.Conn
	line    *Line
	since   time.Time // when it was made
	greeted atomic.Bool

	// for Read, which one goroutine calls at a time
	in    *bufio.Reader
	buf   []byte // the packet
	ready []byte // what Read has not returned of it yet
	err   error  // follows that
}

// helloLen is how much of the reply to the greeting matters: its length, the version, the timeout
// and the session's ID.
const helloLen = 4 + 4 + 4 + 8

// Write is net.Conn's. The library writes whole packets, the greeting first.
func (c *heard) Write(p []byte) (int, error) {
	if c.greeted.Load() {
		c.line.speak(p)
	}
	return c.Conn.Write(p)
}

// Read is net.Conn's. The library is given whole packets only, and when the connection breaks an
// event for each watch before the error: so it has no watches left to set again on the next
// connection, which it does in a way that races with itself, and whoever waits looks again.
func (c *heard) Read(p []byte) (int, error) {
	if len(c.ready) == 0 && c.err == nil {
		c.ready, c.err = c.packet()
		switch {
		case c.err == nil:
		case c.greeted.Load():
			c.ready = c.line.farewell()
		default: // the library would take them for the greeting
			c.line.fault.set(fmt.Errorf("%s: %w", c.Conn.RemoteAddr(), mute(c.err)))
		}
	}
	if len(c.ready) == 0 {
		return 0, c.err
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// maxPacket is more than a server sends.
const maxPacket = 64 << 20

// packet reads one packet, its length first.
func (c *heard) packet() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > maxPacket {
		return nil, fmt.Errorf("a packet of %d bytes: that is not ZooKeeper", n)
	}
	if cap(c.buf) < 4+n {
		c.buf = make([]byte, 4+n)
	}
	p := c.buf[:4+n]
	copy(p, head[:])
	if _, err := io.ReadFull(c.in, p[4:]); err != nil {
		return nil, err
	}
	if c.greeted.Load() {
		c.line.hear(p)
	} else {
		if len(p) >= helloLen {
			c.line.greet(time.Duration(int32(binary.BigEndian.Uint32(p[8:])))*time.Millisecond, int64(binary.BigEndian.Uint64(p[12:])), c.since)
		}
		c.greeted.Store(true)
	}
	return p, nil
}

// Packets have their length first, then the number of the call (-1: an event), and a call's what it
// does; an answer has a zxid and an error.
const (
	numberAt  = 4
	doesAt    = 8
	errorAt   = 16
	bodyAt    = 20
	anEvent   = -1
	opGetData = 4
)

func number(p []byte, at int) int32 { return int32(binary.BigEndian.Uint32(p[at:])) }

// speak takes note that a packet is sent.
func (l *Line) speak(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unheard = append(l.unheard, time.Now())
	const pathAt = 16
	if len(p) <= pathAt || number(p, doesAt) != opGetData || p[len(p)-1] == 0 || l.root == "" {
		return
	}
	if at := string(p[pathAt : len(p)-1]); strings.HasPrefix(at, l.root) {
		l.asked[number(p, numberAt)] = at
	}
}

// sign is a packet that the server has answered: it had it before it was heard, and after it was
// sent.
type sign struct{ sent, heard time.Time }

// signsKept is how many signs of life are remembered, and signsApart how many of them a lag has: so
// they reach back for two lags.
const (
	signsApart = 4
	signsKept  = 2*signsApart + 1
)

// hear takes note of a packet from the server: an answer, or an event.
func (l *Line) hear(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
	answer := len(p) >= bodyAt && number(p, numberAt) != anEvent
	l.watching(p, answer)
	if !answer || len(l.unheard) == 0 {
		return
	}
	l.answered = l.last
	s := sign{l.unheard[0], l.last}
	l.unheard = l.unheard[1:]
	if n := len(l.signs); n > 0 && s.heard.Sub(l.signs[n-1].heard) < l.lag/signsApart {
		return
	}
	if len(l.signs) == signsKept {
		l.signs = append(l.signs[:0], l.signs[1:]...)
	}
	l.signs = append(l.signs, s)
}

// watching keeps account of the driver's watches that the library has, exactly: one begins with the
// answer to its call, and ends with an event.
func (l *Line) watching(p []byte, answer bool) {
	const typeAt, pathAt = bodyAt, bodyAt + 12
	if answer {
		call := number(p, numberAt)
		at, ours := l.asked[call]
		delete(l.asked, call)
		if ours && number(p, errorAt) == 0 {
			l.armed[at] = struct{}{}
		}
	} else if len(p) >= pathAt {
		if t := zk.EventType(number(p, typeAt)); t == zk.EventNodeDataChanged || t == zk.EventNodeDeleted {
			delete(l.armed, string(p[pathAt:]))
		}
	}
}

// known returns a time of life of which a follower knew at t: when the last packet was sent that it
// had answered by then, or else the time of the greeting, of which the leader knows at once.
func (l *Line) known(t time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.signs) - 1; i >= 0; i-- {
		if !l.signs[i].heard.After(t) {
			return l.signs[i].sent
		}
	}
	return l.greeted
}

// farewell returns the events that tell the library that its watches of the driver's paths are
// over.
func (l *Line) farewell() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	var p []byte
	for at := range l.armed {
		p = binary.BigEndian.AppendUint32(p, uint32(4+8+4+4+4+4+len(at)))
		p = binary.BigEndian.AppendUint32(p, ^uint32(0)) // an event
		p = binary.BigEndian.AppendUint64(p, ^uint64(0)) // no zxid
		p = binary.BigEndian.AppendUint32(p, 0)          // no error
		p = binary.BigEndian.AppendUint32(p, uint32(zk.EventNodeDataChanged))
		p = binary.BigEndian.AppendUint32(p, uint32(zk.StateSyncConnected))
		p = binary.BigEndian.AppendUint32(p, uint32(len(at)))
		p = append(p, at...)
	}
	clear(l.armed)
	clear(l.asked)
	return p
}

// greet takes note of the session that the server gave or went on with, on a connection that was
// made then. An ID of 0 says that it is over: the library tells by an event.
func (l *Line) greet(timeout time.Duration, id int64, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id != 0 && timeout > 0 {
		l.id, l.timeout, l.last = id, timeout, time.Now()
		l.unheard, l.signs, l.greeted, l.answered = nil, nil, since, l.last
		l.fault.set(nil)
		if !l.own {
			l.lag = min(timeout/4, usualLag) // nobody tells the tick
		}
	}
}

// hosts is where the library finds servers. The library's own provider makes it pause for a second
// when all were tried, which is longer than short sessions last.
type hosts struct {
	line  *Line
	addrs []string

	mu   sync.Mutex
	next int
}

// Init is zk.HostProvider's.
func (h *hosts) Init([]string) error { return nil }

// Len is zk.HostProvider's.
func (h *hosts) Len() int { return len(h.addrs) }

// Connected is zk.HostProvider's.
func (h *hosts) Connected() {}

// Next is zk.HostProvider's. Only where the second result is true does the library look whether it
// was closed.
func (h *hosts) Next() (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	return h.addrs[h.next%len(h.addrs)], h.line.ended()
}
