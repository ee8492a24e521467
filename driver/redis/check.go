package redis

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver"
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
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
		return nil, fmt.Errorf("reach %s: %w", strings.Join(s.hosts, ", "), fault.Explain(fault.Late(err), page))
	}
	rights, err := s.rights(ctx, rdb)
	if err != nil {
		return nil, err
	}
	found := []driver.Finding{rights}
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		fs, err := survey.Server(ctx, rdb)
		return append(found, fs...), err
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		fs, err := survey.Server(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		for _, f := range fs {
			f.About += " of " + node.Options().Addr
			found = append(found, f)
		}
		return err
	})
	return found, err
}

// rights tries what the scripts do on a key that no name has.
func (s *settings) rights(ctx context.Context, rdb redis.UniversalClient) (driver.Finding, error) {
	space := keyspace.New(s.o.Prefix)
	id := driver.NewID().String()
	key, channel := space.Key("dlock-check/"+id), space.Channels()+id
	commands := [][]any{
		{"eval", "return 1", 1, key},
		{"evalsha", strings.Repeat("0", 40), 1, key},
		{"time"},
		{"zadd", key, "xx", 0, "x"},
		{"pexpire", key, 60_000},
		{"zrange", key, 0, 0},
		{"zlexcount", key, "-", "+"},
		{"zrem", key, "x"},
		{"publish", channel, ""},
		{"ping"},
		{"scan", 0, "count", 1},
	}
	if s.o.WaitReplicas > 0 {
		commands = append(commands, []any{"wait", 0, 1})
	}
	if _, ok := rdb.(*redis.ClusterClient); ok {
		commands = append(commands, []any{"cluster", "slots"})
	}
	sub := rdb.Subscribe(ctx, channel)
	defer sub.Close()
	_, refused := sub.Receive(ctx)
	return survey.Rights(ctx, rdb, survey.Needs{
		Page: page, Keys: "~" + space.Pattern(), Channels: "&" + space.Channels() + "*", Commands: commands, Subscribe: refused,
	})
}
