package redis

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

const (
	// failover is how long a master has to be silent before the others replace it: longer than a
	// busy machine stands still, since a master that is replaced for that loses grants.
	failover = 5 * time.Second

	// elected is how long the others may take for that in all. Sentinels that notice that they
	// stood still do nothing for 30 s, and an election without a winner is repeated.
	elected = 3 * time.Minute
)

// Sentinel is a master with two replicas, and three sentinels that watch them.
type Sentinel struct {
	Name      string            // of the master, as the sentinels know it
	Nodes     []*service.Server // the first is the master at the start
	Sentinels []*service.Server
}

// StartSentinel starts three servers of the kind (Redis or Valkey) and their sentinels for one
// test, and waits until all know each other. A master that is silent for five seconds is replaced.
func StartSentinel(t service.T, k service.Kind) *Sentinel {
	t.Helper()
	s := &Sentinel{Name: "dlock"}
	k = k.With("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	command := k.Command
	// The sentinels record in a server's file whom it follows, for its next start.
	node := func(follows string) *service.Server {
		k := k
		k.Files = map[string]string{"redis.conf": follows}
		k.Command = func(dir string, ports []int) []string {
			return slices.Insert(command(dir, ports), 1, dir+"/redis.conf")
		}
		return service.StartOwn(t, k)
	}
	s.Nodes = append(s.Nodes, node(""))
	host, port, err := net.SplitHostPort(s.Nodes[0].Addr)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for range 2 {
		s.Nodes = append(s.Nodes, node("replicaof "+host+" "+port+"\n"))
	}
	k.Files = map[string]string{"sentinel.conf": fmt.Sprintf(`sentinel monitor %[1]s %[2]s %[3]s 2
sentinel down-after-milliseconds %[1]s %[4]d
sentinel failover-timeout %[1]s %[5]d
`, s.Name, host, port, failover.Milliseconds(), 6000)}
	k.Command = func(dir string, ports []int) []string {
		program := command(dir, ports)[0]
		return []string{program, dir + "/sentinel.conf", "--sentinel", "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", dir}
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, service.StartOwn(t, k))
	}
	for _, w := range s.Sentinels {
		c := CLIOf(t, w)
		await.That(t, "the sentinels know all others", func() bool {
			m, err := c.Do(c.Ctx, "SENTINEL", "MASTER", s.Name).Result()
			v, _ := m.(map[any]any)
			return err == nil && v["num-slaves"] == "2" && v["num-other-sentinels"] == "2" && v["flags"] == "master"
		})
	}
	for _, n := range s.Nodes[1:] {
		awaitReplica(t, n)
	}
	return s
}

// awaitReplica waits until a replica has the data of its master.
func awaitReplica(t service.T, replica *service.Server) {
	t.Helper()
	c := CLIOf(t, replica)
	await.That(t, "the replica has the data", func() bool {
		info, err := c.Info(c.Ctx, "replication").Result()
		return err == nil && InfoField(info, "master_link_status") == "up"
	})
}

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string { return service.Addrs(s.Sentinels) }

// Master returns the server that most of the sentinels consider the master now; nil if they do not
// agree.
func (s *Sentinel) Master(t service.T) *service.Server {
	t.Helper()
	votes := map[*service.Server]int{}
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

// AwaitMaster waits until another server than the given one is the master and takes writes, and
// returns it.
func (s *Sentinel) AwaitMaster(t service.T, not *service.Server) *service.Server {
	t.Helper()
	var m *service.Server
	await.Within(t, elected, "another master takes writes", func() bool {
		m = s.Master(t)
		return m != nil && m != not && roleOf(m) == "master"
	})
	return m
}
