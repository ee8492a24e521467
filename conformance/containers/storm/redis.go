package main

import (
	"time"

	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// storing are the arguments of a Redis that keeps what it acknowledged, and whose snapshots fail: a
// folder has their name.
var storing = append(redis.Durable[:len(redis.Durable):len(redis.Durable)], "--maxmemory-policy", "noeviction", "--dbfilename", "appendonlydir")

// The faults of Redis.
var (
	memoryFull = fault{"memory full", "no memory is left for new keys (maxmemory, noeviction)", true, 0.2, 2, func(s *storm, _ *member, d time.Duration) {
		s.atRedis(d, func(k *redis.CLI) {
			k.Must("CONFIG", "SET", "maxmemory", 1)
			s.sleep(d)
			k.Must("CONFIG", "SET", "maxmemory", 0)
		})
	}}
	snapshotsFail = fault{"snapshots fail", "a snapshot cannot be written, and writes are refused (stop-writes-on-bgsave-error)", true, 0.2, 2, func(s *storm, _ *member, d time.Duration) {
		s.atRedis(d, func(k *redis.CLI) {
			k.Must("CONFIG", "SET", "save", "3600 1")
			k.Must("BGSAVE")
			for failed := false; !failed; s.sleep(10 * time.Millisecond) {
				info, err := k.Info(k.Ctx, "persistence").Result()
				if err != nil {
					s.t.Fatalf("%v", err)
				}
				failed = redis.InfoField(info, "rdb_last_bgsave_status") == "err"
			}
			s.sleep(d)
			k.Must("CONFIG", "SET", "save", "")
		})
	}}
	// A hold that a majority had with this server's vote has ended when it votes again.
	emptied = fault{"server emptied", "a server is killed, stays away for the longest TTL, and starts without its data", true, 1.1, 1.5, func(s *storm, _ *member, d time.Duration) {
		v := s.victim(d)
		v.Kill(s.t)
		s.sleep(d)
		v.RestartEmpty(s.t)
	}}
)

// storage are the faults of what Redis keeps.
var storage = []fault{memoryFull, snapshotsFail, rightsTaken}

// atRedis does something at a server, which no other fault concerns: d is drawn from the seed.
func (s *storm) atRedis(d time.Duration, f func(*redis.CLI)) {
	k := redis.CLIOf(s.t, s.victim(d))
	defer k.Close()
	f(k)
}

// redisServer starts a Redis for clients that have the rights alone that a page documents, in the
// words of ACL SETUSER.
func redisServer(t service.T, rights []string) *service.Server {
	t.Helper()
	return service.StartOwn(t, redis.Redis.WithClock(t).With(storing...).With(append([]string{"--user", user, "on", "nopass"}, rights...)...))
}
