package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/storm/history"
)

// promotions watches which servers of Redis are masters, and records each replica that becomes one:
// also a master that was silent for another reason than to be replaced may be.
type promotions struct {
	w       *history.Writer
	cluster bool // the servers are those of a Cluster

	mu     sync.Mutex
	nodes  []*node // in the order of the servers
	number uint64  // of failovers
}

// node is a server of Redis.
type node struct {
	*service.Server
	rdb *goredis.Client // calls may take five seconds

	// as of its last answer
	master bool
	linked bool // it is a replica, and its master sends it all changes
	// of its last answer as a replica: when it was asked, and the address of its master then
	asked int64
	of    string

	replaced []uint64 // the failovers in which it was replaced, and that it does not know of
}

// watchPromotions watches the servers, which may be those of a Cluster, until stop.
func watchPromotions(w *history.Writer, servers []*service.Server, cluster bool) (p *promotions, stop func()) {
	p = &promotions{w: w, cluster: cluster}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, s := range servers {
		n := &node{Server: s, rdb: goredis.NewClient(&goredis.Options{Addr: s.Addr, DisableIdentity: true, ContextTimeoutEnabled: true, ReadTimeout: 5 * time.Second})}
		p.nodes = append(p.nodes, n)
		all.Go(func() {
			for ctx.Err() == nil {
				p.ask(ctx, n)
				rest(ctx, 50*time.Millisecond)
			}
		})
	}
	return p, func() {
		cancel()
		all.Wait()
		for _, n := range p.nodes {
			n.rdb.Close()
		}
	}
}

// ask asks a server for its role.
func (p *promotions) ask(ctx context.Context, n *node) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	asked := p.w.Now()
	info, err := n.rdb.Info(ctx, "replication").Result()
	if err != nil {
		return
	}
	replica := redis.InfoField(info, "role") != "master"
	if !replica && p.cluster {
		// a replica that starts does not replicate yet, but serves nothing
		nodes, err := n.rdb.ClusterNodes(ctx).Result()
		if err != nil {
			return
		}
		replica = strings.Contains(nodes, "myself,slave")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if replica {
		n.master, n.asked = false, asked
		n.linked = redis.InfoField(info, "master_link_status") == "up"
		if host := redis.InfoField(info, "master_host"); host != "" {
			n.of = net.JoinHostPort(host, redis.InfoField(info, "master_port"))
		}
		for _, op := range n.replaced {
			p.w.Add(history.Event{Kind: history.Demoted, Proc: -1, Op: op})
		}
		n.replaced = nil
		return
	}
	if !n.master && n.of != "" {
		p.number++
		p.w.Add(history.Event{At: n.asked, Kind: history.Promoted, Proc: -1, Op: p.number, Text: n.Addr + " in place of " + n.of})
		for _, old := range p.nodes {
			if old.Addr == n.of {
				old.replaced = append(old.replaced, p.number)
			}
		}
	}
	n.master, n.linked = true, false
}

// master returns one of the masters that have a replica with all of their data, but not the given
// server, and that replica; nil if there is none now.
func (p *promotions) master(which int, but *service.Server) (master, replica *node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.nodes {
		n := p.nodes[(which+i)%len(p.nodes)]
		for _, r := range p.nodes {
			if n.master && n.Server != but && !r.master && r.linked && r.of == n.Addr {
				return n, r
			}
		}
	}
	return nil, nil
}

// of returns the node of a server; nil for none.
func (p *promotions) of(s *service.Server) *node {
	i := slices.IndexFunc(p.nodes, func(n *node) bool { return n.Server == s })
	if i < 0 {
		return nil
	}
	return p.nodes[i]
}

// serving returns the node, or the master that it follows.
func (p *promotions) serving(n *node) *node {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.nodes {
		if !n.master && m.Addr == n.of {
			return m
		}
	}
	return n
}

// replaced reports whether a replica of a node was promoted, and the node does not know of it.
func (p *promotions) replaced(n *node) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(n.replaced) > 0
}

// follows reports whether a node is a replica that has the data of its master.
func (p *promotions) follows(n *node) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !n.master && n.linked
}
