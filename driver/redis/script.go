package redis

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

//go:embed lua/*.lua
var lua embed.FS

var (
	acquireScript = queueScript(script.NeedsMemory, "acquire")
	confirmScript = queueScript(script.WhenFull, "acquire") // of what stands
	releaseScript = queueScript(script.WhenFull, "release")
	renewScript   = queueScript(script.WhenFull, "renew")
	inspectScript = queueScript(script.WhenFull, "inspect")
	breakScript   = queueScript(script.WhenFull, "break")
)

// queueScript reads a script on a queue. What it shares with the others is included.
func queueScript(flags, name string) *script.Script {
	read := func(name string) string {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // the build left it out
		}
		return string(text)
	}
	return script.New(flags + read("begin") + strings.Replace(read(name), "--- include queue.lua\n", read("queue"), 1))
}

// call is one script to run on one name.
type call struct {
	script.Call

	sent   time.Time // before it was first given to the network
	copies int       // how often it was sent, or may have been
	done   chan struct{}

	// no connection for it can be an old one that is dead: if there is no answer in time, it is not
	// sent again
	fresh bool

	taken bool // a lane has it; guarded by the conveyor's mu, as is the next
	left  bool // nobody waits for it any more, and no lane had it by then
}

func newCall(s *script.Script, keys []string, args ...any) *call {
	return &call{Call: script.Call{Script: s, Keys: keys, Args: args}, done: make(chan struct{}, 1)}
}

// count takes note that the call is sent.
func (c *call) count() {
	if c.copies++; c.copies == 1 {
		c.sent = time.Now()
	}
}

const (
	batchMax = 256 // calls in one pipeline
	lanesMax = 2   // pipelines under way to one node
	attempts = 4   // how often a call is sent whose outcome is unknown

	// how long the nodes of a Cluster may contradict each other about where a slot is
	moves = 3 * time.Second

	brisk = 40 * time.Millisecond // the time for a call that its caller sends itself
)

// conveyor sends calls in pipelines: what arrives while some are under way goes into the next. A
// call that is alone goes at once. It has no goroutine while there is nothing to send. In a Cluster
// each node has a belt of its own, so that a dead one holds up no other.
type conveyor struct {
	rdb   redis.UniversalClient
	brisk *redis.Client // rdb with little time for each call; nil for a Cluster

	mu    sync.Mutex
	belts map[*redis.Client]*belt
}

func newConveyor(rdb redis.UniversalClient) *conveyor {
	v := &conveyor{rdb: rdb, belts: map[*redis.Client]*belt{}}
	if c, ok := rdb.(*redis.Client); ok {
		v.brisk = c.WithTimeout(brisk)
	}
	return v
}

// belt are the calls to one node.
type belt struct {
	queue []*call
	lanes int           // pipelines under way
	took  time.Duration // the last one; 0: not known
}

// run sends the call and waits for the reply, but not beyond ctx or stop: then the call goes on
// alone if it is under way, and is not sent any more if it is not.
func (v *conveyor) run(ctx context.Context, stop <-chan struct{}, c *call) (any, error) {
	wait, start := 10*time.Millisecond, time.Now()
	for {
		if !v.self(ctx, c) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			v.send(c)
			select {
			case <-c.done:
			case <-ctx.Done():
				v.leave(c)
				return nil, ctx.Err()
			case <-stop:
				v.leave(c)
				return nil, driver.ErrClosed
			}
		}
		switch {
		case c.Err == nil || !fault.Transient(c.Err) || fault.Timeout(c.Err) && (c.fresh || fault.Unsent(c.Err)):
			return c.Reply, c.Err
		case fault.Moved(c.Err) && time.Since(start) < moves: // it was not executed
			c.copies--
			wait = min(wait, 50*time.Millisecond)
		case c.copies >= attempts:
			return c.Reply, c.Err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ended(ctx, c.Err)
		case <-stop:
			t.Stop()
			return nil, driver.ErrClosed
		}
		wait *= 4
	}
}

// self sends the call from the goroutine of its caller, if there is a lane free and the last answer
// came quickly, and reports whether this one did too. On a fast network the two changes of
// goroutine that it saves cost as much as the way to the server. The caller cannot leave meanwhile,
// so there is little time; when that is over, the call goes the usual way too, as a copy.
func (v *conveyor) self(ctx context.Context, c *call) bool {
	if v.brisk == nil {
		return false
	}
	v.mu.Lock()
	b := v.belts[nil]
	if b == nil || b.lanes == lanesMax || len(b.queue) > 0 || b.took == 0 || b.took > brisk/4 {
		v.mu.Unlock()
		return false
	}
	b.lanes++
	v.mu.Unlock()
	c.count()
	start := time.Now()
	soon, cancel := context.WithTimeout(ctx, brisk) // should it have to open a connection
	script.Exec(soon, v.brisk, []*call{c})
	cancel()
	took := time.Since(start)
	if fault.Transient(c.Err) {
		took = 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	b.took = took
	if len(b.queue) > 0 {
		go v.lane(nil, b)
	} else {
		b.lanes--
	}
	var late net.Error
	return !errors.As(c.Err, &late) || !late.Timeout()
}

// send gives the call to the network.
func (v *conveyor) send(c *call) {
	c.count()
	c.taken = false
	if _, ok := v.rdb.(*redis.ClusterClient); ok {
		go func() { v.put(home(v.rdb, c.Keys[0]), c) }() // it may have to ask the Cluster
		return
	}
	v.put(nil, c)
}

// home returns the node of a Cluster where a key lives, or nil: it is not a Cluster, or cannot
// tell. It only sorts calls. Where they really go, the client decides.
func home(rdb redis.UniversalClient, key string) *redis.Client {
	if cc, ok := rdb.(*redis.ClusterClient); ok {
		if node, err := cc.MasterForKey(context.Background(), key); err == nil {
			return node
		}
	}
	return nil
}

func (v *conveyor) put(node *redis.Client, c *call) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b := v.belts[node]
	if b == nil {
		b = &belt{}
		v.belts[node] = b
	}
	b.queue = append(b.queue, c)
	if b.lanes < lanesMax {
		b.lanes++
		go v.lane(node, b)
	}
}

// leave takes note that nobody waits for the call any more.
func (v *conveyor) leave(c *call) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !c.taken {
		c.left = true
		c.copies--
	}
}

// take takes the calls of the next pipeline off the belt.
func (b *belt) take() []*call {
	var batch []*call
	for len(b.queue) > 0 && len(batch) < batchMax {
		c := b.queue[0]
		b.queue = b.queue[1:]
		if !c.left {
			c.taken = true
			batch = append(batch, c)
		}
	}
	return batch
}

func (v *conveyor) lane(node *redis.Client, b *belt) {
	for {
		v.mu.Lock()
		batch := b.take()
		if len(batch) == 0 {
			if b.lanes--; b.lanes == 0 && node != nil { // nodes come and go
				delete(v.belts, node)
			}
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		start := time.Now()
		script.Exec(context.Background(), v.rdb, batch)
		took := time.Since(start)
		if fault.Transient(batch[0].Err) {
			took = 0
		}
		v.mu.Lock()
		b.took = took
		v.mu.Unlock()
		for _, c := range batch {
			c.done <- struct{}{}
		}
	}
}

// ended is the error of a call whose context ended after it had failed.
func ended(ctx context.Context, why error) error {
	if errors.Is(why, ctx.Err()) { // it says so already
		return why
	}
	return fmt.Errorf("%w: %w", ctx.Err(), why)
}
