package zookeeper

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// Ensemble is three servers that replicate the same data. A write needs two of them.
type Ensemble struct {
	Nodes   []*service.Server   // in no order
	proxies [][]*netfault.Proxy // by the follower and the leader
}

// StartEnsemble starts three ZooKeeper servers for one test, and waits until all of them serve. The
// options are the Java machine's.
func StartEnsemble(t service.T, options ...string) *Ensemble {
	t.Helper()
	return startEnsemble(t, "", options...)
}

// startEnsemble is StartEnsemble of servers whose configuration has more lines.
func startEnsemble(t service.T, lines string, options ...string) *Ensemble {
	t.Helper()
	const members = 3
	ports, err := service.FreePorts(2 * members) // for replication and for elections
	if err != nil {
		t.Fatalf("%v", err)
	}
	e := &Ensemble{Nodes: make([]*service.Server, members), proxies: make([][]*netfault.Proxy, members)}
	var wg sync.WaitGroup
	for i := range members {
		more := lines + "quorumListenOnAllIPs=false\n"
		e.proxies[i] = make([]*netfault.Proxy, members)
		for j := range members {
			quorum := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[2*j]))
			if j != i {
				p := netfault.NewProxy()
				t.Cleanup(p.Close)
				e.proxies[i][j] = p
				if quorum, err = p.Addr(quorum); err != nil {
					t.Fatalf("%v", err)
				}
			}
			more += fmt.Sprintf("server.%d=%s:%d\n", j+1, quorum, ports[2*j+1])
		}
		k := ZooKeeper
		k.Command = zookeeperCommand(more, i+1, options...)
		k.Ask = func(ctx context.Context, url string) (string, error) { return askZooKeeper(ctx, url, true) }
		wg.Go(func() { e.Nodes[i] = service.StartOwn(t, k) })
	}
	await.All(t, &wg)
	if slices.Contains(e.Nodes, nil) {
		t.Fatalf("the ensemble did not start")
	}
	e.AwaitServing(t)
	return e
}

// Addrs returns the addresses of the servers.
func (e *Ensemble) Addrs() []string { return service.Addrs(e.Nodes) }

// URL is the URL that clients open.
func (e *Ensemble) URL() string { return "zookeeper://" + strings.Join(e.Addrs(), ",") }

// Leader returns the server that leads and is none of those given; nil if there is none now. A
// leader that was cut off goes on leading for five seconds: to get its successor, give it.
func (e *Ensemble) Leader(not ...*service.Server) *service.Server {
	for _, n := range e.Nodes {
		if !slices.Contains(not, n) && leads(n) == "leader" {
			return n
		}
	}
	return nil
}

// AwaitLeader waits until a server leads that is none of those given.
func (e *Ensemble) AwaitLeader(t service.T, not ...*service.Server) (leader *service.Server) {
	t.Helper()
	await.That(t, "another server leads", func() bool {
		leader = e.Leader(not...)
		return leader != nil
	})
	return leader
}

// Follower returns one of the servers that follow another one.
func (e *Ensemble) Follower(t service.T) (follower *service.Server) {
	t.Helper()
	await.That(t, "a server follows", func() bool {
		for _, n := range e.Nodes {
			if leads(n) == "follower" {
				follower = n
			}
		}
		return follower != nil
	})
	return follower
}

// AwaitServing waits until all servers serve under one leader: one that was cut off may also take
// itself for the leader.
func (e *Ensemble) AwaitServing(t service.T) {
	t.Helper()
	await.That(t, "all servers serve", func() bool {
		are := map[string]int{}
		for _, n := range e.Nodes {
			are[leads(n)]++
		}
		return are["leader"] == 1 && are["follower"] == len(e.Nodes)-1
	})
}

// CutOff keeps a server and the other two apart, until heal: nothing is replicated between them.
// Clients reach it as before, and so do the messages of an election, so it may know another leader,
// which it cannot follow. It detects the cut by itself, after five seconds; its followers detect it
// at once, or else they might elect it again.
func (e *Ensemble) CutOff(s *service.Server) (heal func()) {
	var heals []func()
	cut := slices.Index(e.Nodes, s)
	for i, row := range e.proxies {
		for j, p := range row {
			switch {
			case i == cut && j != cut:
				heals = append(heals, p.Isolate())
			case j == cut && i != cut:
				// a server that follows it again by mistake detects that at once
				heals = append(heals, p.Isolate(), p.Refuse())
				p.Abandon()
			}
		}
	}
	return func() {
		for _, h := range heals {
			h()
		}
	}
}
