// Package conn makes the client library of ZooKeeper (github.com/go-zookeeper/zk) reliable enough
// for leases. It sits between the library and the network, and between the driver and the library:
//
//   - The library reveals neither the session timeout that the server gave nor when a packet last
//     came from the server. A [Conn] reads both from the packets ([Conn.State], [Conn.KnownAlive]).
//   - It drops events that are not taken from its channel in time, and sets its watches again after
//     a reconnect in a way that races with itself. A Conn delivers each event by a callback, hides
//     the driver's watches from the library, and ends all of them when a connection breaks.
//   - It takes a silent server for a live one for as long as a session lasts. [Session.Check] hangs
//     up on it.
//   - Its calls take no context, and race with its Close. Those of a [Session] return when their
//     context ends, and [Session.Close] waits for them.
//   - It has no names for some of the servers' errors ([Error] has), closes a connection on which
//     an answer is too large for it, and does not support many reads in one packet
//     ([Session.ListMany] does).
//   - It pauses for a second between two rounds over the servers, and continues with a new session
//     when one expires. A Conn that is the driver's own does neither.
package conn

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/driver/internal/kit"
)

// usualLag is the lag of servers with the usual tick of two seconds.
const usualLag = time.Second

const (
	greetTimeout  = 2 * time.Second  // for a server to take a connection, at most
	answerTimeout = 10 * time.Second // for a server to answer anything, at most
	closeTimeout  = 2 * time.Second  // for the orderly end of a session
)

// Config says how [Open] makes a connection.
type Config struct {
	Servers []string      // host:port
	Timeout time.Duration // of the session that is asked for
	Dial    zk.Dialer     // nil: plain TCP
	Fault   *Fault        // receives the reason why no server is reached; nil: the connection's own
	Event   func(zk.Event)
	Set     func(*zk.Conn) // sets more options of the library; nil: none

	// Owned says that the connection is the driver's alone. It ends with its session, logs nothing,
	// and tries the next server without the library's pause.
	Owned bool
	// MaxPacket is how many bytes are read in one piece, at most; 0: 64 MiB.
	MaxPacket int
	// Lag is how late a sign of life of the session may reach the leader, at most. If the
	// connection is not Owned, it is derived from the session's timeout.
	Lag time.Duration
}

// Conn is a connection of the client library, over as many network connections as it takes, with
// the state that the library does not reveal. Its methods are safe for concurrent use.
type Conn struct {
	library *zk.Conn
	dialer  zk.Dialer
	event   func(zk.Event)
	owned   bool
	fault   *Fault
	ready   chan struct{} // has a token after each event that gave a session
	events  <-chan zk.Event

	maxPacket int // a larger packet is skipped

	mu      sync.Mutex
	socket  *socket // the network connection now; nil: none
	lag     time.Duration
	timeout time.Duration // of the session, as the server gave it; 0: there is none yet
	id      int64         // of the session; 0: none
	heard   time.Time     // when the server last sent a packet
	up      bool          // the session is usable now
	ended   bool          // it dials no more
	taken   bool          // a backend uses it
	listen  func(zk.Event)

	// for KnownAlive and stalled
	unanswered []time.Time // when the packets that wait for their answers were sent, in order
	answered   time.Time   // when the server last answered one, or greeted
	signs      []sign      // some signs of life since the greeting, the oldest first
	greeted    time.Time   // when the connection was made on which the server greeted

	// for endWatches
	asked   map[int32]string    // the paths of the watches that are being set, by their calls
	watched map[string]struct{} // the paths of the watches that are set

	reads map[int32]struct{} // the calls under way that are translated, see multiread.go
}

// newConn returns a connection that has no library connection yet.
func newConn(cfg Config) *Conn {
	c := &Conn{
		dialer: cfg.Dial, event: cfg.Event, owned: cfg.Owned, lag: cfg.Lag, fault: cfg.Fault,
		ready: make(chan struct{}, 1), maxPacket: maxPacket,
		asked: map[int32]string{}, watched: map[string]struct{}{}, reads: map[int32]struct{}{},
	}
	if cfg.MaxPacket > 0 {
		c.maxPacket = min(cfg.MaxPacket, maxPacket)
	}
	if c.dialer == nil {
		c.dialer = net.DialTimeout
	}
	if c.fault == nil {
		c.fault = &Fault{}
	}
	return c
}

// Open makes a connection. It returns at once, as zk.Connect does.
func Open(cfg Config) (*Conn, error) {
	c := newConn(cfg)
	set := func(library *zk.Conn) {
		if cfg.Set != nil {
			cfg.Set(library)
		}
		if cfg.Owned {
			zk.WithHostProvider(&servers{conn: c, addrs: cfg.Servers})(library)
			zk.WithLogger(silent{})(library)
			zk.WithLogInfo(false)(library)
			zk.WithMaxConnBufferSize(256 << 10)(library)
		}
		zk.WithDialer(c.dial)(library)
		zk.WithEventCallback(c.deliver)(library)
	}
	library, events, err := zk.Connect(cfg.Servers, cfg.Timeout, set)
	if err != nil {
		return nil, err
	}
	c.library, c.events = library, events
	return c, nil
}

// isClosed reports whether the user closed a connection that is not the driver's. Only the
// library's channel of events shows that.
func (c *Conn) isClosed() bool {
	for !c.owned {
		select {
		case _, open := <-c.events:
			if !open {
				return true
			}
		default:
			return false
		}
	}
	return false
}

// Library returns the library's connection, for calls in whichever session it has.
func (c *Conn) Library() *zk.Conn { return c.library }

// Fault returns the record of why the connection reaches no server.
func (c *Conn) Fault() *Fault { return c.fault }

// Take makes the connection serve one backend, and reports whether it served none.
func (c *Conn) Take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.taken
	c.taken = true
	return !was
}

// Free undoes Take.
func (c *Conn) Free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken = false
}

// Close closes the library's connection, and with it the session, as far as a server can be
// reached. It returns within a little more than two seconds. No call may be under way.
func (c *Conn) Close() {
	kit.Within(closeTimeout, c.library.Close)
	c.end()
}

// end makes the connection dial no more, and hangs up.
func (c *Conn) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.hangUp(time.Now().Add(time.Hour))
}

func (c *Conn) isEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// hangUp closes the network connection if it was made before then. The library dials again, and
// the session goes on.
func (c *Conn) hangUp(before time.Time) {
	c.mu.Lock()
	s := c.socket
	c.mu.Unlock()
	if s != nil && s.made.Before(before) {
		s.Close()
	}
}

// hangUpSilent hangs up if the network connection was made before then and the server has not
// greeted: the library would wait for longer than a session lasts.
func (c *Conn) hangUpSilent(before time.Time) {
	c.mu.Lock()
	s := c.socket
	c.mu.Unlock()
	if s != nil && !s.greeted.Load() && s.made.Before(before) {
		s.Close()
	}
}

// State is what a connection knows of its session.
type State struct {
	ID      int64         // 0: there is none
	Timeout time.Duration // as the server gave it
	Lag     time.Duration // how late a sign of life may reach the leader
	Heard   time.Time     // when the server last sent a packet
	Up      bool          // the session is usable now
}

// State returns what the connection knows now.
func (c *Conn) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return State{c.id, c.timeout, c.lag, c.heard, c.up}
}

// deliver is the library's event callback.
func (c *Conn) deliver(e zk.Event) {
	c.mu.Lock()
	if e.Type == zk.EventSession {
		switch e.State {
		case zk.StateHasSession:
			c.up = true
			select {
			case c.ready <- struct{}{}:
			default:
			}
		case zk.StateExpired: // an owned connection does not continue with a second session
			c.up, c.id, c.ended = false, 0, c.ended || c.owned
		default:
			c.up = false
		}
	}
	listen := c.listen
	c.mu.Unlock()
	if listen != nil {
		listen(e)
	}
	if c.event != nil {
		c.event(e)
	}
}

var errSessionOver = errors.New("the session has ended")

// dial is the library's dialer.
func (c *Conn) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	c.mu.Lock()
	ended, session, known, last, silence := c.ended, c.timeout, c.id != 0, c.socket, time.Since(c.heard)
	c.mu.Unlock()
	if ended {
		time.Sleep(50 * time.Millisecond) // the library dials again at once
		return nil, errSessionOver
	}
	if known {
		timeout = min(timeout, max(session/4, 50*time.Millisecond))
	}
	switch ungreeted := last != nil && !last.greeted.Load(); {
	case c.owned && ungreeted:
		pauseBeforeDial(session) // a server without a leader takes every connection and closes it
	case ungreeted && known && silence > session:
		// The servers may receive our packets though we receive none of theirs. Then each greeting
		// would prolong a session that the driver takes for lost.
		time.Sleep(time.Until(last.made.Add(session * 3 / 2)))
	}
	tcp, err := c.dialer(network, address, timeout)
	if err != nil {
		c.fault.set(err)
		if c.owned {
			pauseBeforeDial(session)
		}
		return nil, err
	}
	s := newSocket(c, tcp)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended { // meanwhile: its session must not be resumed
		tcp.Close()
		return nil, errSessionOver
	}
	c.socket = s
	return s, nil
}

// pauseBeforeDial replaces the library's own pause, which is too long for short sessions.
func pauseBeforeDial(session time.Duration) {
	time.Sleep(max(min(session/20, 200*time.Millisecond), 10*time.Millisecond))
}

// greet records the session that the server gave or resumed, on a network connection that was made
// at that time. An ID of 0 means that the session has expired; the library reports that by an
// event.
func (c *Conn) greet(timeout time.Duration, id int64, made time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == 0 || timeout <= 0 {
		return
	}
	c.id, c.timeout, c.heard = id, timeout, time.Now()
	c.unanswered, c.signs, c.greeted, c.answered = nil, nil, made, c.heard
	clear(c.reads)
	c.fault.set(nil)
	if !c.owned {
		c.lag = min(timeout/4, usualLag) // the servers do not report their tick
	}
}

// servers is the library's host provider for an owned connection. With its own the library pauses
// for a second when all servers were tried, which is longer than short sessions last.
type servers struct {
	conn  *Conn
	addrs []string

	mu   sync.Mutex
	next int
}

// Init is zk.HostProvider's.
func (s *servers) Init([]string) error { return nil }

// Len is zk.HostProvider's.
func (s *servers) Len() int { return len(s.addrs) }

// Connected is zk.HostProvider's.
func (s *servers) Connected() {}

// Next is zk.HostProvider's. The library checks whether it was closed only if the second result is
// true.
func (s *servers) Next() (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.addrs[s.next%len(s.addrs)], s.conn.isEnded()
}

// silent is a logger that logs nothing. The errors have what the library would log, and the
// addresses that it logs may be in a URL with a password.
type silent struct{}

// Printf is zk.Logger's.
func (silent) Printf(string, ...any) {}
