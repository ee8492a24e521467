package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// setNXHolder locks a name and prints the owner: URL NAME.
var setNXHolder = service.NewProgram("setnx-holder", func(in *bufio.Scanner, out io.Writer, args []string) error {
	c, err := dlock.Open(context.Background(), args[0], dlock.Logger(nil))
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Mutex(args[1]).Lock(context.Background())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.Owner())
	in.Scan()
	return nil
})

// TestRedisSetNXMembers is about several requests of dlock that hold a lock together, as peers see
// them.
func TestRedisSetNXMembers(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	for name, run := range map[string]func(*testing.T, *service.Server){
		"readers that overlap":                neverFree,
		"a join outlives a process":           outlivesProcess,
		"the key beside is lost":              besideReadersIsLost,
		"a peer took over":                    tookOverReaders,
		"what a reader leaves":                readerLeaves,
		"a break of what a client has joined": breakJoined,
	} {
		t.Run(name, func(t *testing.T) {
			service.Watch(t, s)
			run(t, s)
		})
	}
}

// readLock takes a read lock.
func readLock(t *testing.T, c *dlock.Client, name string) *dlock.Lease {
	t.Helper()
	l, err := c.RWMutex(name).Read().Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// neverFree: as long as the next reader is in before the last one is out, a peer that tries all the
// time never gets the key, whose value changes.
func neverFree(t *testing.T, s *service.Server) {
	url := setNXURL(s, "chain:{name}")
	clients := []*dlock.Client{openSetNX(t, url), openSetNX(t, url), openSetNX(t, url)}
	k := CLIOf(t, s)
	l := readLock(t, clients[0], "a")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	tries, values := make(chan int, 1), map[string]bool{}
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if k.SetNX(k.Ctx, "chain:a", "a peer", time.Minute).Val() {
				t.Error("a peer took the key while readers had it")
			}
		}
		tries <- n
	}()
	for i := range 200 {
		next := readLock(t, clients[(i+1)%3], "a")
		values[k.Get(k.Ctx, "chain:a").Val()] = true
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		l = next
	}
	stop()
	n := <-tries
	t.Logf("%d attempts of a peer, %d values", n, len(values))
	if n < 200 || len(values) < 100 {
		t.Errorf("%d attempts of a peer, and %d values of the key: they do not show much", n, len(values))
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if !k.SetNX(k.Ctx, "chain:a", "a peer", time.Minute).Val() {
		t.Error("after the last reader a peer cannot take the key")
	}
}

// outlivesProcess: the process that began a hold is killed, and a join of another one keeps peers
// out until it is released.
func outlivesProcess(t *testing.T, s *service.Server) {
	const ttl = 2 * time.Second
	url := s.URL + "/0?ttl=2s&retry_delay=20ms&format=setnx&key=outlives:{name}"
	c, k := openSetNX(t, url), CLIOf(t, s)
	child := setNXHolder.Start(t, url, "a")
	o, err := dlock.ParseOwner(child.Hear())
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Mutex("a").Lock(dlock.WithOwner(t.Context(), o))
	if err != nil {
		t.Fatalf("join of the hold of another process: %v", err)
	}
	child.Kill()
	killed := time.Now()
	free := func() bool { return k.SetNX(k.Ctx, "outlives:a", "a peer", time.Minute).Val() }
	for time.Since(killed) < 2*ttl {
		if free() {
			t.Fatalf("a peer took the lock %s after the process was killed", time.Since(killed))
		}
		<-time.After(ttl / 20)
	}
	q, err := c.Inspect(t.Context(), "a")
	if err != nil || len(q.Holders) != 1 || q.Holders[0].Owner == q.Holders[0].ID {
		t.Errorf("Inspect: %+v, %v; want the join", q, err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if !free() {
		t.Error("after the join's Unlock a peer cannot take the lock")
	}
	if _, err := c.Mutex("a").Lock(dlock.WithOwner(t.Context(), o)); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("join of a hold that has ended: %v", err)
	}
}

// besideReadersIsLost: of two readers only the one whose ID the key has is known any more. Its
// release does not free the key, which the other one may still trust.
func besideReadersIsLost(t *testing.T, s *service.Server) {
	url, k := setNXURL(s, "beside:{name}"), CLIOf(t, s)
	a, b := openSetNX(t, url), openSetNX(t, url)
	first, second := readLock(t, a, "a"), readLock(t, b, "a")
	k.Must("DEL", "dlock:{beside:a}:setnx:held:beside:a")
	if err := first.Renew(t.Context()); err != nil {
		t.Errorf("Renew of the reader whose ID the key has: %v", err)
	}
	if _, err := b.RWMutex("a").Read().TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock of another reader: %v", err)
	}
	if _, err := b.RWMutex("a").Read().TryLock(dlock.WithOwner(t.Context(), first.Owner())); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("join: %v", err)
	}
	if err := first.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock of the reader whose ID the key has: %v", err)
	}
	// The other reader learns it at its next renewal, or already, if its client checks its holds
	// because its subscription has just begun.
	if err := second.Err(); err != nil && !errors.Is(err, dlock.ErrLost) {
		t.Errorf("the other reader: %v", err)
	}
	if k.SetNX(k.Ctx, "beside:a", "a peer", time.Minute).Val() {
		t.Error("a peer took the key while a reader may trust its hold")
	}
	if left := k.PTTL(k.Ctx, "beside:a").Val(); left <= 0 || left > 31*time.Second {
		t.Errorf("the key expires in %s", left)
	}
	if err := second.Renew(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Renew of the other reader: %v", err)
	}
	value := k.Get(k.Ctx, "beside:a").Val()
	if err := second.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock of the other reader: %v", err)
	}
	if got := k.Get(k.Ctx, "beside:a").Val(); got != value {
		t.Errorf("a late release changed the key from %q to %q", value, got)
	}
}

// tookOverReaders: readers whose key has expired and was taken by a peer are lost, and nothing of
// theirs touches that key.
func tookOverReaders(t *testing.T, s *service.Server) {
	url, k := setNXURL(s, "took:{name}"), CLIOf(t, s)
	a, b := openSetNX(t, url), openSetNX(t, url)
	first, second := readLock(t, a, "a"), readLock(t, b, "a")
	k.Must("SET", "took:a", "a peer", "PX", 60000)
	before := keySnapshot(k, "took:a")
	for what, l := range map[string]*dlock.Lease{"the first reader": first, "the second reader": second} {
		if err := l.Renew(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Renew of %s: %v", what, err)
		}
		if err := l.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Unlock of %s: %v", what, err)
		}
	}
	if _, err := a.RWMutex("a").Read().TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock of a reader: %v", err)
	}
	if after := keySnapshot(k, "took:a"); after != before {
		t.Errorf("the peer's key was changed: %q, before %q", after, before)
	}
}

// readerLeaves: what UnlockAfter leaves of a read lock admits readers, and keeps peers and writers
// out.
func readerLeaves(t *testing.T, s *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "leaves:{name}")), CLIOf(t, s)
	asked := time.Now()
	if err := readLock(t, c, "a").UnlockAfter(t.Context(), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	l := readLock(t, c, "a")
	if _, err := c.RWMutex("a").Write().TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock of a writer: %v", err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	await.That(t, "a peer gets it", func() bool { return k.SetNX(k.Ctx, "leaves:a", "a peer", time.Minute).Val() })
	if took := time.Since(asked); took < 2*time.Second {
		t.Errorf("a peer got it after %s", took)
	}
}

// breakJoined: a break by force ends the leases of all clients of a hold within a second.
func breakJoined(t *testing.T, s *service.Server) {
	url := setNXURL(s, "break:{name}")
	a, b, op := openSetNX(t, url), openSetNX(t, url), openSetNX(t, url)
	l := steps.MustLock(t, a.Mutex("a"))
	j, err := b.Mutex("a").Lock(dlock.WithOwner(t.Context(), l.Owner()))
	if err != nil {
		t.Fatal(err)
	}
	// the subscription of a client stands soon after its first lock
	await.That(t, "both clients listen", func() bool {
		n := 0
		for _, v := range CLIOf(t, s).PubSubNumSub(t.Context(), CLIOf(t, s).PubSubChannels(t.Context(), "*redlock*").Val()...).Val() {
			n += int(v)
		}
		return n >= 2
	})
	if err := op.Break(t.Context(), "a", 0, dlock.Force()); err != nil {
		t.Fatal(err)
	}
	for what, l := range map[string]*dlock.Lease{"the holder": l, "the join": j} {
		await.Closed(t, what+" is notified", l.Lost())
		if err := l.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Unlock of %s: %v", what, err)
		}
	}
	if err := steps.MustLock(t, op.Mutex("a")).Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
