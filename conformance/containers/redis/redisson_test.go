package redis

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
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
	"github.com/dlock-go/dlock/internal/size"
)

// redissonTTL is that of both sides: what a killed process costs.
const redissonTTL = 2 * time.Second

// redissonDlockProgram is a client of dlock as a process: URL, name. It is commanded as a peer is.
var redissonDlockProgram = service.NewProgram("redisson-dlock", func(in *bufio.Scanner, out io.Writer, args []string) error {
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
		return fmt.Sprint(l.Token()), func() error { return l.Unlock(context.Background()) }, nil
	})
})

// redissonServers are a server and a cluster: what peers and dlock connect to.
func redissonServers(t *testing.T, run func(t *testing.T, url string, cli goredis.UniversalClient)) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := service.StartOwn(t, Redis)
		run(t, s.URL, CLIOf(t, s).Client)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		s := StartCluster(t, Redis)
		cli := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: s.Addrs()})
		t.Cleanup(func() { cli.Close() })
		run(t, "redis+cluster://"+join(s.Addrs()), cli)
	})
}

// redissonURL is the URL of dlock for that of a peer.
func redissonURL(url string, params ...string) string {
	return url + "?" + strings.Join(append([]string{"format=redisson"}, params...), "&")
}

func openFormat(t *testing.T, url string) *dlock.Client {
	t.Helper()
	c, err := dlock.Open(t.Context(), url, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestRedissonPeers: processes of dlock and peers of every generation take turns on one lock, and
// some of both are killed while they are in. A recorder outside sees one of them at a time.
func TestRedissonPeers(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, _ goredis.UniversalClient) {
		const least = 240
		r := service.NewRecorder(t)
		kinds := append([]peerKind{"", "", ""}, peerKinds...)
		names, workers := make([]string, len(kinds)), make([]*service.Child, len(kinds))
		start := func(i int) {
			if kinds[i] == "" {
				workers[i] = redissonDlockProgram.Start(t, redissonURL(url, "ttl="+redissonTTL.String()), "work")
			} else {
				workers[i] = redissonPeerProgram.Start(t, url, string(kinds[i]), "work", redissonTTL.String())
			}
			workers[i].Say("work " + r.Addr + " " + names[i])
		}
		for i, kind := range kinds {
			names[i] = fmt.Sprintf("%s-%d", cmp.Or(string(kind), "dlock"), i)
			start(i)
		}
		for i := range kinds {
			if !size.Long() && i%2 == 1 { // each costs a TTL
				continue
			}
			if i > 0 {
				r.More(t, "", least/len(kinds))
			}
			r.KillInside(t, names[i], workers[i].Kill)
			start(i)
		}
		r.More(t, "", max(20, least-r.Turns("")))
		for _, w := range workers {
			if line, is := w.Heard(); is {
				t.Errorf("a worker wrote %q", line)
			}
			w.Kill()
		}
		r.Verdict(t)
	})
}

// TestRedissonNotifies: a release wakes the waiter of the other side, whatever its generation, long
// before the time is over that the holder had.
func TestRedissonNotifies(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, _ goredis.UniversalClient) {
		c := openFormat(t, redissonURL(url, "ttl=10m"))
		for _, kind := range []peerKind{peer2016, peer2022, peer2026, peerFenced} {
			key := "notified/" + string(kind)
			peer := redissonPeerProgram.Start(t, url, string(kind), key, "10m")
			held := steps.MustLock(t, c.Mutex(key))
			var toPeer, toDlock []time.Duration
			for range 6 {
				peer.Say("lock")
				<-time.After(100 * time.Millisecond) // it waits, or else it takes a free lock
				from := time.Now()
				if err := held.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				if line := peer.Hear(); !strings.HasPrefix(line, "locked ") {
					t.Fatalf("the peer wrote %q", line)
				}
				toPeer = append(toPeer, time.Since(from))
				w := steps.Try(t, c.Mutex(key))
				w.Returns(100 * time.Millisecond)
				from = time.Now()
				peer.Say("unlock")
				peer.Expect("unlocked")
				held = w.Got("the waiter of dlock", from, soon)
				toDlock = append(toDlock, w.At.Sub(from))
			}
			// without a message the peer waits for ten minutes, and dlock for half a second
			if worst := maxOf(toPeer); worst > 10*time.Second {
				t.Errorf("%s: a hand-over to the peer took %s", kind, worst)
			}
			if quick := minOf(toDlock); quick > 300*time.Millisecond || sum(toDlock) > time.Duration(len(toDlock))*400*time.Millisecond {
				t.Errorf("%s: hand-overs to dlock took %s", kind, toDlock)
			}
			t.Logf("%s: to the peer %s, to dlock %s", kind, toPeer, toDlock)
			held.Unlock(t.Context())
		}
	})
}

func maxOf(ds []time.Duration) (most time.Duration) {
	for _, d := range ds {
		most = max(most, d)
	}
	return most
}

func minOf(ds []time.Duration) time.Duration {
	least := ds[0]
	for _, d := range ds {
		least = min(least, d)
	}
	return least
}

func sum(ds []time.Duration) (all time.Duration) {
	for _, d := range ds {
		all += d
	}
	return all
}

// TestRedissonViews: what each side sees of a lock that the other one holds.
func TestRedissonViews(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, cli goredis.UniversalClient) {
		ctx := t.Context()
		c := openFormat(t, redissonURL(url, "ttl=1m", "label=a-label"))
		if caps := c.Capabilities(); caps.Format != "redisson" || caps.Fencing || caps.Queue || !caps.Shared || !caps.Joins || caps.Semaphores || !strings.HasPrefix(url, caps.Backend+":") {
			t.Errorf("%+v", caps)
		}

		// what a peer asks of a lock that dlock holds: isLocked, remainTimeToLive, tryLock, unlock
		l := steps.MustLock(t, c.Mutex("ours"))
		peer, err := NewRedissonPeer(url, string(peer2026), "ours", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		fields := cli.HGetAll(ctx, "ours").Val()
		left := cli.PTTL(ctx, "ours").Val()
		if len(fields) != 3 || fields["dlock"] != "1" || left <= 0 || left > time.Minute+time.Second {
			t.Errorf("a hold of dlock is %v, for %s", fields, left)
		}
		delete(fields, "dlock")
		for field, count := range fields {
			if strings.HasPrefix(field, "dlock ") {
				if !strings.HasSuffix(count, " a-label") || !strings.HasPrefix(count, "x ") {
					t.Errorf("the member %q is %q", field, count)
				}
			} else if !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9a-f]{32}$`).MatchString(field) || count != "1" {
				t.Errorf("the field is %s, the count %s", field, count)
			}
		}
		if taken, saw, _, err := peer.try(ctx); taken || err != nil || saw <= 0 || saw > left {
			t.Errorf("tryLock of a peer: %v, %s, %v", taken, saw, err)
		}
		if err := peer.Unlock(ctx); !errors.Is(err, errPeer) {
			t.Errorf("unlock of a peer that does not hold: %v", err)
		}
		if err := l.Renew(ctx); err != nil {
			t.Errorf("Renew: %v", err)
		}
		if q, err := c.Inspect(ctx, "ours"); err != nil || len(q.Holders) != 1 || q.Holders[0].Foreign || q.Holders[0].Label != "a-label" ||
			q.Holders[0].TTL != time.Minute {
			t.Errorf("Inspect of a hold of dlock: %+v, %v", q, err)
		}
		if err := l.Unlock(ctx); err != nil || cli.Exists(ctx, "ours").Val() != 0 {
			t.Errorf("Unlock: %v", err)
		}

		// what dlock sees of a peer, which has the lock twice
		for range 2 {
			if taken, _, _, err := peer.try(ctx); !taken || err != nil {
				t.Fatalf("a peer, at a free lock: %v, %v", taken, err)
			}
		}
		if _, err := c.Mutex("ours").TryLock(ctx); !errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), peer.field+" (count 2)") {
			t.Errorf("TryLock of what a peer holds: %v", err)
		}
		q, err := c.Inspect(ctx, "ours")
		if err != nil || len(q.Holders) != 1 || !q.Holders[0].Foreign || q.Holders[0].Label != peer.field+" (count 2)" ||
			q.Holders[0].Left <= 0 || q.Holders[0].Left > time.Minute || q.Holders[0].Token != 0 {
			t.Errorf("Inspect of a peer's hold: %+v, %v", q, err)
		}
		if names, err := c.List(ctx); err != nil || !slices.Equal(names, []string{"ours"}) {
			t.Errorf("List: %q, %v", names, err)
		}
		if err := c.Break(ctx, "ours", 0, dlock.Force()); !errors.Is(err, dlock.ErrUnsupported) {
			t.Errorf("Break of a peer's hold: %v", err)
		}
		if _, err := c.RWMutex("ours").Read().TryLock(ctx); !errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), peer.field+" (count 2)") {
			t.Errorf("TryLock of a reader, of what a peer holds: %v", err)
		}
		if _, err := c.Semaphore("ours", 2).TryLock(ctx); !errors.Is(err, dlock.ErrUnsupported) {
			t.Errorf("a semaphore: %v", err)
		}
		for range 2 {
			if err := peer.Unlock(ctx); err != nil {
				t.Errorf("unlock of a peer: %v", err)
			}
		}

		// forceUnlock: dlock learns of it at its next renewal, and then frees nothing
		l = steps.MustLock(t, c.Mutex("ours"))
		cli.Del(ctx, "ours")
		if taken, _, _, err := peer.try(ctx); !taken || err != nil {
			t.Fatalf("a peer after forceUnlock: %v, %v", taken, err)
		}
		before := cli.Dump(ctx, "ours").Val()
		if err := l.Renew(ctx); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Renew after forceUnlock: %v", err)
		}
		if err := l.Unlock(ctx); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Unlock after forceUnlock: %v", err)
		}
		if after := cli.Dump(ctx, "ours").Val(); after != before || before == "" {
			t.Error("the hold of a peer was changed")
		}
	})
}

// TestRedissonLeavesPeersAlone: whatever dlock does to a lock that a peer holds, its hash and its
// expiry stay as they are, also if it has none.
func TestRedissonLeavesPeersAlone(t *testing.T) {
	s := service.Start(t, Redis)
	cli, ctx := CLIOf(t, s), t.Context()
	for _, fenced := range []string{"false", "true"} {
		c := openFormat(t, redissonURL(s.URL, "ttl=1s", "key=alone:{name}", "fenced="+fenced))
		key := "alone:" + fenced
		const forever, until = "0a0b0c0d-0001-4002-8003-0a0b0c0d0e0f:7", 4102444800000 // 2100
		cli.Must("HSET", key, forever, 3)
		cli.Must("HSET", key+"/timed", forever, 1)
		cli.Must("PEXPIREAT", key+"/timed", until)
		dumps := func() [2]string { return [2]string{cli.Dump(ctx, key).Val(), cli.Dump(ctx, key+"/timed").Val()} }
		before := dumps()
		for _, name := range []string{fenced, fenced + "/timed"} {
			m := c.Mutex(name)
			if _, err := m.TryLock(ctx); !errors.Is(err, dlock.ErrHeld) {
				t.Errorf("TryLock: %v", err)
			}
			w := steps.Try(t, m)
			w.Returns(2500 * time.Millisecond) // some tries
			w.Cancel()
			w.Within("the wait", time.Now(), soon)
			if !errors.Is(w.Err, dlock.ErrHeld) {
				t.Errorf("Lock: %v", w.Err)
			}
			if q, err := c.Inspect(ctx, name); err != nil || len(q.Holders) != 1 || !q.Holders[0].Foreign {
				t.Errorf("Inspect: %+v, %v", q, err)
			}
		}
		if dumps() != before {
			t.Error("a hash was changed")
		}
		if left := cli.PTTL(ctx, key).Val(); left != -1 {
			t.Errorf("a key without expiry got %s", left)
		}
		if at := cli.PExpireTime(ctx, key+"/timed").Val(); at != until*time.Millisecond {
			t.Errorf("the expiry of a key became %s", at)
		}
		if n := cli.Exists(ctx, "redisson_lock_token:{"+key+"}").Val(); n != 0 {
			t.Error("a token was counted, although nothing was taken")
		}
		// a field that another program adds to a hold of dlock, as RReadWriteLock does
		l := steps.MustLock(t, c.Mutex(fenced+"/ours"))
		cli.Must("HSET", key+"/ours", forever, 1)
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
		if fields := cli.HGetAll(ctx, key+"/ours").Val(); len(fields) != 1 || fields[forever] != "1" {
			t.Errorf("after Unlock, the hash has %v", fields)
		}
	}
}

// TestRedissonOtherKeys: a key of another type is no lock, and is left alone; so are names whose
// keys are dlock's own.
func TestRedissonOtherKeys(t *testing.T) {
	s := service.Start(t, Redis)
	cli, ctx := CLIOf(t, s), t.Context()
	c := openFormat(t, redissonURL(s.URL, "key=other:{name}"))
	cli.Must("SET", "other:string", "a value")
	cli.Must("RPUSH", "other:list", "an element")
	for _, name := range []string{"string", "list"} {
		before := cli.Dump(ctx, "other:"+name).Val()
		for what, do := range map[string]func() error{
			"TryLock": func() error { _, err := c.Mutex(name).TryLock(ctx); return err },
			"Lock":    func() error { _, err := c.Mutex(name).Lock(ctx); return err },
			"Inspect": func() error { _, err := c.Inspect(ctx, name); return err },
		} {
			if err := do(); !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), "other:"+name) || !strings.Contains(err.Error(), "type "+name) {
				t.Errorf("%s of a %s: %v", what, name, err)
			}
		}
		if cli.Dump(ctx, "other:"+name).Val() != before {
			t.Errorf("the %s was changed", name)
		}
	}
	// the holder's key becomes another one meanwhile
	l := steps.MustLock(t, c.Mutex("lost"))
	cli.Must("SET", "other:lost", "a value")
	if err := l.Renew(ctx); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Renew of what is no lock any more: %v", err)
	}
	if err := l.Unlock(ctx); !errors.Is(err, dlock.ErrLost) || cli.Get(ctx, "other:lost").Val() != "a value" {
		t.Errorf("Unlock of what is no lock any more: %v", err)
	}
	whole := openFormat(t, redissonURL(s.URL))
	if _, err := whole.Mutex("dlock:{orders}").TryLock(ctx); !errors.Is(err, dlock.ErrInvalid) || !strings.Contains(err.Error(), "dlock keeps for itself") {
		t.Errorf("a name whose key is dlock's own: %v", err)
	}
	// A large hash is not read.
	big := map[string]any{}
	for i := range 5000 {
		big[fmt.Sprint("field ", i)] = strings.Repeat("x", 100)
	}
	if err := cli.HSet(ctx, "other:big", big).Err(); err != nil {
		t.Fatal(err)
	}
	if q, err := c.Inspect(ctx, "big"); err != nil || len(q.Holders) != 1 || q.Holders[0].Label != "a hash of 5000 fields" {
		t.Errorf("Inspect of a large hash: %+v, %v", q, err)
	}
}

// TestRedissonTokens: the tokens of dlock and of peers with RFencedLock grow in one order.
func TestRedissonTokens(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, cli goredis.UniversalClient) {
		ctx := t.Context()
		c := openFormat(t, redissonURL(url, "fenced=true"))
		if !c.Capabilities().Fencing {
			t.Error("no fencing")
		}
		var last int64
		grows := func(who string, token int64) {
			t.Helper()
			if token <= last {
				t.Errorf("%s has token %d after %d", who, token, last)
			}
			last = token
			if counter, err := cli.Get(ctx, "redisson_lock_token:{fenced}").Int64(); err != nil || counter != token {
				t.Errorf("%s has token %d; getToken returns %d, %v", who, token, counter, err)
			}
		}
		peer, err := NewRedissonPeer(url, string(peerFenced), "fenced", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			l := steps.MustLock(t, c.Mutex("fenced"))
			grows("dlock", int64(l.Token()))
			if q, err := c.Inspect(ctx, "fenced"); err != nil || len(q.Holders) != 1 || q.Holders[0].Token != l.Token() {
				t.Errorf("Inspect: %+v, %v", q, err)
			}
			if err := l.Unlock(ctx); err != nil {
				t.Error(err)
			}
			for range 2 { // it counts each time
				_, _, token, err := peer.try(ctx)
				if err != nil {
					t.Fatal(err)
				}
				grows("the peer", token)
			}
			for range 2 {
				if err := peer.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

const redissonPage = "docs/redisson.md"

// TestRedissonCheck: "dlock check" finds nothing wrong for a user with the rights of the page, and
// names each right that is missing.
func TestRedissonCheck(t *testing.T) {
	redissonServers(t, func(t *testing.T, url string, cli goredis.UniversalClient) {
		cluster := strings.Contains(url, "+cluster")
		rights := ACL(t, redissonPage)
		if cluster {
			rights = append(rights, Documented(t, redissonPage, "A Cluster also needs `([^`]*)`")...)
		}
		onAll := func(args ...any) {
			t.Helper()
			each := func(c goredis.Cmdable) error {
				return c.(interface {
					Do(context.Context, ...any) *goredis.Cmd
				}).Do(t.Context(), args...).Err()
			}
			err := error(nil)
			if c, is := cli.(*goredis.ClusterClient); is {
				err = c.ForEachShard(t.Context(), func(_ context.Context, node *goredis.Client) error { return each(node) })
			} else {
				err = each(cli)
			}
			if err != nil {
				t.Fatalf("%v: %v", args, err)
			}
		}
		onAll(words("ACL SETUSER app on >canary", rights)...)
		check := steps.NewChecker(t)
		as := redissonURL(strings.Replace(url, "://", "://app:canary@", 1), "key=lock:{name}", "fenced=true")
		check.Wants("the rights of the page", as, map[string][2]string{
			"rights": {"fine", ""}, "laws": {"fine", "core laws hold; not supported by this backend: arrival-order"}})
		for _, r := range rights {
			if strings.HasPrefix(r, "+") && (!cluster || r == "+spublish" || r == "+ssubscribe" || r == "+sunsubscribe") {
				onAll("ACL", "SETUSER", "app", "-"+r[1:])
				check.Wants("without "+r, as, map[string][2]string{"rights": {"wrong", "missing: " + r}}, "--no-laws")
				onAll("ACL", "SETUSER", "app", r)
			}
		}
		onAll("ACL", "SETUSER", "app", "resetchannels")
		check.Wants("without channels", as, map[string][2]string{"rights": {"wrong", "&redisson_lock__channel*"}}, "--no-laws")
		onAll("ACL", "SETUSER", "app", "resetkeys")
		check.Wants("without keys", as, map[string][2]string{"rights": {"wrong", "~lock:* ~dlock:* ~redisson_lock_token:*"}}, "--no-laws")
	})
}

// TestRedissonCommand: a shell script takes part in a lock of Redisson.
func TestRedissonCommand(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	url := redissonURL(s.URL+"/0", "key=lock:{name}")
	bin := steps.BuildCommand(t)
	want := func(status int, words string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = append(os.Environ(), "DLOCK_URL="+url)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != status || !strings.Contains(string(out), words) {
			t.Errorf("dlock %q: exit status %d, want %d with %q\n%s", args, got, status, words, out)
		}
	}
	want(0, "no name is held", "ls")
	want(0, "in\n", "run", "export", "--", "echo", "in")
	peer := redissonPeerProgram.Start(t, s.URL, string(peer2026), "lock:export", "1m")
	peer.Say("lock")
	peer.Expect("locked 0")
	field := ""
	for f := range CLIOf(t, s).HGetAll(t.Context(), "lock:export").Val() {
		field = f
	}
	want(124, field, "run", "--try", "export", "--", "echo", "in")
	want(0, field[:18], "ls") // it is cut to the width of a terminal
	want(0, field[:18], "inspect", "export")
	want(0, field, "ls", "--json")
	want(1, "not supported", "break", "--yes", "--force", "export")
	// while the command runs, the peer waits
	waits := exec.CommandContext(t.Context(), bin, "run", "--wait", "1m", "export", "--", "echo", "in")
	waits.Env = append(os.Environ(), "DLOCK_URL="+url)
	var out strings.Builder
	waits.Stdout, waits.Stderr = &out, &out
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	<-time.After(500 * time.Millisecond)
	peer.Say("unlock")
	peer.Expect("unlocked")
	if err := waits.Wait(); err != nil || !strings.Contains(out.String(), "in\n") {
		t.Errorf("dlock run, after the peer: %v\n%s", err, out.String())
	}
	peer.Say("lock")
	peer.Expect("locked 0")
	peer.Kill()
}

// TestRedissonSlotMoves: holds and waits outlast the move of their slot to another master, and
// peers that publish on that master alone notify the waiters.
func TestRedissonSlotMoves(t *testing.T) {
	t.Parallel()
	s := StartCluster(t, Redis)
	url := "redis+cluster://" + join(s.Addrs())
	open := func() *dlock.Client { return openFormat(t, redissonURL(url, "ttl=3s")) }
	ctx, other := t.Context(), open()
	held := steps.MustLock(t, open().Mutex("{moves}"))
	w := steps.Try(t, open().Mutex("{moves}"))
	var peers []*RedissonPeer
	var waits []*steps.Attempt
	for i := range 12 { // in the same slot
		name := fmt.Sprint("{moves}/", i)
		p, err := NewRedissonPeer(url, string(peer2026), name, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Lock(ctx); err != nil {
			t.Fatal(err)
		}
		peers, waits = append(peers, p), append(waits, steps.Try(t, other.Mutex(name)))
	}
	w.Returns(500 * time.Millisecond)
	from := s.Master(t, "{moves}")
	for _, n := range s.Nodes[:3] {
		if n != from {
			s.Move(t, "{moves}", n)
			break
		}
	}
	w.Returns(4 * time.Second) // longer than the TTL: the hold is renewed on the new master
	if !w.Pending() {
		t.Fatalf("a second holder after the slot moved: %v", w.Err)
	}
	if err := held.Unlock(ctx); err != nil {
		t.Errorf("Unlock on the new master: %v", err)
	}
	if err := w.Got("the waiter", time.Now(), soon).Unlock(ctx); err != nil {
		t.Errorf("Unlock on the new master: %v", err)
	}
	// however long a slot takes to move, a hold in it goes on, and can be released
	slow := steps.MustLock(t, other.Mutex("slow"))
	migrationOf(t, s, "slow").begin()
	if err := slow.Renew(ctx); err != nil {
		t.Errorf("Renew while the slot moves: %v", err)
	}
	if err := slow.Unlock(ctx); err != nil {
		t.Errorf("Unlock while the slot moves: %v", err)
	}
	quick, at := 0, make([]time.Time, len(peers))
	for i, p := range peers {
		at[i] = time.Now()
		if err := p.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i, w := range waits {
		w.Got("a waiter, after a peer", at[i], soon)
		if w.At.Sub(at[i]) < 200*time.Millisecond {
			quick++
		}
	}
	if quick < len(peers)*3/4 { // without messages a waiter tries every 0.5 to 1.5 s
		t.Errorf("%d of %d releases of peers notified, after the slot moved", quick, len(peers))
	}
}

// TestRedissonTombstones: a release that overtakes its request, whose copy then comes from
// elsewhere, lets it take nothing, for a TTL.
func TestRedissonTombstones(t *testing.T) {
	s := service.Start(t, Redis)
	cli := CLIOf(t, s)
	open := func() driver.Backend {
		o := redisson.Options{Key: "tombs:{name}"}
		return overRedisson(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), o)
	}
	b := open()
	r := steps.Asked(b, "a", 3*time.Second)
	r.Uncertain = true
	released := time.Now()
	if err := b.Release(t.Context(), r); err != nil && !errors.Is(err, driver.ErrLost) {
		t.Fatalf("Release of what never arrived: %v", err)
	}
	r.Uncertain = false
	_, err := open().Acquire(t.Context(), r)
	if time.Since(released) > r.TTL {
		t.Fatalf("the machine is too slow: %s", time.Since(released))
	}
	if !errors.Is(err, driver.ErrLost) || cli.Exists(t.Context(), "tombs:a").Val() != 0 {
		t.Errorf("a late copy: %v", err)
	}
	tombstones := func() int { return len(cli.Keys(t.Context(), "dlock:{tombs:a}:redisson:*").Val()) }
	if tombstones() != 1 {
		t.Error("there is no tombstone")
	}
	await.That(t, "the tombstone is gone", func() bool { return tombstones() == 0 })
}

// TestRedissonNeverShortens: a renewal leaves a hold alone that a fixed request made longer.
func TestRedissonNeverShortens(t *testing.T) {
	s := service.Start(t, Redis)
	cli := CLIOf(t, s)
	b := overRedisson(t, goredis.NewClient(&goredis.Options{Addr: s.Addr}), netfault.NewProxy(), redisson.Options{Key: "shortens:{name}"})
	hold := steps.Asked(b, "a", 2*time.Second)
	steps.Acquired(t, b, hold)
	join := steps.Asked(b, "a", 10*time.Minute)
	join.Owner, join.Fixed = hold.ID, true
	steps.Acquired(t, b, join)
	left := func() time.Duration { return cli.PTTL(t.Context(), "shortens:a").Val() }
	if err := steps.Renewed(b, hold); err != nil || left() < 9*time.Minute {
		t.Errorf("after a renewal, which returned %v, a hold of ten minutes has %s left", err, left())
	}
	cli.Must("PERSIST", "shortens:a")
	if err := steps.Renewed(b, hold); err != nil || left() <= 0 {
		t.Errorf("after a renewal, which returned %v, a hold that had lost its expiry has %s left", err, left())
	}
	// When the request that began the hold ends, the hold has the rest of the fixed one's time.
	steps.Released(t, b, hold)
	if got := left(); got < 9*time.Minute || got > 10*time.Minute {
		t.Errorf("after the release of the request that began it, the hold has %s left", got)
	}
	steps.Released(t, b, join)
	if cli.Exists(t.Context(), "shortens:a").Val() != 0 {
		t.Error("the hold stays after the release of all requests")
	}
}

// TestRedissonSubscriptions: all waits of a client share one subscribed connection, however many
// names they are for and however they come and go, and it ends after them.
func TestRedissonSubscriptions(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	cli := CLIOf(t, s)
	holder, waiter := openFormat(t, redissonURL(s.URL)), openFormat(t, redissonURL(s.URL))
	subscribed := func() int {
		text, err := cli.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(text, "\n")
	}
	channels := func() int { return len(cli.PubSubChannels(t.Context(), "redisson_lock__channel*").Val()) }

	const names = 40
	var held []*dlock.Lease
	var waits []*steps.Attempt
	for i := range names {
		name := fmt.Sprint("name ", i)
		held = append(held, steps.MustLock(t, holder.Mutex(name)))
		waits = append(waits, steps.Try(t, waiter.Mutex(name)))
	}
	await.That(t, "all names are watched", func() bool { return channels() == 2*names })
	if n := subscribed(); n != 1 {
		t.Errorf("%d connections are subscribed", n)
	}
	for i := range 4 { // waits that come and go
		name := fmt.Sprint("fleeting ", i)
		held = append(held, steps.MustLock(t, holder.Mutex(name)))
		for j := range 40 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+j%5)*time.Millisecond)
			_, _ = waiter.Mutex(name).Lock(ctx)
			cancel()
		}
		waits = append(waits, steps.Try(t, waiter.Mutex(name)))
	}
	await.That(t, "all names are watched", func() bool { return channels() == 2*len(waits) })
	late := 0
	for i, w := range waits {
		at := time.Now()
		if err := held[i].Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		l := w.Got("a waiter", at, soon)
		if w.At.Sub(at) > 300*time.Millisecond {
			late++
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if late > len(waits)/4 { // without a message a waiter tries after half a second at least
		t.Errorf("%d of %d waiters were not notified", late, len(waits))
	}
	await.That(t, "the subscriptions end", func() bool { return channels() == 0 && subscribed() == 0 })
}

// TestRedissonCosts counts the scripts of a lock, and of one that waits.
func TestRedissonCosts(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	cli := CLIOf(t, s)
	c := openFormat(t, redissonURL(s.URL, "ttl=1m"))
	l := steps.MustLock(t, c.Mutex("a")) // the server learns the scripts
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	scripts := func(f func()) int64 {
		before, _ := cli.scripts()
		f()
		after, _ := cli.scripts()
		return after - before
	}
	if n := scripts(func() {
		l := steps.MustLock(t, c.Mutex("a"))
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}); n != 2 {
		t.Errorf("Lock and Unlock of a free name are %d scripts, want 2", n)
	}
	// the first try, one when the subscription stands, one after the release
	if n := scripts(func() {
		l := steps.MustLock(t, c.Mutex("a"))
		w := steps.Try(t, c.Mutex("a"))
		await.That(t, "it is watched", func() bool { return len(cli.PubSubChannels(t.Context(), "redisson*").Val()) == 2 })
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := w.Got("the waiter", time.Now(), soon).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}); n < 5 || n > 7 { // a slow machine may leave time for another try
		t.Errorf("a Lock that waits for another, and both Unlocks, are %d scripts, want 6", n)
	}
}
