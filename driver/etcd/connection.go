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
	// time after which another attempt to dial begins: the packet that opens a connection may be
	// lost
	redial = 500 * time.Millisecond
	// within this time a live member answers a call that involves no other member
	probeTimeout = time.Second
)

// connections are the connections of a client that is opened by URL. gRPC itself dials again when a
// connection breaks. But it takes a connection that died silently for alive until its own ping
// fails, which is after 13 s, and between attempts to dial it waits for longer and longer, up to
// two minutes.
//
// So the driver dials by itself ("a connection that dies silently", "connections that are refused
// for long" of TestEtcdField). A member that listens again is found within a second. When a call is
// not answered in time, each member is probed with a call that it can answer without the others. A
// connection on which the probe was sent, and nothing at all came back within a second, is closed,
// and gRPC dials again at once. A member that is merely slow, or has no leader, answers the probe.
// A new connection on which nothing is received is closed too, each time after twice as long: the
// member may be busy.
type connections struct {
	patience time.Duration // for a dial, with its handshakes
	members  int

	mu       sync.Mutex
	open     map[*connection]struct{}
	answered bool // something was received on one of them
	silent   int  // new connections in a row on which nothing was received
}

func newConnections(patience time.Duration, members int) *connections {
	return &connections{patience: patience, members: members, open: map[*connection]struct{}{}}
}

// options returns the dial options of the client's connection.
func (cs *connections) options() []grpc.DialOption {
	pauses := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: redial}
	return []grpc.DialOption{
		grpc.WithContextDialer(cs.dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: cs.patience}),
	}
}

// connection records when bytes were last sent and received.
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
	if errors.Is(err, net.ErrClosed) { // closed by this side, since no answer came
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
	if cs.answered {
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
	cs.answered, cs.silent = true, 0
}

// dialAgain dials an address until it is answered. The system repeats the packet that opens a
// connection after 1, 3, 7 … seconds; a new attempt each half second succeeds sooner when the
// network is back.
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

// closeSilent closes the connections on which something was sent after since, and nothing was
// received.
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

// suspect probes the connections, after a call was not answered in time.
func (c *cluster) suspect() {
	if c.conns == nil || !c.probing.CompareAndSwap(false, true) {
		return
	}
	if !c.life.Go(c.probe) {
		c.probing.Store(false)
	}
}

// probe calls all members, and closes dead connections. Calls go to the members in turn, and other
// calls take turns too; so it makes twice as many calls as there are members.
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
