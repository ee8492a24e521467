package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redisson"
)

// redissonOwnerProgram is a client of dlock as a process that passes its hold on: URL, name. It is
// commanded as a peer is, and writes the owner where a peer writes the token.
var redissonOwnerProgram = service.NewProgram("redisson-owner", func(in *bufio.Scanner, out io.Writer, args []string) error {
	c, err := dlock.Open(context.Background(), args[0], dlock.Logger(nil))
	if err != nil {
		return err
	}
	defer c.Close()
	return commanded(in, out, func(ctx context.Context) (string, func() error, error) {
		l, err := c.Mutex(args[1]).Lock(ctx)
		if err != nil {
			return "", nil, err
		}
		return l.Owner().String(), func() error { return l.Unlock(context.Background()) }, nil
	})
})

// handedOver returns a context with an owner as another process gets it: as text.
func handedOver(t *testing.T, owner string) context.Context {
	t.Helper()
	o, err := dlock.ParseOwner(owner)
	if err != nil {
		t.Fatalf("%q: %v", owner, err)
	}
	return dlock.WithOwner(t.Context(), o)
}

// keyEvents counts what the server reports of a key: "del" and "expired" are its ends.
func keyEvents(t *testing.T, cli *CLI, key string) (ends func() int64) {
	t.Helper()
	cli.Must("CONFIG", "SET", "notify-keyspace-events", "KA")
	sub := cli.Subscribe(cli.Ctx, "__keyspace@0__:"+key)
	t.Cleanup(func() { sub.Close() })
	if _, err := sub.Receive(cli.Ctx); err != nil {
		t.Fatal(err)
	}
	var n, synced atomic.Int64
	go func() {
		for m := range sub.Channel(goredis.WithChannelSize(10_000)) {
			switch m.Payload {
			case "del", "expired":
				n.Add(1)
			case "synced":
				synced.Add(1)
			}
		}
	}()
	return func() int64 {
		from := synced.Load()
		cli.Must("PUBLISH", "__keyspace@0__:"+key, "synced") // what came before was counted
		await.That(t, "the events were counted", func() bool { return synced.Load() > from })
		return n.Load()
	}
}

// fieldsOf returns what a lock of dlock has: its members by ID, and the fields that are for peers.
func fieldsOf(t *testing.T, cli goredis.Cmdable, key string) (members []string, forPeers []string) {
	t.Helper()
	all := cli.HGetAll(t.Context(), key).Val()
	for _, field := range slices.Sorted(maps.Keys(all)) {
		id, member := strings.CutPrefix(field, "dlock ")
		switch {
		case member:
			members = append(members, id)
		case field == "dlock":
			if all[field] != "1" {
				t.Errorf("the format is %q", all[field])
			}
		default:
			forPeers = append(forPeers, field)
			if all[field] != "1" {
				t.Errorf("the field %q has %q", field, all[field])
			}
		}
	}
	return members, forPeers
}

// TestRedissonReadersOverlap: readers of three clients come and go, and there is always one. The
// key is there all the time, with the field of one of them, so no peer takes it. Those that leave
// wake no waiter, since there is no news for any.
func TestRedissonReadersOverlap(t *testing.T) {
	t.Parallel()
	for what, params := range map[string][]string{
		"plain": {"key=lock:{name}"}, "fenced": {"key=lock:{name}", "fenced=true"}, "textbook": {"key=lock:{name}", "field=go/{id}@{client}"},
	} {
		t.Run(what, func(t *testing.T) {
			s := service.StartOwn(t, Redis)
			cli, key := CLIOf(t, s), "lock:overlap"
			var readers []dlock.Mutex
			for range 3 {
				readers = append(readers, openFormat(t, redissonURL(s.URL, params...)).RWMutex("overlap").Read())
			}
			held := steps.MustLock(t, readers[0])
			ends := keyEvents(t, cli, key)
			news := cli.Subscribe(cli.Ctx, "redisson_lock__channel:{"+key+"}")
			defer news.Close()
			if _, err := news.Receive(cli.Ctx); err != nil {
				t.Fatal(err)
			}

			var wg sync.WaitGroup
			over := make(chan struct{})
			var tries atomic.Int64
			for _, kind := range peerKinds {
				peer, err := NewRedissonPeer(s.URL, string(kind), key, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
						}
						if taken, _, _, err := peer.try(t.Context()); taken || err != nil {
							t.Errorf("a peer of %s, beside readers: taken %t, %v", kind, taken, err)
							return
						}
						tries.Add(1)
					}
				})
			}
			for i := range 150 {
				next := steps.MustLock(t, readers[(i+1)%3])
				if members, forPeers := fieldsOf(t, cli, key); len(members) != 2 || len(forPeers) != 1 || !ofOne(forPeers[0], members) {
					t.Fatalf("two readers are %q, and peers see %q", members, forPeers)
				}
				if err := held.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				if members, forPeers := fieldsOf(t, cli, key); len(members) != 1 || len(forPeers) != 1 || !ofOne(forPeers[0], members) {
					t.Fatalf("one reader is %q, and peers see %q", members, forPeers)
				}
				held = next
			}
			close(over)
			wg.Wait()
			if n := ends(); n != 0 {
				t.Errorf("the key was gone %d times while there were readers", n)
			}
			if m, err := news.ReceiveTimeout(t.Context(), 200*time.Millisecond); err == nil {
				t.Errorf("a reader that left woke the waiters: %v", m)
			}
			if err := held.Unlock(t.Context()); err != nil || ends() != 1 || cli.Exists(t.Context(), key).Val() != 0 {
				t.Errorf("after the last reader, %v, the key is still there", err)
			}
			if _, err := news.ReceiveTimeout(t.Context(), soon); err != nil {
				t.Errorf("the last reader woke no waiter: %v", err)
			}
			t.Logf("peers tried %d times", tries.Load())
		})
	}
}

// ofOne reports whether a field is that of one of the members.
func ofOne(field string, members []string) bool {
	return slices.ContainsFunc(members, func(id string) bool { return strings.Contains(field, id) })
}

// room records what is in a critical section, outside of the locks.
type room struct {
	mu              sync.Mutex
	readers, alone  int
	turns           map[string]int
	together, wrong int // how often several readers were in; how often anything else was
}

// enter returns what leaves.
func (r *room) enter(what string, reads bool) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &r.alone
	if reads {
		n = &r.readers
	}
	switch *n++; {
	case r.alone > 1, r.alone == 1 && r.readers > 0:
		r.wrong++
	case r.readers > 1:
		r.together++
	}
	r.turns[what]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		*n--
	}
}

// TestRedissonReadersBesidePeers: readers and writers of three clients come and go beside peers of
// every generation. Readers are together, and never beside a writer or a peer.
func TestRedissonReadersBesidePeers(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, _ goredis.UniversalClient) {
		const least = 15 // turns of each
		r := &room{turns: map[string]int{}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		work := func(what string, reads bool, lock func() (unlock func() error, err error)) {
			wg.Go(func() {
				for ctx.Err() == nil {
					unlock, err := lock()
					if err != nil {
						if ctx.Err() == nil {
							t.Errorf("%s: %v", what, err)
						}
						return
					}
					leave := r.enter(what, reads)
					<-time.After(rand.N(4 * time.Millisecond))
					leave()
					if err := unlock(); err != nil {
						t.Errorf("%s: %v", what, err)
						return
					}
					<-time.After(rand.N(12 * time.Millisecond))
				}
			})
		}
		whats := []string{}
		of := func(what string, reads bool, m dlock.Mutex) {
			whats = append(whats, what)
			work(what, reads, func() (func() error, error) {
				l, err := m.Lock(ctx)
				if err != nil {
					return nil, err
				}
				return func() error { return l.Unlock(context.Background()) }, nil
			})
		}
		for i := range 3 {
			c := openFormat(t, redissonURL(url, "ttl=10s"))
			of(fmt.Sprint("reader ", i), true, c.RWMutex("room").Read())
			of(fmt.Sprint("second reader ", i), true, c.RWMutex("room").Read())
			of(fmt.Sprint("writer ", i), false, c.RWMutex("room").Write())
		}
		for _, kind := range peerKinds {
			p, err := NewRedissonPeer(url, string(kind), "room", 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			whats = append(whats, string(kind))
			work(string(kind), false, func() (func() error, error) {
				_, err := p.Lock(ctx)
				return func() error { return p.Unlock(context.Background()) }, err
			})
		}
		await.That(t, "all have had their turns", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.wrong > 0 || r.together >= least && !slices.ContainsFunc(whats, func(w string) bool { return r.turns[w] < least })
		})
		cancel()
		wg.Wait()
		if r.wrong > 0 {
			t.Errorf("%d times two were in that must not be: %v", r.wrong, r.turns)
		}
		t.Logf("readers were together %d times; turns: %v", r.together, r.turns)
	})
}

// TestRedissonHandedHold: a join of another client outlives the release of the hold that it joined,
// and the death of the process that began it. A peer gets the lock after the last of the joins.
func TestRedissonHandedHold(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, cli goredis.UniversalClient) {
		for _, dies := range []bool{false, true} {
			name := fmt.Sprint("handed, dies: ", dies)
			as := redissonURL(url, "ttl="+redissonTTL.String())
			owner := redissonOwnerProgram.Start(t, as, name)
			owner.Say("lock")
			text, ok := strings.CutPrefix(owner.Hear(), "locked ")
			if !ok {
				t.Fatalf("the owner wrote %q", text)
			}
			b, c := openFormat(t, as), openFormat(t, as)
			join, err := b.Mutex(name).Lock(handedOver(t, text))
			if err != nil {
				t.Fatal(err)
			}
			peer, err := NewRedissonPeer(url, string(peer2026), name, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			heldFor := func(d time.Duration) {
				t.Helper()
				for end := time.Now().Add(d); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
					if taken, _, _, err := peer.try(t.Context()); taken || err != nil {
						t.Fatalf("dies: %t: a peer took a lock that is joined: %v", dies, err)
					}
				}
			}
			if dies {
				owner.Kill()
				heldFor(2 * redissonTTL)
			} else {
				owner.Say("unlock")
				owner.Expect("unlocked")
			}
			heldFor(redissonTTL / 2)
			other, err := c.Mutex(name).Lock(handedOver(t, join.Owner().String()))
			if err != nil {
				t.Fatalf("dies: %t: a join of a hold that only a join keeps: %v", dies, err)
			}
			if members, forPeers := fieldsOf(t, cli, name); len(members) != 2 || len(forPeers) != 1 || !ofOne(forPeers[0], members) {
				t.Errorf("dies: %t: two joins are %q, and peers see %q", dies, members, forPeers)
			}
			if err := errors.Join(join.Err(), join.Unlock(t.Context())); err != nil {
				t.Errorf("dies: %t: the join: %v", dies, err)
			}
			heldFor(redissonTTL / 2)
			if err := errors.Join(other.Err(), other.Unlock(t.Context())); err != nil {
				t.Errorf("dies: %t: the second join: %v", dies, err)
			}
			if taken, _, _, err := peer.try(t.Context()); !taken || err != nil {
				t.Errorf("dies: %t: a peer, after all joins: %t, %v", dies, taken, err)
			}
			if _, err := c.Mutex(name).TryLock(handedOver(t, text)); !errors.Is(err, dlock.ErrLost) {
				t.Errorf("dies: %t: a join of a hold that is over, which a peer has: %v", dies, err)
			}
		}
	})
}

// sharers opens backends of one format on a server, and returns what the lock of the name is: its
// hash and its expiry.
func sharers(t *testing.T, s *service.Server, n int, o redisson.Options) (bs []driver.Backend, stands func(name string) string) {
	t.Helper()
	cli := CLIOf(t, s)
	o.Key = "sharers:" + strings.ReplaceAll(t.Name(), "/", ":") + ":{name}"
	for range n {
		bs = append(bs, overRedisson(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), o))
	}
	return bs, func(name string) string {
		key := strings.Replace(o.Key, "{name}", name, 1)
		return fmt.Sprint(cli.HGetAll(t.Context(), key).Val(), cli.PExpireTime(t.Context(), key).Val())
	}
}

// asks returns a request of a backend, in a mode.
func asks(b driver.Backend, name string, mode driver.Mode, ttl time.Duration) driver.Request {
	r := steps.Asked(b, name, ttl)
	r.Mode = mode
	return r
}

// joins returns a request of a backend that joins the hold of r.
func joins(b driver.Backend, r driver.Request, mode driver.Mode) driver.Request {
	j := asks(b, r.Name, mode, r.TTL)
	j.Owner = r.Owner
	return j
}

// TestRedissonLateReleases: a copy of a release that comes late, from anywhere, and a renewal of
// what was released, change nothing of the members that are there.
func TestRedissonLateReleases(t *testing.T) {
	s := service.Start(t, Redis)
	bs, stands := sharers(t, s, 3, redisson.Options{})
	first, second := asks(bs[0], "a", driver.Shared, time.Minute), asks(bs[1], "a", driver.Shared, time.Minute)
	join := joins(bs[1], first, driver.Shared)
	for _, r := range []driver.Request{first, second, join} {
		steps.Acquired(t, bs[1], r)
	}
	gone := []driver.Request{asks(bs[0], "a", driver.Shared, time.Minute)} // was never there
	for _, leaves := range []driver.Request{first, join} {
		steps.Released(t, bs[1], leaves)
		gone = append(gone, leaves)
		before := stands("a")
		for _, r := range gone {
			for _, b := range bs {
				if err := b.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
					t.Errorf("a late release: %v", err)
				}
				if err := steps.Renewed(b, r); !errors.Is(err, driver.ErrLost) {
					t.Errorf("a late renewal: %v", err)
				}
			}
		}
		if after := stands("a"); after != before {
			t.Errorf("late calls made %s of %s", after, before)
		}
	}
	if _, err := bs[2].Acquire(t.Context(), joins(bs[2], first, driver.Shared)); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a join of a hold that has ended, beside another reader: %v", err)
	}
	if err := steps.Renewed(bs[1], second); err != nil {
		t.Errorf("the reader that is left: %v", err)
	}
	steps.Released(t, bs[1], second)
}

// TestRedissonDowngradeWakes: a writer that leaves a reader of its hold behind wakes the readers
// that wait, and not only after a pause.
func TestRedissonDowngradeWakes(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, _ goredis.UniversalClient) {
		a, b := openFormat(t, redissonURL(url, "ttl=10m")), openFormat(t, redissonURL(url, "ttl=10m"))
		var took []time.Duration
		for range 6 {
			w := steps.MustLock(t, a.RWMutex("downgrade").Write())
			r, err := a.RWMutex("downgrade").Read().Lock(w.Context(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			waits := steps.Try(t, b.RWMutex("downgrade").Read())
			waits.Returns(100 * time.Millisecond)
			from := time.Now()
			if err := w.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			other := waits.Got("the reader", from, soon)
			took = append(took, waits.At.Sub(from))
			if err := errors.Join(other.Unlock(t.Context()), r.Unlock(t.Context())); err != nil {
				t.Error(err)
			}
		}
		if minOf(took) > 300*time.Millisecond || sum(took) > time.Duration(len(took))*400*time.Millisecond {
			t.Errorf("readers were let in after %s", took)
		}
	})
}

// TestRedissonMembersHaveTheirOwnTimes: the key lasts as long as its last member. When a long one
// leaves, a peer that saw its time looks again, and gets the lock when the short one has expired.
func TestRedissonMembersHaveTheirOwnTimes(t *testing.T) {
	s := service.StartOwn(t, Redis)
	cli := CLIOf(t, s)
	var bs []driver.Backend
	for range 2 {
		bs = append(bs, overRedisson(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redisson.Options{}))
	}
	const short = 1500 * time.Millisecond
	left := func(least, most time.Duration) {
		t.Helper()
		if d := cli.PTTL(t.Context(), "times").Val(); d < least || d > most+2*time.Millisecond {
			t.Errorf("the key lasts for %s; want between %s and %s", d, least, most)
		}
	}
	long, brief := asks(bs[0], "times", driver.Shared, 10*time.Minute), asks(bs[1], "times", driver.Shared, short)
	steps.Acquired(t, bs[0], long)
	steps.Acquired(t, bs[1], brief)
	left(9*time.Minute, 10*time.Minute)
	cli.Must("PERSIST", "times") // the next renewal sets that of the last member again
	if err := steps.Renewed(bs[1], brief); err != nil {
		t.Fatal(err)
	}
	left(9*time.Minute, 10*time.Minute)

	peer, err := NewRedissonPeer(s.URL, string(peer2026), "times", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := peer.Lock(t.Context())
		got <- err
	}()
	await.That(t, "the peer waits", func() bool {
		return cli.PubSubNumSub(t.Context(), peer.channel()).Val()[peer.channel()] == 1
	})
	<-time.After(50 * time.Millisecond) // it has seen the long time
	if err := steps.Renewed(bs[1], brief); err != nil {
		t.Fatalf("the machine is too slow: %v", err)
	}
	sent := time.Now()
	steps.Released(t, bs[0], long)
	left(0, short)
	if err := <-got; err != nil || time.Since(sent) > 10*time.Second {
		t.Errorf("a peer after the last reader expired: %v, after %s", err, time.Since(sent))
	}
	if err := steps.Renewed(bs[1], brief); !errors.Is(err, driver.ErrLost) {
		t.Errorf("the renewal of a reader that has expired: %v", err)
	}
	if err := peer.Unlock(t.Context()); err != nil {
		t.Error(err)
	}

	// one that expires while others stay can neither be renewed nor joined
	long, brief = asks(bs[0], "times", driver.Shared, 10*time.Minute), asks(bs[1], "times", driver.Shared, short)
	steps.Acquired(t, bs[0], long)
	steps.Acquired(t, bs[1], brief)
	await.That(t, "the brief reader has expired", func() bool { return len(steps.Queue(t, bs[0], "times").Holders()) == 1 })
	if err := steps.Renewed(bs[1], brief); !errors.Is(err, driver.ErrLost) {
		t.Errorf("the renewal of a reader that has expired beside another: %v", err)
	}
	if _, err := bs[0].Acquire(t.Context(), joins(bs[0], brief, driver.Shared)); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a join of a reader that has expired beside another: %v", err)
	}
	steps.Released(t, bs[0], long)
	if cli.Exists(t.Context(), "times").Val() != 0 {
		t.Error("what expired keeps the lock")
	}
}

// TestRedissonSharedTokens: a join has the token of its hold. The token of a reader is above those
// of earlier writers and peers with RFencedLock, and below those of later ones.
func TestRedissonSharedTokens(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, _ goredis.UniversalClient) {
		ctx := t.Context()
		a, b := openFormat(t, redissonURL(url, "fenced=true")), openFormat(t, redissonURL(url, "fenced=true"))
		peer, err := NewRedissonPeer(url, string(peerFenced), "tokens", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		last := dlock.Token(0)
		above := func(what string, token, before dlock.Token) dlock.Token {
			t.Helper()
			if token <= before {
				t.Errorf("%s has token %d after %d", what, token, before)
			}
			return max(token, last)
		}
		for range 3 {
			w := steps.MustLock(t, a.RWMutex("tokens").Write())
			last = above("a writer", w.Token(), last)
			join, err := b.RWMutex("tokens").Read().Lock(handedOver(t, w.Owner().String()))
			if err != nil || join.Token() != w.Token() {
				t.Fatalf("a join of the hold with token %d: %d, %v", w.Token(), join.Token(), err)
			}
			if err := w.Unlock(ctx); err != nil {
				t.Fatal(err)
			}
			writer := last
			r1, r2 := steps.MustLock(t, a.RWMutex("tokens").Read()), steps.MustLock(t, b.RWMutex("tokens").Read())
			last = above("a reader", r1.Token(), writer)
			last = above("a reader", r2.Token(), writer)
			again, err := b.RWMutex("tokens").Read().Lock(handedOver(t, r1.Owner().String()))
			if err != nil || again.Token() != r1.Token() {
				t.Fatalf("a join of the reader with token %d: %d, %v", r1.Token(), again.Token(), err)
			}
			q, err := a.Inspect(ctx, "tokens")
			seen := map[dlock.Token]int{}
			for _, h := range q.Holders {
				seen[h.Token]++
			}
			if err != nil || len(q.Holders) != 4 || seen[r1.Token()] < 2 || seen[join.Token()] != 1 {
				t.Errorf("Inspect: %+v, %v", q, err)
			}
			for _, l := range []*dlock.Lease{join, r1, again, r2} {
				if err := l.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
			_, _, token, err := peer.try(ctx)
			if err != nil {
				t.Fatal(err)
			}
			last = above("a peer", dlock.Token(token), last)
			if err := peer.Unlock(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestRedissonJoinsWithoutToken: a client with tokens cannot join a hold that was begun without.
// The error is permanent, and nothing is left behind.
func TestRedissonJoinsWithoutToken(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, cli goredis.UniversalClient) {
		plain, fenced := openFormat(t, redissonURL(url)), openFormat(t, redissonURL(url, "fenced=true"))
		l := steps.MustLock(t, plain.Mutex("unfenced"))
		before := cli.HGetAll(t.Context(), "unfenced").Val()
		_, err := fenced.Mutex("unfenced").Lock(handedOver(t, l.Owner().String()))
		if !errors.Is(err, dlock.ErrInvalid) || strings.Contains(err.Error(), "script") || !strings.Contains(err.Error(), "fenced=true") {
			t.Errorf("the join: %v", err)
		}
		if after := cli.HGetAll(t.Context(), "unfenced").Val(); !maps.Equal(after, before) {
			t.Errorf("the join made %v of %v", after, before)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestRedissonSharingWhenFull: on a server whose memory is full, readers are renewed and leave, and
// the field for peers is that of one that stays.
func TestRedissonSharingWhenFull(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis.With("--maxmemory-policy", "noeviction"))
	cli := CLIOf(t, s)
	b := overRedisson(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redisson.Options{})
	first, second := asks(b, "full", driver.Shared, time.Minute), asks(b, "full", driver.Shared, time.Minute)
	steps.Acquired(t, b, first)
	steps.Acquired(t, b, second)
	if err := errors.Join(steps.Renewed(b, first), b.Release(t.Context(), asks(b, "other", driver.Shared, time.Minute))); !errors.Is(err, driver.ErrLost) {
		t.Fatal(err) // the server has learnt the scripts
	}
	cli.Must("CONFIG", "SET", "maxmemory", 1)
	if _, err := b.Acquire(t.Context(), joins(b, first, driver.Shared)); err == nil || !strings.Contains(err.Error(), "memory is full") {
		t.Errorf("a join: %v", err)
	}
	if err := steps.Renewed(b, second); err != nil {
		t.Error(err)
	}
	steps.Released(t, b, first)
	if members, forPeers := fieldsOf(t, cli, "full"); len(members) != 1 || len(forPeers) != 1 || !ofOne(forPeers[0], members) {
		t.Errorf("one reader is %q, and peers see %q", members, forPeers)
	}
	steps.Released(t, b, second)
	if cli.Exists(t.Context(), "full").Val() != 0 {
		t.Error("the key is still there")
	}
}
