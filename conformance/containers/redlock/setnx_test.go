package redlock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver/redis/redlock"
	"github.com/dlock-go/dlock/internal/size"
)

// startThree starts the masters that redsync's pages have.
func startThree(t *testing.T) (f fleet) {
	t.Helper()
	for range 3 {
		f = append(f, service.StartOwn(t, servers.Redis))
	}
	return f
}

func (f fleet) setNX(key string) string {
	return f.url("ttl=30s&node_timeout=10s&retry_delay=20ms&format=setnx&key=" + key)
}

// redsync is redsync on the masters.
func (f fleet) redsync(t *testing.T) *redsync.Redsync {
	t.Helper()
	var pools []redsyncredis.Pool
	for _, m := range f {
		pools = append(pools, redsyncpool.NewPool(servers.CLIOf(t, m).Client))
	}
	return redsync.New(pools...)
}

func TestRedlockSetNXConformance(t *testing.T) {
	h := startThree(t).harness("redlock, setnx", redlock.Options{Key: "lock:{name}"})
	conformance.Run(t, service.OtherConnections(h))
}

// TestRedlockSetNXPeers: processes of dlock and of redsync take turns on three masters, one of
// which is killed and comes back with its data, and processes of both die while they hold a lock.
// Never two are in.
func TestRedlockSetNXPeers(t *testing.T) {
	t.Parallel()
	var f fleet
	for range 3 {
		f = append(f, service.StartOwn(t, servers.Redis.With(servers.Durable...)))
	}
	rec := service.NewRecorder(t)
	targets := map[string]string{"dlock": f.setNX("lock:{name}"), "redsync": strings.Join(service.Addrs(f), ",")}
	start := func(who string) *service.Child {
		kind, _, _ := strings.Cut(who, "-")
		return servers.SetNXWorker.Start(t, kind, who, rec.Addr, targets[kind], "lock:a", "lock:b", "lock:c")
	}
	all := []string{"dlock-1", "redsync-1", "dlock-2", "redsync-2"}
	children := map[string]*service.Child{}
	for _, who := range all {
		children[who] = start(who)
	}
	rounds := 1
	if size.Long() {
		rounds = 10
	}
	more := func(what string) {
		before := map[string]int{}
		for _, who := range all {
			before[who] = rec.Turns(who)
		}
		for _, who := range all {
			await.That(t, fmt.Sprintf("%s has turns %s", who, what), func() bool { return rec.Turns(who) >= before[who]+15 })
		}
	}
	for round := range rounds {
		for _, who := range all {
			more(fmt.Sprint("before it is killed in round ", round))
			rec.KillInside(t, who, children[who].Kill)
			children[who] = start(who)
		}
		m := f[round%len(f)]
		m.Kill(t)
		more("while a master is down")
		m.Restart(t)
	}
	more("at the end")
	for _, c := range children {
		c.Wait()
	}
	if n := rec.Verdict(t); n < 240 {
		t.Errorf("only %d critical sections", n)
	}
}

// TestRedlockSetNXFormat is about what dlock and redsync see of each other on three masters.
func TestRedlockSetNXFormat(t *testing.T) {
	t.Parallel()
	f := startThree(t)
	c, err := dlock.Open(t.Context(), f.setNX("lock:{name}"), dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rs := f.redsync(t)

	// redsync has the lock
	m := rs.NewMutex("lock:a", redsync.WithExpiry(time.Minute))
	if err := m.Lock(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mutex("a").TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("held by other software: %q", m.Value())) {
		t.Errorf("TryLock of a lock of redsync: %v", err)
	}
	q, err := c.Inspect(t.Context(), "a")
	if err != nil || len(q.Holders) != 1 || !q.Holders[0].Foreign || !strings.Contains(q.Holders[0].Label, m.Value()) || q.Holders[0].Left <= 50*time.Second {
		t.Errorf("Inspect of a lock of redsync: %+v, %v", q, err)
	}
	if err := c.Break(t.Context(), "a", 0, dlock.Force()); !errors.Is(err, dlock.ErrUnsupported) {
		t.Errorf("Break of a lock of redsync: %v", err)
	}
	for i, s := range f {
		if got := servers.CLIOf(t, s).Get(t.Context(), "lock:a").Val(); got != m.Value() {
			t.Errorf("master %d has the value %q; redsync's is %q", i, got, m.Value())
		}
	}
	w := steps.Try(t, c.Mutex("a"))
	w.Returns(100 * time.Millisecond)
	if !w.Pending() {
		t.Fatalf("Lock of a lock of redsync: %v", w.Err)
	}
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Errorf("redsync's Unlock: %t, %v", ok, err)
	}
	l := w.Got("Lock after redsync's Unlock", time.Now(), 10*time.Second)

	// dlock has it
	if err := rs.NewMutex("lock:a").TryLock(); err == nil {
		t.Error("redsync took the lock of dlock")
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}

	// a minority of redsync's values, as of a call that failed, holds nothing and stays as it is
	k := servers.CLIOf(t, f[1])
	k.Must("SET", "lock:b", "v", "NX", "PX", 60000)
	if q, err := c.Inspect(t.Context(), "b"); err != nil || q.Len() != 0 {
		t.Errorf("Inspect of what one master of three has: %+v, %v", q, err)
	}
	b := steps.MustLock(t, c.Mutex("b"))
	if err := rs.NewMutex("lock:b").TryLock(); err == nil {
		t.Error("redsync took the lock that dlock has on two masters of three")
	}
	if err := b.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if got := k.Get(t.Context(), "lock:b").Val(); got != "v" {
		t.Errorf("the value is now %q", got)
	}
}

// TestRedlockSetNXCheck: "dlock check" tries the keys of the format on each master.
func TestRedlockSetNXCheck(t *testing.T) {
	t.Parallel()
	f := startThree(t)
	rights := servers.ACL(t, "docs/setnx.md")
	args := []any{"ACL", "SETUSER", "app", "on", ">canary"}
	for _, r := range rights {
		args = append(args, r)
	}
	for _, s := range f {
		servers.CLIOf(t, s).Must(args...)
	}
	url := strings.Replace(f.setNX("lock:{name}"), "://", "://app:canary@", 1)
	check := steps.NewChecker(t)
	of := func(about string, i int) string { return about + " of " + f[i].Addr }
	check.Wants("three masters", url, map[string][2]string{"laws": {"fine", "core laws hold"}, of("rights", 0): {"fine", ""}, of("rights", 2): {"fine", ""}})
	servers.CLIOf(t, f[1]).Must("ACL", "SETUSER", "app", "resetkeys", "~dlock:*")
	check.Wants("without the keys of peers", url, map[string][2]string{of("rights", 0): {"fine", ""}, of("rights", 1): {"wrong", "missing: ~lock:* ~dlock:*"}}, "--no-laws")
}
