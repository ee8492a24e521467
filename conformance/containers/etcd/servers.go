// Package etcd tests the driver on etcd: on a single member, and on a cluster of three.
package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// Etcd is a cluster of one member of etcd 3.5. A member that is killed keeps everything that it
// acknowledged. (In tests no machine crashes: data need not reach the disk.)
var Etcd = service.Kind{
	Name:    "etcd",
	Image:   "quay.io/coreos/etcd:v3.5.21",
	Built:   "dlock-test/etcd:3.5-ctl",
	Package: "etcd-server etcd-client",
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

// askEtcd queries the version of a member, which answers once its cluster has a leader.
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

// statusOf returns the status of a member, or nil.
func statusOf(s *service.Server) *clientv3.StatusResponse {
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

// dialEtcd returns a client that makes no calls by itself.
func dialEtcd(addrs []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
}

// etcdOf returns a client of the server, for a test.
func etcdOf(t service.T, s *service.Server) *clientv3.Client {
	t.Helper()
	c, err := dialEtcd([]string{s.Addr})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
