// Package redis runs the driver on Redis and Valkey: alone, under Sentinel, and as a cluster. Other
// packages take the servers from it.
package redis

import (
	"context"
	"fmt"
	"strconv"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// Redis is Redis 8, which keeps its data in memory only.
var Redis = service.Kind{
	Name:    "redis",
	Image:   "redis:8",
	Built:   "dlock-test/redis:8",
	Package: "redis-server",
	Command: redisCommand("redis-server"),
	URL:     func(addr string) string { return "redis://" + addr },
	Ask:     askRedis,
}

// Valkey is Valkey 8, which keeps its data in memory only.
var Valkey = service.Kind{
	Name:    "valkey",
	Image:   "valkey/valkey:8",
	Built:   "dlock-test/valkey:8",
	Package: "valkey-server",
	Command: redisCommand("valkey-server"),
	URL:     func(addr string) string { return "redis://" + addr },
	Ask:     askRedis,
}

// Durable are the arguments with which a killed Redis or Valkey has kept all that it acknowledged.
// (In tests no machine crashes, so nothing has to reach the disk.)
var Durable = []string{"--appendonly", "yes", "--appendfsync", "no"}

func redisCommand(program string) func(string, []int) []string {
	return func(dir string, ports []int) []string {
		return []string{program, "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", dir, "--save", ""}
	}
}

func askRedis(ctx context.Context, url string) (string, error) {
	c, err := dialRedis(url)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.Ping(ctx).Err(); err != nil { // refused while it loads its data
		return "", err
	}
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	// Valkey has both, the second for the sake of old clients
	for _, name := range []string{"valkey", "redis"} {
		if v := InfoField(info, name+"_version"); v != "" {
			return name + " " + v, nil
		}
	}
	return "", fmt.Errorf("INFO without a version")
}
