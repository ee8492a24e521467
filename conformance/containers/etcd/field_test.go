package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
)

// TestEtcdField runs, on one member, problems that were found in use by programs and operators.
func TestEtcdField(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Etcd)
	for _, f := range []struct {
		name string
		run  func(*testing.T, *service.Server)
	}{
		{"grpc-proxy", etcdProxied},
		{"thousands at once", etcdBurst},
		{"connections that are refused for long", etcdRefusedLong},
		{"a connection that dies silently", etcdSilence},
		{"why no server answers", etcdCauses},
		{"a fixed lease stands after Close", etcdFixed},
		{"a TTL that cannot be kept", etcdNeverKept},
		{"how a wait ends", etcdWaited},
		{"a break is notified", etcdBreakNotified},
		{"tokens with a base", func(t *testing.T, s *service.Server) { steps.TokenBase(t, s.URL) }},
		// the last one: it stops the server
		{"a server that hangs, and calls without a deadline", etcdHangsUnbounded},
	} {
		t.Run(f.name, func(t *testing.T) {
			service.Watch(t, s)
			f.run(t, s)
		})
	}
}

// etcdProxy is etcd's own proxy before a member.
func etcdProxy(member string) service.Kind {
	k := Etcd
	k.Ports = 1
	k.Command = func(_ string, ports []int) []string {
		addr := fmt.Sprint("127.0.0.1:", ports[0])
		return []string{"etcd", "grpc-proxy", "start", "--endpoints=" + member, "--listen-addr=" + addr, "--advertise-client-url=" + addr}
	}
	k.Ask = func(ctx context.Context, text string) (string, error) {
		addr := strings.TrimPrefix(text, "etcd://")
		c, err := dialEtcd([]string{addr})
		if err != nil {
			return "", err
		}
		defer c.Close()
		res, err := c.Status(ctx, addr)
		if err != nil {
			return "", err
		}
		return "grpc-proxy before etcd " + res.Version, nil
	}
	return k
}

// etcdProxied: a proxy that changes what the protocol needs is refused, and no request waits behind
// it for ever.
func etcdProxied(t *testing.T, s *service.Server) {
	p := service.StartOwn(t, etcdProxy(s.Addr))
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "grpc-proxy") {
			t.Errorf("%s through a grpc-proxy: %v", what, err)
		}
	}
	c, err := dlock.Open(t.Context(), p.URL, dlock.Logger(nil))
	if err == nil {
		c.Close()
	}
	refused("Open", err)
	// A client of the caller's is refused when it is first used.
	probe := etcdSideOf(t, s)
	held := steps.Asked(probe, "proxied", time.Minute)
	steps.Acquired(t, probe, held)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b := etcdSideOf(t, p)
	_, err = steps.Acquire(ctx, b, steps.Waiting(b, "proxied", time.Minute))
	refused("Acquire", err)
	steps.Released(t, probe, held)
	// A client whose streams led first to a member, and then to a proxy.
	moved := etcdSideOf(t, s)
	held = steps.Asked(probe, "proxied/moved", time.Minute)
	steps.Acquired(t, probe, held)
	got := steps.Acquiring(moved, steps.Waiting(moved, "proxied/moved", time.Minute))
	await.That(t, "a request waits", func() bool { return steps.Queue(t, probe, "proxied/moved").Len() == 2 })
	moved.client.SetEndpoints(p.Addr)
	moved.proxy.Cut()
	select {
	case err := <-got:
		refused("a wait that moved", err)
	case <-time.After(20 * time.Second):
		t.Error("a wait that moved behind a grpc-proxy goes on for ever")
	}
	steps.Released(t, probe, held)
}

// brought counts the keys in answers to a client.
func brought(keys, puts *atomic.Int64) func(*clientv3.Config) {
	return func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, name string, req, res any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, name, req, res, conn, opts...)
				switch r := res.(type) {
				case *pb.TxnResponse:
					puts.Add(1)
					for _, part := range r.Responses {
						keys.Add(int64(len(part.GetResponseRange().GetKvs())))
					}
				case *pb.RangeResponse:
					keys.Add(int64(len(r.Kvs)))
				}
				return err
			}))
	}
}

// etcdBurst: so many requests of one client arrive under one name at once that they are queued in
// the client for longer than a call may take. All get their places, with a transaction each, and
// few read the queue.
func etcdBurst(t *testing.T, s *service.Server) {
	m := service.NewMonitor(s)
	defer m.Stop()
	m.Try(t, "burst", func(t *service.Trial) { burst(t, s, "burst-"+driver.NewID().String()) })
}

func burst(t *service.Trial, s *service.Server, name string) {
	const many = 2000
	var keys, puts atomic.Int64
	holder, b, root := etcdSideOf(t, s), etcdSideOf(t, s, brought(&keys, &puts)), etcdOf(t, s)
	steps.Acquired(t, holder, steps.Asked(holder, name, 10*time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var failed atomic.Int64
	start := time.Now()
	for range many {
		wg.Go(func() {
			if _, err := steps.Acquire(ctx, b, steps.Waiting(b, name, 10*time.Minute)); ctx.Err() == nil && failed.Add(1) < 5 {
				t.Errorf("Acquire after %s: %v", time.Since(start), err)
			}
		})
	}
	stand := func() int64 {
		res, err := root.Get(t.Context(), "dlock/"+name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return res.Count
	}
	for end := time.Now().Add(time.Minute); stand() < many+1 && failed.Load() == 0; <-time.After(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d stand after a minute", stand(), many)
		}
	}
	t.Logf("%d stand after %s: %d transactions, with %d keys in their answers; %d failed", stand()-1, time.Since(start), puts.Load(), keys.Load(), failed.Load())
	if n := puts.Load(); n > many+many/10 {
		t.Errorf("%d requests took %d transactions", many, n)
	}
	// at most one read of the whole queue per second, on a slow machine
	most := many * int64(10+time.Since(start)/time.Second)
	if n := keys.Load(); n > most {
		t.Errorf("for %d requests the server read %d keys; %d are allowed", many, n, most)
	}
	cancel()
	await.All(t, &wg)
}

// etcdRefusedLong: for a while no server listens. Then the client recovers at once, however long
// that was, also over a client of the caller's that dials as docs/etcd.md says, and a Lock that
// began meanwhile succeeds: the outage is longer than a call waits for an answer, and shorter than
// the TTL. The error of a call whose context ends meanwhile says why.
func etcdRefusedLong(t *testing.T, s *service.Server) {
	var ways sync.WaitGroup
	for way, open := range map[string]func(tp *tcpProxy) driver.Backend{
		"by URL":                        func(tp *tcpProxy) driver.Backend { return tp.side(t) },
		"over a client of the caller's": func(tp *tcpProxy) driver.Backend { return etcdOver(t, netfault.NewProxy(), []string{tp.addr}) },
	} {
		tp := newTCPProxy(t, s.Addr)
		b := open(tp)
		steps.Acquired(t, b, steps.Asked(b, "long/"+way, time.Minute))
		ways.Go(func() { refusedLong(t, tp, b, way) })
	}
	ways.Wait()
}

func refusedLong(t *testing.T, tp *tcpProxy, b driver.Backend, way string) {
	// gRPC by itself would have dialled some 9 s after the cut, and again after 16
	const away, back = 11 * time.Second, 1500 * time.Millisecond
	for try := 0; ; try++ {
		tp.set(false, true)
		tp.cut()
		stood := steps.MeasureStalls()
		over := time.After(away)
		got := steps.Acquiring(b, steps.Waiting(b, fmt.Sprint("long/new/", way, try), time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, ended := steps.Acquire(ctx, b, steps.Waiting(b, fmt.Sprint("long/bounded/", way, try), time.Minute))
		cancel()
		if !errors.Is(ended, context.DeadlineExceeded) || errors.Is(ended, driver.ErrHeld) || strings.Contains(ended.Error(), "did not answer") {
			t.Errorf("%s: a Lock whose context ended during the outage: %v", way, ended)
		}
		<-over
		tp.set(false, false)
		start := time.Now()
		err := <-got
		took, still := time.Since(start), stood()
		if err != nil {
			t.Errorf("%s: a Lock that began during the outage: %v", way, err)
		}
		if took <= back+still {
			return
		}
		if try == 2 {
			t.Errorf("%s: the client recovered %s after the network, in each of %d rounds", way, took, try+1)
			return
		}
	}
}

// etcdSilence: after a connection died silently a hold over it is kept, a new request is granted,
// and a waiter learns of its grant, since the driver closes the connection and dials again. That
// succeeds when the network is back.
func etcdSilence(t *testing.T, s *service.Server) {
	const ttl, outage = 6 * time.Second, 2500 * time.Millisecond
	for try := 0; ; try++ {
		tp := newTCPProxy(t, s.Addr)
		b := tp.side(t)
		c, other := steps.ClientOf(t, b, dlock.TTL(ttl)), etcdSideOf(t, s)
		name := func(what string) string { return fmt.Sprint("silence/", what, try) }
		ahead := steps.Asked(other, name("waits"), time.Minute)
		steps.Acquired(t, other, ahead)
		waits := make(chan error, 1)
		go func() {
			_, err := c.Mutex(name("waits")).Lock(await.Context(t))
			waits <- err
		}()
		await.That(t, "a request waits", func() bool { return steps.Queue(t, other, name("waits")).Len() == 2 })
		held := steps.MustLock(t, c.Mutex(name("held")))
		if err := held.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		start, stood := time.Now(), steps.MeasureStalls()
		tp.set(true, false)
		tp.kill()
		back := time.AfterFunc(outage, func() { tp.set(false, false) })
		steps.Released(t, other, ahead)
		_, errNew := c.Mutex(name("new")).Lock(await.Context(t))
		tookNew := time.Since(start)
		errWaits := await.From(t, waits)
		tookWaits := time.Since(start)
		closes(held.Lost(), max(0, time.Until(start.Add(ttl+time.Second))))
		errHeld := held.Err()
		still := stood()
		back.Stop()
		t.Logf("in an outage of %s the new request was granted after %s, the waiter after %s; the hold: %v; the process stalled for %s", outage, tookNew, tookWaits, errHeld, still)
		const most = outage + 3*time.Second
		if errNew == nil && errWaits == nil && errHeld == nil && tookNew < most+still && tookWaits < most+still {
			return
		}
		if try == 2 || still < 200*time.Millisecond {
			t.Errorf("the new request: %v after %s; the waiter: %v after %s; the hold: %v", errNew, tookNew, errWaits, tookWaits, errHeld)
			return
		}
	}
}

// etcdCauses: Open soon reports the cause.
func etcdCauses(t *testing.T, s *service.Server) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and never sends anything
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	unused, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	refused := fmt.Sprint("127.0.0.1:", unused[0])
	for _, c := range []struct {
		what, url, want string
		most            time.Duration
	}{
		{"refused", "etcd://" + refused, "connection refused", 2 * time.Second},
		{"all refused", "etcd://" + refused + ",[::1]" + refused[len("127.0.0.1"):], "connection refused", 2 * time.Second},
		{"refused, with a password", "etcd://me:hunter2@" + refused, "connection refused", 2 * time.Second},
		{"refused, with TLS", "etcds://" + refused, "connection refused", 2 * time.Second},
		{"no such host", "etcd://no-such-host.invalid", "no-such-host.invalid", 5 * time.Second},
		{"TLS, where there is none", "etcds://" + s.Addr, "handshake", 2 * time.Second},
		{"silent", "etcd://" + silent.Addr().String() + "?dial_timeout=1s", "did not answer", 4 * time.Second},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			start, stood := time.Now(), steps.MeasureStalls()
			client, err := dlock.Open(t.Context(), c.url, dlock.Logger(nil))
			took, still := time.Since(start), stood()
			if err == nil {
				client.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") || errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "deadline exceeded") {
				t.Errorf("want %q, and got after %s: %v", c.want, took, err)
			}
			if took > c.most+still {
				t.Errorf("the error came after %s: %v", took, err)
			}
		})
	}
}

// etcdFixed: the hold of a fixed request lasts for its full time, whatever becomes of its client,
// and no longer.
func etcdFixed(t *testing.T, s *service.Server) {
	const ttl = 4 * time.Second
	b, probe, root := etcdSideOf(t, s), etcdSideOf(t, s), etcdOf(t, s)
	fixed, kept, waits := steps.Asked(b, "fixed", ttl), steps.Asked(b, "fixed/kept", ttl), steps.Waiting(b, "fixed/waits", ttl)
	fixed.Fixed, waits.Fixed = true, true
	held := steps.Asked(probe, waits.Name, time.Minute)
	steps.Acquired(t, probe, held)
	steps.Acquired(t, b, kept)
	got := steps.Acquiring(b, waits)
	await.That(t, "a request waits", func() bool { return steps.Queue(t, probe, waits.Name).Len() == 2 })
	steps.Acquired(t, b, fixed)
	lease := keyOf(t, root, fixed).Lease
	if err := b.Backend.Close(); err != nil {
		t.Fatal(err)
	}
	if err := await.From(t, got); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Acquire of the waiter: %v", err)
	}
	asked := time.Now()
	res, err := root.TimeToLive(t.Context(), clientv3.LeaseID(lease))
	if err != nil {
		t.Fatal(err)
	}
	if n := steps.Queue(t, probe, fixed.Name).Len(); n != 1 && res.TTL > 0 {
		t.Errorf("%d requests stand after Close, with %ds left", n, res.TTL)
	}
	if q, w := steps.Queue(t, probe, kept.Name).Len(), steps.Queue(t, probe, waits.Name).Len(); q != 0 || w != 1 {
		t.Errorf("%d requests that are not fixed, and %d where a request waited, stand after Close", q, w)
	}
	steps.Acquired(t, probe, steps.Waiting(probe, fixed.Name, time.Minute))
	left := time.Duration(res.TTL) * time.Second // as the server reports it, rounded down
	if took := time.Since(asked); took < left || took > 4*ttl {
		t.Errorf("the next request was granted after %s, with %s left after Close", took, left)
	}
	steps.Released(t, probe, held)
}

// etcdNeverKept: no TTL is shortened silently.
func etcdNeverKept(t *testing.T, s *service.Server) {
	b := etcdSideOf(t, s)
	most := b.Capabilities().MaxTTL
	for _, ttl := range []time.Duration{time.Second, most + time.Second} {
		if _, err := steps.Acquire(t.Context(), b, steps.Asked(b, "never", ttl)); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a TTL of %s: %v", ttl, err)
		}
	}
	r := steps.Asked(b, "always", most)
	r.Fixed = true
	if g := steps.Acquired(t, b, r); g.TTL < most {
		t.Errorf("a request for %s was granted %s", most, g.TTL)
	}
	steps.Released(t, b, r)
}

// etcdWaited: the error of a request that waited in the queue says that the lock was held; the
// error of a request that got no answer does not. A refusal names the holder.
func etcdWaited(t *testing.T, s *service.Server) {
	a, b := etcdSideOf(t, s), etcdSideOf(t, s)
	held := steps.Asked(a, "waited", time.Minute)
	held.Label = "till 3"
	steps.Acquired(t, a, held)
	by := (*driver.HeldError)(nil)
	if _, err := steps.Acquire(t.Context(), b, steps.Asked(b, "waited", time.Minute)); !errors.Is(err, driver.ErrHeld) || !errors.As(err, &by) || by.Label != held.Label {
		t.Errorf("a request that does not wait: %v, by %+v", err, by)
	}
	ends := func(r driver.Request, when func()) error {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := steps.Acquire(ctx, b, r)
			done <- err
		}()
		when()
		cancel()
		return await.From(t, done)
	}
	stands := func() {
		await.That(t, "a request waits", func() bool { return steps.Queue(t, a, "waited").Len() == 2 })
	}
	listens := func() { await.That(t, "it listens", func() bool { return b.rpcs.watches() > 0 }) }
	if err := ends(steps.Waiting(b, "waited", time.Minute), func() { stands(); listens() }); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the waiter: %v", err)
	}
	await.That(t, "it is gone", func() bool { return steps.Queue(t, a, "waited").Len() == 1 })
	heal := b.proxy.Isolate()
	defer heal()
	if err := ends(steps.Waiting(b, "waited", time.Minute), func() { <-time.After(100 * time.Millisecond) }); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrHeld) {
		t.Errorf("a request without an answer: %v", err)
	}
}

// etcdHangsUnbounded: if a server does not answer, calls whose context never ends do end, and calls
// that need the same lease do not end one after the other.
func etcdHangsUnbounded(t *testing.T, s *service.Server) {
	b := etcdSideOf(t, s)
	r := steps.Asked(b, "unbounded", time.Minute)
	steps.Acquired(t, b, r)
	s.Pause(t)
	defer s.Continue(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			start, stood := time.Now(), steps.MeasureStalls()
			_, err := steps.Acquire(t.Context(), b, steps.Waiting(b, fmt.Sprint("unbounded/lease/", i), 5*time.Second))
			if took, still := time.Since(start), stood(); err == nil || took-still > 20*time.Second {
				t.Errorf("Acquire, which needs a lease that other calls request too, after %s: %v", took, err)
			}
		})
	}
	for what, call := range map[string]func() error{
		"Acquire": func() error {
			_, err := steps.Acquire(t.Context(), b, steps.Asked(b, "unbounded/other", time.Minute))
			return err
		},
		"Inspect": func() error { _, err := b.Inspect(t.Context(), r.Name); return err },
		"List":    func() error { _, err := b.List(t.Context()); return err },
		"Open":    func() error { _, err := dlock.Open(t.Context(), s.URL, dlock.Logger(nil)); return err },
	} {
		wg.Go(func() {
			start, stood := time.Now(), steps.MeasureStalls()
			err := call()
			took, still := time.Since(start), stood()
			if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "did not answer") {
				t.Errorf("%s of a server that hangs: %v", what, err)
			}
			if took-still > 10*time.Second {
				t.Errorf("%s of a server that hangs returned after %s", what, took)
			}
		})
	}
	await.All(t, &wg)
}

// served finds out to which member a client's stream of watches leads.
func served(by *atomic.Value) func(*clientv3.Config) {
	return func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainStreamInterceptor(
			func(ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, name string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := open(ctx, d, conn, name, opts...)
				if err == nil && path.Base(name) == "Watch" {
					s = &servedStream{s, by}
				}
				return s, err
			}))
	}
}

type servedStream struct {
	grpc.ClientStream
	by *atomic.Value
}

func (s *servedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if p, ok := peer.FromContext(s.Context()); ok && err == nil {
		s.by.Store(p.Addr.String())
	}
	return err
}

// TestEtcdLag: a waiter whose member has a leader and answers, but receives all changes too late,
// is granted nevertheless.
func TestEtcdLag(t *testing.T) {
	t.Parallel()
	c := StartDivisibleCluster(t)
	probe := c.side(t)
	for round := 0; ; round++ {
		if round == 20 {
			t.Fatal("no stream led to a follower")
		}
		var by atomic.Value
		b := c.side(t, served(&by))
		name := fmt.Sprint("lag/", round)
		leader := c.Leader(t)
		near := etcdOver(t, netfault.NewProxy(), []string{c.Members[leader].Addr})
		held := steps.Asked(near, name, time.Minute)
		steps.Acquired(t, near, held)
		got := steps.Acquiring(b, steps.Waiting(b, name, time.Minute))
		await.That(t, "a request waits", func() bool { return steps.Queue(t, probe, name).Len() == 2 && b.rpcs.watches() > 0 })
		member := -1
		for i, m := range c.Members {
			if addr, err := b.proxy.Addr(m.Addr); err == nil && addr == by.Load() {
				member = i
			}
		}
		if member < 0 || member == leader {
			steps.Released(t, near, held)
			await.From(t, got)
			b.Close()
			continue
		}
		heal := c.Lag(member)
		t.Cleanup(heal)
		steps.Released(t, near, held)
		start := time.Now()
		select {
		case err := <-got:
			t.Logf("behind a member that lags the waiter returned after %s, error %v", time.Since(start), err)
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Error("behind a member that lags a waiter does not learn of its turn")
		}
		return
	}
}
