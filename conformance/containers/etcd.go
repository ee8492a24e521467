package containers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Etcd is a cluster of one member of etcd 3.5. One that is killed leaves all that it ever acknowledged. (In tests no machine crashes: nothing has to reach
// the disk.)
var Etcd = Kind{
	Name:    "etcd",
	Image:   "quay.io/coreos/etcd:v3.5.21",
	Built:   "dlock-test/etcd:3.5",
	Package: "etcd-server",
	Ports:   2,
	Command: func(dir string, ports []int) []string {
		return etcdCommand(dir, "alone", ports[0], ports[1], loopback(ports[1]), "alone="+loopback(ports[1]))
	},
	URL: func(addr string) string { return "etcd://" + addr },
	Ask: func(ctx context.Context, url string) (string, error) { return askEtcd(ctx, http.DefaultClient, url) },
}

func loopback(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

// etcdCommand runs a member that listens on two ports and is reached by its peers at a URL.
func etcdCommand(dir, name string, client, peer int, reached, cluster string) []string {
	return []string{"etcd", "--name=" + name, "--data-dir=" + dir + "/db",
		"--listen-client-urls=" + loopback(client), "--advertise-client-urls=" + loopback(client),
		"--listen-peer-urls=" + loopback(peer), "--initial-advertise-peer-urls=" + reached, "--initial-cluster=" + cluster,
		"--unsafe-no-fsync", "--log-level=error", "--heartbeat-interval=50", "--election-timeout=500", "--auto-compaction-retention=0"}
}

// askEtcd asks a member for its version, which it says once its cluster has a leader.
func askEtcd(ctx context.Context, c *http.Client, text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", fmt.Errorf("not a URL") // the error would show it, with its password
	}
	scheme := strings.Replace(u.Scheme, "etcd", "http", 1)
	host, _, _ := strings.Cut(u.Host, ",")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+host+"/version", nil)
	if err != nil {
		return "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var v struct{ Etcdserver string }
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil || v.Etcdserver == "" {
		return "", fmt.Errorf("GET /version: status %d, %w", res.StatusCode, err)
	}
	return "etcd " + v.Etcdserver, nil
}

// EtcdCluster is three members of one cluster.
type EtcdCluster struct {
	Members []*Server    // in no order
	network *peerNetwork // nil: they reach each other as they are
}

// StartEtcdCluster starts three members for one test. Any of them may be their leader.
func StartEtcdCluster(t T) *EtcdCluster {
	t.Helper()
	return startEtcdCluster(t, false)
}

// StartDivisibleEtcdCluster is StartEtcdCluster, with members that talk to each other through a network in this process, which can be cut.
func StartDivisibleEtcdCluster(t T) *EtcdCluster {
	t.Helper()
	return startEtcdCluster(t, true)
}

func startEtcdCluster(t T, divisible bool) *EtcdCluster {
	t.Helper()
	const members = 3
	listen, err := freePorts(members)
	if err != nil {
		t.Fatalf("%v", err)
	}
	c := &EtcdCluster{Members: make([]*Server, members)}
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
	var wg sync.WaitGroup // a member serves nobody before there are two
	for i := range members {
		k := Etcd
		k.Ports = 1
		k.Command = func(dir string, ports []int) []string {
			return etcdCommand(dir, "m"+strconv.Itoa(i), ports[0], listen[i], urls[i], strings.Join(names, ","))
		}
		wg.Go(func() { c.Members[i] = StartOwn(t, k) })
	}
	wg.Wait()
	for _, m := range c.Members {
		if m == nil {
			t.Fatalf("not all members of the cluster were started")
		}
	}
	if c.network == nil {
		return c
	}
	client := c.Members[0].etcd(t)
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

// URL is what clients open.
func (c *EtcdCluster) URL() string { return "etcd://" + strings.Join(c.addrs(), ",") }

func (c *EtcdCluster) addrs() (addrs []string) {
	for _, m := range c.Members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// Leader waits until two members agree on a leader, and returns which it is.
func (c *EtcdCluster) Leader(t T) int {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		votes := map[uint64]int{}
		ids := map[uint64]int{}
		for i, m := range c.Members {
			if s := m.status(); s != nil {
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

// Restart kills all members, and starts them on their data.
func (c *EtcdCluster) Restart(t T) {
	t.Helper()
	for _, m := range c.Members {
		m.Kill(t)
	}
	var wg sync.WaitGroup
	for _, m := range c.Members {
		wg.Go(func() { m.Restart(t) })
	}
	wg.Wait()
}

// Cut takes a member of a divisible cluster off the network of its peers, until heal. Its clients still reach it.
func (c *EtcdCluster) Cut(member int) (heal func()) { return c.network.cut(member) }

// status returns what a member says of itself, or nil.
func (s *Server) status() *clientv3.StatusResponse {
	c, err := dialEtcd([]string{s.Addr})
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	res, err := c.Status(ctx, s.Addr)
	if err != nil {
		return nil
	}
	return res
}

// dialEtcd returns a client that says nothing that it is not asked for.
func dialEtcd(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
}

// etcd returns a client of the server, for a test.
func (s *Server) etcd(t T) *clientv3.Client {
	t.Helper()
	c, err := dialEtcd([]string{s.Addr})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
