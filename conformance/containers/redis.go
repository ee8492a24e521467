package containers

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is Redis 8, which keeps its data in memory only.
var Redis = Kind{
	Name:    "redis",
	Image:   "redis:8",
	Built:   "dlock-test/redis:8",
	Package: "redis-server",
	Command: redisCommand("redis-server"),
	URL:     func(addr string) string { return "redis://" + addr },
	Ask:     askRedis,
}

// Valkey is Valkey 8, which keeps its data in memory only.
var Valkey = Kind{
	Name:    "valkey",
	Image:   "valkey/valkey:8",
	Built:   "dlock-test/valkey:8",
	Package: "valkey-server",
	Command: redisCommand("valkey-server"),
	URL:     func(addr string) string { return "redis://" + addr },
	Ask:     askRedis,
}

// RedisDurable are the arguments with which a Redis or Valkey that is killed leaves all that it ever acknowledged. (In tests no
// machine crashes: nothing has to reach the disk.)
var RedisDurable = []string{"--appendonly", "yes", "--appendfsync", "no"}

func redisCommand(program string) func(string, []int) []string {
	return func(dir string, ports []int) []string {
		return []string{program, "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", dir, "--save", ""}
	}
}

func askRedis(ctx context.Context, url string) (string, error) {
	c, err := dialRedis(url)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.Ping(ctx).Err(); err != nil { // refused while it loads its data
		return "", err
	}
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	for _, name := range []string{"valkey", "redis"} { // Valkey has both, the second for the sake of old clients
		if v := infoField(info, name+"_version"); v != "" {
			return name + " " + v, nil
		}
	}
	return "", fmt.Errorf("INFO without a version")
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if key, v, _ := strings.Cut(strings.TrimSpace(line), ":"); key == name {
			return v
		}
	}
	return ""
}

// dialRedis returns a client that neither retries nor says more than it is told.
func dialRedis(url string) (*redis.Client, error) {
	return dialRedisFor(url, time.Second, 3*time.Second)
}

// dialRedisFor is dialRedis for one that waits so long for a connection, and for an answer.
func dialRedisFor(url string, dial, answer time.Duration) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = dial, answer, answer
	o.DisableIdentity = true
	return redis.NewClient(o), nil
}

// cli runs commands on a Redis server, for a test.
type cli struct {
	t T
	*redis.Client
	ctx context.Context
}

func (s *Server) cli(t T) *cli {
	t.Helper()
	c, err := dialRedisFor(s.URL, time.Minute, time.Minute) // it may be slow, or stand still for a moment: what it says counts
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // as long as a test may take
	t.Cleanup(func() { cancel(); c.Close() })
	return &cli{t, c, ctx}
}

func (c *cli) must(args ...any) {
	c.t.Helper()
	if err := c.Do(c.ctx, args...).Err(); err != nil {
		c.t.Fatalf("%v: %v", args, err)
	}
}

func await(t T, what string, cond func() bool) {
	t.Helper()
	awaitFor(t, time.Minute, what, cond)
}

func awaitFor(t T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !cond(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s it is still not so that %s", d, what)
		}
	}
}

const (
	// failover is how long a master has to be silent before the others replace it: longer than a busy machine stands still, since who
	// is replaced for that loses grants.
	failover = 5 * time.Second

	// elected is how long the others may take for that in all. Sentinels that find that they stood still do nothing for 30 s, and an
	// election without a winner is held again.
	elected = 3 * time.Minute
)

// Sentinel is a master with two replicas, and three sentinels that watch them.
type Sentinel struct {
	Name      string    // of the master, as the sentinels know it
	Nodes     []*Server // the first is the master at the start
	Sentinels []*Server
}

// StartSentinel starts three servers of the kind (Redis or Valkey) and their sentinels for one test, and waits until all know
// each other. A master that is silent for five seconds is replaced.
func StartSentinel(t T, k Kind) *Sentinel {
	t.Helper()
	s := &Sentinel{Name: "dlock"}
	k = k.With("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	s.Nodes = append(s.Nodes, StartOwn(t, k))
	host, port, err := net.SplitHostPort(s.Nodes[0].Addr)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for range 2 {
		s.Nodes = append(s.Nodes, StartOwn(t, k.With("--replicaof", host, port)))
	}
	k.Files = map[string]string{"sentinel.conf": fmt.Sprintf(`sentinel monitor %[1]s %[2]s %[3]s 2
sentinel down-after-milliseconds %[1]s %[4]d
sentinel failover-timeout %[1]s %[5]d
`, s.Name, host, port, failover.Milliseconds(), 6000)}
	command := k.Command
	k.Command = func(dir string, ports []int) []string {
		program := command(dir, ports)[0]
		return []string{program, dir + "/sentinel.conf", "--sentinel", "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", dir}
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, StartOwn(t, k))
	}
	for _, w := range s.Sentinels {
		c := w.cli(t)
		await(t, "the sentinels know all others", func() bool {
			m, err := c.Do(c.ctx, "SENTINEL", "MASTER", s.Name).Result()
			v, _ := m.(map[any]any)
			return err == nil && v["num-slaves"] == "2" && v["num-other-sentinels"] == "2" && v["flags"] == "master"
		})
	}
	for _, n := range s.Nodes[1:] {
		c := n.cli(t)
		await(t, "the replicas have the data", func() bool {
			info, err := c.Info(c.ctx, "replication").Result()
			return err == nil && infoField(info, "master_link_status") == "up"
		})
	}
	return s
}

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string { return addrs(s.Sentinels) }

// Master returns the server that most of the sentinels take for the master now, nil if they do not agree.
func (s *Sentinel) Master(t T) *Server {
	t.Helper()
	votes := map[*Server]int{}
	for _, w := range s.Sentinels {
		c, err := dialRedis(w.URL)
		if err != nil {
			t.Fatalf("%v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		at, err := c.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name).StringSlice()
		cancel()
		c.Close()
		if err != nil || len(at) != 2 {
			continue
		}
		for _, n := range s.Nodes {
			if n.Addr == net.JoinHostPort(at[0], at[1]) {
				if votes[n]++; votes[n] > len(s.Sentinels)/2 {
					return n
				}
			}
		}
	}
	return nil
}

// AwaitMaster waits until another server than the given one is the master and takes writes, and returns it.
func (s *Sentinel) AwaitMaster(t T, not *Server) *Server {
	t.Helper()
	var m *Server
	awaitFor(t, elected, "another master takes writes", func() bool {
		m = s.Master(t)
		return m != nil && m != not && m.role() == "master"
	})
	return m
}

func (s *Server) role() string {
	c, err := dialRedis(s.URL)
	if err != nil {
		return ""
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, _ := c.Info(ctx, "replication").Result()
	return infoField(info, "role")
}

func addrs(servers []*Server) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr)
	}
	return all
}

// Cluster is a Redis Cluster of three masters, each with a replica.
type Cluster struct {
	Nodes []*Server // the first three are the masters at the start
}

// StartCluster starts a cluster of servers of the kind (Redis or Valkey) for one test, and waits until it serves. A master that
// is silent for five seconds is replaced by its replica.
func StartCluster(t T, k Kind) *Cluster {
	t.Helper()
	const masters, nodes = 3, 6
	command := k.Command
	k.Ports = 2
	k.Command = func(dir string, ports []int) []string {
		return append(command(dir, ports), "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(ports[1]),
			"--cluster-node-timeout", strconv.Itoa(int(failover.Milliseconds())), "--cluster-replica-validity-factor", "0",
			"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	}
	c := &Cluster{}
	var clis []*cli
	var ids []string
	polls := 0
	// A node that stood still at the wrong moment has forgotten whom it was about to meet: all are introduced again now and then.
	meet := func(done bool) bool {
		if polls++; !done && polls%250 == 0 {
			for _, n := range c.Nodes[1:] {
				clis[0].must("CLUSTER", "MEET", "127.0.0.1", n.ports[0], n.ports[1])
			}
		}
		return done
	}
	for i := range nodes {
		s := StartOwn(t, k)
		c.Nodes, clis = append(c.Nodes, s), append(clis, s.cli(t))
		id, err := clis[i].Do(clis[i].ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			t.Fatalf("%v", err)
		}
		ids = append(ids, id)
		clis[i].must("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < masters {
			clis[i].must("CLUSTER", "ADDSLOTSRANGE", slots*i/masters, slots*(i+1)/masters-1)
		}
		clis[0].must("CLUSTER", "MEET", "127.0.0.1", s.ports[0], s.ports[1])
	}
	for i, n := range clis {
		if i >= masters {
			await(t, "the nodes know each other", func() bool {
				return meet(n.Do(n.ctx, "CLUSTER", "REPLICATE", ids[i-masters]).Err() == nil)
			})
		}
	}
	await(t, "the cluster serves", func() bool { return meet(c.whole(clis)) })
	return c
}

const slots = 16384

// whole reports whether all nodes agree that all slots are served, each by a master with its replica.
func (c *Cluster) whole(clis []*cli) bool {
	for _, n := range clis {
		info, err := n.ClusterInfo(n.ctx).Result()
		if err != nil || infoField(info, "cluster_state") != "ok" {
			return false
		}
		members, err := clusterNodes(n.ctx, n.Client)
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
		if repl, err := n.Info(n.ctx, "replication").Result(); covered < slots || err != nil ||
			infoField(repl, "role") == "slave" && infoField(repl, "master_link_status") != "up" {
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
func (c *Cluster) Addrs() []string { return addrs(c.Nodes) }

// Master returns the server that has the key's slot, as most of the nodes that answer see it; nil if none has.
func (c *Cluster) Master(t T, key string) *Server {
	t.Helper()
	votes, answers := map[*Server]int{}, 0
	var best *Server
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

// AwaitMaster waits until another server than the given one has the key's slot and takes writes, and returns it.
func (c *Cluster) AwaitMaster(t T, key string, not *Server) *Server {
	t.Helper()
	var m *Server
	awaitFor(t, elected, "another master has the slot", func() bool {
		m = c.Master(t, key)
		return m != nil && m != not && m.role() == "master"
	})
	return m
}

// Move moves the key's slot, with all keys in it, to another master while clients use it, as an operator does who adds a node.
func (c *Cluster) Move(t T, key string, to *Server) {
	t.Helper()
	from := c.Master(t, key)
	if from == nil || from == to {
		t.Fatalf("the slot of %q cannot be moved from %v to %v", key, from, to)
	}
	src, dst := from.cli(t), to.cli(t)
	slot := src.ClusterKeySlot(src.ctx, key).Val()
	srcID, err1 := src.Do(src.ctx, "CLUSTER", "MYID").Text()
	dstID, err2 := dst.Do(dst.ctx, "CLUSTER", "MYID").Text()
	if err1 != nil || err2 != nil {
		t.Fatalf("%v, %v", err1, err2)
	}
	dst.must("CLUSTER", "SETSLOT", slot, "IMPORTING", srcID)
	src.must("CLUSTER", "SETSLOT", slot, "MIGRATING", dstID)
	for {
		keys, err := src.ClusterGetKeysInSlot(src.ctx, int(slot), 100).Result()
		if err != nil {
			t.Fatalf("%v", err)
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", "127.0.0.1", to.ports[0], "", 0, 5000, "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		src.must(args...)
	}
	dst.must("CLUSTER", "SETSLOT", slot, "NODE", dstID)
	src.must("CLUSTER", "SETSLOT", slot, "NODE", dstID)
	await(t, "all nodes know where the slot is", func() bool { return c.Master(t, key) == to })
}
