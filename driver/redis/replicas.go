package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

const (
	// replicaTimeout is how long replicas have to confirm a grant.
	replicaTimeout = time.Second

	// redirectsMax is how many redirects of a Cluster in a row a call follows.
	redirectsMax = 4
)

// errReplicas means that the master granted, but too few replicas have the grant.
var errReplicas = errors.New("not confirmed by enough replicas")

// tooFew reports whether too few replicas confirmed in time, without a server refusing the WAIT.
func tooFew(err error) bool { return errors.Is(err, errReplicas) && !fault.Refused(err) }

// nodes are clients of single nodes of a Cluster, for commands that have to share a connection. The
// client library follows redirects only for single commands.
type nodes struct {
	cluster *redis.ClusterClient

	mu     sync.Mutex
	closed bool
	own    map[string]*redis.Client // of nodes that have no slot yet, by address
}

// at returns a client of the node with that address.
func (n *nodes) at(ctx context.Context, addr string) (*redis.Client, error) {
	var mu sync.Mutex
	var found *redis.Client
	_ = n.cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		if c.Options().Addr == addr {
			mu.Lock()
			defer mu.Unlock()
			found = c
		}
		return nil
	})
	if found != nil {
		return found, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, driver.ErrClosed
	}
	c := n.own[addr]
	if c == nil {
		if n.own == nil {
			n.own = map[string]*redis.Client{}
		}
		c = conn.Node(n.cluster, addr)
		n.own[addr] = c
	}
	return c, nil
}

// close closes the clients that at made.
func (n *nodes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	conn.Close(slices.Collect(maps.Values(n.own))...)
}

// runOnReplicas runs an acquire, and returns a grant only if enough replicas have it. When ctx ends
// it returns, and the call continues by itself.
func (b *Backend) runOnReplicas(ctx context.Context, c *call) (any, error) {
	return b.pipes.try(ctx, b.life.Closed(), c, func() error {
		type result struct {
			reply any
			err   error
		}
		done := make(chan result, 1)
		c.count()
		go func() {
			reply, err := b.acquireAndWait(c)
			done <- result{reply, err}
		}()
		select {
		case r := <-done:
			c.Reply, c.Err = r.reply, r.err
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-b.life.Closed():
			return driver.ErrClosed
		}
	})
}

// acquireAndWait runs the call followed by a WAIT on the same connection, since WAIT covers only
// the writes of its connection. So it sends both to a node, and follows redirects itself.
func (b *Backend) acquireAndWait(c *call) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*replicaTimeout)
	defer cancel()
	to := script.Pipeliner(b.rdb)
	node, _ := b.rdb.(*redis.Client)
	if b.nodes.cluster != nil {
		master, err := b.nodes.cluster.MasterForKey(ctx, c.Keys[0])
		if err != nil {
			return nil, err
		}
		node = master
	}
	keys := c.Keys
	for full, ask, redirects := false, false, 0; ; {
		if node != nil { // a WAIT may take longer than the timeouts of other commands
			to = node.WithTimeout(2 * replicaTimeout)
		}
		reply, n, err := sendAndWait(ctx, to, c.Command(ctx, full, keys), ask, b.o.WaitReplicas)
		if !full && err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			full = true
			continue
		}
		if fault.Moving(err) && len(keys) > 1 {
			keys = c.Parts[0]
			continue
		}
		addr, asking, is := fault.Redirect(err)
		if is && b.nodes.cluster != nil && redirects < redirectsMax {
			b.nodes.cluster.ReloadState(ctx)
			next, err := b.nodes.at(ctx, from(node, addr))
			if err != nil {
				return nil, err
			}
			node, ask = next, asking
			redirects++
			continue
		}
		if a, wrong := parseAcquire(reply); err == nil && wrong == nil && a.granted && n.err != nil {
			return nil, fmt.Errorf("%w: %w", errReplicas, n.err)
		} else if err == nil && wrong == nil && a.granted && n.replicas < b.o.WaitReplicas {
			return nil, fmt.Errorf("%w: %d of %d within %s", errReplicas, n.replicas, b.o.WaitReplicas, replicaTimeout)
		}
		return reply, err
	}
}

// from returns the address of a redirect by a node. A node that does not know its own host leaves
// it out, and no node writes brackets.
func from(node *redis.Client, addr string) string {
	i := strings.LastIndexByte(addr, ':')
	if i < 0 {
		return addr
	}
	host, port := strings.Trim(addr[:i], "[]"), addr[i+1:]
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(node.Options().Addr)
	}
	return net.JoinHostPort(host, port)
}

// confirmed is what a WAIT returned.
type confirmed struct {
	replicas int
	err      error
}

// sendAndWait sends the command and a WAIT in one pipeline. If ask is set, the node may still be
// taking over the slot.
func sendAndWait(ctx context.Context, to script.Pipeliner, cmd script.Command, ask bool, replicas int) (any, confirmed, error) {
	pipe := to.Pipeline()
	asking := redis.NewStatusCmd(ctx, "asking")
	if ask {
		_ = pipe.Process(ctx, asking)
	}
	_ = pipe.Process(ctx, cmd)
	wait := redis.NewIntCmd(ctx, "wait", replicas, replicaTimeout.Milliseconds())
	_ = pipe.Process(ctx, wait)
	_, failed := pipe.Exec(ctx)
	reply, err := cmd.Result()
	if reply == nil && err == nil { // as in package script
		err = failed
	}
	// if the node executed the command despite a refused ASKING, that counts
	if ask && err != nil && asking.Err() != nil {
		err = asking.Err()
	}
	n, waitErr := wait.Result()
	return reply, confirmed{int(n), waitErr}, err
}
