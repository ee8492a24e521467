package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
)

// TestEtcdCluster runs the faults of a cluster, on three members.
func TestEtcdCluster(t *testing.T) {
	c := StartDivisibleCluster(t)
	for _, f := range []struct {
		name string
		run  func(*testing.T, *Cluster)
	}{
		{"the leader is killed", etcdLeaderKilled},
		{"the leader is cut off", func(t *testing.T, c *Cluster) { etcdMinority(t, c, c.Leader(t)) }},
		{"a follower is cut off", func(t *testing.T, c *Cluster) { etcdMinority(t, c, (c.Leader(t)+1)%3) }},
		{"a leader that slept", etcdLeaderSleeps},
		{"compaction and defragmentation under load", etcdCompaction},
		{"a break is notified", etcdBreakNotifiedInCluster},
	} {
		t.Run(f.name, func(t *testing.T) {
			service.Watch(t, c.Members...)
			f.run(t, c)
		})
	}
}

// etcdLeaderKilled: no holder loses its hold, no waiter loses its place, and no call fails.
// If there was no leader for longer than drivers bridge, calls may fail, and leaders are killed
// once more. If that is always so, the end of a run says it.
func etcdLeaderKilled(t *testing.T, c *Cluster) {
	const ttl = 30 * time.Second // longer than members and machine together may stall
	probe := c.side(t)
	a, b := steps.ClientOf(t, c.side(t), dlock.TTL(ttl)), steps.ClientOf(t, c.side(t), dlock.TTL(ttl))
	if !a.Capabilities().FailoverSafe {
		t.Error("Capabilities say that a failover may lose grants")
	}
	held, err := a.Mutex("leader/held").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		l, err := b.Mutex("leader/held").Lock(await.Context(t))
		if err == nil {
			err = l.Unlock(t.Context())
		}
		waits <- err
	}()
	await.That(t, "one waits", func() bool { return steps.Queue(t, probe, "leader/held").Len() == 2 })
	place := steps.Queue(t, probe, "leader/held").Waiters()[0].ID
	const bridged = 2 * time.Second // half of the time that an Unlock has
	var longest time.Duration
	var failed []string
	for try := range 3 {
		longest, failed = killLeaders(t, c, probe, fmt.Sprint("leader/", try), held, a, b)
		if len(failed) == 0 || longest <= bridged || t.Failed() {
			break
		}
		t.Logf("there was no leader for %s, which clients need not bridge: %v", longest, failed)
	}
	switch {
	case len(failed) == 0:
	case longest > bridged:
		t.Logf("no way to start etcd again within %s: a new leader took %s", bridged, longest)
	default:
		t.Errorf("there was no leader for %s: %v", longest, failed)
	}
	if err := held.Err(); err != nil {
		t.Errorf("the hold: %v", err)
	}
	if q := steps.Queue(t, probe, "leader/held"); len(q.Holders()) != 1 || len(q.Waiters()) != 1 || q.Waiters()[0].ID != place {
		t.Errorf("there is %+v", q)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := await.From(t, waits); err != nil {
		t.Errorf("the waiter: %v", err)
	}
}

// killLeaders kills two leaders under clients that take turns beside a hold. It returns how long
// there was none, and which calls failed.
func killLeaders(t *testing.T, c *Cluster, probe driver.Backend, prefix string, held *dlock.Lease, clients ...*dlock.Client) (longest time.Duration, failures []string) {
	var mu sync.Mutex
	done, stop := steps.TakeTurnsThrough(t, func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		failures = append(failures, fmt.Sprintf(format, args...))
	}, prefix, 8, probe, clients...)
	steps.Further(t, done, 20)
	for range 2 {
		old, killed := c.Leader(t), time.Now()
		c.Members[old].Kill(t)
		if now := c.Leader(t); now == old {
			t.Fatal("the leader is the same")
		}
		longest = max(longest, time.Since(killed))
		steps.Further(t, done, 50)
		await.That(t, "the hold is renewed", func() bool { return held.Renew(t.Context()) == nil })
		c.Members[old].Restart(t)
		steps.Further(t, done, 20)
	}
	stop()
	return longest, failures
}

// etcdMinority: a client that reaches only a member without a majority loses its hold before the
// next request is granted.
func etcdMinority(t *testing.T, c *Cluster, member int) {
	// of the holds that are to be lost, and of the others
	const ttl, most = 2 * etcdTTL, time.Minute
	near := etcdOver(t, netfault.NewProxy(), []string{c.Members[member].Addr})
	var others []string
	for i, m := range c.Members {
		if i != member {
			others = append(others, m.Addr)
		}
	}
	far := etcdOver(t, netfault.NewProxy(), others)
	inside, outside, everywhere := steps.ClientOf(t, near, dlock.TTL(ttl)), steps.ClientOf(t, far, dlock.TTL(most)), steps.ClientOf(t, c.side(t), dlock.TTL(most))
	held, err := inside.Mutex("minority").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	also, err := everywhere.Mutex("minority/also").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() { waits <- passes(t.Context(), inside.Mutex("minority/also")) }()
	await.That(t, "one waits", func() bool { return steps.Queue(t, far, "minority/also").Len() == 2 })
	heal := c.Cut(member)
	t.Cleanup(heal)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if l, err := inside.Mutex("minority/new").Lock(ctx); err == nil {
		t.Errorf("a lock with token %d from a minority", l.Token())
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock: %v", err)
	}
	next, err := outside.Mutex("minority").Lock(await.Context(t))
	at := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	if held.Until().After(at) {
		t.Errorf("the next request was granted %s before the hold without a majority had expired", held.Until().Sub(at))
	}
	if !closes(held.Lost(), time.Second) {
		t.Error("the hold without a majority is not lost")
	}
	if next.Token() <= held.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
	// A client that can reach the others goes on; a waiter without a majority does not learn of
	// that.
	await.That(t, "the hold is renewed", func() bool { return also.Renew(t.Context()) == nil })
	if err := also.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	heal()
	if err := await.From(t, waits); err != nil {
		t.Errorf("the waiter without a majority: %v", err)
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if err := passes(t.Context(), inside.Mutex("minority")); err != nil {
		t.Errorf("the client that is back: %v", err)
	}
	for _, name := range []string{"minority", "minority/also", "minority/new"} {
		await.That(t, "no request is left of "+name, func() bool { return steps.Queue(t, far, name).Len() == 0 })
	}
}

// passes locks and unlocks. A hold that expired before its release, on a machine that stalled, is
// tried once more.
func passes(ctx context.Context, m dlock.Mutex) error {
	const most = 5
	for i := 1; ; i++ {
		l, err := m.Lock(ctx)
		if err != nil {
			return fmt.Errorf("Lock: %w", err)
		}
		err = l.Unlock(context.WithoutCancel(ctx))
		if i == most || !errors.Is(err, dlock.ErrLost) || time.Now().Before(l.Until()) {
			return err
		}
	}
}

// etcdLeaderSleeps: a leader is stopped, and goes on long after it was replaced. It may still act
// as the leader.
func etcdLeaderSleeps(t *testing.T, c *Cluster) {
	m := c.Members[c.Leader(t)]
	near := etcdOver(t, netfault.NewProxy(), []string{m.Addr})
	far := c.side(t)
	inside := steps.ClientOf(t, near, dlock.TTL(etcdTTL))
	held, err := inside.Mutex("sleeps").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	m.Pause(t)
	next := steps.Waiting(far, "sleeps", time.Minute)
	g := steps.Acquired(t, far, next)
	at := time.Now()
	m.Continue(t)
	if held.Until().After(at) {
		t.Errorf("the next request was granted %s before the first hold had expired", held.Until().Sub(at))
	}
	if err := held.Renew(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Renew of the lost hold: %v", err)
	}
	if err := held.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock of the lost hold: %v", err)
	}
	if q := steps.Queue(t, far, "sleeps"); len(q.Holders()) != 1 || q.Holders()[0].Token != g.Token {
		t.Errorf("there is %+v", q)
	}
	steps.Released(t, far, next)
}

// etcdCompaction: the history is compacted all the time, and the members are defragmented in turn,
// which stops each for a moment.
func etcdCompaction(t *testing.T, c *Cluster) {
	const ttl = 30 * time.Second // longer than members and machine together may stall
	probe, root := c.side(t), etcdOf(t, c.Members[0])
	a, b := steps.ClientOf(t, c.side(t), dlock.TTL(ttl)), steps.ClientOf(t, c.side(t), dlock.TTL(ttl))
	done, stop := steps.TakeTurns(t, "compaction", 8, probe, a, b)
	steps.Further(t, done, 20)
	const rounds = 20
	compacted := 0
	for i := range rounds {
		res, err := root.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		_, err = root.Compact(t.Context(), res.Header.Revision, clientv3.WithCompactPhysical())
		var e rpctypes.EtcdError
		switch {
		case err == nil:
			compacted++
		case !errors.As(err, &e) || e.Code() != codes.Unavailable:
			// otherwise there was an election, and the outcome is unknown
			t.Fatal(err)
		}
		m := c.Members[i%len(c.Members)]
		if _, err := etcdOf(t, m).Defragment(t.Context(), m.Addr); err != nil {
			t.Fatal(err)
		}
		steps.Further(t, done, 5)
	}
	stop()
	if compacted < rounds/2 {
		t.Errorf("%d of %d compactions were answered", compacted, rounds)
	}
}

// TestPeerNetworkCut: messages that a member sends after it was cut off are not received.
func TestPeerNetworkCut(t *testing.T) {
	say := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	member := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-say
		fmt.Fprint(w, "x")
	})}
	go member.Serve(l)
	t.Cleanup(func() { member.Close() })
	n := newPeerNetwork(t, []int{l.Addr().(*net.TCPAddr).Port})
	for range 300 {
		res, err := http.Get(n.urls[0])
		if err != nil {
			t.Fatal(err)
		}
		heal := n.cut(0)
		select {
		case say <- struct{}{}:
		case <-time.After(await.Patience):
			t.Fatalf("the request did not reach the member: %s", res.Status)
		}
		received, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if heal(); len(received) > 0 {
			t.Fatalf("received %q from a member that is cut off", received)
		}
	}
}
