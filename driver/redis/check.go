package redis

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/conn"
	"github.com/dlock-go/dlock/driver/redis/internal/fault"
	"github.com/dlock-go/dlock/driver/redis/internal/keyspace"
	"github.com/dlock-go/dlock/driver/redis/internal/survey"
)

const page = "docs/redis.md"

// check implements [driver.Checker].
func check(ctx context.Context, c driver.Config) ([]driver.Finding, error) {
	s, err := parse(c)
	if err != nil {
		return nil, err
	}
	rdb := s.client(c.URL.Scheme)
	defer conn.Close(rdb)
	if err := rdb.Ping(ctx).Err(); err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
		return nil, fmt.Errorf("reach %s: %w", strings.Join(s.hosts, ", "), fault.Closed(fault.Explain(fault.Late(fault.WithoutArguments(err)), page)))
	}
	servers := []survey.Doer{rdb}
	names := []string{""}
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		var mu sync.Mutex
		var masters []survey.Doer
		var addrs []string
		err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			masters, addrs = append(masters, node), append(addrs, " of "+node.Options().Addr)
			return nil
		})
		switch {
		case err == nil:
			servers, names = masters, addrs
		case !redis.HasErrorPrefix(err, "NOPERM"):
			return nil, err
		}
	}
	found, err := s.format.check(ctx, s, rdb, servers)
	if err != nil {
		return nil, err
	}
	for i, server := range servers {
		fs, err := survey.Server(ctx, server, s.format.replicas)
		if err != nil {
			return found, err
		}
		for _, f := range fs {
			f.About += names[i]
			found = append(found, f)
		}
	}
	return found, nil
}

// checkNative tries the commands of the scripts, on a key that no name uses.
func checkNative(ctx context.Context, s *settings, rdb redis.UniversalClient, servers []survey.Doer) ([]driver.Finding, error) {
	space := keyspace.New(s.o.Prefix)
	id := driver.NewID().String()
	key, queue := space.Keys("dlock-check/" + id)
	channel := space.Channels() + id
	commands := [][]any{
		{"eval", "return 1", 1, key},
		{"evalsha", strings.Repeat("0", 40), 1, key},
		{"time"},
		{"hmget", key, "format"},
		{"hset", key, "format", "", "token"}, // a value is missing
		{"exists", key},
		{"pexpire", key, 60_000},
		{"zadd", queue, "xx", 0, "x"},
		{"zrange", queue, 0, 0},
		{"zlexcount", queue, "-", "+"},
		{"zrem", queue, "x"},
		{"del", queue},
		{"publish", channel, ""},
		{"ping"},
		{"scan", 0, "count", 1},
	}
	if s.o.WaitReplicas > 0 {
		commands = append(commands, []any{"wait", 0, 1})
	}
	if _, ok := rdb.(*redis.ClusterClient); ok {
		commands = append(commands, []any{"cluster", "slots"}, []any{"asking"})
	}
	f, err := survey.Rights(ctx, servers, survey.Needs{
		Page: page, Keys: "~" + space.Pattern() + "*", Channels: "&" + space.Channels() + "*", Commands: commands, Subscribe: channel,
	})
	return []driver.Finding{f}, err
}
