package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// Cluster is a Redis Cluster of three masters, each with a replica.
type Cluster struct {
	Nodes []*service.Server // the first three are the masters at the start
}

// StartCluster starts a cluster of servers of the kind (Redis or Valkey) for one test, and waits
// until it serves. A master that is silent for five seconds is replaced by its replica.
func StartCluster(t service.T, k service.Kind) *Cluster {
	t.Helper()
	const masters, nodes = 3, 6
	k = clusterKind(k)
	c := &Cluster{}
	var clis []*CLI
	var ids []string
	polls := 0
	// A node that stood still at the wrong moment has forgotten the nodes that it was about to
	// meet: all are introduced again now and then.
	meet := func(done bool) bool {
		if polls++; !done && polls%250 == 0 {
			for _, n := range c.Nodes[1:] {
				clis[0].Must("CLUSTER", "MEET", "127.0.0.1", n.Ports[0], n.Ports[1])
			}
		}
		return done
	}
	for i := range nodes {
		s := service.StartOwn(t, k)
		c.Nodes, clis = append(c.Nodes, s), append(clis, CLIOf(t, s))
		id, err := clis[i].Do(clis[i].Ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			t.Fatalf("%v", err)
		}
		ids = append(ids, id)
		clis[i].Must("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < masters {
			clis[i].Must("CLUSTER", "ADDSLOTSRANGE", slots*i/masters, slots*(i+1)/masters-1)
		}
		clis[0].Must("CLUSTER", "MEET", "127.0.0.1", s.Ports[0], s.Ports[1])
	}
	for i, n := range clis {
		if i >= masters {
			await.That(t, "the nodes know each other", func() bool {
				return meet(n.Do(n.Ctx, "CLUSTER", "REPLICATE", ids[i-masters]).Err() == nil)
			})
		}
	}
	await.That(t, "the cluster serves", func() bool { return meet(c.whole(clis)) })
	return c
}

// clusterKind is the kind of a server that is a node of a cluster.
func clusterKind(k service.Kind) service.Kind {
	command := k.Command
	k.Ports = 2
	k.Command = func(dir string, ports []int) []string {
		return append(command(dir, ports), "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(ports[1]),
			"--cluster-node-timeout", strconv.Itoa(int(failover.Milliseconds())), "--cluster-replica-validity-factor", "0",
			"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	}
	return k
}

const slots = 16384

// whole reports whether all nodes agree that all slots are served, each by a master with its
// replica.
func (c *Cluster) whole(clis []*CLI) bool {
	for _, n := range clis {
		info, err := n.ClusterInfo(n.Ctx).Result()
		if err != nil || InfoField(info, "cluster_state") != "ok" {
			return false
		}
		members, err := clusterNodes(n.Ctx, n.Client)
		if err != nil {
			return false
		}
		covered := 0
		for _, m := range members {
			for _, r := range m.slots {
				covered += r[1] - r[0] + 1
			}
			if m.master && !slices.ContainsFunc(members, func(o clusterNode) bool { return o.follows == m.id }) {
				return false
			}
		}
		if repl, err := n.Info(n.Ctx, "replication").Result(); covered < slots || err != nil ||
			InfoField(repl, "role") == "slave" && InfoField(repl, "master_link_status") != "up" {
			return false
		}
	}
	return true
}

// clusterNode is a member of a cluster as another one sees it.
type clusterNode struct {
	id, addr string
	master   bool   // and it serves
	follows  string // the ID of the master of a replica
	slots    [][2]int
}

func clusterNodes(ctx context.Context, c *redis.Client) ([]clusterNode, error) {
	text, err := c.ClusterNodes(ctx).Result()
	if err != nil {
		return nil, err
	}
	var nodes []clusterNode
	for line := range strings.Lines(text) {
		f := strings.Fields(line) // id addr@bus,host flags master ping pong epoch link slots...
		if len(f) < 8 {
			return nil, fmt.Errorf("CLUSTER NODES has the line %q", line)
		}
		n := clusterNode{id: f[0], follows: f[3]}
		n.addr, _, _ = strings.Cut(f[1], "@")
		flags := strings.Split(f[2], ",")
		n.master = slices.Contains(flags, "master") && !slices.Contains(flags, "fail")
		for _, r := range f[8:] {
			if strings.HasPrefix(r, "[") { // on the move
				continue
			}
			first, last, more := strings.Cut(r, "-")
			if !more {
				last = first
			}
			a, err1 := strconv.Atoi(first)
			b, err2 := strconv.Atoi(last)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("CLUSTER NODES has the slots %q", r)
			}
			n.slots = append(n.slots, [2]int{a, b})
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// Addrs returns the addresses of the nodes.
func (c *Cluster) Addrs() []string { return service.Addrs(c.Nodes) }

// Master returns the server that has the key's slot, in the view of most nodes that answer; nil if
// none has.
func (c *Cluster) Master(t service.T, key string) *service.Server {
	t.Helper()
	votes, answers := map[*service.Server]int{}, 0
	var best *service.Server
	for _, n := range c.Nodes {
		r, err := dialRedis(n.URL)
		if err != nil {
			t.Fatalf("%v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		slot, err1 := r.ClusterKeySlot(ctx, key).Result()
		members, err2 := clusterNodes(ctx, r)
		cancel()
		r.Close()
		if err1 != nil || err2 != nil {
			continue
		}
		answers++
		for _, m := range members {
			has := slices.ContainsFunc(m.slots, func(r [2]int) bool { return r[0] <= int(slot) && int(slot) <= r[1] })
			if i := slices.Index(c.Addrs(), m.addr); m.master && has && i >= 0 {
				if votes[c.Nodes[i]]++; best == nil || votes[c.Nodes[i]] > votes[best] {
					best = c.Nodes[i]
				}
			}
		}
	}
	if best == nil || 2*votes[best] <= answers {
		return nil
	}
	return best
}

// AwaitMaster waits until another server than the given one has the key's slot and takes writes,
// and returns it.
func (c *Cluster) AwaitMaster(t service.T, key string, not *service.Server) *service.Server {
	t.Helper()
	var m *service.Server
	await.Within(t, elected, "another master has the slot", func() bool {
		m = c.Master(t, key)
		return m != nil && m != not && roleOf(m) == "master"
	})
	return m
}

// Move moves the key's slot, with all keys in it, to another master while clients use it, as when
// an operator adds a node.
func (c *Cluster) Move(t service.T, key string, to *service.Server) {
	t.Helper()
	from := c.Master(t, key)
	if from == nil || from == to {
		t.Fatalf("the slot of %q cannot be moved from %v to %v", key, from, to)
	}
	src, dst := CLIOf(t, from), CLIOf(t, to)
	slot := src.ClusterKeySlot(src.Ctx, key).Val()
	srcID, err1 := src.Do(src.Ctx, "CLUSTER", "MYID").Text()
	dstID, err2 := dst.Do(dst.Ctx, "CLUSTER", "MYID").Text()
	if err1 != nil || err2 != nil {
		t.Fatalf("%v, %v", err1, err2)
	}
	dst.Must("CLUSTER", "SETSLOT", slot, "IMPORTING", srcID)
	src.Must("CLUSTER", "SETSLOT", slot, "MIGRATING", dstID)
	for {
		keys, err := src.ClusterGetKeysInSlot(src.Ctx, int(slot), 100).Result()
		if err != nil {
			t.Fatalf("%v", err)
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", "127.0.0.1", to.Ports[0], "", 0, 5000, "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		src.Must(args...)
	}
	dst.Must("CLUSTER", "SETSLOT", slot, "NODE", dstID)
	src.Must("CLUSTER", "SETSLOT", slot, "NODE", dstID)
	await.That(t, "all nodes know where the slot is", func() bool { return c.Master(t, key) == to })
}
