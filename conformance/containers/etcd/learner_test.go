package etcd

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// StartLearner adds a learner, which does not vote, to the cluster of which root is a client.
func StartLearner(t *testing.T, root *clientv3.Client) *service.Server {
	t.Helper()
	listen, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	reached := loopback(listen[0])
	var added *clientv3.MemberAddResponse
	await.That(t, "the cluster takes a learner", func() bool { // once its members know each other
		added, err = root.MemberAddAsLearner(t.Context(), []string{reached})
		return err == nil
	})
	names := []string{"learner=" + reached}
	for _, m := range added.Members {
		if m.ID != added.Member.ID {
			names = append(names, m.Name+"="+m.PeerURLs[0])
		}
	}
	k := Etcd
	k.Ports = 1
	k.Command = func(dir string, ports []int) []string {
		return append(etcdCommand(dir, "learner", ports[0], listen[0], reached, strings.Join(names, ",")), "--initial-cluster-state=existing")
	}
	learner := service.StartOwn(t, k)
	await.That(t, "it is a learner", func() bool { st := statusOf(learner); return st != nil && st.IsLearner })
	return learner
}

// TestEtcdLearner: a learner among the endpoints, which refuses all calls that locks need, does no
// harm: calls, streams and waits go to the other members.
func TestEtcdLearner(t *testing.T) {
	t.Parallel()
	t.Run("beside one member", func(t *testing.T) {
		s := service.StartOwn(t, Etcd)
		learns(t, []string{s.Addr, StartLearner(t, etcdOf(t, s)).Addr})
	})
	// each stream requests an auth token first, so it takes two calls
	t.Run("with a user", func(t *testing.T) {
		s, root := guardedEtcd(t)
		user(t, root, "app", documentedRole(t))
		learns(t, []string{s.Addr, StartLearner(t, root).Addr}, "app")
	})
	t.Run("beside three", func(t *testing.T) {
		c := StartCluster(t)
		learns(t, append(c.addrs(), StartLearner(t, etcdOf(t, c.Members[0])).Addr))
	})
}

func learns(t *testing.T, addrs []string, user ...string) {
	const opens, rounds, ttl = 80, 20, 10 * time.Second
	u := url.URL{Scheme: "etcd", Host: strings.Join(addrs, ",")}
	as := func(*clientv3.Config) {}
	for _, name := range user {
		u.User = url.UserPassword(name, etcdPassword)
		as = func(c *clientv3.Config) { c.Username, c.Password = name, etcdPassword }
	}
	text := u.String() + patiently
	open := func() *dlock.Client {
		c, err := dlock.Open(t.Context(), text, dlock.Logger(nil), dlock.TTL(ttl))
		if err != nil {
			t.Errorf("Open: %v", err)
			return nil
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	start := time.Now()
	for range opens {
		if c := open(); c != nil {
			c.Close()
		}
	}
	t.Logf("%d times Open took %s", opens, time.Since(start))
	if t.Failed() {
		return
	}
	clients := map[string]*dlock.Client{"a URL": open(), "New": steps.ClientOf(t, overLearner(t, addrs, as), dlock.TTL(ttl))}
	for what, c := range clients {
		held := steps.MustLock(t, c.Mutex("learner/held"+what))
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range rounds { // they wait for each other
					if err := passes(t.Context(), c.Mutex(fmt.Sprint("learner/", what, i%2))); err != nil {
						t.Errorf("%s: Lock: %v", what, err)
						return
					}
				}
			})
		}
		await.All(t, &wg)
		for range rounds {
			if err := held.Renew(t.Context()); err != nil {
				t.Fatalf("%s: Renew: %v", what, err)
			}
		}
		if _, err := c.Inspect(t.Context(), held.Name()); err != nil {
			t.Errorf("%s: Inspect: %v", what, err)
		}
		until := held.Until()
		await.That(t, "it renews itself", func() bool { return held.Until().After(until) })
		if err := held.Unlock(t.Context()); err != nil {
			t.Errorf("%s: Unlock: %v", what, err)
		}
	}
}

// overLearner is [etcdOver] of a client that requests its auth token from the first member when it
// is made: the library does so once, and would not try another member after a learner.
func overLearner(t *testing.T, addrs []string, as func(*clientv3.Config)) *etcdSide {
	t.Helper()
	s := etcdOver(t, netfault.NewProxy(), addrs[:1], as)
	s.client.SetEndpoints(addrs...)
	return s
}
