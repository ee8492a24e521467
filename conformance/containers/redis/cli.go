package redis

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// InfoField returns a field of what INFO answers.
func InfoField(info, name string) string {
	for line := range strings.Lines(info) {
		if key, v, _ := strings.Cut(strings.TrimSpace(line), ":"); key == name {
			return v
		}
	}
	return ""
}

// dialRedis returns a client that neither retries nor sends anything by itself.
func dialRedis(url string) (*redis.Client, error) {
	return dialRedisFor(url, time.Second, 3*time.Second)
}

// dialRedisFor is dialRedis for one that waits so long for a connection, and for an answer.
func dialRedisFor(url string, dial, answer time.Duration) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.MaxRetries = -1
	steps.Newer(o, "DialerRetries", 1)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = dial, answer, answer
	o.DisableIdentity = true
	return redis.NewClient(o), nil
}

// CLI runs commands on a Redis server, for a test.
type CLI struct {
	t service.T
	*redis.Client
	Ctx context.Context // as long as a test may take
}

// CLIOf returns the CLI of a server, until the end of the test.
func CLIOf(t service.T, s *service.Server) *CLI {
	t.Helper()
	// The server may be slow, or stand still for a moment. Its answer is worth the wait.
	c, err := dialRedisFor(s.URL, time.Minute, time.Minute)
	if err != nil {
		t.Fatalf("%v", err)
	}
	// as long as a test may take
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(func() { cancel(); c.Close() })
	return &CLI{t, c, ctx}
}

// Must runs a command that has to succeed.
func (c *CLI) Must(args ...any) {
	c.t.Helper()
	if err := c.Do(c.Ctx, args...).Err(); err != nil {
		c.t.Fatalf("%v: %v", args, err)
	}
}

func roleOf(s *service.Server) string {
	c, err := dialRedis(s.URL)
	if err != nil {
		return ""
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, _ := c.Info(ctx, "replication").Result()
	return InfoField(info, "role")
}
