package redis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

const (
	pipelineMax = 256 // calls in one pipeline
	sendersMax  = 2   // pipelines under way to one node
	copiesMax   = 4   // how often a call that may succeed later is sent

	// movesMax is how long nodes may contradict each other about which of them has a key.
	movesMax = 3 * time.Second

	// patience is how long a call may take before its caller checks whether its context has ended.
	patience = 20 * time.Millisecond

	// directTimeout is how long a call that its caller sends itself may take.
	directTimeout = 40 * time.Millisecond
)

// call is one script to run on one name.
type call struct {
	script.Call
	keys  [2]string   // the memory of Keys: the hash and the set
	parts [2][]string // the memory of Parts: each of keys

	sent   time.Time     // before it was first given to the network
	copies int           // how often it was executed, or may have been
	unsure bool          // the outcome of one of them is not known
	urgent bool          // it goes ahead of other calls
	done   chan struct{} // of a renewal: closed when it is over

	// newConnection means that the call uses a new connection, not an old one that may be dead. If
	// there is no answer in time, it is not sent again.
	newConnection bool

	// rare means that a copy cannot return what an earlier one did. The call gets the timeouts of
	// the connection, and is not sent again after directTimeout.
	rare bool
}

func newCall(s *script.Script, key, queue string, common, args []any) *call {
	c := &call{Call: script.Call{Script: s, Common: common, Args: args}, keys: [2]string{key, queue}}
	c.parts = [2][]string{c.keys[:1], c.keys[1:]}
	c.Keys, c.Parts = c.keys[:], c.parts[:1]
	return c
}

// count records that the call is sent.
func (c *call) count() {
	if c.copies++; c.copies == 1 {
		c.sent = time.Now()
	}
}

// pipelines send calls: calls that arrive while others are under way go into the next pipeline. A
// single call is sent at once. In a Cluster each node has pipelines of its own, so that a dead node
// holds up no other.
type pipelines struct {
	rdb    redis.UniversalClient
	direct *redis.Client // rdb with directTimeout for each call; nil for a Cluster
	line   *kit.Line[*call]
	apart  atomic.Bool  // each call is a command of its own
	took   atomic.Int64 // the last pipeline, in nanoseconds; 0: not known

	answered atomic.Bool // the server has run a script

	mu    sync.Mutex
	nodes map[*redis.Client]*node // those of a Cluster to which calls are being sent
}

// node has the calls to one node of a Cluster.
type node struct {
	line  *kit.Line[*call]
	calls int // how many are not over
}

func newPipelines(rdb redis.UniversalClient) *pipelines {
	p := &pipelines{rdb: rdb, nodes: map[*redis.Client]*node{}}
	p.line = p.newLine()
	if c, ok := rdb.(*redis.Client); ok {
		p.direct = c.WithTimeout(directTimeout)
		p.line.Alone = p.sendDirectly
	}
	_, cluster := rdb.(*redis.ClusterClient)
	p.apart.Store(cluster) // where calls seldom share a slot
	return p
}

func (p *pipelines) newLine() *kit.Line[*call] {
	return &kit.Line[*call]{
		Together: p.send,
		Fits:     func(cs []*call, _ *call) bool { return len(cs) < pipelineMax },
		Few:      sendersMax, Most: sendersMax, Patience: patience,
	}
}

// run sends the call and returns the reply. If the outcome is unknown, it sends the call again. It
// stops waiting when ctx or closed ends. A call that is under way then continues by itself; one
// that was not sent yet is not sent.
func (p *pipelines) run(ctx context.Context, closed <-chan struct{}, c *call) (any, error) {
	return p.try(ctx, closed, c, func() error { return p.once(ctx, closed, c) })
}

// once sends the call and waits until its reply or its error is set. It returns an error only if
// ctx or closed ended before.
func (p *pipelines) once(ctx context.Context, closed <-chan struct{}, c *call) error {
	c.count()
	var fate kit.Fate
	if _, ok := p.rdb.(*redis.ClusterClient); ok {
		fate = p.sendToNode(ctx, closed, c)
	} else {
		fate = p.line.Do(ctx, closed, c.urgent, c)
	}
	if fate == kit.Over {
		return nil
	}
	if fate == kit.Unsent {
		c.copies--
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return driver.ErrClosed
}

// try sends the call by once, and repeats it after errors that may be temporary. If ctx ends while
// a copy has no answer, the error includes why the last copy that had one failed.
func (p *pipelines) try(ctx context.Context, closed <-chan struct{}, c *call, once func() error) (any, error) {
	wait, start := 10*time.Millisecond, time.Now()
	var why error
	for tries := 1; ; tries++ {
		if err := once(); errors.Is(err, driver.ErrClosed) {
			return nil, err
		} else if err != nil {
			c.unsure = c.unsure || c.copies > 0 // why says nothing about the copy under way
			return nil, kit.Ended(ctx, why)
		}
		if c.Err == nil {
			p.answered.Store(true)
			return c.Reply, nil
		}
		class, outcome := fault.Sort(c.Err)
		// The master has the grant, even if the replicas do not.
		if outcome == kit.Unknown || errors.Is(c.Err, errReplicas) {
			c.unsure = true
		} else {
			c.copies--
		}
		switch {
		case !class.Again() || fault.Timeout(c.Err) && (c.newConnection || fault.Unsent(c.Err)):
			return c.Reply, c.Err
		case class == fault.Elsewhere && time.Since(start) < movesMax:
			most := 50 * time.Millisecond
			if fault.Moving(c.Err) { // this may take minutes
				most = checkInterval / 2
			}
			wait = min(wait, most)
		case tries >= copiesMax:
			return c.Reply, c.Err
		}
		why = c.Err
		reload(ctx, p.rdb, why)
		if err := pause(ctx, closed, wait, why); err != nil {
			return nil, err
		}
		wait *= 4
	}
}

// reload makes the client library ask a Cluster for its masters again, after an error that may mean
// that one was replaced. By itself the library may ask only once a minute.
func reload(ctx context.Context, rdb redis.UniversalClient, err error) {
	if cc, ok := rdb.(*redis.ClusterClient); ok && fault.Transient(err) {
		cc.ReloadState(ctx)
	}
}

// sendDirectly sends the call from the goroutine of its caller, if the last answer came quickly. It
// reports whether this one did too. It saves two switches of goroutines, which on a fast network
// cost as much as the round trip. The caller cannot leave meanwhile, so the timeout is short. After
// that the call is sent the usual way, as a copy.
func (p *pipelines) sendDirectly(_ context.Context, c *call) bool {
	if took := p.took.Load(); c.rare || took == 0 || took > int64(directTimeout/4) {
		return false
	}
	start := time.Now()
	// It may have to open a connection, or to wait for one.
	short, cancel := context.WithTimeout(context.Background(), directTimeout)
	script.Exec(short, p.direct, []*call{c})
	cancel()
	p.measure(start, c.Err)
	if !fault.Timeout(c.Err) {
		return true
	}
	c.unsure = true
	c.count()
	return false
}

// measure records how long the last pipeline took.
func (p *pipelines) measure(start time.Time, err error) {
	took := time.Since(start)
	if fault.Transient(err) {
		took = 0
	}
	p.took.Store(int64(took))
}

// send sends a pipeline.
func (p *pipelines) send(calls []*call) {
	start := time.Now()
	p.exec(context.Background(), calls)
	p.measure(start, calls[0].Err)
}

// sendToNode sends a call to the node of a Cluster where its key is.
func (p *pipelines) sendToNode(ctx context.Context, closed <-chan struct{}, c *call) kit.Fate {
	found := make(chan *redis.Client, 1)
	go func() { found <- masterOf(p.rdb, c.Keys[0]) }() // it may have to ask the Cluster
	var master *redis.Client
	select {
	case master = <-found:
	case <-ctx.Done():
		return kit.Unsent
	case <-closed:
		return kit.Unsent
	}
	p.mu.Lock()
	n := p.nodes[master]
	if n == nil {
		n = &node{line: p.newLine()}
		n.line.Late = func(*call) { p.leave(master, n) }
		p.nodes[master] = n
	}
	n.calls++
	p.mu.Unlock()
	fate := n.line.Do(ctx, closed, c.urgent, c)
	if fate != kit.Left {
		p.leave(master, n)
	}
	return fate
}

// leave records that a call to a node is over. A node without calls is dropped, as nodes come and
// go.
func (p *pipelines) leave(master *redis.Client, n *node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.calls--; n.calls == 0 {
		delete(p.nodes, master)
	}
}

// masterOf returns the node of a Cluster where a key is, or nil if rdb is no Cluster or the node is
// not known. It only groups calls; the client library decides where they are sent.
func masterOf(rdb redis.UniversalClient, key string) *redis.Client {
	if cc, ok := rdb.(*redis.ClusterClient); ok {
		if master, err := cc.MasterForKey(context.Background(), key); err == nil {
			return master
		}
	}
	return nil
}

// exec runs the calls, on a single server in few commands, as long as the server allows that.
func (p *pipelines) exec(ctx context.Context, calls []*call) {
	if p.apart.Load() {
		script.Exec(ctx, p.rdb, calls)
	} else if !script.ExecTogether(ctx, p.rdb, calls) {
		p.apart.Store(true)
	}
}
