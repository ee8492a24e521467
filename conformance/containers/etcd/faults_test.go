package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
)

// TestEtcdFaults runs the faults of locks under leases, on one member.
func TestEtcdFaults(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	for _, f := range []struct {
		name string
		run  func(*testing.T, *service.Server)
	}{
		{"names", etcdNames},
		{"racers of one client", etcdRacers},
		{"lost replies", etcdLostReplies},
		{"connections that are refused", etcdRefused},
		{"errors", etcdErrors},
		{"late copies", etcdLateCopies},
		{"an orphan", etcdOrphan},
		{"an orphan under a key that is used again", etcdOrphanAgain},
		{"a release beside its acquire", etcdReleaseBesideAcquire},
		{"a join of an owner that is unknown", etcdUnknownOwner},
		{"a join beside a break", etcdJoinBesideBreak},
		{"a break of a large hold", etcdBreakLarge},
		{"a break that takes long", etcdBreakSlow},
		{"a broken hold that is released", etcdBreakReleased},
		{"no space", etcdNoSpace},
		{"a lease that an operator revokes", etcdRevoked},
		{"a key that an operator deletes", etcdDeleted},
		{"a hold that is not renewed", etcdNotRenewed},
		{"joins that race with the end", etcdJoins},
		{"watches that end", etcdWatches},
		{"compaction during the outage of a waiter", etcdCompactedWaiter},
		{"a server that hangs", etcdHangs},
		{"a restart in the middle", etcdRestart},
	} {
		t.Run(f.name, func(t *testing.T) {
			service.Watch(t, s)
			f.run(t, s)
		})
	}
}

// keysOf returns the keys under a name in the server.
func keysOf(t service.T, c *clientv3.Client, name string) []*mvccpb.KeyValue {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res, err := c.Get(ctx, "dlock/"+strings.ReplaceAll(name, "/", "%2F")+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatalf("%v", err)
	}
	return res.Kvs
}

// keyOf returns the one key of a request.
func keyOf(t service.T, c *clientv3.Client, r driver.Request) *mvccpb.KeyValue {
	t.Helper()
	var found []*mvccpb.KeyValue
	for _, kv := range keysOf(t, c, r.Name) {
		if strings.Contains(string(kv.Value), r.ID.String()) {
			found = append(found, kv)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d keys have the request", len(found))
	}
	return found[0]
}

// etcdNames: no lock sees the keys of another one, whatever separators and range ends are in the
// names.
func etcdNames(t *testing.T, s *service.Server) {
	names := []string{"a", "A", "a ", " a", "a/b", "a0", "a/", "/a", "a//b", "a.", "a-", "a%", "a%2F", "a%2Fb", "a%25", "%", "%%", "/", "//", "0", ".", "..",
		"s", "j", "a\u00a0", "é", "e\u0301", "🔒", strings.Repeat("x", 255), strings.Repeat("/", 255), strings.Repeat("%", 254)}
	other, elsewhere, root := etcdSideOf(t, s), etcdByURL(t, netfault.NewProxy(), s.URL+"/elsewhere"), etcdOf(t, s)
	// a root that looks like one of the names
	within := etcdByURL(t, netfault.NewProxy(), s.URL+"/dlock/a")
	steps.Acquired(t, within, steps.Asked(within, "b", time.Minute))
	for try := range 3 {
		b := etcdSideOf(t, s)
		steps.NamesApart(t, b, other, elsewhere, names)
		start := time.Now()
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		took := time.Since(start)
		listed, err := other.List(t.Context())
		// after two seconds Close leaves the rest to the server
		if err != nil || len(listed) == 0 || took < 2*time.Second || try == 2 {
			if err != nil || len(listed) != 0 {
				t.Errorf("List after Close, which took %s: %q, %v", took, listed, err)
			}
			return
		}
		if _, err := root.Delete(t.Context(), "dlock/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
	}
}

// etcdRacers: so many requests of one client arrive at a time that their transactions travel
// together.
func etcdRacers(t *testing.T, s *service.Server) {
	b := etcdSideOf(t, s)
	done, stop := steps.TakeTurns(t, "racers", 128, b, steps.ClientOf(t, b))
	steps.Further(t, done, 500)
	stop()
	for i := range 5 {
		name := fmt.Sprint("racers/fresh/", i)
		var wg sync.WaitGroup
		var won atomic.Int64
		for range 64 {
			wg.Go(func() {
				switch _, err := steps.Acquire(t.Context(), b, steps.Asked(b, name, time.Minute)); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, driver.ErrHeld):
					t.Errorf("a racer: %v", err)
				}
			})
		}
		await.All(t, &wg)
		if n := won.Load(); n != 1 {
			t.Errorf("%d of 64 hold %s", n, name)
		}
		if n := steps.Queue(t, b, name).Len(); n != 1 {
			t.Errorf("%d requests stand under %s", n, name)
		}
	}
}

// etcdRefused: for a while no server listens, and a call that began meanwhile succeeds when a
// server listens again.
func etcdRefused(t *testing.T, s *service.Server) {
	b := etcdSideOf(t, s)
	r := steps.Asked(b, "refused", time.Minute)
	steps.Acquired(t, b, r)
	heal := b.proxy.Refuse()
	b.proxy.Cut()
	renewal, next := make(chan error, 1), steps.Acquiring(b, steps.Asked(b, r.Name+"/next", time.Minute))
	go func() { renewal <- steps.Renewed(b, r) }()
	<-time.After(1500 * time.Millisecond) // meanwhile each attempt fails at once
	heal()
	if err := await.From(t, renewal); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if err := await.From(t, next); err != nil {
		t.Errorf("Acquire: %v", err)
	}
	steps.Released(t, b, r)
}

// etcdLostReplies: the server executed a call, and the answer was lost.
func etcdLostReplies(t *testing.T, s *service.Server) {
	probe := etcdSideOf(t, s)
	for _, fixed := range []bool{false, true} {
		for _, wait := range []bool{false, true} {
			b := etcdSideOf(t, s)
			name := fmt.Sprint("lost/", fixed, "/", wait)
			r := steps.Asked(b, name, time.Minute)
			r.Fixed, r.Wait = fixed, wait
			grant, put := b.rpcs.loseReply("LeaseGrant"), b.rpcs.loseReply("Txn")
			g := steps.Acquired(t, b, r)
			await.Closed(t, "the reply to LeaseGrant", grant)
			await.Closed(t, "the reply to the transaction of Acquire", put)
			if q := steps.Queue(t, probe, name); q.Len() != 1 || q.Arrivals[0].ID != r.ID || q.Arrivals[0].Token != g.Token {
				t.Fatalf("granted token %d, and there is %+v", g.Token, q)
			}
			for _, method := range []string{"LeaseTimeToLive", "Range"} {
				if fixed {
					break
				}
				lost := b.rpcs.loseReply(method)
				if err := steps.Renewed(b, r); err != nil {
					t.Fatalf("Renew without the reply to %s: %v", method, err)
				}
				await.Closed(t, "the reply to "+method, lost)
			}
			next := steps.Waiting(probe, name, time.Minute)
			got := steps.Acquiring(probe, next)
			await.That(t, "one waits", func() bool { return steps.Queue(t, probe, name).Len() == 2 })
			lost := b.rpcs.loseReply("Txn")
			steps.Released(t, b, r)
			await.Closed(t, "the reply to Release", lost)
			if err := await.From(t, got); err != nil {
				t.Fatalf("Acquire of the next: %v", err)
			}
			if q := steps.Queue(t, probe, name); q.Len() != 1 || q.Arrivals[0].ID != next.ID {
				t.Fatalf("there is %+v", q)
			}
			steps.Released(t, probe, next)
			join := steps.Asked(b, name, time.Minute)
			first := steps.Asked(probe, name, time.Minute)
			g = steps.Acquired(t, probe, first)
			join.Owner, join.Token = first.ID, g.Token
			lost = b.rpcs.loseReply("Txn")
			if again := steps.Acquired(t, b, join); again.Token != g.Token {
				t.Fatalf("a join has token %d, and the hold that it joined %d", again.Token, g.Token)
			}
			await.Closed(t, "the reply to the transaction of a join", lost)
			steps.Released(t, probe, first)
			if q := steps.Queue(t, probe, name); q.Len() != 1 || len(q.Joins) != 1 || q.Joins[0].ID != join.ID {
				t.Fatalf("there is %+v", q)
			}
			steps.Released(t, b, join)
			if n := steps.Queue(t, probe, name).Len(); n != 0 {
				t.Fatalf("%d requests are left", n)
			}
		}
	}
}

// etcdLateCopies: a client's keys are used again, and copies of all of its earlier transactions do
// not change the present owner of a key.
func etcdLateCopies(t *testing.T, s *service.Server) {
	root := etcdOf(t, s)
	copied := func(name string, lossy bool) (prompt bool, wrong error) {
		b := etcdSideOf(t, s)
		sent := b.rpcs.record()
		first := steps.Asked(b, name, time.Minute)
		if lossy {
			b.rpcs.loseReply("Txn")
		}
		steps.Acquired(t, b, first)
		keys := keysOf(t, root, name)
		if lossy {
			b.rpcs.loseReply("Txn")
		}
		steps.Released(t, b, first)
		copies := sent()
		if want := map[bool]int{false: 2, true: 4}[lossy]; len(copies) < want || len(keys) != 1 {
			t.Fatalf("%d keys, and %d transactions were seen; want %d", len(keys), len(copies), want)
		}
		for range 2 {
			r := steps.Asked(b, name, time.Minute)
			g := steps.Acquired(t, b, r)
			// or its tombstone stands there
			if again := string(keyOf(t, root, r).Key) == string(keys[0].Key); again == lossy {
				return b.rpcs.prompted(), fmt.Errorf("used again: %t", again)
			}
			replayTxns(t, s, copies)
			slices.Reverse(copies)
			replayTxns(t, s, copies)
			if q := steps.Queue(t, b, name); q.Len() != 1 || q.Arrivals[0].ID != r.ID || q.Arrivals[0].Token != g.Token {
				t.Fatalf("after copies of transactions of ended requests there is %+v", q)
			}
			if err := steps.Renewed(b, r); err != nil {
				t.Fatalf("Renew after copies of transactions of ended requests: %v", err)
			}
			steps.Released(t, b, r)
		}
		return true, nil
	}
	for _, lossy := range []bool{false, true} {
		prompted(t, func(round int) (bool, error) { return copied(fmt.Sprint("copies/", lossy, "/", round), lossy) })
	}
}

// etcdOrphan: a copy of an acquire that arrives after the release puts a key that its client keeps
// alive. The client finds it, and deletes it.
func etcdOrphan(t *testing.T, s *service.Server) {
	const ttl = 6 * time.Second // the orphan is found by the second renewal
	other, root := etcdSideOf(t, s), etcdOf(t, s)
	prompted(t, func(round int) (prompt bool, wrong error) {
		name := fmt.Sprint("orphan/", round)
		b := etcdSideOf(t, s)
		c := steps.ClientOf(t, b, dlock.TTL(ttl))
		// the orphan is under the same lease
		kept, err := c.Mutex(name + "/kept").Lock(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		sent := b.rpcs.record()
		l, err := c.Mutex(name).Lock(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		copies := sent()
		if err := l.Unlock(t.Context()); err != nil {
			return b.rpcs.prompted(), err
		}
		replayTxns(t, s, copies)
		if n := len(keysOf(t, root, name)); n != 1 {
			return b.rpcs.prompted(), fmt.Errorf("the copy put %d keys", n)
		}
		start := time.Now()
		r := steps.Waiting(other, name, time.Minute)
		steps.Acquired(t, other, r)
		took := time.Since(start)
		steps.Released(t, other, r)
		if took > 2*ttl+5*time.Second {
			wrong = fmt.Errorf("an orphan blocked others for %s", took)
		}
		if err := kept.Err(); err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("the hold during that: %w", err))
		}
		if err := kept.Unlock(t.Context()); err != nil {
			wrong = errors.Join(wrong, err)
		}
		return b.rpcs.prompted(), wrong
	})
}

// etcdOrphanAgain: a request that finds an orphan under the key that it was given removes the
// orphan, and does not wait for an audit.
func etcdOrphanAgain(t *testing.T, s *service.Server) {
	root := etcdOf(t, s)
	prompted(t, func(round int) (prompt bool, wrong error) {
		name := fmt.Sprint("orphan/again/", round)
		b := etcdSideOf(t, s)
		sent := b.rpcs.record()
		first := steps.Asked(b, name, time.Minute)
		steps.Acquired(t, b, first)
		copies := sent()
		steps.Released(t, b, first)
		replayTxns(t, s, copies)
		if kvs := keysOf(t, root, name); len(kvs) != 1 || !strings.Contains(string(kvs[0].Value), first.ID.String()) {
			return b.rpcs.prompted(), fmt.Errorf("the copy put %d keys", len(kvs))
		}
		start := time.Now()
		r := steps.Waiting(b, name, time.Minute)
		if err := <-steps.Acquiring(b, r); err != nil {
			t.Fatalf("Acquire after %s: %v", time.Since(start), err)
		}
		if took := time.Since(start); took > 15*time.Second { // the first audit would be after 24 s
			t.Errorf("an orphan blocked its own client for %s", took)
		}
		keyOf(t, root, r)
		steps.Released(t, b, r)
		for end := time.Now().Add(15 * time.Second); len(keysOf(t, root, name)) > 0; <-time.After(20 * time.Millisecond) {
			if time.Now().After(end) {
				return b.rpcs.prompted(), errors.New("a key is left")
			}
		}
		return true, nil
	})
}

// before runs f before the next call of a unary method is sent.
func before(method string, f func()) func(*clientv3.Config) {
	var once sync.Once
	return func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, name string, req, res any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if methodOf(name, req) == method {
					once.Do(f)
				}
				return invoke(ctx, name, req, res, conn, opts...)
			}))
	}
}

// etcdReleaseBesideAcquire: a release that comes while the transaction of its acquire is under way
// ends both.
func etcdReleaseBesideAcquire(t *testing.T, s *service.Server) {
	other, root := etcdSideOf(t, s), etcdOf(t, s)
	for _, wait := range []bool{false, true} {
		prompted(t, func(round int) (prompt bool, wrong error) {
			name := fmt.Sprint("beside/", wait, "/", round)
			under, let, asking := make(chan struct{}), make(chan struct{}), make(chan struct{})
			b := etcdSideOf(t, s, before("Txn", func() { close(under); <-let }))
			r := steps.Asked(b, name, time.Minute)
			r.Wait = wait
			got, gone := steps.Acquiring(b, r), make(chan error, 1)
			await.Closed(t, "the transaction", under)
			go func() { close(asking); gone <- b.Release(context.Background(), r) }()
			await.Closed(t, "the release", asking)
			closes(nil, 100*time.Millisecond)
			close(let)
			if err := await.From(t, gone); err != nil {
				wrong = fmt.Errorf("Release: %w", err)
			}
			if err := await.From(t, got); !errors.Is(err, driver.ErrLost) {
				wrong = errors.Join(wrong, fmt.Errorf("Acquire: %v", err))
			}
			if n := len(keysOf(t, root, name)); n != 0 {
				wrong = errors.Join(wrong, fmt.Errorf("%d keys are left", n))
			}
			next := steps.Asked(other, name, time.Minute)
			steps.Acquired(t, other, next)
			steps.Released(t, other, next)
			return b.rpcs.prompted(), wrong
		})
	}
}

// etcdJoinBesideBreak: a join that comes after a break has read the hold is broken with it.
func etcdJoinBesideBreak(t *testing.T, s *service.Server) {
	for _, force := range []bool{false, true} {
		name := fmt.Sprint("break/", force)
		a := etcdSideOf(t, s)
		hold, join := steps.Asked(a, name, time.Minute), steps.Asked(a, name, time.Minute)
		g := steps.Acquired(t, a, hold)
		join.Owner, join.Token = hold.ID, g.Token
		operator := etcdSideOf(t, s, before("LeaseGrant", func() { steps.Acquired(t, a, join) }))
		if err := operator.Break(t.Context(), name, g.Token, force); err != nil {
			t.Fatalf("Break: %v", err)
		}
		for what, r := range map[string]driver.Request{"the broken hold": hold, "a join of it": join} {
			if err := steps.Renewed(a, r); !errors.Is(err, driver.ErrLost) {
				t.Errorf("force %t: Renew of %s: %v", force, what, err)
			}
		}
		if n := steps.Queue(t, a, name).Len(); force && n != 0 {
			t.Errorf("%d requests are left", n)
		}
	}
}

// etcdBreakLarge: a hold of more requests than a transaction may have operations.
func etcdBreakLarge(t *testing.T, s *service.Server) {
	const name = "break/large"
	a, b := etcdSideOf(t, s), etcdSideOf(t, s)
	hold := steps.Asked(a, name, time.Minute)
	g := steps.Acquired(t, a, hold)
	rs := []driver.Request{hold}
	for range 150 {
		join := steps.Asked(a, name, time.Minute)
		join.Owner, join.Token = hold.ID, g.Token
		steps.Acquired(t, a, join)
		rs = append(rs, join)
	}
	if err := b.Break(t.Context(), name, g.Token, false); err != nil {
		t.Fatalf("Break: %v", err)
	}
	for _, e := range steps.Queue(t, b, name).Holders() {
		if !e.Broken {
			t.Fatalf("a request of a broken hold is not broken")
		}
	}
	for i, p := range a.Renew(t.Context(), rs) {
		if !errors.Is(p.Err, driver.ErrLost) {
			t.Fatalf("Renew of request %d: %v", i, p.Err)
		}
	}
	if err := b.Break(t.Context(), name, g.Token, true); err != nil {
		t.Fatalf("Break by force: %v", err)
	}
	if n := steps.Queue(t, b, name).Len(); n != 0 {
		t.Errorf("%d requests are left", n)
	}
}

// etcdBreakSlow: between the grant of a break's lease and its transaction the holder may renew. The
// broken key stands for a TTL from then.
func etcdBreakSlow(t *testing.T, s *service.Server) {
	for _, f := range []struct {
		name       string
		slow, lost bool
	}{{"at once", false, false}, {"slow", true, false}, {"slow, and the reply is lost", true, true}} {
		t.Run(f.name, func(t *testing.T) {
			name := "break/long/" + f.name
			a := etcdSideOf(t, s)
			operator := etcdSideOf(t, s, before("Txn", func() {
				if f.slow {
					<-time.After(300 * time.Millisecond) // so long that the lease has to be renewed
				}
			}))
			hold := steps.Asked(a, name, time.Minute)
			g := steps.Acquired(t, a, hold)
			if f.lost {
				operator.rpcs.loseReply("Txn")
			}
			start := time.Now()
			if err := operator.Break(t.Context(), name, g.Token, false); err != nil {
				t.Fatalf("Break: %v", err)
			}
			took := time.Since(start)
			if q := steps.Queue(t, a, name); q.Len() != 1 || !q.Arrivals[0].Broken {
				t.Errorf("there is %+v", q)
			}
			if n := operator.rpcs.counts()["LeaseKeepAlive"]; n > 0 != f.slow && (f.slow || took < 200*time.Millisecond) {
				t.Errorf("after %s the lease of the broken key was renewed %d times", took, n)
			}
		})
	}
}

// etcdUnknownOwner: a join of an owner that the cluster has never seen is lost, and leaves no key:
// package dlock uses such joins to find out whether a hold is of this cluster.
func etcdUnknownOwner(t *testing.T, s *service.Server) {
	b, other, root := etcdSideOf(t, s), etcdSideOf(t, s), etcdOf(t, s)
	const name = "join/unknown"
	join := func() driver.Request {
		r := steps.Asked(b, name, time.Minute)
		r.Owner, r.Token = driver.NewID(), 1
		return r
	}
	for _, held := range []bool{false, true} {
		if held {
			steps.Acquired(t, other, steps.Asked(other, name, time.Minute))
		}
		before := keysOf(t, root, name)
		for _, wait := range []bool{false, true} {
			r := join()
			r.Wait = wait
			if _, err := steps.Acquire(t.Context(), b, r); !errors.Is(err, driver.ErrLost) {
				t.Errorf("a join of an unknown owner, with a hold there %t: %v", held, err)
			}
		}
		if after := keysOf(t, root, name); len(after) != len(before) {
			t.Errorf("there were %d keys, and are %d", len(before), len(after))
		}
	}
	if sent := b.rpcs.counts(); sent["Txn"]+sent["LeaseGrant"] > 0 {
		t.Errorf("joins that were refused made the calls %v", sent)
	}
}

// etcdBreakReleased: a broken hold blocks others until its holder has learned of the break and
// releases it. Then it is removed, and does not stand until its TTL.
func etcdBreakReleased(t *testing.T, s *service.Server) {
	a, b, operator := etcdSideOf(t, s), etcdSideOf(t, s), etcdSideOf(t, s)
	for _, fixed := range []bool{false, true} {
		name := fmt.Sprint("break/released/", fixed)
		hold, join := steps.Asked(a, name, time.Minute), steps.Asked(a, name, time.Minute)
		hold.Fixed = fixed
		g := steps.Acquired(t, a, hold)
		join.Owner, join.Token = hold.ID, g.Token
		steps.Acquired(t, a, join)
		next := steps.Waiting(b, name, time.Minute)
		got := steps.Acquiring(b, next)
		await.That(t, "one waits", func() bool { return steps.Queue(t, operator, name).Len() == 3 })
		if err := operator.Break(t.Context(), name, g.Token, false); err != nil {
			t.Fatalf("Break: %v", err)
		}
		rs := []driver.Request{hold, join}
		for _, r := range rs {
			if err := steps.Renewed(a, r); !errors.Is(err, driver.ErrLost) && !fixed {
				t.Errorf("Renew of the broken hold: %v", err)
			}
		}
		for i, r := range rs { // the next request waits for the last of them
			if q := steps.Queue(t, operator, name); q.Len() != 3-i || len(q.Holders()) != 2-i {
				t.Fatalf("before %d of 2 were released there is %+v", i+1, q)
			}
			if err := a.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
				t.Errorf("Release of the broken hold: %v", err)
			}
		}
		select {
		case err := <-got:
			if err != nil {
				t.Fatalf("Acquire of the next: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a broken hold that was released blocks the next request")
		}
		steps.Released(t, b, next)
	}
	// the same by a client of dlock, which releases a hold when it learns of the loss
	c, d := steps.ClientOf(t, a), steps.ClientOf(t, b)
	held := steps.MustLock(t, c.Mutex("break/released"))
	next := steps.Try(t, d.Mutex("break/released"))
	await.That(t, "one waits", func() bool { return steps.Queue(t, operator, "break/released").Len() == 2 })
	if err := operator.Break(t.Context(), "break/released", driver.Token(held.Token()), false); err != nil {
		t.Fatalf("Break: %v", err)
	}
	if err := held.Renew(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Renew of the broken hold: %v", err)
	}
	next.Got("the waiter behind a hold that is broken, and known to be", time.Now(), 15*time.Second)
}

// etcdNoSpace: without space locks can be released, whatever the outcome of their acquires; no key
// is left, and the error of a new request says what to do.
func etcdNoSpace(t *testing.T, s *service.Server) {
	const name = "full"
	b, other, root := etcdSideOf(t, s), etcdSideOf(t, s), etcdOf(t, s)
	r, next := steps.Asked(b, name, time.Minute), steps.Waiting(other, name, time.Minute)
	lost := b.rpcs.loseReply("Txn")
	steps.Acquired(t, b, r)
	await.Closed(t, "the reply to Acquire", lost)
	got := steps.Acquiring(other, next)
	await.That(t, "one waits", func() bool { return steps.Queue(t, b, name).Len() == 2 })
	status, err := root.Status(t.Context(), s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	alarm := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE, MemberID: status.Header.MemberId}
	if _, err := pb.NewMaintenanceClient(root.ActiveConnection()).Alarm(t.Context(), alarm); err != nil {
		t.Fatal(err)
	}
	disarm := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := root.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(disarm)
	steps.Released(t, b, r)
	if err := await.From(t, got); err != nil {
		t.Fatalf("Acquire of the waiter: %v", err)
	}
	steps.Released(t, other, next)
	if _, err := steps.Acquire(t.Context(), b, steps.Asked(b, name, time.Minute)); !errors.Is(err, rpctypes.ErrNoSpace) || !strings.Contains(err.Error(), "defragment") {
		t.Errorf("Acquire without space: %v", err)
	}
	if n := len(keysOf(t, root, name)); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	// a request that may wait waits until there is space, and no longer than its context allows
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	_, err = steps.Acquire(ctx, b, steps.Waiting(b, name, time.Minute))
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "defragment") {
		t.Errorf("a waiting Acquire without space, until its context ended: %v", err)
	}
	short := steps.Waiting(b, name, etcdTTL)
	if _, err := steps.Acquire(t.Context(), b, short); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("a waiting Acquire without space for its TTL: %v", err)
	}
	r = steps.Waiting(b, name, time.Minute)
	got = steps.Acquiring(b, r)
	select {
	case err := <-got:
		t.Fatalf("a waiting Acquire without space: %v", err)
	case <-time.After(time.Second):
	}
	disarm()
	if err := await.From(t, got); err != nil {
		t.Fatalf("an Acquire that waited for space: %v", err)
	}
	steps.Released(t, b, r)
}

// etcdRevoked: the end of a lease ends a hold, or costs a waiter its place, but never grants it.
func etcdRevoked(t *testing.T, s *service.Server) {
	a, b, root := etcdSideOf(t, s), etcdSideOf(t, s), etcdOf(t, s)
	const name = "revoked"
	revoke := func(r driver.Request) {
		t.Helper()
		if _, err := root.Revoke(t.Context(), clientv3.LeaseID(keyOf(t, root, r).Lease)); err != nil {
			t.Fatal(err)
		}
	}
	var notified atomic.Int64
	a.Notify(func(driver.ID) { notified.Add(1) })
	hold, next := steps.Asked(a, name, time.Minute), steps.Waiting(b, name, time.Minute)
	before := steps.Acquired(t, a, hold)
	got := steps.Acquiring(b, next)
	await.That(t, "one waits", func() bool { return steps.Queue(t, a, name).Len() == 2 })
	old := keyOf(t, root, next).CreateRevision
	revoke(next) // the waiter's lease
	await.That(t, "the waiter is back in the queue", func() bool {
		q := steps.Queue(t, a, name)
		return q.Len() == 2 && len(q.Waiters()) == 1 && q.Waiters()[0].ID == next.ID
	})
	if now := keyOf(t, root, next).CreateRevision; now <= old {
		t.Errorf("its place is %d, and was %d", now, old)
	}
	select {
	case err := <-got:
		t.Fatalf("Acquire returned %v while another request holds", err)
	default:
	}
	revoke(hold) // the holder's lease
	if err := await.From(t, got); err != nil {
		t.Fatalf("Acquire of the next: %v", err)
	}
	if q := steps.Queue(t, b, name); q.Len() != 1 || q.Arrivals[0].ID != next.ID || q.Arrivals[0].Token <= before.Token {
		t.Fatalf("there is %+v", q)
	}
	if err := steps.Renewed(a, hold); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of a hold whose lease was revoked: %v", err)
	}
	await.That(t, "its client is notified", func() bool { return notified.Load() == 1 })
	if err := a.Release(t.Context(), hold); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of a hold whose lease was revoked: %v", err)
	}
	if q := steps.Queue(t, b, name); q.Len() != 1 || q.Arrivals[0].ID != next.ID {
		t.Fatalf("there is %+v", q)
	}
	steps.Released(t, b, next)
	r := steps.Asked(a, name, time.Minute) // under another lease
	steps.Acquired(t, a, r)
	if err := steps.Renewed(a, r); err != nil {
		t.Errorf("Renew of the next hold: %v", err)
	}
	steps.Released(t, a, r)
}

// etcdDeleted: the next renewal at the latest detects that a key is gone, although its lease lives.
func etcdDeleted(t *testing.T, s *service.Server) {
	a, b, root := etcdSideOf(t, s), etcdSideOf(t, s), etcdOf(t, s)
	const name = "deleted"
	remove := func(r driver.Request) {
		t.Helper()
		if _, err := root.Delete(t.Context(), string(keyOf(t, root, r).Key)); err != nil {
			t.Fatal(err)
		}
	}
	hold, beside := steps.Asked(a, name, time.Minute), steps.Asked(a, name+"/beside", time.Minute)
	steps.Acquired(t, a, hold)
	steps.Acquired(t, a, beside)
	next := steps.Waiting(b, name, time.Minute)
	got := steps.Acquiring(b, next)
	await.That(t, "one waits", func() bool { return steps.Queue(t, a, name).Len() == 2 })
	old := keyOf(t, root, next).CreateRevision
	remove(next)
	await.That(t, "the waiter is back in the queue", func() bool { return steps.Queue(t, a, name).Len() == 2 })
	if now := keyOf(t, root, next).CreateRevision; now <= old {
		t.Errorf("its place is %d, and was %d", now, old)
	}
	remove(hold)
	if err := await.From(t, got); err != nil {
		t.Fatalf("Acquire of the next: %v", err)
	}
	rs := a.Renew(t.Context(), []driver.Request{hold, beside})
	if !errors.Is(rs[0].Err, driver.ErrLost) || rs[1].Err != nil {
		t.Errorf("Renew with a deleted key: %v; of the other hold: %v", rs[0].Err, rs[1].Err)
	}
	if err := a.Release(t.Context(), hold); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release with a deleted key: %v", err)
	}
	steps.Released(t, a, beside)
	steps.Released(t, b, next)
	// A release that comes before any renewal detects it too. (A release that is sent again takes
	// the missing key for the work of the first copy.)
	prompted(t, func(int) (prompt bool, wrong error) {
		a := etcdSideOf(t, s)
		r := steps.Asked(a, name, time.Minute)
		steps.Acquired(t, a, r)
		remove(r)
		if err := a.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			wrong = fmt.Errorf("Release with a deleted key: %v", err)
		}
		return a.rpcs.prompted(), wrong
	})
	const ttl = 6 * time.Second
	side := etcdSideOf(t, s)
	c := steps.ClientOf(t, side, dlock.TTL(ttl))
	l, err := c.Mutex(name + "/lease").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.Delete(t.Context(), "dlock/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	calls := side.rpcs.counts()
	// two renewals, each sent again
	if await.Closed(t, "the loss of a lease whose key was deleted", l.Lost()); side.rpcs.since(calls)["LeaseTimeToLive"] > 6 {
		t.Errorf("a lease whose key was deleted was lost after the calls %v", side.rpcs.since(calls))
	}
}

// etcdNotRenewed: a hold that is not renewed ends at its TTL, although another hold of its client,
// under the same lease, is renewed.
func etcdNotRenewed(t *testing.T, s *service.Server) {
	const ttl, late = 2 * etcdTTL, 5 * time.Second
	other, root := etcdSideOf(t, s), etcdOf(t, s)
	prompted(t, func(round int) (prompt bool, wrong error) {
		b, name := etcdSideOf(t, s), fmt.Sprint("not renewed/", round)
		kept, forgotten := steps.Asked(b, name+"/kept", ttl), steps.Asked(b, name, ttl)
		steps.Acquired(t, b, kept)
		held := steps.Acquired(t, b, forgotten)
		if k, f := keyOf(t, root, kept).Lease, keyOf(t, root, forgotten).Lease; k != f {
			return b.rpcs.prompted(), fmt.Errorf("they have the leases %x and %x", k, f)
		}
		next := steps.Waiting(other, name, time.Minute)
		got := steps.Acquiring(other, next)
		end := time.After(ttl + late)
		for waits := true; waits; {
			select {
			case err := <-got:
				if err != nil {
					t.Fatalf("Acquire of the next: %v", err)
				}
				waits = false
			case <-time.After(ttl / 8):
			case <-end:
				t.Fatalf("%s after its grant a hold that was not renewed still stands", time.Since(held.SentAt))
			}
			if err := steps.Renewed(b, kept); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("Renew of the other: %w", err))
			}
		}
		if took := time.Since(held.SentAt); took < ttl {
			t.Errorf("the next request was granted %s after the request of a grant for %s", took, held.TTL)
		}
		if err := steps.Renewed(b, forgotten); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Renew of the ended hold: %v", err)
		}
		steps.Released(t, other, next)
		return b.rpcs.prompted(), wrong
	})
}

// etcdJoins: a join races with the end of the hold that it joins. Either the join is granted, or it
// is too late, and the next request is granted.
func etcdJoins(t *testing.T, s *service.Server) {
	a, b, c := etcdSideOf(t, s), etcdSideOf(t, s), etcdSideOf(t, s)
	joined := 0
	for i := range 60 {
		const name = "joins"
		hold := steps.Asked(a, name, time.Minute)
		g := steps.Acquired(t, a, hold)
		join := steps.Asked(b, name, time.Minute)
		join.Owner, join.Token = hold.ID, g.Token
		next := steps.Waiting(c, name, time.Minute)
		got := steps.Acquiring(c, next)
		await.That(t, "one waits", func() bool { return len(steps.Queue(t, a, name).Waiters()) == 1 })
		var wg sync.WaitGroup
		wg.Go(func() {
			<-time.After(time.Duration(i%20) * 100 * time.Microsecond)
			steps.Released(t, a, hold)
		})
		_, err := steps.Acquire(t.Context(), b, join)
		await.All(t, &wg)
		switch {
		case err == nil:
			joined++
			if q := steps.Queue(t, a, name); len(q.Holders()) != 1 || q.Holders()[0].ID != join.ID {
				t.Fatalf("joined, and there is %+v", q)
			}
			select {
			case err := <-got:
				t.Fatalf("the next request is granted beside a join, error %v", err)
			default:
			}
			steps.Released(t, b, join)
		case !errors.Is(err, driver.ErrLost):
			t.Fatalf("a join: %v", err)
		}
		if err := await.From(t, got); err != nil {
			t.Fatal(err)
		}
		steps.Released(t, c, next)
	}
	t.Logf("%d of 60 joins came in time", joined)
}

// etcdWatches: the event that would have ended a wait is lost, with its watch or with the stream.
func etcdWatches(t *testing.T, s *service.Server) {
	a, b := etcdSideOf(t, s), etcdSideOf(t, s)
	for what, spoil := range map[string]func(*pb.WatchResponse) error{
		"cancelled": func(res *pb.WatchResponse) error {
			res.Events, res.Canceled, res.CancelReason = nil, true, "a test"
			return nil
		},
		"compacted": func(res *pb.WatchResponse) error {
			res.Events, res.Canceled, res.CompactRevision = nil, true, res.Header.Revision
			return nil
		},
		"no leader": func(*pb.WatchResponse) error { return status.Error(codes.Unavailable, "etcdserver: no leader") },
		"token expired": func(*pb.WatchResponse) error {
			return status.Error(codes.Unauthenticated, "etcdserver: invalid auth token")
		},
		"reset": func(*pb.WatchResponse) error { return status.Error(codes.Internal, "stream terminated by RST_STREAM") },
	} {
		t.Run(what, func(t *testing.T) {
			name := "watches/" + what
			hold := steps.Asked(a, name, time.Minute)
			steps.Acquired(t, a, hold)
			var waits []<-chan error
			var rs []driver.Request
			listened := b.rpcs.watches()
			for i := range 3 {
				rs = append(rs, steps.Waiting(b, name, time.Minute))
				waits = append(waits, steps.Acquiring(b, rs[i]))
				await.That(t, "it waits", func() bool { return steps.Queue(t, a, name).Len() == i+2 })
			}
			await.That(t, "they are watched", func() bool { return b.rpcs.watches() > listened })
			places := steps.Queue(t, a, name).Arrivals
			slow := 0
			for i, r := range rs {
				spoilt := b.rpcs.spoilEvents(spoil)
				if i == 0 {
					steps.Released(t, a, hold)
				} else {
					steps.Released(t, b, rs[i-1])
				}
				await.Closed(t, "an event", spoilt)
				start := time.Now()
				if err := <-waits[i]; err != nil {
					t.Fatalf("Acquire: %v", err)
				}
				if time.Since(start) > 5*time.Second {
					slow++
				}
				q := steps.Queue(t, a, name)
				if len(q.Holders()) != 1 || q.Holders()[0].ID != r.ID || places[i+1].ID != r.ID {
					t.Errorf("%d lost their places: %+v", i, q)
				}
			}
			if slow > 1 { // the machine may stall
				t.Errorf("it took more than 5s until the keys were read again, %d times of %d", slow, len(rs))
			}
			steps.Released(t, b, rs[2])
		})
	}
}

// etcdCompactedWaiter: the events of the time in which a waiter's connection was dead are compacted
// before it learns of them.
func etcdCompactedWaiter(t *testing.T, s *service.Server) {
	a, b, root := etcdSideOf(t, s), etcdSideOf(t, s), etcdOf(t, s)
	const name = "compacted"
	hold := steps.Asked(a, name, time.Minute)
	steps.Acquired(t, a, hold)
	next := steps.Waiting(b, name, time.Minute)
	got := steps.Acquiring(b, next)
	await.That(t, "one waits", func() bool { return steps.Queue(t, a, name).Len() == 2 })
	heal := b.proxy.Isolate()
	steps.Released(t, a, hold)
	big := strings.Repeat("x", 100<<10)
	for i := range 60 { // more than the buffers between them hold
		if _, err := root.Put(t.Context(), "dlock/"+name+"/other", big+fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	res, err := root.Delete(t.Context(), "dlock/"+name+"/other")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.Compact(t.Context(), res.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	heal()
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the waiter was not woken")
	}
	if q := steps.Queue(t, a, name); len(q.Holders()) != 1 || q.Holders()[0].ID != next.ID {
		t.Errorf("there is %+v", q)
	}
	steps.Released(t, b, next)
}

// closes reports whether c is closed within d. A time in which this process stalls counts little.
func closes(c <-chan struct{}, d time.Duration) bool {
	const step = 10 * time.Millisecond
	for range d / step {
		select {
		case <-c:
			return true
		case <-time.After(step):
		}
	}
	return false
}

// etcdHangs: no call takes longer than its context if the server does not answer, or the network
// drops everything.
func etcdHangs(t *testing.T, s *service.Server) {
	const ttl = 2 * etcdTTL // so that it does not expire while calls hang
	hang := func(t *testing.T, b *etcdSide, hangs func() (heal func())) {
		c := steps.ClientOf(t, b, dlock.TTL(ttl))
		held, err := c.Mutex("hangs/held").Lock(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		probe := etcdSideOf(t, s)
		other, err := steps.ClientOf(t, probe).Mutex("hangs/waits").Lock(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := c.Mutex("hangs/waits").Lock(ctx)
			waits <- err
		}()
		await.That(t, "one waits", func() bool { return steps.Queue(t, probe, "hangs/waits").Len() == 2 })
		heal := hangs()
		bounded := func(what string, f func(ctx context.Context) error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			// only this process matters: the server hangs anyway
			start, stood := time.Now(), steps.MeasureStalls()
			err := f(ctx)
			took, still := time.Since(start), stood()
			if over := !time.Now().Before(held.Until()); !errors.Is(err, context.DeadlineExceeded) && !(over && errors.Is(err, dlock.ErrLost)) {
				t.Errorf("%s: %v", what, err)
			}
			if took-still > 2*time.Second {
				t.Errorf("%s returned after %s, of which the process stalled for %s", what, took, still)
			}
		}
		bounded("Renew", held.Renew)
		bounded("Lock", func(ctx context.Context) error { _, err := c.Mutex("hangs/asked").Lock(ctx); return err })
		bounded("TryLock", func(ctx context.Context) error { _, err := c.Mutex("hangs/asked").TryLock(ctx); return err })
		bounded("Inspect", func(ctx context.Context) error { _, err := c.Inspect(ctx, "hangs/asked"); return err })
		bounded("Break", func(ctx context.Context) error { return c.Break(ctx, "hangs/held", held.Token()) })
		start, stood := time.Now(), steps.MeasureStalls()
		cancel()
		err = await.From(t, waits)
		if took, still := time.Since(start), stood(); !errors.Is(err, context.Canceled) || took-still > time.Second {
			t.Errorf("the waiter returned %v after %s, of which the process stalled for %s", err, took, still)
		}
		if !closes(held.Lost(), 2*ttl) {
			t.Errorf("the lease is not lost")
		}
		if now := time.Now(); now.Before(held.Until()) {
			t.Errorf("lost %s too early", held.Until().Sub(now))
		}
		start, stood = time.Now(), steps.MeasureStalls()
		c.Close() // which cannot release anything
		if took, still := time.Since(start), stood(); took-still > 10*time.Second {
			t.Errorf("Close returned after %s, of which the process stalled for %s", took, still)
		}
		heal()
		if err := other.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"hangs/held", "hangs/asked", "hangs/waits"} {
			await.That(t, "no request is left of "+name, func() bool { return steps.Queue(t, probe, name).Len() == 0 })
		}
	}
	t.Run("server", func(t *testing.T) {
		hang(t, etcdSideOf(t, s), func() func() { s.Pause(t); return func() { s.Continue(t) } })
	})
	t.Run("network", func(t *testing.T) {
		b := etcdSideOf(t, s)
		hang(t, b, func() func() {
			there, back := b.proxy.Vanish(netfault.ToServer), b.proxy.Vanish(netfault.ToClient)
			return func() { there(); back() }
		})
	})
}

// etcdRestart: the server is killed and started again, on its data.
func etcdRestart(t *testing.T, s *service.Server) {
	c, other := steps.ClientOf(t, etcdSideOf(t, s), dlock.TTL(time.Minute)), steps.ClientOf(t, etcdSideOf(t, s), dlock.TTL(time.Minute))
	steps.AcrossRestart(t, s, etcdSideOf(t, s), c, other)
}

// TestEtcdSlowReplies: the longer replies take, the less time a holder has, since trust counts from
// when the call was sent.
func TestEtcdSlowReplies(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Etcd)
	m := service.NewMonitor(s)
	defer m.Stop()
	m.Try(t, "a hold", func(t *service.Trial) { slowReplies(t, s, "slow/"+driver.NewID().String()) })
}

func slowReplies(t *service.Trial, s *service.Server, name string) {
	// a connection is taken for dead after a second of silence
	const ttl, late = 6 * time.Second, 800 * time.Millisecond
	b, other := etcdSideOf(t, s), etcdSideOf(t, s)
	c := steps.ClientOf(t, b, dlock.TTL(ttl))
	steps.Queue(t, b, name) // so that it is connected
	b.proxy.Delay(netfault.ToClient, late)
	l, err := c.Mutex(name).Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	b.proxy.Isolate()
	steps.Acquired(t, other, steps.Waiting(other, name, time.Minute))
	if at := time.Now(); l.Until().After(at) {
		service.Strict(t).Errorf("the next request was granted %s before the first hold had expired", l.Until().Sub(at))
	}
	if !closes(l.Lost(), time.Second) {
		t.Error("the first holder did not learn of its loss")
	}
}
