package redis

import (
	"cmp"
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
)

// script is Lua that the server keeps under its hash.
type script struct{ text, hash string }

//go:embed lua/*.lua
var lua embed.FS

// What keeps or ends a hold, or hands it on, runs on a server whose memory is full too: it hardly
// needs any, and gives some back. Only what arrives is refused there.
const (
	needsMemory = "#!lua\n"
	whenFull    = "#!lua flags=allow-oom\n"
)

var (
	acquireScript = queueScript(needsMemory, "acquire")
	confirmScript = queueScript(whenFull, "acquire") // of what stands
	releaseScript = queueScript(whenFull, "release")
	renewScript   = queueScript(whenFull, "renew")
	inspectScript = queueScript(whenFull, "inspect")
	breakScript   = queueScript(whenFull, "break")
)

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, hash: hex.EncodeToString(sum[:])}
}

// queueScript reads a script on a queue. What it shares with the others is included.
func queueScript(flags, name string) *script {
	read := func(name string) string {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // the build left it out
		}
		return string(text)
	}
	return newScript(flags + read("begin") + strings.Replace(read(name), "--- include queue.lua\n", read("queue"), 1))
}

// once is a command that the client library must not send again by itself: whether there may be a
// copy under way is ours to know.
type once struct{ *redis.Cmd }

// NoRetry is redis.Cmder's.
func (once) NoRetry() bool { return true }

// call is one script to run on one name.
type call struct {
	script *script
	keys   []string
	args   []any

	sent   time.Time // before it was first given to the network
	copies int       // how often it was sent, or may have been
	reply  any
	err    error
	done   chan struct{}

	// no connection for it can be an old one that is dead: if there is no answer in time, it is not
	// sent again
	fresh bool

	taken bool // a lane has it; guarded by the conveyor's mu, as is the next
	left  bool // nobody waits for it any more, and no lane had it by then
}

func newCall(s *script, keys []string, args ...any) *call {
	return &call{script: s, keys: keys, args: args, done: make(chan struct{}, 1)}
}

// count takes note that the call is sent.
func (c *call) count() {
	if c.copies++; c.copies == 1 {
		c.sent = time.Now()
	}
}

func (c *call) command(ctx context.Context, full bool) once {
	a := make([]any, 0, 3+len(c.keys)+len(c.args))
	if full {
		a = append(a, "eval", c.script.text)
	} else {
		a = append(a, "evalsha", c.script.hash)
	}
	a = append(a, len(c.keys))
	for _, k := range c.keys {
		a = append(a, k)
	}
	return once{redis.NewCmd(ctx, append(a, c.args...)...)}
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
		case c.err == nil || !passing(c.err) || timeout(c.err) && (c.fresh || unsent(c.err)):
			return c.reply, c.err
		case elsewhere(c.err) && time.Since(start) < moves: // it was not executed
			c.copies--
			wait = min(wait, 50*time.Millisecond)
		case c.copies >= attempts:
			return c.reply, c.err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ended(ctx, c.err)
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
	exec(soon, v.brisk, []*call{c})
	cancel()
	took := time.Since(start)
	if passing(c.err) {
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
	return !errors.As(c.err, &late) || !late.Timeout()
}

// send gives the call to the network.
func (v *conveyor) send(c *call) {
	c.count()
	c.taken = false
	if _, ok := v.rdb.(*redis.ClusterClient); ok {
		go func() { v.put(home(v.rdb, c.keys[0]), c) }() // it may have to ask the Cluster
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
		exec(context.Background(), v.rdb, batch)
		took := time.Since(start)
		if passing(batch[0].err) {
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

// exec runs the calls in one pipeline, and those whose script the server does not know again, in
// full. Each has its reply or its error then.
func exec(ctx context.Context, rdb pipeliner, batch []*call) {
	full := false
	for len(batch) > 0 {
		pipe := rdb.Pipeline()
		cmds := make([]once, len(batch))
		for i, c := range batch {
			cmds[i] = c.command(ctx, full)
			_ = pipe.Process(ctx, cmds[i])
		}
		_, failed := pipe.Exec(ctx)
		var again []*call
		for i, c := range batch {
			c.reply, c.err = cmds[i].Result()
			// no script answers nil: the greeting of a new connection was refused
			if c.reply == nil && c.err == nil {
				c.err = cmp.Or(failed, io.ErrUnexpectedEOF)
			}
			if c.err != nil && strings.HasPrefix(c.err.Error(), "NOSCRIPT") && !full {
				again = append(again, c)
			}
		}
		batch, full = again, true
	}
}

type pipeliner interface{ Pipeline() redis.Pipeliner }

// ended is the error of a call whose context ended after it had failed.
func ended(ctx context.Context, why error) error {
	if errors.Is(why, ctx.Err()) { // it says so already
		return why
	}
	return fmt.Errorf("%w: %w", ctx.Err(), why)
}

// passing reports whether the error is one of the network or of a server that is just starting,
// failing over or moving slots: worth asking again. After one of the network the call may have been
// executed.
func passing(err error) bool {
	if err == nil {
		return false
	}
	var e redis.Error
	if !errors.As(err, &e) {
		var ne net.Error
		return errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
			errors.Is(err, redis.ErrPoolTimeout) || strings.Contains(err.Error(), "connection") || strings.Contains(err.Error(), "reset")
	}
	for _, p := range []string{"LOADING ", "READONLY ", "CLUSTERDOWN ", "TRYAGAIN ", "MASTERDOWN ", "MOVED ", "ASK ", "BUSY ", "UNKILLABLE ", "NOREPLICAS "} {
		if strings.HasPrefix(e.Error(), p) {
			return true
		}
	}
	return false
}

// elsewhere reports whether a node of a Cluster says that the key's slot is elsewhere, or on its
// way, after all that the client library has done about it.
func elsewhere(err error) bool {
	var e redis.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, p := range []string{"MOVED ", "ASK ", "TRYAGAIN "} {
		if strings.HasPrefix(e.Error(), p) {
			return true
		}
	}
	return false
}

// timeout reports whether the time of the line was over.
func timeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// hidden is an error in which a deadline of the line's own is not taken for the caller's.
type hidden struct{ error }

// Is matches all that the error does, but for the context's errors.
func (h hidden) Is(target error) bool {
	return target != context.DeadlineExceeded && target != context.Canceled && errors.Is(h.error, target)
}

// As finds all that is in the error.
func (h hidden) As(target any) bool { return errors.As(h.error, target) }

// hide keeps an error from matching a context's, and says what a time that was over means.
func hide(err error) error {
	if timeout(err) && !unsent(err) {
		err = fmt.Errorf("the server did not answer in time: %w", err)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return hidden{err}
	}
	return err
}
