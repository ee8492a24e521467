// Package netfault is the network between a client and its servers, made to misbehave: it cuts,
// holds, loses, delays and repeats. It knows nothing of what is sent, so it serves any protocol on
// TCP, an encrypted one too.
//
// A [Proxy] for each client gives the harness of a driver, a Harness of package conformance, most
// of its powers: the example has all of them.
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

// Direction is one of the two in which bytes pass a [Proxy].
type Direction int

const (
	ToServer Direction = iota // of requests
	ToClient                  // of replies
)

// Proxy is the network between one client and its servers: a TCP proxy with faults on demand. The
// zero value is of no use, and most of its methods panic; [NewProxy] makes a proxy, which forwards
// all at once. All methods are safe for concurrent use. After Close no connection can be opened,
// and a fault changes nothing.
//
// A client reaches its servers through it in one of two ways. [Proxy.Dial] has the signature of the
// dialers that client libraries take, so servers that clients learn of later (a master that
// Sentinel names, the nodes of a cluster) are reached through it too. [Proxy.Addr] is for what
// cannot be given a dialer.
//
// A fault lasts until its heal function is called; a second call of heal does nothing. Faults that
// overlap are independent: what two faults hold passes when both are healed.
type Proxy struct {
	ctx   context.Context // ends with Close
	close context.CancelFunc
	work  sync.WaitGroup // the proxy's goroutines

	mu        sync.Mutex
	healed    sync.Cond               // for those that Dial
	listeners map[string]net.Listener // by the server's address
	links     map[*link]struct{}
	hold      [2]int // how many faults hold the direction
	vanish    [2]int
	refuse    int
	forbidden map[string]int // what must not be sent, and how many faults say so
	delay     [2]time.Duration
	limits    [2]*limit
	drop      *drop
	records   map[*Recording]struct{}
	counts    Counts
}

// limit is a cut that will come.
type limit struct {
	left int // bytes until then
	done chan struct{}
}

// drop is a reply that will be lost.
type drop struct {
	request string // what the request contains
	done    chan struct{}
}

// Counts are what a [Proxy] has seen since it was made. The zero value is that of a proxy that no
// client has used.
type Counts struct {
	// RoundTrips is how often a connection had a reply to what its client had sent: bytes of the
	// server that follow bytes of the client. Requests that were sent in one go count once; what a
	// server sends unasked does not count.
	RoundTrips int64
	Dialled    int64 // connections that were opened
	Open       int   // connections that are open now
	Bytes      int64 // that were sent, in both directions
}

// NewProxy returns a proxy without faults, which listens nowhere yet. The caller closes it.
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

// Close resets all connections and waits until no goroutine of the proxy is left. Close again does
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

// Addr returns an address of this machine, host:port, whose connections end at the server, which is
// given as host:port too. It is the same each time. A connection is reset if the server cannot be
// reached. The error is [net.ErrClosed] after Close, or that of listening.
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

// Dial connects to the server at addr through the proxy. The network is TCP, whatever is asked for.
// While what is sent to the server is held or vanishes, Dial waits for heal or the end of ctx, as
// if the packets that open a connection had that fate too. A server that cannot be reached shows as
// a connection that is reset, not as an error of Dial. After Close the error is [net.ErrClosed].
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

// Refuse resets every new connection until heal, as when nothing listens at the servers. Open ones
// live on.
func (p *Proxy) Refuse() (heal func()) { return p.fault(&p.refuse, nil) }

// Forbid resets, until heal, every connection on which the client sends the text in one write; the
// server does not see it. Other connections live on, and new ones can be opened.
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

// Hold keeps back what is sent in a direction, the end of a connection included, and delivers it at
// heal. Held in both directions the client is cut off and nothing of it reaches the server, new
// connections included. Held only on its way to the client, everything is executed and no reply
// arrives.
func (p *Proxy) Hold(d Direction) (heal func()) { return p.fault(&p.hold[d], nil) }

// Isolate is Hold in both directions. Its heal lets requests pass first.
func (p *Proxy) Isolate() (heal func()) {
	there, back := p.Hold(ToServer), p.Hold(ToClient)
	return func() { there(); back() }
}

// Vanish loses what is sent in a direction, the end of a connection included, while connections
// seem to live. At heal those that lost something are reset, since a stream with a hole is none.
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

// wake makes all that waits check again. The caller holds mu.
func (p *Proxy) wake() {
	p.healed.Broadcast()
	for l := range p.links {
		l.wake()
	}
}

// Delay makes each byte in the direction take d longer from now on; 0 ends that. Bytes stay in
// order, and follow each other as closely as they were sent. Delay again replaces the first; what
// is on its way arrives when it was due.
func (p *Proxy) Delay(dir Direction, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay[dir] = d
}

// CutAfter lets n more bytes pass in the direction (none, if n is negative), on all connections
// together, and then ends the connection on which the next one would follow: who receives sees its
// end, who sends a reset. The result is closed when that happened. CutAfter again replaces the
// first.
func (p *Proxy) CutAfter(d Direction, n int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limits[d] = &limit{n, make(chan struct{})}
	return p.limits[d].done
}

// DropReply loses the next reply to a request that contains the text (any, if it is empty), and
// resets its connection: the server has executed what the client cannot know of. The result is
// closed when that happened. DropReply again replaces the first.
func (p *Proxy) DropReply(request string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = &drop{request, make(chan struct{})}
	return p.drop.done
}

// Counts returns what the proxy has seen so far, faults included: a reply that is held counts as
// soon as the server has sent it.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	c.Open = len(p.links)
	return c
}

// Record begins to copy what the client sends, until End or a replay of the recording. Several
// recordings may be under way.
func (p *Proxy) Record() *Recording {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &Recording{p: p, sent: map[*link][]byte{}}
	p.records[r] = struct{}{}
	return r
}

// Recording is a copy of what a client sends, connection by connection. [Proxy.Record] makes one;
// the zero value is of no use. All methods are safe for concurrent use, and work after the Close of
// the proxy.
type Recording struct {
	p    *Proxy
	sent map[*link][]byte // guarded by p.mu
}

// Contains reports whether the text was sent so far, on one connection. What is held counts.
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

// Replay ends the recording and sends all of it to the servers once more, each connection's part on
// a new connection past the faults of the proxy, as a network may that kept the packets. The
// replies are dropped. It returns once the servers have executed it, which a server shows by
// closing a connection whose client said all that it had to say. The error is that of a server that
// cannot be reached, or has not done so after 30 s.
//
// On each connection hello goes first: what a server wants to hear on a new one (a password, say)
// before requests that were recorded in the middle of an old one.
func (r *Recording) Replay(hello string) error {
	return r.ReplayAfter(func([]byte) string { return hello })
}

// ReplayAfter is Replay with a hello for each connection, given what is sent on it after that.
func (r *Recording) ReplayAfter(hello func(sent []byte) string) error {
	for server, sent := range r.End() {
		if err := say(server, hello(sent)+string(sent)); err != nil {
			return err
		}
	}
	return nil
}

// End ends the recording and returns what was sent on each connection, by server. It can be called
// again.
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

// Abandon resets what clients have open, as when their process dies. The servers learn of it unless
// the proxy holds what is sent to them.
func (p *Proxy) Abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		abort(l.ends[ToClient])
	}
}
