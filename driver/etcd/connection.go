package etcd

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

const (
	// a packet that opens a connection may be lost: there is another attempt
	redial = 500 * time.Millisecond
	// a member that is there answers what needs no other within this
	probeTimeout = time.Second
)

// connections are those of a client that is opened by URL. gRPC dials again what broke. But it
// takes a connection that died in silence for alive until its own ping fails, which is after 13 s,
// and between attempts to dial it waits for longer and longer, up to two minutes.
//
// So the driver dials by itself ("a connection that dies in silence", "connections that are refused
// for long" of TestEtcdField). A member that listens again is found within a second. When a call is
// not answered in time, each member is asked for what it knows without the others. A connection on
// which that was sent, and nothing at all came back within a second, is closed, and gRPC dials
// again at once. A member that is merely slow, or has no leader, answers that question. A new
// connection on which the member says nothing is closed too, each time after twice as long: the
// member may be busy.
type connections struct {
	patience time.Duration // for a dial, with its handshakes
	members  int

	mu     sync.Mutex
	open   map[*connection]struct{}
	heard  bool // something was received on one of them
	silent int  // new ones in a row on which nothing was
}

func newConnections(patience time.Duration, members int) *connections {
	return &connections{patience: patience, members: members, open: map[*connection]struct{}{}}
}

// options are for the client's connection.
func (cs *connections) options() []grpc.DialOption {
	pauses := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: redial}
	return []grpc.DialOption{
		grpc.WithContextDialer(cs.dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: cs.patience}),
	}
}

// connection knows when bytes passed last.
type connection struct {
	net.Conn
	of             *connections
	sent, received atomic.Int64 // nanoseconds since epoch; 0: never
	firstByte      *time.Timer  // closes the connection if nothing is received
}

var epoch = time.Now()

func stamp() int64 { return int64(time.Since(epoch)) }

func (c *connection) Write(p []byte) (int, error) {
	c.sent.Store(stamp())
	return c.Conn.Write(p)
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.received.Swap(stamp()) == 0 {
		c.firstByte.Stop()
		c.of.receivedFirst()
	}
	if errors.Is(err, net.ErrClosed) { // by this side, which waited in vain
		err = errNoAnswer
	}
	return n, err
}

func (c *connection) Close() error {
	c.firstByte.Stop()
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// dial connects to a member.
func (cs *connections) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := dialAgain(ctx, addr, cs.patience)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, of: cs}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.open[c] = struct{}{}
	wait := cs.patience
	if cs.heard {
		wait = min(wait, probeTimeout<<min(cs.silent, 10))
	}
	c.firstByte = time.AfterFunc(wait, func() {
		if c.received.Load() == 0 {
			cs.mu.Lock()
			cs.silent++
			cs.mu.Unlock()
			c.Close()
		}
	})
	return c, nil
}

// receivedFirst records that something was received on a new connection.
func (cs *connections) receivedFirst() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.heard, cs.silent = true, 0
}

// dialAgain dials an address until it is answered. The system sends what opens a connection again
// after 1, 3, 7 … seconds; a new attempt each half second finds a network that is back sooner.
func dialAgain(ctx context.Context, addr string, patience time.Duration) (net.Conn, error) {
	type attempt struct {
		conn net.Conn
		err  error
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done := make(chan attempt)
	begin := func() {
		var a attempt
		a.conn, a.err = (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		select {
		case done <- a:
		case <-ctx.Done():
			if a.conn != nil {
				a.conn.Close()
			}
		}
	}
	go begin()
	next := time.NewTicker(redial)
	defer next.Stop()
	for {
		select {
		case a := <-done:
			return a.conn, a.err
		case <-next.C:
			go begin()
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "tcp " + addr, Err: noAnswer(patience)}
		}
	}
}

// closeSilent closes the connections on which something was sent since then, and nothing came back.
func (cs *connections) closeSilent(since int64) {
	cs.mu.Lock()
	var dead []*connection
	for c := range cs.open {
		if c.sent.Load() > since && c.received.Load() < since {
			dead = append(dead, c)
		}
	}
	cs.mu.Unlock()
	for _, c := range dead {
		c.Close()
	}
}

// suspect finds out, after a call was not answered in time, whether a connection is dead.
func (c *cluster) suspect() {
	if c.conns == nil || !c.probing.CompareAndSwap(false, true) {
		return
	}
	if !c.life.Go(c.probe) {
		c.probing.Store(false)
	}
}

// probe asks all members whether they are there. Calls go to the members in turn, among those of
// others; so it asks twice as often as there are members.
func (c *cluster) probe() {
	defer c.probing.Store(false)
	since := stamp()
	ctx, cancel := context.WithTimeout(c.life.Context(), probeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for range 2 * c.conns.members {
		wg.Go(func() { _, _ = c.status.Status(ctx, &pb.StatusRequest{}, callOptions...) })
	}
	wg.Wait()
	if ctx.Err() != nil && !c.life.Over() {
		c.conns.closeSilent(since)
	}
}
