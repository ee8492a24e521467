package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
	"github.com/dlock-go/dlock/internal/size"
)

// longestCall is how many commands a call may run for one name, whatever stands there. They take a
// few milliseconds.
const longestCall = 1000

// clock returns the server's time.
func clock(k *CLI) time.Time {
	k.t.Helper()
	now, err := k.Time(k.Ctx).Result()
	if err != nil {
		k.t.Fatalf("TIME: %v", err)
	}
	return now
}

// arrival has what the server stored of a request at its arrival, which does not change while it
// waits.
type arrival struct {
	at    time.Time
	place int64 // in the order of arrival; its token, once it holds
}

// arrivals returns those of all requests under a name.
func arrivals(k *CLI, name string) map[driver.ID]arrival {
	k.t.Helper()
	all := map[driver.ID]arrival{}
	for _, kind := range []string{"s", "x", "w"} {
		members, err := k.ZRangeArgs(k.Ctx, goredis.ZRangeArgs{
			Key: queueKey(name), ByLex: true, Start: "[" + kind, Stop: "(" + string(kind[0]+1),
		}).Result()
		if err != nil {
			k.t.Fatalf("ZRANGE: %v", err)
		}
		for _, m := range members {
			f := strings.Fields(m) // lua/queue.lua has its parts
			var id driver.ID
			place, bad := strconv.ParseInt(f[4], 10, 64)
			at, err := strconv.ParseInt(f[9], 10, 64)
			if err := errors.Join(bad, err, id.UnmarshalText([]byte(f[0][1:]))); err != nil {
				k.t.Fatalf("%q: %v", m, err)
			}
			all[id] = arrival{time.UnixMicro(at), place}
		}
	}
	if h := k.HGetAll(k.Ctx, redisKey(name)).Val(); h["holder"] != "" {
		var id driver.ID
		place, bad := strconv.ParseInt(h["token"], 10, 64)
		at, err := strconv.ParseInt(h["since"], 10, 64)
		if err := errors.Join(bad, err, id.UnmarshalText([]byte(h["holder"]))); err != nil {
			k.t.Fatalf("%q: %v", h, err)
		}
		all[id] = arrival{time.UnixMicro(at), place}
	}
	return all
}

// TestRedisCallsAreBounded: however many requests stand under a name, no call blocks the server for
// long, and no reply is large. Further calls do the rest, at once.
func TestRedisCallsAreBounded(t *testing.T) {
	t.Parallel()
	const many, ttl = 5000, time.Hour
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	over := func() driver.Backend {
		return overRedis(t, goredis.NewClient(&goredis.Options{Addr: s.Addr, ReadTimeout: time.Minute}), netfault.NewProxy(), redis.Options{})
	}
	b, other := over(), over()
	bounded := func(what string, f func()) {
		t.Helper()
		if w := k.WorkOf(f); w.Longest > longestCall {
			t.Errorf("%s: one call runs %d commands: %+v", what, w.Longest, w)
		}
	}
	writer := steps.Asked(other, "readers", ttl)
	came := clock(k)
	steps.Acquired(t, other, writer)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	readers := make([]driver.Request, many)
	for i := range readers {
		readers[i] = steps.Waiting(b, "readers", ttl)
		readers[i].Mode = driver.Shared
		wg.Go(func() {
			if _, err := steps.Acquire(ctx, b, readers[i]); err != nil {
				t.Error(err)
			}
		})
	}
	await.That(t, "all wait", func() bool { return stored(k, "readers") == many+1 })
	arrived := arrivals(k, "readers")
	now := clock(k)
	for id, a := range arrived {
		if a.at.Before(came) || a.at.After(now) {
			t.Fatalf("%s arrived at %s; want %s to %s", id, a.at, came, now)
		}
	}
	queue := func(holders, waiters int) {
		t.Helper()
		before := clock(k)
		q := steps.Queue(t, other, "readers")
		after := clock(k)
		seen := map[driver.ID]bool{}
		for _, e := range q.Arrivals {
			if seen[e.ID] {
				t.Fatalf("%s is shown twice", e.ID)
			}
			seen[e.ID] = true
			// it is read in several calls, each at a moment of its own
			if at := arrived[e.ID].at; e.Age < before.Sub(at) || e.Age > after.Sub(at) {
				t.Fatalf("Inspect shows an age of %s; want %s to %s", e.Age, before.Sub(at), after.Sub(at))
			}
		}
		if len(q.Holders()) != holders || len(q.Waiters()) != waiters {
			t.Errorf("Inspect shows %d holders and %d waiters; want %d and %d", len(q.Holders()), len(q.Waiters()), holders, waiters)
		}
		for i, e := range q.Waiters() {
			if i > 0 && arrived[e.ID].place <= arrived[q.Waiters()[i-1].ID].place {
				t.Fatal("Inspect shows the waiters in another order")
			}
		}
	}
	bounded("Inspect of waiters", func() { queue(1, many) })
	bounded("a release that lets all in", func() {
		steps.Released(t, other, writer)
		await.All(t, &wg)
	})
	// a waiter that did not confirm its grant within the window has arrived again
	arrived = arrivals(k, "readers")
	bounded("Inspect of holders", func() { queue(many, 0) })
	breaker := other.(driver.Breaker)
	bounded("Break of a name that is not held", func() {
		if err := breaker.Break(t.Context(), "readers", 12345, true); err != driver.ErrNotHeld {
			t.Error(err)
		}
	})
	// one hold with many joins
	first := steps.Asked(other, "joins", ttl)
	token := steps.Acquired(t, other, first).Token
	joins := make([]driver.Request, 500)
	for i := range joins {
		joins[i] = steps.Asked(other, "joins", ttl)
		joins[i].Owner, joins[i].Token = first.ID, token
		steps.Acquired(t, other, joins[i])
	}
	bounded("Break of many joins", func() {
		if err := breaker.Break(t.Context(), "joins", token, false); err != nil {
			t.Error(err)
		}
		for _, err := range other.Renew(t.Context(), joins) {
			if err.Err != driver.ErrLost {
				t.Fatalf("a join of a hold that was broken: %v", err.Err)
			}
		}
	})
	bounded("Break of many joins by force", func() {
		if err := breaker.Break(t.Context(), "joins", token, true); err != nil {
			t.Error(err)
		}
		if q := steps.Queue(t, other, "joins"); q.Len() != 0 {
			t.Errorf("%d requests are left", q.Len())
		}
	})
	bounded("renewals", func() {
		for i := range readers {
			readers[i].TTL = 15 * time.Second // all are renewed before the first has expired
		}
		for _, r := range b.Renew(t.Context(), readers) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		}
	})
	await.That(t, "all have expired", func() bool {
		return k.ZLexCount(k.Ctx, queueKey("readers"), "[e", fmt.Sprintf("(e%016d", time.Now().UnixMicro())).Val() == many
	})
	bounded("renewals of what has expired", func() {
		for _, r := range b.Renew(t.Context(), readers[:1]) {
			if r.Err != driver.ErrLost {
				t.Errorf("a renewal of what has expired: %v", r.Err)
			}
		}
	})
	bounded("an arrival when all have expired", func() { steps.Acquired(t, other, steps.Waiting(other, "readers", ttl)) })
	arrived = arrivals(k, "readers")
	queue(1, 0)
}

// TestRedisListIsBounded: a list of many names reads them in several calls, and ends in time.
func TestRedisListIsBounded(t *testing.T) {
	t.Parallel()
	names := 20_000
	if size.Long() {
		names = 400_000
	}
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	// a third is held, and of the others the last token is remembered
	const script = `
local now, left = redis.call('TIME'), 3600 * 1000000
now = now[1] * 1000000 + now[2]
local function int(x) return string.format('%.0f', x) end
for i = ARGV[1] + 0, ARGV[2] - 1 do
  local key, id = 'dlock:{many/' .. i .. '}', string.format('%032x', i)
  redis.call('HSET', key, 'format', '3', 'token', int(now), 'holder', '', 'until', '0', 'flags', '-', 'queue', '0', 'kept', int(now + 2 * left))
  if i % 3 == 0 then
    redis.call('HSET', key, 'holder', id, 'client', id, 'label', 'many', 'ttl', int(left), 'since', int(now), 'until', int(now + left), 'mode', 'exclusive')
  end
  redis.call('PEXPIRE', key, '7200000')
end
return 1`
	for i := 0; i < names; i += 10_000 {
		k.Must("EVAL", script, 0, i, i+10_000)
	}
	c := openRedis(t, s, "read_timeout=10s")
	k.Must("CONFIG", "SET", "slowlog-log-slower-than", 1000, "slowlog-max-len", 100_000)
	k.Must("SLOWLOG", "RESET")
	list := func() {
		start := time.Now()
		all, err := c.List(t.Context())
		if err != nil || len(all) != (names+2)/3 || slices.ContainsFunc(all, func(n string) bool { return !strings.HasPrefix(n, "many/") }) {
			t.Errorf("List has %d of %d names: %v", len(all), (names+2)/3, err)
		}
		t.Logf("%d names of %d in %s", len(all), names, time.Since(start))
	}
	if names > 100_000 {
		list()
		var slow []time.Duration
		for _, l := range k.SlowLogGet(k.Ctx, -1).Val() {
			slow = append(slow, l.Duration)
		}
		slices.Sort(slow)
		t.Logf("%d commands took longer than a millisecond: %v", len(slow), slow[max(0, len(slow)-10):])
		return
	}
	w := k.WorkOf(list)
	if w.Longest > 5 || w.Calls < names {
		t.Errorf("List: %+v", w)
	}
}
