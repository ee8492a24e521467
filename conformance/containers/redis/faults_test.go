package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
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
	"github.com/dlock-go/dlock/driver/redis"
)

// behindLine returns a client of the server and the proxy between them. Its TTL is so long that
// within the tests only unconfirmed grants expire, and its timeouts are so long that it abandons no
// call by itself.
func behindLine(t *testing.T, s *service.Server, o redis.Options) (*dlock.Client, *netfault.Proxy) {
	t.Helper()
	p := netfault.NewProxy()
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true, ReadTimeout: 25 * time.Second}), p, o)
	c, err := dlock.New(b, dlock.Logger(nil), dlock.TTL(5*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, p
}

// soon is how long something that takes at most a second (the grant window, the check of a waiter)
// may take on a busy machine. Anything else that could have the same effect takes 20 s at least.
const soon = 15 * time.Second

// TestRedisLostPublications: the subscription is gone when the lock is released, and cannot be made
// again; all else goes on.
func TestRedisLostPublications(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	holder := openRedis(t, s, "ttl=1m")
	for _, shared := range []bool{false, true} {
		const readers = 20
		p := netfault.NewProxy()
		rdb := goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true, ReadTimeout: 25 * time.Second})
		// not before: the client has to end its subscription itself
		t.Cleanup(func() { rdb.Close(); p.Close() })
		b, err := redis.New(rdb, redis.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := steps.ClientOf(t, b, dlock.TTL(5*time.Minute))
		name := fmt.Sprint("lost publication ", shared)
		held := redisLock(t, holder.Mutex(name))
		m, n := c.Mutex(name), 1
		if shared {
			m, n = c.RWMutex(name).Read(), readers
		}
		var waits []*steps.Attempt
		for range n {
			waits = append(waits, steps.Try(t, m))
		}
		q := redisWaiting(t, holder, name, n)
		k := CLIOf(t, s)
		k.subscribed(clientsOf(q)...)
		heal := p.Forbid("subscribe")
		k.Must("CLIENT", "KILL", "TYPE", "pubsub")
		start := time.Now()
		redisUnlock(t, held)
		var leases []*dlock.Lease
		for _, w := range waits {
			leases = append(leases, w.Got("a wait whose publication was lost", start, soon))
		}
		for _, l := range leases {
			redisUnlock(t, l)
		}
		heal()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		k.subscribed(clientOf(q.Holders[0])) // the closed client has left no subscription behind
	}
}

// TestRedisAllAskAfterSubscribing: messages published while there was no subscription are lost, so
// all waiters ask.
func TestRedisAllAskAfterSubscribing(t *testing.T) {
	t.Parallel()
	const waiters = 50
	s := service.StartOwn(t, Redis)
	holder := openRedis(t, s, "ttl=1m")
	c, _ := behindLine(t, s, redis.Options{})
	held := redisLock(t, holder.Mutex("a"))
	for range waiters {
		steps.Try(t, c.Mutex("a"))
	}
	q := redisWaiting(t, holder, "a", waiters)
	k := CLIOf(t, s)
	k.listening(clientsOf(q)...) // they have asked after the first subscription
	// a request that asks is written anew, with the time when it will expire
	written := func() []string {
		return k.ZRangeArgs(k.Ctx, goredis.ZRangeArgs{Key: queueKey("a"), ByLex: true, Start: "[w", Stop: "(x"}).Val()
	}
	before := written()
	if len(before) != waiters {
		t.Fatalf("%d wait; want %d", len(before), waiters)
	}
	start := time.Now()
	k.Must("CLIENT", "KILL", "TYPE", "pubsub")
	await.That(t, "all ask", func() bool {
		now := written()
		return len(now) == waiters && !slices.ContainsFunc(before, func(w string) bool { return slices.Contains(now, w) })
	})
	if took := time.Since(start); took > soon {
		t.Errorf("it took %s until all had asked", took)
	}
	redisUnlock(t, held)
}

// TestRedisCancelAtEveryStep cancels a Lock at each step, on a line that is held there. It returns
// at once, and the waiter behind it in the queue gets the lock, at the latest once the line is good
// again.
func TestRedisCancelAtEveryStep(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	holder, behind := openRedis(t, s, "ttl=1m"), openRedis(t, s, "ttl=1m")
	for _, c := range []struct {
		name     string
		before   netfault.Direction // is held before the Lock; -1: the line is good
		after    netfault.Direction // is held once it waits
		released bool               // before the cancellation
		confirms bool               // it is a fixed lease, whose grant is confirmed
	}{
		{"request held", netfault.ToServer, -1, false, false},
		{"reply held", netfault.ToClient, -1, false, false},
		{"waiting", -1, -1, false, false},
		{"waiting, then off the line", -1, netfault.ToServer, false, false},
		{"granted, publication held", -1, netfault.ToClient, true, false},
		{"granted, confirmation held", -1, netfault.ToServer, true, true},
		{"granted", -1, -1, true, false},
	} {
		const tries = 4 // the last one counts in any case
		again := true
		once := func(t *testing.T, name string, last bool) {
			client, p := behindLine(t, s, redis.Options{})
			redisUnlock(t, redisLock(t, client.Mutex("warm "+name)))
			held := redisLock(t, holder.Mutex(name))
			heal := func() {}
			if c.before >= 0 {
				heal = p.Hold(c.before)
			}
			var opts []dlock.LockOption
			if c.confirms {
				opts = append(opts, dlock.FixedLease(5*time.Minute))
			}
			first := steps.Try(t, client.Mutex(name, opts...))
			n := 1
			if c.before == netfault.ToServer {
				<-time.After(200 * time.Millisecond) // it is sent
				n = 0
			} else {
				redisWaiting(t, holder, name, 1)
			}
			second := steps.Try(t, behind.Mutex(name))
			redisWaiting(t, holder, name, n+1)
			sent := p.Record()
			if c.after >= 0 {
				heal = p.Hold(c.after)
			}
			defer heal()
			release := time.Now()
			if c.released {
				redisUnlock(t, held)
			}
			if c.confirms {
				for end := time.Now().Add(soon); !sent.Contains(redisKey(name)); <-time.After(10 * time.Millisecond) {
					if time.Now().Before(end) {
						continue
					}
					if last {
						t.Fatal("it does not confirm")
					}
					// it probably asked just when the line was cut, and waits for the answer
					again = true
					t.Log("it does not confirm, but proves nothing; once more")
					heal()
					first.Cancel()
					second.Cancel()
					return
				}
			}
			sent.End()
			stood, cancelled := steps.MeasureStalls(), time.Now()
			first.Cancel()
			first.Within("Lock after its cancellation", cancelled, time.Minute)
			// 100 ms are promised, on a machine that is not so busy
			if took, idle := first.At.Sub(cancelled), stood(); took > 2*time.Second+idle {
				t.Errorf("Lock took %s after its cancellation, and the machine stood still for %s", took, idle)
			}
			if first.Err == nil { // it was already granted
				if c.name != "granted" {
					t.Error("Lock succeeded")
				}
				redisUnlock(t, first.Lease)
			} else if !errors.Is(first.Err, context.Canceled) {
				t.Errorf("Lock: %v", first.Err)
			}
			if !c.released {
				release = time.Now()
				redisUnlock(t, held)
			}
			if q, err := holder.Inspect(t.Context(), name); err == nil && len(q.Holders) == 1 && q.Holders[0].Left > 2*time.Minute {
				// The first one asks once a second. It did so just now, and so confirmed the grant.
				// On a line that is held it cannot release that.
				heal()
			}
			l := second.Got("the one behind", release, soon) // before the line is good again
			heal()
			calm := 0
			await.That(t, "one holds and none waits, also after everything on the line has arrived", func() bool {
				q, err := holder.Inspect(t.Context(), name)
				if calm++; err != nil || len(q.Holders) != 1 || len(q.Waiters) != 0 {
					calm = 0
				}
				return calm == 10
			})
			redisUnlock(t, l)
			if q, err := holder.Inspect(t.Context(), name); err != nil || q.Len() != 0 {
				t.Errorf("at the end the queue has %d requests, %v", q.Len(), err)
			}
		}
		for try := 1; again; try++ {
			name := c.name
			if try > 1 {
				name = fmt.Sprint(c.name, ", try ", try)
			}
			again = false
			ran := false
			t.Run(name, func(t *testing.T) {
				ran = true
				once(t, name, try == tries)
			})
			if !ran && try > 1 {
				t.Errorf("%s is not asked for, and %s has no verdict without it", name, c.name)
			}
		}
	}
}

// TestRedisGrantThatIsNeverConfirmedEnds: a waiter that was granted by a message alone and is cut
// off from then on loses the hold before the next one gets it, after the TTL.
func TestRedisGrantThatIsNeverConfirmedEnds(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second // a message proves the hold for half of it at least
	s := service.StartOwn(t, Redis)
	holder, behind := openRedis(t, s, "ttl=1m"), openRedis(t, s, "ttl=1m")
	client, p := proxied(t, s, dlock.TTL(ttl))
	in := letInOffTheLine(t, s, holder, client, behind, p)
	defer in.heal()
	l := in.first.Got("the one off the line", in.released, soon)
	if until := l.Until(); until.After(in.released.Add(ttl)) {
		t.Errorf("trusted for %s, which was never confirmed", until.Sub(in.released))
	}
	next := in.second.Got("the one behind", in.released, ttl+soon)
	if until := l.Until(); !until.Before(in.second.At) {
		t.Errorf("two held it for %s", until.Sub(in.second.At))
	}
	select {
	case <-l.Lost():
	case <-time.After(soon):
		t.Error("the loss is not signalled")
	}
	in.heal()
	redisUnlock(t, next)
	await.That(t, "nothing is left", func() bool {
		q, err := holder.Inspect(t.Context(), in.name)
		return err == nil && q.Len() == 0
	})
}

// TestRedisGrantOutlastsAStandstill: a client that stops right after it was granted by a message,
// for longer than the grant window, has the lock for its TTL like any other holder.
func TestRedisGrantOutlastsAStandstill(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	holder, behind := openRedis(t, s, "ttl=1m"), openRedis(t, s, "ttl=1m")
	client, p := behindLine(t, s, redis.Options{})
	in := letInOffTheLine(t, s, holder, client, behind, p)
	defer in.heal()
	l := in.first.Got("the one off the line", in.released, soon)
	await.Running(usualWindow + time.Second)
	if err := l.Err(); err != nil {
		t.Fatalf("the lease after a standstill of %s: %v", time.Since(in.released), err)
	}
	in.heal()
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew after it: %v", err)
	}
	redisWaiting(t, holder, in.name, 1)
	redisUnlock(t, l)
	redisUnlock(t, in.second.Got("the one behind", time.Now(), soon))
}

// TestRedisGrantDuringACall: a waiter whose call was not answered, because the line to the server
// was cut, accepts the message of its grant once the call has failed.
func TestRedisGrantDuringACall(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	holder := openRedis(t, s, "ttl=1m")
	p := netfault.NewProxy()
	b := overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, Dialer: p.Dial, DisableIdentity: true}), p, redis.Options{})
	// a message proves the hold for half of it
	client := steps.ClientOf(t, b, dlock.TTL(2*time.Minute))
	for tries := 1; ; tries++ {
		name := fmt.Sprint("asking ", tries)
		held := redisLock(t, holder.Mutex(name))
		a := steps.Try(t, client.Mutex(name))
		CLIOf(t, s).listening(clientsOf(redisWaiting(t, holder, name, 1))...)
		heal := p.Hold(netfault.ToServer)
		defer heal()
		await.Running(1300 * time.Millisecond) // it asks every second
		released := time.Now()
		redisUnlock(t, held)
		q, err := holder.Inspect(t.Context(), name)
		if err != nil || len(q.Holders) != 1 {
			t.Fatalf("%+v, %v; want one holder", q, err)
		}
		if q.Holders[0].Left > usualWindow || tries == 5 {
			l := a.Got("the waiter", released, 50*time.Second) // the library tries for 25 s
			heal()
			redisUnlock(t, l)
			return
		}
		heal() // the machine was so busy that it had not asked within the window: it has to confirm
		redisUnlock(t, a.Got("the one that confirms", released, soon))
	}
}

// usualWindow is the grant window unless it is set.
const usualWindow = 3 * time.Second

// letIn is a waiter that was granted by a message alone, for its TTL, and another one behind it.
// What the first one's client sends is held until heal.
type letIn struct {
	name          string
	first, second *steps.Attempt
	released      time.Time
	heal          func()
}

// letInOffTheLine makes the server grant the client behind the proxy.
func letInOffTheLine(t *testing.T, s *service.Server, holder, client, behind *dlock.Client, p *netfault.Proxy) letIn {
	t.Helper()
	var listeners []driver.ID // clients that listen until the end
	for tries := 1; ; tries++ {
		in := letIn{name: fmt.Sprint("let in ", tries)}
		held := redisLock(t, holder.Mutex(in.name))
		in.first = steps.Try(t, client.Mutex(in.name))
		listeners = append(listeners, clientsOf(redisWaiting(t, holder, in.name, 1))...)
		CLIOf(t, s).listening(listeners...)
		in.second = steps.Try(t, behind.Mutex(in.name))
		listeners = append(listeners, clientsOf(redisWaiting(t, holder, in.name, 2))...)
		in.heal = p.Hold(netfault.ToServer)
		in.released = time.Now()
		redisUnlock(t, held)
		q, err := holder.Inspect(t.Context(), in.name)
		if err != nil || len(q.Holders) != 1 {
			in.heal()
			t.Fatalf("%+v, %v; want one holder", q, err)
		}
		in.first.Returns(2 * time.Second)
		if q.Holders[0].Left > usualWindow && !in.first.Pending() || tries == 5 {
			return in
		}
		// The machine was so busy that the client had not asked within the window, and has to
		// confirm, or it was asking when the line was held.
		in.heal()
		redisUnlock(t, in.first.Got("the one that confirms", in.released, soon))
		redisUnlock(t, in.second.Got("the one behind", in.released, soon))
	}
}

// TestRedisCancelledWaiterPassesTheWakeUpOn cancels a wait at the moment of the release. The grant
// window is so long that no grant results from its end.
func TestRedisCancelledWaiterPassesTheWakeUpOn(t *testing.T) {
	t.Parallel()
	const rounds = 200
	s := service.StartOwn(t, Redis)
	params := "ttl=1m&grant_window=30s"
	holder, leaving, staying := openRedis(t, s, params), openRedis(t, s, params), openRedis(t, s, params)
	held := redisLock(t, holder.Mutex("a"))
	in, out := 0, 0
	// the longer the machine takes for a grant, the longer: about half are to be granted
	spread := 2 * time.Millisecond
	for range rounds {
		first := steps.Try(t, leaving.Mutex("a"))
		redisWaiting(t, holder, "a", 1)
		second := steps.Try(t, staying.Mutex("a"))
		redisWaiting(t, holder, "a", 2)
		offset := rand.N(spread) // of which the release has the first 300µs
		var wg sync.WaitGroup
		start := time.Now()
		wg.Go(func() {
			spin(start.Add(offset))
			first.Cancel()
		})
		spin(start.Add(300 * time.Microsecond))
		redisUnlock(t, held)
		await.All(t, &wg)
		first.Within("Lock after its cancellation", start, soon)
		if first.Err == nil {
			in++
			spread = max(spread*4/5, 500*time.Microsecond)
			redisUnlock(t, first.Lease)
		} else {
			out++
			spread = min(spread*5/4, 100*time.Millisecond)
		}
		next := second.Got("the one behind", start, soon)
		third := steps.Try(t, holder.Mutex("a"))
		redisWaiting(t, holder, "a", 1)
		redisUnlock(t, next)
		held = third.Got("the first", time.Now(), soon)
	}
	t.Logf("%d were let in, %d left", in, out)
	if in == 0 || out == 0 {
		t.Errorf("of %d, %d were let in and %d left: the moments were not those of the release", rounds, in, out)
	}
	redisUnlock(t, held)
}

// spin is more exact than a timer.
func spin(until time.Time) {
	for time.Now().Before(until) {
	}
}

// TestRedisForceBesideTheHolder: a hold that is released between the two steps of a break by force
// was ended by the break.
func TestRedisForceBesideTheHolder(t *testing.T) {
	t.Parallel()
	const name = "force-beside"
	s := service.StartOwn(t, Redis)
	holder, _ := behindLine(t, s, redis.Options{})
	operator, p := behindLine(t, s, redis.Options{})
	// now the server has the script
	if err := operator.Break(t.Context(), name, 1); !errors.Is(err, dlock.ErrNotHeld) {
		t.Fatalf("Break of nothing: %v", err)
	}
	l := steps.MustLock(t, holder.Mutex(name))
	heal := p.Hold(netfault.ToClient)
	ended := make(chan error, 1)
	go func() { ended <- operator.Break(t.Context(), name, l.Token(), dlock.Force()) }()
	await.That(t, "the hold is marked as broken", func() bool {
		q, err := holder.Inspect(t.Context(), name)
		return err == nil && q.Len() == 1 && q.Holders[0].Broken
	})
	if err := l.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock of a broken hold: %v", err)
	}
	heal()
	if err := await.From(t, ended); err != nil {
		t.Errorf("Break by force: %v", err)
	}
}

// TestRedisForgetsScripts: the server's script cache is volatile. That changes nothing.
func TestRedisForgetsScripts(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	w := steps.StartWorkers(t, s.URL+"/0", false)
	c := openRedis(t, s, "ttl=12s")
	l := redisLock(t, c.Mutex("held"))
	wait := steps.Try(t, openRedis(t, s, "ttl=12s").Mutex("held"))
	redisWaiting(t, c, "held", 1)
	for range 40 {
		k.Must("SCRIPT", "FLUSH")
		w.More(t, 5)
	}
	k.Must("SCRIPT", "FLUSH")
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	k.Must("SCRIPT", "FLUSH")
	redisUnlock(t, l)
	k.Must("SCRIPT", "FLUSH")
	wait.Got("the waiter", time.Now(), soon)
}

// TestRedisRestartsEmpty: the holder learns of it at its next renewal, the waiter arrives again,
// and tokens grow.
func TestRedisRestartsEmpty(t *testing.T) {
	t.Parallel()
	const waiters = 10
	ttl := 15 * time.Second // renewed every 5
	s := service.StartOwn(t, Redis)
	params := fmt.Sprintf("ttl=%s", ttl)
	holder, other := openRedis(t, s, params), openRedis(t, s, params)
	held := redisLock(t, holder.Mutex("a"))
	second := redisLock(t, holder.Mutex("b"))
	var inside, served atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	last := held.Token()
	for i := range waiters {
		c := holder
		if i%2 == 1 {
			c = other
		}
		wg.Go(func() {
			l, err := c.Mutex("a").Lock(await.Context(t))
			if err != nil {
				t.Errorf("a wait did not outlast the restart: %v", err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two are in")
			}
			mu.Lock()
			if l.Token() <= last {
				t.Errorf("token %d after %d", l.Token(), last)
			}
			last = l.Token()
			mu.Unlock()
			served.Add(1)
			inside.Add(-1)
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	redisWaiting(t, other, "a", waiters)
	s.RestartEmpty(t)
	back := time.Now()
	for _, l := range []*dlock.Lease{held, second} {
		select {
		case <-l.Lost():
		case <-time.After(time.Minute):
			t.Fatal("the loss is not signalled")
		}
		if took := time.Since(back); took > ttl*3/4 || !errors.Is(l.Err(), dlock.ErrLost) {
			t.Errorf("the loss was signalled %s after the restart: %v; the next renewal was %s away at most", took, l.Err(), ttl/3)
		}
		if err := l.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Unlock of what was lost: %v", err)
		}
	}
	await.All(t, &wg)
	if n := served.Load(); n != waiters {
		t.Errorf("%d of %d were served", n, waiters)
	}
}

// redisWaiter opens a client of the URL in its first argument, and waits with it for the name in
// the second, as often as the third says.
var redisWaiter = service.NewProgram("redis waiter", func(in *bufio.Scanner, out io.Writer, args []string) error {
	c, err := dlock.Open(context.Background(), args[0], dlock.Logger(nil))
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	for range n {
		go c.Mutex(args[1]).Lock(context.Background())
	}
	fmt.Fprintln(out, "waiting")
	in.Scan()
	return nil
})

// TestRedisDeadWaitersCostAWindow: a client that was silent and does not confirm its grant costs
// the queue one grant window, however many of its requests wait there.
func TestRedisDeadWaitersCostAWindow(t *testing.T) {
	t.Parallel()
	const each, window, ttl = 6, 2 * time.Second, 5 * time.Minute // ttl: of behindLine too
	s := service.StartOwn(t, Redis)
	params := fmt.Sprintf("ttl=%s&grant_window=%s", ttl, window)
	holder, alive := openRedis(t, s, params), openRedis(t, s, params)
	for _, killed := range []bool{true, false} {
		for _, dead := range []int{1, 3} {
			name := fmt.Sprintf("%d dead, killed: %t", dead, killed)
			t.Run(name, func(t *testing.T) {
				held := redisLock(t, holder.Mutex(name))
				for i := range dead {
					var gone func()
					if killed {
						gone = redisWaiter.Start(t, s.URL+"/0?"+params, name, fmt.Sprint(each)).Kill
					} else {
						c, p := behindLine(t, s, redis.Options{GrantWindow: window})
						for range each {
							steps.Try(t, c.Mutex(name))
						}
						gone = func() { t.Cleanup(p.Isolate()) }
					}
					redisWaiting(t, holder, name, (i+1)*each)
					gone()
				}
				await.That(t, "they have been silent for a window", func() bool {
					q, err := holder.Inspect(t.Context(), name)
					askedLately := func(w dlock.Request) bool { return w.Left > ttl-window-window/10 }
					return err == nil && !slices.ContainsFunc(q.Waiters, askedLately)
				})
				last := steps.Try(t, alive.Mutex(name))
				redisWaiting(t, holder, name, dead*each+1)
				start := time.Now()
				redisUnlock(t, held)
				last.Within("the first live waiter", start, time.Duration(dead)*window+soon/2)
				took := last.At.Sub(start)
				t.Logf("behind %d dead clients with %d requests each: %s", dead, each, took)
				if took < time.Duration(dead)*window*9/10 {
					t.Errorf("%d dead clients cost %s: they were not in the way at all, and the test proves nothing", dead, took)
				}
				redisUnlock(t, last.Lease)
			})
		}
	}
}
