package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// Cluster is a cluster of three members.
type Cluster struct {
	Members []*service.Server // in no order
	network *peerNetwork      // nil: they reach each other directly
}

// StartCluster starts three members for one test. Any of them may be their leader.
func StartCluster(t service.T) *Cluster {
	t.Helper()
	return startCluster(t, false)
}

// StartDivisibleCluster is StartCluster, with members that talk to each other through a network
// in this process, which can be cut.
func StartDivisibleCluster(t service.T) *Cluster {
	t.Helper()
	return startCluster(t, true)
}

func startCluster(t service.T, divisible bool) *Cluster {
	t.Helper()
	const members = 3
	listen, err := service.FreePorts(members)
	if err != nil {
		t.Fatalf("%v", err)
	}
	c := &Cluster{Members: make([]*service.Server, members)}
	var urls, names []string
	for _, port := range listen {
		urls = append(urls, loopback(port))
	}
	if divisible {
		c.network = newPeerNetwork(t, listen)
		urls = c.network.urls
	}
	for i := range members {
		names = append(names, fmt.Sprintf("m%d=%s", i, urls[i]))
	}
	var wg sync.WaitGroup // a member answers no call before there are two
	for i := range members {
		k := Etcd
		k.Ports = 1
		k.Command = func(dir string, ports []int) []string {
			return etcdCommand(dir, "m"+strconv.Itoa(i), ports[0], listen[i], urls[i], strings.Join(names, ","))
		}
		wg.Go(func() { c.Members[i] = service.StartOwn(t, k) })
	}
	await.All(t, &wg)
	for _, m := range c.Members {
		if m == nil {
			t.Fatalf("not all members of the cluster were started")
		}
	}
	if c.network == nil {
		return c
	}
	client := etcdOf(t, c.Members[0])
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := client.MemberList(ctx)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, m := range list.Members {
		i, _ := strconv.Atoi(strings.TrimPrefix(m.Name, "m"))
		c.network.know(i, m.ID)
	}
	return c
}

// URL returns the URL for clients.
func (c *Cluster) URL() string { return "etcd://" + strings.Join(c.addrs(), ",") }

func (c *Cluster) addrs() (addrs []string) {
	for _, m := range c.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// Leader waits until two members agree on a leader, and returns its index.
func (c *Cluster) Leader(t service.T) int {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		votes := map[uint64]int{}
		ids := map[uint64]int{}
		for i, m := range c.Members {
			if s := statusOf(m); s != nil {
				ids[s.Header.MemberId] = i
				votes[s.Leader]++
			}
		}
		for id, n := range votes {
			if i, ok := ids[id]; ok && n > len(c.Members)/2 {
				return i
			}
		}
	}
	t.Fatalf("after a minute the cluster has no leader")
	panic("unreachable")
}

// Restart kills all members, and starts them again on their data.
func (c *Cluster) Restart(t service.T) {
	t.Helper()
	for _, m := range c.Members {
		m.Kill(t)
	}
	var wg sync.WaitGroup
	for _, m := range c.Members {
		wg.Go(func() { m.Restart(t) })
	}
	await.All(t, &wg)
}

// Lag withholds all changes from a follower of a divisible cluster, until heal: it has its leader,
// but receives nothing new.
func (c *Cluster) Lag(member int) (heal func()) { return c.network.lag(member) }

// Cut takes a member of a divisible cluster off the network of its peers, until heal. Clients still
// reach it.
func (c *Cluster) Cut(member int) (heal func()) { return c.network.cut(member) }
