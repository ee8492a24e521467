package etcd

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/etcd"
	"github.com/dlock-go/dlock/internal/size"
)

// plainKey is what the peers lock for a name.
const plainKey = "/locks/{name}"

// plainURL is the URL of a server in the peers' layout of keys.
func plainURL(s *service.Server) string {
	return s.URL + "?keys=plain&key=" + url.QueryEscape(plainKey)
}

// plainKeys returns the keys in the peers' queue of a name, the holder's first.
func plainKeys(t service.T, c *clientv3.Client, name string) (keys []string) {
	t.Helper()
	res, err := c.Get(context.Background(), "/locks/"+name+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, kv := range res.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// plainLaws are the laws, besides the core, that a request of two keys could break although a
// request of one keeps them. A short run has no others.
var plainLaws = []string{
	"names", "list", "list-prefix", "inspect", "capabilities", "no-overtaking", "durable", "outage", "unknown-acquire",
	"late-copy", "late-duplicate", "same-request-waiting", "release-again", "expired-resume", "dead-waiters", "fixed", "fixed-close",
	"cost-lock", "cost-wait", "cost-hold", "cost-hand-off", "tokens-restart", "storm",
}

// TestPlainConformance: the laws hold in the peers' layout of keys too.
func TestPlainConformance(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	h := seen(etcdHarness("etcd, keys=plain", func(t conformance.T, p *netfault.Proxy) *etcdSide {
		return etcdWith(t, p, []string{s.Addr}, etcd.Options{Plain: plainKey})
	}, s), s)
	h.Stored = func(t conformance.T, _ driver.Backend, name string) int { return len(plainKeys(t, etcdOf(t, s), name)) }
	h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
		b, err := etcd.New(etcdOf(t, s), etcd.Options{Plain: plainKey, Prefix: prefix})
		if err != nil {
			t.Fatalf("%v", err)
		}
		return b
	}
	if !size.Long() {
		runs := slices.Clone(plainLaws)
		for _, l := range conformance.Core() {
			runs = append(runs, l.Name)
		}
		h.Only = func(l conformance.Law) bool {
			return slices.Contains(runs, l.Name) || strings.HasPrefix(l.Name, "break")
		}
	}
	conformance.Run(t, h)
}
