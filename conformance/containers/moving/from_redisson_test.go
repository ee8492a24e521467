package moving

import (
	"bufio"
	"context"
	"io"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

func refund(ctx context.Context, client *dlock.Client, order string, pay func(context.Context) error) error {
	lease, err := client.Mutex("orders/" + order).Lock(ctx)
	if err != nil {
		return err
	}
	defer lease.Unlock(ctx)
	return pay(lease.Context(ctx)) // which ends if the lock is lost
}

// redissonBefore is a process that locks as Redisson does: its arguments are the URL, the order,
// and the recorder.
var redissonBefore = service.NewProgram("Redisson, before", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	lock, err := redis.NewRedissonPeer(args[0], "2026", "orders/"+args[1], phaseTTL)
	if err != nil {
		return err
	}
	return takesTurns(in, args[2], func(ctx context.Context, pay func(context.Context) error) error {
		if _, err := lock.Lock(ctx); err != nil {
			return err
		}
		defer lock.Unlock(context.WithoutCancel(ctx))
		return pay(ctx)
	})
})

// redissonAfter is a process that has moved: its first argument is one URL or two.
var redissonAfter = service.NewProgram("Redisson, after", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	client, err := dlock.Open(context.Background(), args[0], dlock.Logger(nil), dlock.TTL(phaseTTL))
	if err != nil {
		return err
	}
	defer client.Close()
	return takesTurns(in, args[2], func(ctx context.Context, pay func(context.Context) error) error {
		return refund(ctx, client, args[1], pay)
	})
})

// TestFleetFromRedisson: a fleet moves from processes that lock as Redisson does to redis: on the
// same server, with the code of the page.
func TestFleetFromRedisson(t *testing.T) {
	t.Parallel()
	pageHas(t, "from-redisson.md", "from_redisson_test.go")
	s := service.Start(t, redis.Redis)
	both := s.URL + "?format=redisson " + s.URL
	moveFleet(t, "43", phase{redissonBefore, []string{s.URL}}, phase{redissonAfter, []string{both}}, phase{redissonAfter, []string{s.URL}})
}
