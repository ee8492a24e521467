// Package netfault simulates a bad network between a client and its servers: it cuts connections,
// and holds, loses, delays and repeats data. It works for any protocol on TCP, including encrypted
// ones, since it does not interpret the data.
//
// With a [Proxy] for each client, a driver's Harness of package conformance has most of its powers.
// The example shows all of them.
package netfault

import (
	"bytes"
	"context"
	"io"
	"iter"
	"net"
	"sync"
	"time"
)

// Direction is one of the two directions of a [Proxy].
type Direction int

const (
	ToServer Direction = iota // of requests
	ToClient                  // of replies
)

// Proxy is the network between one client and its servers: a TCP proxy with faults on demand.
// [NewProxy] makes a proxy, which forwards everything without delay; most methods of the zero value
// panic. All methods are safe for concurrent use. After Close no connection can be opened, and a
// fault changes nothing.
//
// A client reaches its servers through the proxy in one of two ways. [Proxy.Dial] has the signature
// of the dialers that client libraries accept, so it also serves connections to servers that the
// client discovers later (a master named by Sentinel, the nodes of a cluster). [Proxy.Addr] is for
// clients that accept no dialer.
//
// A fault lasts until its heal function is called; further calls of heal do nothing. Faults that
// overlap are independent: data that two faults hold passes when both are healed.
type Proxy struct {
	ctx   context.Context // ends with Close
	close context.CancelFunc
	work  sync.WaitGroup // the proxy's goroutines

	mu        sync.Mutex
	healed    sync.Cond               // for calls of Dial
	listeners map[string]net.Listener // by the server's address
	links     map[*link]struct{}
	hold      [2]int // how many faults hold the direction
	vanish    [2]int
	refuse    int
	forbidden map[string]int // texts that must not be sent, and how many faults forbid each
	delay     [2]time.Duration
	limits    [2]*limit
	drop      *drop
	records   map[*Recording]struct{}
	counts    Counts
}

// limit is a cut after a number of bytes.
type limit struct {
	left int // bytes until then
	done chan struct{}
}

// drop is the loss of a future reply.
type drop struct {
	request string // what the request contains
	done    chan struct{}
}

// Counts are the counters of a [Proxy] since it was made. They are zero if no client has used it.
type Counts struct {
	// RoundTrips is how often bytes of the server followed bytes of the client on a connection.
	// Requests that were sent together count once; data that a server sends without a request does
	// not count.
	RoundTrips int64
	Dialed     int64 // connections that were opened
	Open       int   // connections that are open now
	Bytes      int64 // that were sent, in both directions
}

// NewProxy returns a proxy without faults. The caller has to close it.
func NewProxy() *Proxy {
	p := &Proxy{
		listeners: map[string]net.Listener{},
		links:     map[*link]struct{}{},
		records:   map[*Recording]struct{}{},
		forbidden: map[string]int{},
	}
	p.ctx, p.close = context.WithCancel(context.Background())
	p.healed.L = &p.mu
	return p
}

// Close resets all connections and blocks until no goroutine of the proxy is left. Further calls do
// nothing.
func (p *Proxy) Close() {
	p.close()
	p.mu.Lock()
	for _, l := range p.listeners {
		l.Close()
	}
	p.cut()
	p.healed.Broadcast()
	p.mu.Unlock()
	p.work.Wait()
}

// Addr returns an address of this machine, host:port, whose connections are forwarded to the
// server, which is a host:port too. Each call for a server returns the same address. A connection
// is reset if the server cannot be reached. The error is [net.ErrClosed] after Close, or that of
// listening.
func (p *Proxy) Addr(server string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return "", net.ErrClosed
	}
	if l := p.listeners[server]; l != nil {
		return l.Addr().String(), nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	p.listeners[server] = l
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.accept(c.(*net.TCPConn), server)
		}
	})
	return l.Addr().String(), nil
}

// Dial connects to the server at addr through the proxy. The network is TCP, whatever the second
// argument. While data to the server is held or vanishes, Dial blocks until heal or the end of ctx,
// as if the packets that open a connection were lost too. If the server cannot be reached, the
// connection is reset and Dial does not fail. After Close the error is [net.ErrClosed].
func (p *Proxy) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	local, err := p.Addr(addr)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.healed.Broadcast()
	})()
	p.mu.Lock()
	for ctx.Err() == nil && p.ctx.Err() == nil && p.blocked(ToServer) {
		p.healed.Wait()
	}
	p.mu.Unlock()
	if p.ctx.Err() != nil { // another one may listen at that address now
		return nil, net.ErrClosed
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", local)
}

// blocked reports whether nothing passes in the direction. The caller holds mu.
func (p *Proxy) blocked(d Direction) bool { return p.hold[d]+p.vanish[d] > 0 }

// Cut resets all connections that are open, once. New ones can be opened.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

// cut is Cut; the caller holds mu.
func (p *Proxy) cut() {
	for l := range p.links {
		l.reset()
	}
}

// Refuse resets every new connection until heal, as if no process listened at the servers. Open
// connections stay.
func (p *Proxy) Refuse() (heal func()) { return p.fault(&p.refuse, nil) }

// Forbid resets, until heal, every connection on which the client sends the text in one write,
// which is not forwarded. Other connections stay, and new ones can be opened.
func (p *Proxy) Forbid(text string) (heal func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forbidden[text]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.forbidden[text]--; p.forbidden[text] == 0 {
			delete(p.forbidden, text)
		}
	})
}

// Hold holds back data in a direction, including the end of a connection, and delivers it at heal.
// With both directions held, the client is cut off and nothing reaches the server, not even a new
// connection. With ToClient held alone, requests are executed and no reply arrives.
func (p *Proxy) Hold(d Direction) (heal func()) { return p.fault(&p.hold[d], nil) }

// Isolate is Hold in both directions. Its heal lets requests pass first.
func (p *Proxy) Isolate() (heal func()) {
	there, back := p.Hold(ToServer), p.Hold(ToClient)
	return func() { there(); back() }
}

// Vanish loses data in a direction, including the end of a connection, while connections seem to be
// open. At heal connections that lost data are reset, since a stream cannot have a gap.
func (p *Proxy) Vanish(d Direction) (heal func()) {
	return p.fault(&p.vanish[d], func() {
		for l := range p.links {
			if l.pipes[d].lost {
				l.reset()
			}
		}
	})
}

func (p *Proxy) fault(n *int, healed func()) (heal func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*n++
	p.wake()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		*n--
		if healed != nil && *n == 0 {
			healed()
		}
		p.wake()
	})
}

// wake makes all waiting goroutines check again. The caller holds mu.
func (p *Proxy) wake() {
	p.healed.Broadcast()
	for l := range p.links {
		l.wake()
	}
}

// Delay makes each byte in the direction take d longer from now on; 0 ends that. Bytes stay in
// order and at the intervals in which they were sent. A further call replaces the delay, but not
// for data that is on its way.
func (p *Proxy) Delay(dir Direction, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay[dir] = d
}

// CutAfter lets n more bytes pass in the direction (none if n is negative), counted over all
// connections, and then ends the connection of the next byte: the receiver sees the end of the
// data, the sender a reset. The returned channel is closed when that has happened. A further call
// replaces the first.
func (p *Proxy) CutAfter(d Direction, n int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limits[d] = &limit{n, make(chan struct{})}
	return p.limits[d].done
}

// DropReply loses the next reply to a request that contains the text (any request if the text is
// empty), and resets its connection: the server has executed the request and the client does not
// know. The returned channel is closed when that has happened. A further call replaces the first.
func (p *Proxy) DropReply(request string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = &drop{request, make(chan struct{})}
	return p.drop.done
}

// Counts returns the counters so far. A reply that is held counts as soon as the server has sent
// it.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	c.Open = len(p.links)
	return c
}

// Record starts to copy the data that the client sends, until End or a replay of the recording.
// Several recordings may be active.
func (p *Proxy) Record() *Recording {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &Recording{p: p, sent: map[*link][]byte{}}
	p.records[r] = struct{}{}
	return r
}

// Recording is a copy of the data that a client sends, by connection. [Proxy.Record] makes one; the
// zero value is not usable. All methods are safe for concurrent use, and work after the Close of
// the proxy.
type Recording struct {
	p    *Proxy
	sent map[*link][]byte // guarded by p.mu
}

// Contains reports whether the text was sent so far, on one connection. Data that is held counts.
func (r *Recording) Contains(text string) bool {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	for _, sent := range r.sent {
		if bytes.Contains(sent, []byte(text)) {
			return true
		}
	}
	return false
}

// Replay ends the recording and sends all of it to the servers once more, the data of each
// connection on a new one that the faults of the proxy do not affect, as a network that kept the
// packets may do. The replies are dropped. Replay returns when the servers have executed the data,
// which a server shows by closing the connection after the client's end of data. It fails if a
// server cannot be reached, or has not closed the connection after 30 s.
//
// On each connection hello is sent first. It is for data that a server requires at the beginning of
// a connection, such as a password, if the recording began in the middle of one.
func (r *Recording) Replay(hello string) error {
	return r.ReplayAfter(func([]byte) string { return hello })
}

// ReplayAfter is Replay with a hello for each connection; sent is the data that follows it.
func (r *Recording) ReplayAfter(hello func(sent []byte) string) error {
	for server, sent := range r.End() {
		if err := say(server, hello(sent)+string(sent)); err != nil {
			return err
		}
	}
	return nil
}

// End ends the recording and returns the data of each connection, with the server as key. It may be
// called again.
func (r *Recording) End() iter.Seq2[string, []byte] {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	delete(r.p.records, r)
	sent := r.sent
	return func(yield func(string, []byte) bool) {
		for l, bytes := range sent {
			if !yield(l.server, bytes) {
				return
			}
		}
	}
}

func say(server, what string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", server)
	if err != nil {
		return err
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	c.SetDeadline(end)
	answered := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, c)
		answered <- err
	}()
	if _, err := io.WriteString(c, what); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	return <-answered
}

// Abandon resets the clients' ends of all connections, as if their process had crashed. The servers
// see that unless the proxy holds data to them.
func (p *Proxy) Abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		abort(l.ends[ToClient])
	}
}
