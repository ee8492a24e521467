package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/size"
)

// TestEtcdBounds: a client never sends, receives or leaves more in one piece than the bounds of
// docs/etcd.md, however many locks, waiters and names there are.
func TestEtcdBounds(t *testing.T) {
	t.Parallel()
	t.Run("a server with low limits", etcdTakesLittle)
	s := service.StartOwn(t, Etcd)
	for _, f := range []struct {
		name string
		run  func(*testing.T, *service.Server)
	}{
		{"requests", etcdLargestRequest},
		{"the end of a client", etcdEndOfMany},
		{"a long queue", etcdLongQueue},
		{"many names", etcdManyNames},
	} {
		t.Run(f.name, func(t *testing.T) {
			service.Watch(t, s)
			f.run(t, s)
		})
	}
}

// The bounds of docs/etcd.md, in bytes.
const mostSent, mostReceived, mostListed = 1 << 19, 2 << 20, 20 << 20

// sizes records the sizes of messages.
type sizes struct {
	sent, received atomic.Int64
	refused        atomic.Int64 // calls with an error
}

func (z *sizes) see(largest *atomic.Int64, m any) {
	p, ok := m.(proto.Message)
	if !ok {
		panic(fmt.Sprintf("%T is no message", m))
	}
	for n := int64(proto.Size(p)); ; {
		old := largest.Load()
		if n <= old || largest.CompareAndSwap(old, n) {
			return
		}
	}
}

func (z *sizes) options(c *clientv3.Config) {
	c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, name string, req, res any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			z.see(&z.sent, req)
			err := invoke(ctx, name, req, res, conn, opts...)
			if err != nil {
				z.refused.Add(1)
			} else {
				z.see(&z.received, res)
			}
			return err
		}), grpc.WithChainStreamInterceptor(
		func(ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, name string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, d, conn, name, opts...)
			return &sizedStream{s, z}, err
		}))
}

type sizedStream struct {
	grpc.ClientStream
	z *sizes
}

func (s *sizedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.z.see(&s.z.received, m)
	}
	return err
}

func (z *sizes) within(t *testing.T, what string, sent, received int64) {
	t.Helper()
	t.Logf("%s: the largest request has %d bytes, the largest answer or event %d", what, z.sent.Load(), z.received.Load())
	if n := z.sent.Load(); n > sent {
		t.Errorf("%s: a request has %d bytes", what, n)
	}
	if n := z.received.Load(); n > received {
		t.Errorf("%s: an answer, or a message of a stream, has %d bytes", what, n)
	}
}

// longest is a name of the greatest length, which is three times as long in a key.
func longest(i int) string {
	s := fmt.Sprint(i)
	return strings.Repeat("/", 255-len(s)) + s
}

// lockMany locks and unlocks long names, many at a time.
func lockMany(t *testing.T, c *dlock.Client, many int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range many {
		m := c.Mutex(longest(i))
		wg.Go(func() {
			for range 5 {
				if err := passes(t.Context(), m); err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
			}
		})
	}
	await.All(t, &wg)
}

// etcdTakesLittle: if the operator allows fewer operations or bytes, batches are smaller, and the
// client remembers the limit.
func etcdTakesLittle(t *testing.T) {
	for _, args := range [][]string{{"--max-txn-ops=8"}, {"--max-request-bytes=16384"}} {
		t.Run(args[0], func(t *testing.T) {
			s := service.StartOwn(t, Etcd.With(args...))
			var z sizes
			b := etcdSideOf(t, s, z.options)
			lockMany(t, steps.ClientOf(t, b, dlock.Label(strings.Repeat("l", 255))), 200)
			if n := z.refused.Load(); n > 60 { // the transactions under way together, five times
				t.Errorf("%d calls were refused: the client does not learn the limits of the server", n)
			}
			hold := steps.Asked(b, longest(0), time.Minute)
			hold.Label = strings.Repeat("l", 255)
			g := steps.Acquired(t, b, hold)
			for range 50 {
				join := steps.Asked(b, hold.Name, time.Minute)
				join.Owner, join.Token, join.Label = hold.ID, g.Token, hold.Label
				steps.Acquired(t, b, join)
			}
			if err := b.Break(t.Context(), hold.Name, g.Token, true); err != nil {
				t.Errorf("Break: %v", err)
			}
			if n := steps.Queue(t, b, hold.Name).Len(); n != 0 {
				t.Errorf("%d requests are left", n)
			}
		})
	}
}

// etcdLargestRequest: many locks with the longest names and labels travel together.
func etcdLargestRequest(t *testing.T, s *service.Server) {
	var z sizes
	b := etcdSideOf(t, s, z.options)
	lockMany(t, steps.ClientOf(t, b, dlock.Label(strings.Repeat("l", 255))), 500)
	if z.sent.Load() < 20<<10 {
		t.Error("no locks travelled together")
	}
	z.within(t, "500 locks at once", mostSent, mostReceived)
}

// etcdEndOfMany: the locks of a client stand under leases of a thousand each, and the end of the
// client is one event of the server for each lease. A request behind all of them is granted.
func etcdEndOfMany(t *testing.T, s *service.Server) {
	const many = 2500
	name := longest(1 << 20)
	var z sizes
	a, b, root := etcdSideOf(t, s), etcdSideOf(t, s, z.options), etcdOf(t, s)
	steps.Acquired(t, a, steps.Asked(a, name, 10*time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range many {
		go steps.Acquire(ctx, a, steps.Waiting(a, name, 10*time.Minute))
	}
	count := func() int64 {
		res, err := root.Get(t.Context(), "dlock/"+strings.ReplaceAll(name, "/", "%2F")+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return res.Count
	}
	await.That(t, "all wait", func() bool { return count() == many+1 })
	got := steps.Acquiring(b, steps.Waiting(b, name, time.Minute))
	await.That(t, "one more request waits", func() bool { return count() == many+2 && b.rpcs.watches() > 0 })
	leases, err := root.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases.Leases {
		res, err := root.TimeToLive(t.Context(), l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(res.Keys); n > 1000 {
			t.Errorf("a lease has %d keys", n)
		}
	}
	start := time.Now()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := await.From(t, got); err != nil {
		t.Errorf("the request behind %d: %v", many, err)
	}
	t.Logf("%d requests of a client went within %s", many, time.Since(start))
	z.within(t, fmt.Sprintf("behind %d", many), mostSent, mostReceived)
}

// queueUp puts a number of waiting requests, as copies of the one under a key.
func queueUp(t *testing.T, root *clientv3.Client, value string, many int, key func(i int) string) {
	t.Helper()
	fields := strings.SplitN(value, " ", 3)
	for i := 0; i < many; {
		var ops []clientv3.Op
		for ; i < many && len(ops) < 128; i++ {
			ops = append(ops, clientv3.OpPut(key(i), fields[0]+" "+driver.NewID().String()+" "+fields[2]))
		}
		if _, err := root.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// etcdLongQueue: a very long queue is read in pages, and a request that arrives reads at most one
// page of it in the transaction that puts its key.
func etcdLongQueue(t *testing.T, s *service.Server) {
	many := size.Longer(12000)
	var z sizes
	holder, b, root := etcdSideOf(t, s), etcdSideOf(t, s, z.options), etcdOf(t, s)
	name := longest(1 << 21)
	held := steps.Asked(holder, name, 10*time.Minute)
	held.Label = strings.Repeat("l", 255)
	g := steps.Acquired(t, holder, held)
	kv := keysOf(t, root, name)[0]
	queueUp(t, root, string(kv.Value), many, func(i int) string {
		return fmt.Sprintf("dlock/%s/sffffffffffffffff-%d", strings.ReplaceAll(name, "/", "%2F"), i)
	})
	start := time.Now()
	if q := steps.Queue(t, b, name); q.Len() != many+1 || len(q.Holders()) != 1 {
		t.Errorf("there are %d requests, %d hold", q.Len(), len(q.Holders()))
	}
	t.Logf("Inspect of %d took %s", many+1, time.Since(start))
	if _, err := steps.Acquire(await.Bounded(t, time.Minute), b, steps.Asked(b, name, time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("TryLock behind %d: %v", many, err)
	}
	join := steps.Asked(b, name, time.Minute)
	join.Owner, join.Token = held.ID, g.Token
	steps.Acquired(t, b, join)
	steps.Released(t, b, join)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := steps.Acquire(ctx, b, steps.Waiting(b, name, time.Minute)); !errors.Is(err, driver.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock behind %d: %v", many, err)
	}
	if err := b.Break(t.Context(), name, g.Token, true); err != nil {
		t.Errorf("Break before %d: %v", many, err)
	}
	z.within(t, fmt.Sprintf("a queue of %d", many), mostSent, mostReceived)
	if _, err := root.Delete(t.Context(), "dlock/"+strings.ReplaceAll(name, "/", "%2F")+"/", clientv3.WithPrefix()); err != nil {
		t.Error(err)
	}
}

// etcdManyNames: List reads in pages.
func etcdManyNames(t *testing.T, s *service.Server) {
	many := 60000
	if size.Long() {
		many = 400000
	}
	var z sizes
	b, root := etcdSideOf(t, s, z.options), etcdOf(t, s)
	c := steps.ClientOf(t, b)
	l := steps.MustLock(t, c.Mutex("names/held"))
	kv := keysOf(t, root, "names/held")[0]
	name := func(i int) string { return fmt.Sprint("names/", i, strings.Repeat("x", 40)) }
	queueUp(t, root, string(kv.Value), many, func(i int) string {
		return "dlock/" + strings.ReplaceAll(name(i), "/", "%2F") + "/sffffffffffffffff-0"
	})
	start := time.Now()
	names, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, n := range names {
		seen[n] = true
	}
	if len(names) != len(seen) || len(seen) < many+1 || !seen["names/held"] || !seen[name(0)] || !seen[name(many-1)] {
		t.Errorf("%d names are listed, %d of them once; want %d", len(names), len(seen), many+1)
	}
	t.Logf("List of %d names took %s", len(names), time.Since(start))
	z.within(t, fmt.Sprintf("%d names", many), mostSent, mostListed)
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := root.Delete(t.Context(), "dlock/names", clientv3.WithPrefix()); err == nil {
			break
		}
	}
}
