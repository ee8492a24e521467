package redis

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// setNXURL is the URL of the format on the server, with the key of each lock.
func setNXURL(s *service.Server, key string) string {
	return s.URL + "/0?ttl=30s&retry_delay=20ms&format=setnx&key=" + key
}

func openSetNX(t *testing.T, url string, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.Open(t.Context(), url, append([]dlock.Option{dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// setNXPeers are other software's locks of a server: each takes a key, if it can, and returns what
// releases it.
func setNXPeers(t *testing.T, py, s *service.Server) map[string]func(key string, ttl time.Duration) (release func() error, err error) {
	k := CLIOf(t, s)
	rs := redsync.New(redsyncpool.NewPool(k.Client))
	rl := redislock.New(k.Client)
	python := DialPy(t, py, s)
	held := errors.New("held")
	return map[string]func(key string, ttl time.Duration) (func() error, error){
		"redsync": func(key string, ttl time.Duration) (func() error, error) {
			m := rs.NewMutex(key, redsync.WithExpiry(ttl))
			release := func() error { _, err := m.UnlockContext(k.Ctx); return err }
			return release, m.TryLockContext(k.Ctx)
		},
		"redislock": func(key string, ttl time.Duration) (func() error, error) {
			l, err := rl.Obtain(k.Ctx, key, ttl, nil)
			return func() error { return l.Release(k.Ctx) }, err
		},
		"redis-py": func(key string, ttl time.Duration) (func() error, error) {
			if python.Do(t, "acquire", key, ttl.Seconds()) != true {
				return nil, held
			}
			return func() error {
				if got := python.Do(t, "release", key); got != true {
					return fmt.Errorf("%v", got)
				}
				return nil
			}, nil
		},
		// as its provider for Redis documents: SET NX PX with the time and the host
		"ShedLock": func(key string, ttl time.Duration) (func() error, error) {
			ok, err := k.SetNX(k.Ctx, key, "ADDED:2026-01-02T03:04:05.678Z@host", ttl).Result()
			if err == nil && !ok {
				err = held
			}
			return func() error { return k.Del(k.Ctx, key).Err() }, err
		},
	}
}

// TestRedisSetNXFormat is about what each side sees of the other, and about what dlock never does
// to a peer's key.
func TestRedisSetNXFormat(t *testing.T) {
	t.Parallel()
	s, py := service.StartOwn(t, Redis), service.StartOwn(t, RedisPy)
	for name, run := range map[string]func(*testing.T, *service.Server, *service.Server){
		"peers see dlock":               peersSeeDlock,
		"dlock sees peers":              dlockSeesPeers,
		"a peer took over":              peerTookOver,
		"a peer without an expiry":      peerWithoutExpiry,
		"what is no string":             noString,
		"what is left of a hold":        leftOfAHold,
		"the keys beside are lost":      besideIsLost,
		"another version":               otherVersion,
		"ShedLock's minimum of a lock":  shedLockAtLeastFor,
		"names are those of the prefix": prefixed,
		"a peer that joins a hash tag":  sameTag,
	} {
		t.Run(name, func(t *testing.T) {
			service.Watch(t, s, py)
			run(t, s, py)
		})
	}
}

func peersSeeDlock(t *testing.T, s, py *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "see:{name}")), CLIOf(t, s)
	l := steps.MustLock(t, c.Mutex("a"))
	// the key has what any peer has there: a random value, and an expiry
	value := k.Get(k.Ctx, "see:a").Val()
	if left := k.PTTL(k.Ctx, "see:a").Val(); !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(value) || left <= 0 || left > 31*time.Second {
		t.Errorf("the key has the value %q and expires in %s", value, left)
	}
	python := DialPy(t, py, s)
	if got := python.Do(t, "locked", "see:a"); got != true {
		t.Errorf("redis-py's locked is %v", got)
	}
	for name, take := range setNXPeers(t, py, s) {
		release, err := take("see:a", time.Second)
		if err == nil {
			t.Errorf("%s took the lock of dlock", name)
		}
		if name == "redsync" || name == "redis-py" { // their release compares the value
			if release != nil && release() == nil {
				t.Errorf("%s released the lock of dlock", name)
			}
		}
	}
	if got := k.Get(k.Ctx, "see:a").Val(); got != value {
		t.Errorf("the value is now %q", got)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if got := python.Do(t, "locked", "see:a"); got != false {
		t.Errorf("after Unlock, redis-py's locked is %v", got)
	}
	for name, take := range setNXPeers(t, py, s) {
		release, err := take("see:a", time.Minute)
		if err != nil {
			t.Errorf("%s cannot take a lock that dlock released: %v", name, err)
		} else if err := release(); err != nil {
			t.Errorf("%s cannot release it: %v", name, err)
		}
	}
}

// keySnapshot is everything that a server has of a key.
func keySnapshot(k *CLI, key string) string {
	return fmt.Sprint(k.Dump(k.Ctx, key).Val(), k.PExpireTime(k.Ctx, key).Val())
}

func dlockSeesPeers(t *testing.T, s, py *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "peer:{name}")), CLIOf(t, s)
	for name, take := range setNXPeers(t, py, s) {
		key := "peer:" + name
		release, err := take(key, time.Minute)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		value, before := k.Get(k.Ctx, key).Val(), keySnapshot(k, key)
		_, err = c.Mutex(name).TryLock(t.Context())
		if !errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("held by other software: %q", value)) {
			t.Errorf("TryLock of a lock of %s: %v", name, err)
		}
		q, err := c.Inspect(t.Context(), name)
		if err != nil || len(q.Holders) != 1 || len(q.Waiters) != 0 {
			t.Fatalf("Inspect of a lock of %s: %+v, %v", name, q, err)
		}
		if h := q.Holders[0]; !h.Foreign || h.Label != fmt.Sprintf("other software: %q", value) || h.Left <= 50*time.Second || h.Left > time.Minute || h.Age != 0 || h.TTL != 0 {
			t.Errorf("Inspect of a lock of %s: %+v", name, h)
		}
		names, err := c.List(t.Context())
		if err != nil || !slices.Contains(names, name) {
			t.Errorf("List while %s has a lock: %q, %v", name, names, err)
		}
		for _, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
			if err := c.Break(t.Context(), name, 0, opts...); !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), "would not be notified") {
				t.Errorf("Break of a lock of %s: %v", name, err)
			}
		}
		if after := keySnapshot(k, key); after != before {
			t.Errorf("the key of %s was changed: %q, before %q", name, after, before)
		}
		// a waiter gets it soon after its release
		w := steps.Try(t, c.Mutex(name))
		w.Returns(100 * time.Millisecond)
		if !w.Pending() {
			t.Fatalf("Lock of a lock of %s: %v", name, w.Err)
		}
		if err := release(); err != nil {
			t.Errorf("%s cannot release its lock: %v", name, err)
		}
		if err := w.Got("Lock after the release of "+name, time.Now(), 10*time.Second).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// and after the peer's expiry
	k.Must("SET", "peer:expires", "v", "NX", "PX", 300)
	begun := time.Now()
	steps.Try(t, c.Mutex("expires")).Got("Lock after a peer's expiry", begun, 10*time.Second)
	if took := time.Since(begun); took < 250*time.Millisecond {
		t.Errorf("the lock was granted after %s, before the peer's expiry", took)
	}
}

func peerTookOver(t *testing.T, s, _ *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "over:{name}")), CLIOf(t, s)
	renewed, released, closed := steps.MustLock(t, c.Mutex("renewed")), steps.MustLock(t, c.Mutex("released")), steps.MustLock(t, c.Mutex("closed"))
	before := map[string]string{}
	for _, name := range []string{"renewed", "released", "closed"} { // as if ours had expired
		k.Must("SET", "over:"+name, "v", "PX", 60000)
		before[name] = keySnapshot(k, "over:"+name)
	}
	if err := renewed.Renew(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	if err := released.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	if err := closed.Err(); err != nil {
		t.Errorf("a lease whose loss is not known yet: %v", err)
	}
	c.Close()
	for name, was := range before {
		if is := keySnapshot(k, "over:"+name); is != was {
			t.Errorf("the peer's key %s was changed: %q, before %q", name, is, was)
		}
	}
}

func peerWithoutExpiry(t *testing.T, s, _ *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "ever:{name}")), CLIOf(t, s)
	k.Must("SET", "ever:a", "v", "NX")
	q, err := c.Inspect(t.Context(), "a")
	if err != nil || len(q.Holders) != 1 || q.Holders[0].Left != 0 || q.Holders[0].Label != `other software: "v", without an expiry` {
		t.Errorf("Inspect: %+v, %v", q, err)
	}
	w := steps.Try(t, c.Mutex("a"))
	w.Returns(200 * time.Millisecond)
	if ttl := k.PTTL(k.Ctx, "ever:a").Val(); !w.Pending() || ttl != -1 {
		t.Errorf("after some attempts to lock it the key expires in %s, and Lock returned %v", ttl, w.Err)
	}
	k.Must("DEL", "ever:a")
	w.Got("Lock after the key was deleted", time.Now(), 10*time.Second)
}

func noString(t *testing.T, s, _ *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "hash:{name}")), CLIOf(t, s)
	k.Must("HSET", "hash:a", "8743c9c0:1", 1)
	before := keySnapshot(k, "hash:a")
	_, try := c.Mutex("a").TryLock(t.Context())
	_, lock := c.Mutex("a").Lock(t.Context())
	_, inspect := c.Inspect(t.Context(), "a")
	for what, err := range map[string]error{"TryLock": try, "Lock": lock, "Inspect": inspect, "Break": c.Break(t.Context(), "a", 0)} {
		if !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), `the key "hash:a" is not a string`) || !strings.Contains(err.Error(), "docs/setnx.md") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if after := keySnapshot(k, "hash:a"); after != before {
		t.Errorf("the key was changed: %q, before %q", after, before)
	}
	if names, err := c.List(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("List: %q, %v", names, err)
	}
	// a key of dlock's own is none of the format
	own := openSetNX(t, setNXURL(s, "{name}"))
	if _, err := own.Mutex("dlock:{a}").TryLock(t.Context()); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("TryLock of a key of dlock's own: %v", err)
	}
	if _, err := own.List(t.Context()); !errors.Is(err, dlock.ErrUnsupported) {
		t.Errorf("List of all keys: %v", err)
	}
}

func leftOfAHold(t *testing.T, s, py *service.Server) {
	k := CLIOf(t, s)
	client := openSetNX(t, setNXURL(s, "left:{name}"))
	l := steps.MustLock(t, client.Mutex("a"))
	if err := l.UnlockAfter(t.Context(), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	left := k.PTTL(k.Ctx, "left:a").Val()
	since := time.Now()
	client.Close()
	if left <= time.Second || left > 2100*time.Millisecond {
		t.Errorf("the key that UnlockAfter leaves expires in %s", left)
	}
	peers := setNXPeers(t, py, s)
	for name, take := range peers {
		if _, err := take("left:a", time.Minute); err == nil && time.Since(since) < left {
			t.Errorf("%s took a lock that UnlockAfter left held", name)
		}
	}
	await.That(t, "a peer gets it", func() bool {
		_, err := peers["redsync"]("left:a", time.Minute)
		return err == nil
	})
	if took := time.Since(since); took < left-50*time.Millisecond {
		t.Errorf("a peer got it after %s; want %s", took, left)
	}
	// a periodic job: the others are kept out by the plain key
	c := openSetNX(t, setNXURL(s, "left:{name}"))
	for i, want := range []bool{true, false} {
		ran, err := dlock.OncePer(t.Context(), c.Mutex("job"), time.Minute, func(context.Context) error { return nil })
		if ran != want || err != nil {
			t.Errorf("OncePer, call %d: %t, %v", i, ran, err)
		}
	}
	for name, take := range peers {
		if _, err := take("left:job", time.Second); err == nil {
			t.Errorf("%s took the lock of a job within its period", name)
		}
	}
	if q, err := c.Inspect(t.Context(), "job"); err != nil || len(q.Holders) != 1 || q.Holders[0].Foreign {
		t.Errorf("Inspect of the job: %+v, %v", q, err)
	}
}

func besideIsLost(t *testing.T, s, _ *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "lost:{name}"), dlock.Label("me")), CLIOf(t, s)
	l := steps.MustLock(t, c.Mutex("a"))
	beside := "dlock:{lost:a}:setnx:held:lost:a"
	if got := k.Get(k.Ctx, beside).Val(); !strings.HasPrefix(got, "!2 "+k.Get(k.Ctx, "lost:a").Val()+" ") || !strings.HasSuffix(got, " 2 me") {
		t.Errorf("beside the key stands %q", got)
	}
	if a, b := k.PTTL(k.Ctx, "lost:a").Val(), k.PTTL(k.Ctx, beside).Val(); b <= 0 || b > a {
		t.Errorf("the key expires in %s, and the one beside it in %s", a, b)
	}
	// both begin their time again, and both are removed
	k.Must("PEXPIRE", "lost:a", 5000)
	k.Must("PEXPIRE", beside, 5000)
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if a, b := k.PTTL(k.Ctx, "lost:a").Val(), k.PTTL(k.Ctx, beside).Val(); a < 20*time.Second || b < 20*time.Second {
		t.Errorf("after a renewal the key expires in %s, and the one beside it in %s", a, b)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if keys := k.Keys(k.Ctx, "*lost:a*").Val(); len(keys) > 0 {
		t.Errorf("after Unlock there are the keys %q", keys)
	}
	l = steps.MustLock(t, c.Mutex("a"))
	k.Must("DEL", beside)
	if q, err := c.Inspect(t.Context(), "a"); err != nil || len(q.Holders) != 1 || !q.Holders[0].Foreign {
		t.Errorf("Inspect: %+v, %v", q, err)
	}
	// when its subscription stands again, the client asks about its holds
	scripts := func() string { return InfoField(k.Info(k.Ctx, "commandstats").Val(), "cmdstat_evalsha") }
	before := scripts()
	k.Must("CLIENT", "KILL", "TYPE", "pubsub")
	await.That(t, "the client asks", func() bool { return scripts() != before })
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	// others may have held it too: it stays for its time, and belongs to no request any more
	if left := k.PTTL(k.Ctx, "lost:a").Val(); left < 20*time.Second || left > 31*time.Second {
		t.Errorf("after Unlock the key expires in %s", left)
	}
	if _, err := c.Mutex("a").TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock of what may still be held: %v", err)
	}
	// what stands beside another value says nothing about it
	k.Must("SET", "lost:b", "v", "PX", 60000)
	k.Must("SET", "dlock:{lost:b}:setnx:held:lost:b", "!2 0123456789abcdef0123456789abcdef 0123456789abcdef0123456789abcdef x - 60000 9999999999999 1 0123456789abcdef0123456789abcdef 1 x", "PX", 60000)
	if q, err := c.Inspect(t.Context(), "b"); err != nil || len(q.Holders) != 1 || !q.Holders[0].Foreign {
		t.Errorf("Inspect of a peer's lock: %+v, %v", q, err)
	}
	// a value that looks like an ID is a peer's too
	k.Must("SET", "lost:c", "0123456789abcdef0123456789abcdef", "PX", 60000)
	if _, err := c.Mutex("c").TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), "other software") {
		t.Errorf("TryLock of a peer's lock: %v", err)
	}
}

func otherVersion(t *testing.T, s, _ *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "newer:{name}")), CLIOf(t, s)
	k.Must("SET", "newer:a", "0123456789abcdef0123456789abcdef", "PX", 60000)
	k.Must("SET", "dlock:{newer:a}:setnx:held:newer:a", "!3 0123456789abcdef0123456789abcdef x", "PX", 60000)
	before := keySnapshot(k, "newer:a")
	if _, err := c.Mutex("a").TryLock(t.Context()); !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), "another version of dlock") {
		t.Errorf("TryLock: %v", err)
	}
	if after := keySnapshot(k, "newer:a"); after != before {
		t.Errorf("the key was changed: %q, before %q", after, before)
	}
}

// shedLockAtLeastFor: ShedLock's unlock within lockAtLeastFor is SET XX PX.
func shedLockAtLeastFor(t *testing.T, s, _ *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "job-lock:default:{name}")), CLIOf(t, s)
	const key = "job-lock:default:report"
	k.Must("SET", key, "ADDED:2026-01-02T03:04:05.678Z@host", "NX", "PX", 60000)
	k.Must("SET", key, "ADDED:2026-01-02T03:04:06.789Z@host", "XX", "PX", 1000)
	begun := time.Now()
	l := steps.Try(t, c.Mutex("report")).Got("Lock after lockAtLeastFor", begun, 10*time.Second)
	if took := time.Since(begun); took < 900*time.Millisecond {
		t.Errorf("the lock was granted after %s", took)
	}
	if ok := k.SetNX(k.Ctx, key, "ADDED:2026-01-02T03:04:07.890Z@host", time.Minute).Val(); ok {
		t.Error("ShedLock took the lock of dlock")
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func prefixed(t *testing.T, s, _ *service.Server) {
	c, k := openSetNX(t, setNXURL(s, "pre:{name}:lock")+"&prefix=shop/"), CLIOf(t, s)
	steps.MustLock(t, c.Mutex("a"))
	k.Must("SET", "pre:other:lock", "v", "PX", 60000)
	k.Must("SET", "pre:shop/b:lock", "v", "PX", 60000)
	if n := k.Exists(k.Ctx, "pre:shop/a:lock").Val(); n != 1 {
		t.Error("the key does not have the prefix before the name")
	}
	names, err := c.List(t.Context())
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("List: %q, %v", names, err)
	}
}

// sameTag: locks whose keys have one hash tag are still different locks.
func sameTag(t *testing.T, s, _ *service.Server) {
	c := openSetNX(t, setNXURL(s, "{tag}{name}"))
	for _, name := range []string{"a", "a:held", "held:a", ":setnx:held:a", "{x}"} {
		steps.MustLock(t, c.Mutex(name))
	}
}
