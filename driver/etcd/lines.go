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
	answers = time.Second
)

// lines are the connections of a client that is opened by URL. gRPC dials again what broke; but
// what died in silence it takes for alive until its own ping fails, which is after 13 s, and
// between attempts to dial it waits for longer and longer, up to two minutes.
//
// So the driver dials by itself. Who listens again is found within a second; and when a call is not
// answered in time, each member is asked for what it knows without the others. A connection on
// which that was sent, and nothing at all came back within a second, is hung up, and dialled anew
// at once. A member that is merely slow, or has no leader, answers that question. A new connection
// on which the member says nothing is hung up too, after longer and longer: the member may be busy.
type lines struct {
	patience time.Duration // for a dial, with its handshakes
	members  int

	mu   sync.Mutex
	open map[*line]struct{}
	met  bool // something was heard on one of them
	mute int  // new ones in a row on which nothing was
}

func newLines(patience time.Duration, members int) *lines {
	return &lines{patience: patience, members: members, open: map[*line]struct{}{}}
}

// options are for the client's connection.
func (ls *lines) options() []grpc.DialOption {
	pauses := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: redial}
	return []grpc.DialOption{
		grpc.WithContextDialer(ls.dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: ls.patience}),
	}
}

// line is one connection. It knows when bytes passed last.
type line struct {
	net.Conn
	of          *lines
	sent, heard atomic.Int64 // nanoseconds since epoch; 0: never
	greeting    *time.Timer  // hangs up if nothing is heard
}

var epoch = time.Now()

func stamp() int64 { return int64(time.Since(epoch)) }

func (l *line) Write(p []byte) (int, error) {
	l.sent.Store(stamp())
	return l.Conn.Write(p)
}

func (l *line) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 && l.heard.Swap(stamp()) == 0 {
		l.greeting.Stop()
		l.of.greeted()
	}
	if errors.Is(err, net.ErrClosed) { // by this side, which waited in vain
		err = errNoAnswer
	}
	return n, err
}

func (l *line) Close() error {
	l.greeting.Stop()
	l.of.mu.Lock()
	delete(l.of.open, l)
	l.of.mu.Unlock()
	return l.Conn.Close()
}

// dial connects to a member.
func (ls *lines) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := reach(ctx, addr, ls.patience)
	if err != nil {
		return nil, err
	}
	l := &line{Conn: conn, of: ls}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.open[l] = struct{}{}
	wait := ls.patience
	if ls.met {
		wait = min(wait, answers<<min(ls.mute, 10))
	}
	l.greeting = time.AfterFunc(wait, func() {
		if l.heard.Load() == 0 {
			ls.mu.Lock()
			ls.mute++
			ls.mu.Unlock()
			l.Close()
		}
	})
	return l, nil
}

func (ls *lines) greeted() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.met, ls.mute = true, 0
}

// reach dials an address until it is answered. The system sends what opens a connection again after
// 1, 3, 7 … seconds; a new attempt each half second finds a network that is back sooner.
func reach(ctx context.Context, addr string, patience time.Duration) (net.Conn, error) {
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

// hangUp ends the connections on which something was sent since then, and nothing came back.
func (ls *lines) hangUp(since int64) {
	ls.mu.Lock()
	var dead []*line
	for l := range ls.open {
		if l.sent.Load() > since && l.heard.Load() < since {
			dead = append(dead, l)
		}
	}
	ls.mu.Unlock()
	for _, l := range dead {
		l.Close()
	}
}

// suspect finds out, after a call was not answered in time, whether a connection is dead.
func (b *Backend) suspect() {
	if b.lines == nil || !b.probing.CompareAndSwap(false, true) {
		return
	}
	if !b.spawn(b.probe) {
		b.probing.Store(false)
	}
}

// probe asks all members whether they are there. Calls go to the members in turn, among those of
// others; so it asks twice as often as there are members.
func (b *Backend) probe() {
	defer b.probing.Store(false)
	since := stamp()
	ctx, cancel := context.WithTimeout(b.ctx, answers)
	defer cancel()
	var wg sync.WaitGroup
	for range 2 * b.lines.members {
		wg.Go(func() { _, _ = b.status.Status(ctx, &pb.StatusRequest{}, callOptions...) })
	}
	wg.Wait()
	if ctx.Err() != nil && b.ctx.Err() == nil {
		b.lines.hangUp(since)
	}
}
