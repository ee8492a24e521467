package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/etcd"
)

// handsOver is the most that a hand-over may take on a busy machine. All leases in these tests have
// a minute, so none waits for the end of one.
const handsOver = 20 * time.Second

// plainSession is a lease of the peers for a minute.
func plainSession(t *testing.T, c *clientv3.Client) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// openPlain opens a client in the peers' layout, with a label.
func openPlain(t *testing.T, s *service.Server, label string) *dlock.Client {
	t.Helper()
	c, err := dlock.Open(t.Context(), plainURL(s), dlock.Logger(nil), dlock.TTL(time.Minute), dlock.Label(label))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// inLine is a request that waits in its turn, of dlock or of a peer.
type inLine struct {
	peer    string
	foreign bool
	begin   func() (got <-chan error, leave func())
}

// waitsAs begins a call that blocks until the lock is granted.
func waitsAs(t *testing.T, lock func(context.Context) (unlock func(context.Context) error, err error)) (<-chan error, func()) {
	got := make(chan error, 1)
	var unlock func(context.Context) error
	go func() {
		u, err := lock(await.Bounded(t, 2*time.Minute))
		unlock = u
		got <- err
	}()
	return got, func() {
		t.Helper()
		if err := unlock(t.Context()); err != nil {
			t.Errorf("unlock: %v", err)
		}
	}
}

// ctlWaits runs etcdctl, which prints its key once the lock is granted and gives it back when it is
// interrupted.
func ctlWaits(t *testing.T, cmd *exec.Cmd) (<-chan error, func()) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		s := bufio.NewScanner(out)
		if s.Scan() {
			got <- nil
		} else {
			got <- fmt.Errorf("etcdctl printed nothing: %v", s.Err())
		}
		for s.Scan() {
		}
		cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	return got, func() {
		cmd.Process.Signal(syscall.SIGINT)
		await.Closed(t, "etcdctl", ended)
	}
}

// ctlHears returns the first lines that a command prints, and ends the command.
func ctlHears(t *testing.T, cmd *exec.Cmd, n int) (lines []string) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	defer time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }).Stop()
	for s := bufio.NewScanner(out); len(lines) < n && s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}

// TestPlainOrder: dlock and every kind of peer stand in one queue, in the order of arrival, and are
// granted in that order without waiting for the end of a lease. Each side's tools show the other. A
// peer's key is never changed, and a Break of a peer's hold is refused.
func TestPlainOrder(t *testing.T) {
	const name, key = "order", "/locks/order"
	s := service.StartOwn(t, Etcd)
	c := etcdOf(t, s)
	etcdctl := service.Tool(t, Etcd, "etcdctl")
	ctl := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), etcdctl, append([]string{"--endpoints=" + s.Addr}, args...)...)
	}
	a, b := openPlain(t, s, "service a"), openPlain(t, s, "service b")
	tokens := make(chan dlock.Token, 3)
	byDlock := func(d *dlock.Client) func() (<-chan error, func()) {
		return func() (<-chan error, func()) {
			return waitsAs(t, func(ctx context.Context) (func(context.Context) error, error) {
				l, err := d.Mutex(name).Lock(ctx)
				if err != nil {
					return nil, err
				}
				tokens <- l.Token()
				return l.Unlock, nil
			})
		}
	}
	line := []inLine{
		{"dlock", false, byDlock(a)},
		{"concurrency.Mutex", true, func() (<-chan error, func()) {
			m := concurrency.NewMutex(plainSession(t, c), key)
			return waitsAs(t, func(ctx context.Context) (func(context.Context) error, error) { return m.Unlock, m.Lock(ctx) })
		}},
		{"etcdctl lock", true, func() (<-chan error, func()) { return ctlWaits(t, ctl("lock", "--ttl=60", key)) }},
		{"dlock, another client", false, byDlock(b)},
		{"concurrency.Election", true, func() (<-chan error, func()) {
			e := concurrency.NewElection(plainSession(t, c), key)
			return waitsAs(t, func(ctx context.Context) (func(context.Context) error, error) {
				return e.Resign, e.Campaign(ctx, "a candidate")
			})
		}},
		{"v3lock", true, func() (<-chan error, func()) {
			sess, srv := plainSession(t, c), services{c.ActiveConnection()}
			return waitsAs(t, func(ctx context.Context) (func(context.Context) error, error) {
				k, err := srv.Lock(ctx, key, int64(sess.Lease()))
				return func(ctx context.Context) error { return srv.Unlock(ctx, k) }, err
			})
		}},
		{"v3election", true, func() (<-chan error, func()) {
			sess, srv := plainSession(t, c), services{c.ActiveConnection()}
			return waitsAs(t, func(ctx context.Context) (func(context.Context) error, error) {
				leader, err := srv.Campaign(ctx, key, int64(sess.Lease()), "a third candidate")
				return func(ctx context.Context) error { return srv.Resign(ctx, leader) }, err
			})
		}},
		{"etcdctl elect", true, func() (<-chan error, func()) { return ctlWaits(t, ctl("elect", key, "another candidate")) }},
		{"dlock, the first client", false, byDlock(a)},
	}
	got, leave := make([]<-chan error, len(line)), make([]func(), len(line))
	for i, x := range line {
		got[i], leave[i] = x.begin()
		await.That(t, x.peer+" stands in the queue", func() bool { return len(plainKeys(t, c, name)) == i+1 })
	}
	if err := await.From(t, got[0]); err != nil {
		t.Fatal(err)
	}
	queue := func() []*mvccpb.KeyValue {
		t.Helper()
		res, err := c.Get(t.Context(), key+"/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			t.Fatal(err)
		}
		return res.Kvs
	}
	keys := queue()

	// what the peers' tools show
	out, err := ctl("get", "--prefix", key+"/").CombinedOutput()
	if err != nil || strings.Count(string(out), "service a\n") != 2 || strings.Count(string(out), "service b\n") != 1 || !strings.Contains(string(out), "a candidate\n") {
		t.Errorf("etcdctl get: %v\n%s", err, out)
	}
	if heard := ctlHears(t, ctl("elect", "--listen", key), 2); !slices.Equal(heard, []string{string(keys[0].Key), "service a"}) {
		t.Errorf("etcdctl elect --listen printed %q", heard)
	}
	leader, err := concurrency.NewElection(plainSession(t, c), key).Leader(t.Context())
	if err != nil || string(leader.Kvs[0].Value) != "service a" {
		t.Errorf("Election.Leader: %v, %v", leader, err)
	}
	if lock := concurrency.NewMutex(plainSession(t, c), key); !errors.Is(lock.TryLock(t.Context()), concurrency.ErrLocked) {
		t.Errorf("TryLock of a peer was granted")
	}
	// dlock's keys are those of the peers: the lease is their last part, and the first has no more
	if k := string(keys[0].Key); k != fmt.Sprintf("%s/%x", key, keys[0].Lease) {
		t.Errorf("the key of dlock is %q, under the lease %x", k, keys[0].Lease)
	}

	// what dlock shows
	q, err := b.Inspect(t.Context(), name)
	if err != nil || len(q.Holders) != 1 || len(q.Waiters) != len(line)-1 {
		t.Fatalf("Inspect: %+v, %v", q, err)
	}
	for i, r := range append(q.Holders, q.Waiters...) {
		x := line[i]
		if r.Foreign != x.foreign || r.Foreign != strings.HasPrefix(r.Label, string(keys[i].Key)) || r.Foreign != (r.Client == fmt.Sprintf("%032x", keys[i].Lease)) || r.Left <= 0 || r.Left > time.Minute {
			t.Errorf("Inspect shows %s as %+v", x.peer, r)
		}
	}
	if names, err := b.List(t.Context()); err != nil || !slices.Equal(names, []string{name}) {
		t.Errorf("List: %q, %v", names, err)
	}

	for i, x := range line {
		start := time.Now()
		if i > 0 {
			if err := await.From(t, got[i]); err != nil {
				t.Fatalf("%s: %v", x.peer, err)
			}
		}
		if took := time.Since(start); took > handsOver {
			t.Errorf("%s was granted after %s", x.peer, took)
		}
		for j := i + 1; j < len(line); j++ {
			select {
			case err := <-got[j]:
				t.Fatalf("%s was granted (%v) while %s holds", line[j].peer, err, x.peer)
			default:
			}
		}
		token := dlock.Token(keys[i].CreateRevision)
		if !x.foreign {
			if got := <-tokens; got != token {
				t.Errorf("%s has the token %d; its key was created at %d", x.peer, got, token)
			}
		} else {
			plainForeign(t, b, name, token)
		}
		now := queue()
		if len(now) != len(line)-i {
			t.Fatalf("%d keys are left", len(now))
		}
		for j, kv := range now {
			if was := keys[i+j]; kv.String() != was.String() {
				t.Errorf("the key of %s was changed from %v to %v", line[i+j].peer, was, kv)
			}
		}
		leave[i]()
	}
	await.That(t, "no key is left", func() bool { return len(queue()) == 0 })
}

// plainForeign requires that dlock leaves a peer that holds alone, and says what to do.
func plainForeign(t *testing.T, c *dlock.Client, name string, token dlock.Token) {
	t.Helper()
	if _, err := c.Mutex(name).TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock of what a peer holds: %v", err)
	}
	for _, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
		err := c.Break(t.Context(), name, token, opts...)
		if !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), "etcdctl lease revoke") {
			t.Errorf("Break of a peer's hold: %v", err)
		}
	}
	if err := c.Break(t.Context(), name, token+1); !errors.Is(err, dlock.ErrNotHeld) {
		t.Errorf("Break with a token that no hold has: %v", err)
	}
}

// TestPlainBreak: a peer that waits behind a hold of dlock is granted when an operator breaks that
// hold, by force at once, else within its TTL; the holder learns of it.
func TestPlainBreak(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	c := etcdOf(t, s)
	a, operator := openPlain(t, s, "holder"), openPlain(t, s, "operator")
	for _, force := range []bool{true, false} {
		name := fmt.Sprint("break-", force)
		l := steps.MustLock(t, a.Mutex(name, dlock.TTL(4*time.Second)))
		ctx := l.Context(t.Context())
		m := concurrency.NewMutex(plainSession(t, c), "/locks/"+name)
		got, leave := waitsAs(t, func(ctx context.Context) (func(context.Context) error, error) { return m.Unlock, m.Lock(ctx) })
		await.That(t, "the peer waits", func() bool { return len(plainKeys(t, c, name)) == 2 })
		var opts []dlock.BreakOption
		if force {
			opts = append(opts, dlock.Force())
		}
		if err := operator.Break(t.Context(), name, l.Token(), opts...); err != nil {
			t.Fatalf("Break: %v", err)
		}
		await.Closed(t, "the holder's context", ctx.Done())
		if err := context.Cause(ctx); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("the holder's context ended with %v", err)
		}
		if err := await.From(t, got); err != nil {
			t.Fatal(err)
		}
		leave()
		await.That(t, "no key is left", func() bool { return len(plainKeys(t, c, name)) == 0 })
	}
}

// TestPlainOperator: an operator deletes one of the two keys of a request. A hold is lost, a waiter
// goes to the end of the queue, and nothing of either is left for long.
func TestPlainOperator(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	c := etcdOf(t, s)
	records := func(name string) []string {
		t.Helper()
		res, err := c.Get(t.Context(), "dlock%plain/%2Flocks%2F"+name+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, kv := range res.Kvs {
			keys = append(keys, string(kv.Key))
		}
		return keys
	}
	remove := func(key string) {
		t.Helper()
		if res, err := c.Delete(t.Context(), key); err != nil || res.Deleted != 1 {
			t.Fatalf("delete %q: %v, %v", key, res, err)
		}
	}
	open := func() *etcdSide {
		return etcdWith(t, netfault.NewProxy(), []string{s.Addr}, etcd.Options{Plain: "/locks/{name}"})
	}
	for _, half := range []string{"the key in the queue", "the record"} {
		first := func(name string) string {
			if half == "the record" {
				return records(name)[0]
			}
			return plainKeys(t, c, name)[0]
		}
		t.Run("a release without "+half, func(t *testing.T) {
			b, r := open(), steps.Request("release")
			steps.Acquired(t, b, r)
			remove(first(r.Name))
			if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
				t.Errorf("Release: %v", err)
			}
			if keys := append(records(r.Name), plainKeys(t, c, r.Name)...); len(keys) > 0 {
				t.Errorf("left: %q", keys)
			}
		})
		t.Run("a hold without "+half, func(t *testing.T) {
			b, r := open(), steps.Request("hold")
			steps.Acquired(t, b, r)
			remove(first(r.Name))
			if err := steps.Renewed(b, r); !errors.Is(err, driver.ErrLost) {
				t.Errorf("Renew: %v", err)
			}
			await.That(t, "nothing is left", func() bool { return len(records(r.Name))+len(plainKeys(t, c, r.Name)) == 0 })
			next := steps.Request("hold")
			steps.Acquired(t, b, next)
			steps.Released(t, b, next)
		})
	}
	t.Run("a waiter without the key in the queue", func(t *testing.T) {
		holder, b, name := open(), open(), "waiter"
		held, next, last := steps.Asked(holder, name, time.Minute), steps.Waiting(b, name, time.Minute), steps.Waiting(b, name, time.Minute)
		steps.Acquired(t, holder, held)
		one := steps.Acquiring(b, next)
		await.That(t, "one waits", func() bool { return len(plainKeys(t, c, name)) == 2 })
		two := steps.Acquiring(b, last)
		await.That(t, "two wait", func() bool { return len(plainKeys(t, c, name)) == 3 })
		remove(plainKeys(t, c, name)[1])
		await.That(t, "it stands at the end", func() bool {
			q := steps.Queue(t, holder, name)
			return q.Len() == 3 && q.Arrivals[1].ID == last.ID && q.Arrivals[2].ID == next.ID
		})
		steps.Released(t, holder, held)
		if err := await.From(t, two); err != nil {
			t.Fatal(err)
		}
		steps.Released(t, b, last)
		if err := await.From(t, one); err != nil {
			t.Fatal(err)
		}
		steps.Released(t, b, next)
		await.That(t, "nothing is left", func() bool { return len(records(name))+len(plainKeys(t, c, name)) == 0 })
	})
}

// TestPlainMixed: a queue that has keys of both layouts is refused by both, whichever came first,
// and no two are in.
func TestPlainMixed(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	mixed := func(err error, says ...string) {
		t.Helper()
		for _, text := range append(says, "keys=plain", "docs/etcd-plain.md") {
			if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), text) {
				t.Errorf("%v; want %q", err, text)
			}
		}
	}
	// the peers' keys are where dlock's own queues are
	native, plain := rooted(t, s, etcd.Options{Root: "mixed"}), rooted(t, s, etcd.Options{Plain: "mixed/{name}"})
	for _, turn := range [][2]*etcd.Backend{{native, plain}, {plain, native}} {
		held := steps.Asked(turn[0], "m", time.Minute)
		steps.Acquired(t, turn[0], held)
		for _, r := range []driver.Request{steps.Asked(turn[1], "m", time.Minute), steps.Waiting(turn[1], "m", time.Minute)} {
			_, err := steps.AcquireOrRelease(await.Context(t), turn[1], r)
			mixed(err, `"mixed/m/`)
		}
		steps.Released(t, turn[0], held)
	}
	// a name of the peers is the root of dlock's own queues
	_, err := steps.AcquireOrRelease(await.Context(t), rooted(t, s, etcd.Options{Plain: "{name}"}), steps.Asked(plain, "mixed", time.Minute))
	mixed(err, `"mixed/"`)
	// or the root of the records
	_, err = steps.AcquireOrRelease(await.Context(t), rooted(t, s, etcd.Options{Plain: "{name}"}), steps.Asked(plain, "dlock%plain", time.Minute))
	mixed(err, `"dlock%plain/`)
}
