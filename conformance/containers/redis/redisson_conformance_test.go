package redis

import (
	"errors"
	"slices"
	"sync"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redisson"
	"github.com/dlock-go/dlock/internal/size"
)

// owningRedisson is a backend whose Close also closes its client.
type owningRedisson struct {
	*redisson.Backend
	once  sync.Once
	close func() error
}

func (b *owningRedisson) Close() error {
	err := b.Backend.Close()
	b.once.Do(func() { err = errors.Join(err, b.close()) })
	return err
}

func overRedisson(t conformance.T, rdb goredis.UniversalClient, p *netfault.Proxy, o redisson.Options) driver.Backend {
	t.Helper()
	b, err := redisson.New(rdb, o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	own := &owningRedisson{Backend: b, close: func() error {
		defer p.Close()
		return rdb.Close()
	}}
	t.Cleanup(func() { own.Close() })
	return own
}

// redissonLaws returns the harness of the format. Unless the run is long, it runs the core laws,
// and those that a script, a message or a late copy may break.
func redissonLaws(h conformance.Harness, more ...string) conformance.Harness {
	h.TTL = redisTTL
	h.Calls = nil // each hold costs a call at each renewal
	h.Without = append(h.Without, "Calls", "Stored")
	if !size.Long() {
		for _, l := range conformance.Core() {
			more = append(more, l.Name)
		}
		h.Only = func(l conformance.Law) bool { return slices.Contains(more, l.Name) }
	}
	return h
}

func TestRedissonConformance(t *testing.T) {
	s := service.Start(t, Redis.With(Durable...))
	for _, c := range []struct {
		name string
		o    redisson.Options
		more []string
	}{
		{"redis, redisson", redisson.Options{}, []string{
			"late-copy", "late-duplicate", "names", "wait-outage", "outage", "restart", "unlock-after", "inspect", "labels", "election", "cost-hold", "proof-before",
			"cancelled-wait", "close-cut-off", "close-leaks-nothing", "fixed-exact", "prefixes", "readers-together", "join", "join-over", "downgrade", "upgrade",
			"capabilities", "storm"}},
		{"redis, redisson, fenced", redisson.Options{Fenced: true, Key: "laws:{name}"}, []string{
			"tokens-grow", "tokens-shared", "late-copy", "inspect", "join", "downgrade", "upgrade", "storm"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := service.Harness(c.name, func(t conformance.T, p *netfault.Proxy) driver.Backend {
				return overRedisson(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true}), p, c.o)
			}, s)
			h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
				o := c.o
				o.Prefix = prefix
				return overRedisson(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), o)
			}
			conformance.Run(t, redissonLaws(h, c.more...))
		})
	}
}

func TestRedissonClusterConformance(t *testing.T) {
	s := StartCluster(t, Redis)
	h := service.Harness("redis, cluster, redisson", func(t conformance.T, p *netfault.Proxy) driver.Backend {
		return overRedisson(t, goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: s.Addrs(), NewClient: func(o *goredis.Options) *goredis.Client {
				o.Dialer, o.DisableIdentity = p.Dial, true
				return goredis.NewClient(o)
			}}), p, redisson.Options{})
	}, s.Nodes...)
	h.Restart, h.Connections = nil, nil // a failover; those about the slots would count too
	h.Without = append(h.Without, "Restart", "Connections")
	h.OpenPrefixed = func(t conformance.T, prefix string) driver.Backend {
		rdb := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs()})
		return overRedisson(t, rdb, netfault.NewProxy(), redisson.Options{Prefix: prefix})
	}
	h = redissonLaws(h)
	// In a Cluster each renewal is sent by itself, at most 16 at a time. So 100 leases need more
	// connections than 5 do, but not more than 16 to each master. TestRenewIsBounded of
	// driver/adapt has that bound.
	only := h.Only
	h.Only = func(l conformance.Law) bool { return l.Name != "cost-hold" && (only == nil || only(l)) }
	conformance.Run(t, h)
}
