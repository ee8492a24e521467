package redis

import (
	"fmt"
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/internal/size"
)

// TestRedisSetNXPeers: processes of dlock, redsync, redislock and redis-py take turns on the same
// keys, and all of them die while they hold a lock. Never two are in.
func TestRedisSetNXPeers(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	py := service.StartOwn(t, RedisPy)
	rec := service.NewRecorder(t)
	url := s.URL + "/0?format=setnx&key=lock:{name}&retry_delay=20ms"
	keys := []string{"lock:a", "lock:b", "lock:c"}
	child := func(kind, target string) func(who string) (kill, end func()) {
		return func(who string) (kill, end func()) {
			c := SetNXWorker.Start(t, append([]string{kind, who, rec.Addr, target}, keys...)...)
			return c.Kill, c.Wait
		}
	}
	python := func(who string) (kill, end func()) {
		p := DialPy(t, py, s)
		args := []any{who, SetNXTTL.Seconds(), rec.Addr}
		for _, k := range keys {
			args = append(args, k)
		}
		p.Do(t, "work", args...)
		return func() { py.Kill(t); py.Restart(t) }, p.Close
	}
	processes := []struct {
		who   string
		start func(who string) (kill, end func())
	}{
		{"dlock-1", child("dlock", url)}, {"redsync", child("redsync", s.Addr)}, {"dlock-2", child("dlock", url)},
		{"redislock", child("redislock", s.Addr)}, {"redis-py", python},
	}
	kill, end := make([]func(), len(processes)), make([]func(), len(processes))
	for i, p := range processes {
		kill[i], end[i] = p.start(p.who)
	}
	rounds := 2
	if size.Long() {
		rounds = 10
	}
	for round := range rounds {
		for i, p := range processes {
			await.That(t, fmt.Sprintf("%s has its turns of round %d", p.who, round), func() bool { return rec.Turns(p.who) >= 20*(round+1) })
			rec.KillInside(t, p.who, kill[i])
			kill[i], end[i] = p.start(p.who)
		}
	}
	for _, p := range processes {
		await.That(t, p.who+" has its last turns", func() bool { return rec.Turns(p.who) >= 20*(rounds+1) })
	}
	for _, e := range end {
		e()
	}
	if n := rec.Verdict(t); n < 240 {
		t.Errorf("only %d critical sections", n)
	}
	// what is left expires
	k := CLIOf(t, s)
	for _, key := range k.Keys(k.Ctx, "*").Val() {
		if d := k.PTTL(k.Ctx, key).Val(); d < 0 && k.Exists(k.Ctx, key).Val() == 1 {
			t.Errorf("%s has no expiry", key)
		}
	}
}
