package redis

import (
	"context"
	"errors"
	"runtime"
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
	copiesMax   = 4   // how often a call is sent that may succeed later

	// movesMax is how long members may contradict each other about which of them has a key.
	movesMax = 3 * time.Second

	// patience is how long a call may take before its caller watches for more than the answer: to
	// ask a context for its end costs as much as the call does.
	patience = 20 * time.Millisecond

	// directTimeout is how long a call may take that its caller sends itself.
	directTimeout = 40 * time.Millisecond
)

// call is one script to run on one name.
type call struct {
	script.Call
	keys  [2]string   // in Keys: of the lock, and of what stands beside it
	parts [2][]string // in Parts: each of them

	sent   time.Time // before it was first given to the network
	copies int       // how often it was executed, or may have been
	unsure bool      // what became of one of them is not known
	done   chan bool // true when the pipeline is over; before that, at most once, false: it is late

	// newConnection means that no connection for it can be an old one that is dead. If there is no
	// answer in time, it is not sent again.
	newConnection bool

	// rare means that a copy cannot say what an earlier one did: it is given the time of a
	// connection, not sent again after directTimeout.
	rare bool

	// pipelines.mu guards what follows.
	late    bool // its caller watches for more than done
	taken   bool // it is in a pipeline
	dropped bool // nobody waited for it any more before it was in one
}

func newCall(s *script.Script, key, queue string, common, args []any) *call {
	c := &call{Call: script.Call{Script: s, Common: common, Args: args}, keys: [2]string{key, queue}, done: make(chan bool, 2)}
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

// pipelines send calls: what arrives while some are under way goes into the next pipeline. A call
// that is alone goes at once. There is no goroutine while there is nothing to send. In a Cluster
// each node has pipelines of its own, so that a dead one holds up no other.
type pipelines struct {
	rdb    redis.UniversalClient
	direct *redis.Client // rdb with little time for each call; nil for a Cluster
	apart  atomic.Bool   // each call is a command of its own

	answered atomic.Bool // the server has run a script

	mu    sync.Mutex
	nodes map[*redis.Client]*node
	watch *time.Timer // nil: there was nothing to watch yet
	armed bool        // the timer is running
}

// node is what is to be sent to one node.
type node struct {
	queue   []*call
	flights [sendersMax][]*call // the pipelines under way
	senders int                 // how many those are
	took    time.Duration       // the last one; 0: not known
}

func newPipelines(rdb redis.UniversalClient) *pipelines {
	p := &pipelines{rdb: rdb, nodes: map[*redis.Client]*node{}}
	if c, ok := rdb.(*redis.Client); ok {
		p.direct = c.WithTimeout(directTimeout)
	}
	_, cluster := rdb.(*redis.ClusterClient)
	p.apart.Store(cluster) // where calls that are in one slot are rare
	return p
}

// run sends the call and returns the reply. If its outcome is unknown, it sends the call again. It
// does not wait beyond ctx or closed. Then the call goes on alone if it is under way, and is not
// sent any more if it is not.
func (p *pipelines) run(ctx context.Context, closed <-chan struct{}, c *call) (any, error) {
	return p.try(ctx, closed, c, func() error { return p.once(ctx, closed, c) })
}

// once sends the call and waits until its reply or its error is in it. The error is only that of
// ctx or closed, which ended before.
func (p *pipelines) once(ctx context.Context, closed <-chan struct{}, c *call) error {
	if !c.rare && p.sendDirectly(ctx, c) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.send(c)
	for over := <-c.done; !over; {
		select {
		case over = <-c.done:
		case <-ctx.Done():
			p.drop(c)
			return ctx.Err()
		case <-closed:
			p.drop(c)
			return driver.ErrClosed
		}
	}
	return nil
}

// try sends the call by once, and again where that may help.
func (p *pipelines) try(ctx context.Context, closed <-chan struct{}, c *call, once func() error) (any, error) {
	wait, start := 10*time.Millisecond, time.Now()
	for tries := 1; ; tries++ {
		if err := once(); err != nil {
			return nil, err
		}
		if c.Err == nil {
			p.answered.Store(true)
			return c.Reply, nil
		}
		class, outcome := fault.Sort(c.Err)
		// What replicas do not have, the master has.
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
			if fault.Moving(c.Err) { // which may take minutes
				most = checkInterval / 2
			}
			wait = min(wait, most)
		case tries >= copiesMax:
			return c.Reply, c.Err
		}
		p.reload(ctx, c.Err)
		if err := pause(ctx, closed, wait, c.Err); err != nil {
			return nil, err
		}
		wait *= 4
	}
}

// reload has the client library ask a Cluster again who its masters are, after an error that may
// mean that one was replaced. By itself it may ask once a minute.
func (p *pipelines) reload(ctx context.Context, err error) {
	if cc, ok := p.rdb.(*redis.ClusterClient); ok && fault.Transient(err) {
		cc.ReloadState(ctx)
	}
}

// sendDirectly sends the call from the goroutine of its caller, if no other waits to be sent and
// the last answer came quickly. It reports whether this one did too. On a fast network the two
// changes of goroutine that it saves cost as much as the way to the server. The caller cannot leave
// meanwhile, so there is little time. When that is over, the call goes the usual way, as a copy.
func (p *pipelines) sendDirectly(ctx context.Context, c *call) bool {
	if p.direct == nil || ctx.Err() != nil {
		return false
	}
	p.mu.Lock()
	n := p.nodes[nil]
	if n == nil || n.senders == sendersMax || len(n.queue) > 0 || n.took == 0 || n.took > directTimeout/4 {
		p.mu.Unlock()
		return false
	}
	n.senders++
	p.mu.Unlock()
	c.count()
	start := time.Now()
	// It may have to open a connection, or to wait for one.
	short, cancel := context.WithTimeout(context.Background(), directTimeout)
	script.Exec(short, p.direct, []*call{c})
	cancel()
	took := time.Since(start)
	if fault.Transient(c.Err) {
		took = 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n.took = took
	if len(n.queue) > 0 {
		go p.drain(nil, n)
	} else {
		n.senders--
	}
	if !fault.Timeout(c.Err) {
		return true
	}
	c.unsure = true
	return false
}

// send has the call sent in a pipeline.
func (p *pipelines) send(c *call) {
	c.count()
	c.taken, c.late = false, false
	if _, ok := p.rdb.(*redis.ClusterClient); ok {
		c.late = true
		c.done <- false
		go func() { p.enqueue(masterOf(p.rdb, c.Keys[0]), c) }() // it may have to ask the Cluster
		return
	}
	p.enqueue(nil, c)
}

// masterOf returns the node of a Cluster where a key is, or nil: it is no Cluster, or cannot tell.
// It only sorts calls. Where they really go, the client library decides.
func masterOf(rdb redis.UniversalClient, key string) *redis.Client {
	if cc, ok := rdb.(*redis.ClusterClient); ok {
		if master, err := cc.MasterForKey(context.Background(), key); err == nil {
			return master
		}
	}
	return nil
}

func (p *pipelines) enqueue(rdb *redis.Client, c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[rdb]
	if n == nil {
		n = &node{}
		p.nodes[rdb] = n
	}
	n.queue = append(n.queue, c)
	p.arm()
	if n.senders < sendersMax {
		n.senders++
		go p.drain(rdb, n)
	}
}

// arm makes sure that what is late will be found. mu is held.
func (p *pipelines) arm() {
	switch {
	case p.armed:
		return
	case p.watch == nil:
		p.watch = time.AfterFunc(patience, p.findLate)
	default:
		p.watch.Reset(patience)
	}
	p.armed = true
}

// findLate tells the callers of the calls that are not over yet, until there are none.
func (p *pipelines) findLate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	for _, n := range p.nodes {
		for _, calls := range append(n.flights[:], n.queue) {
			for _, c := range calls {
				if p.arm(); !c.late {
					c.late = true
					c.done <- false
				}
			}
		}
	}
}

// drop records that nobody waits for the call any more.
func (p *pipelines) drop(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.taken {
		c.dropped = true
		c.copies--
	}
}

// take returns the calls of the next pipeline.
func (n *node) take() []*call {
	var calls []*call
	for len(n.queue) > 0 && len(calls) < pipelineMax {
		c := n.queue[0]
		n.queue = n.queue[1:]
		if !c.dropped {
			c.taken = true
			calls = append(calls, c)
		}
	}
	return calls
}

// exec runs the calls: on one server together, as long as it allows that.
func (p *pipelines) exec(ctx context.Context, calls []*call) {
	if p.apart.Load() {
		script.Exec(ctx, p.rdb, calls)
	} else if !script.ExecTogether(ctx, p.rdb, calls) {
		p.apart.Store(true)
	}
}

// drain sends pipelines to a node until there is nothing left to send.
func (p *pipelines) drain(rdb *redis.Client, n *node) {
	for many := true; ; {
		if many {
			runtime.Gosched() // those who are about to send something, now that they run
		}
		p.mu.Lock()
		calls := n.take()
		many = len(calls) > 1
		if len(calls) == 0 {
			if n.senders--; n.senders == 0 && rdb != nil { // nodes come and go
				delete(p.nodes, rdb)
			}
			p.mu.Unlock()
			return
		}
		flight := n.depart(calls)
		p.mu.Unlock()
		start := time.Now()
		p.exec(context.Background(), calls)
		took := time.Since(start)
		if fault.Transient(calls[0].Err) {
			took = 0
		}
		p.mu.Lock()
		n.took = took
		n.flights[flight] = nil
		p.mu.Unlock()
		for _, c := range calls {
			c.done <- true
		}
	}
}

// depart records that a pipeline is under way, and returns its place.
func (n *node) depart(calls []*call) int {
	for i, f := range n.flights {
		if f == nil {
			n.flights[i] = calls
			return i
		}
	}
	panic("more pipelines than senders")
}
