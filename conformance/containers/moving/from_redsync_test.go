package moving

import (
	"bufio"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis9 "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

func chargeWithRedsync(ctx context.Context, rs *redsync.Redsync, order string, steps ...func(context.Context) error) error {
	m := rs.NewMutex("lock:orders/"+order, redsync.WithExpiry(3*time.Second))
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	defer m.UnlockContext(context.WithoutCancel(ctx))
	for _, step := range steps {
		if extended, err := m.ExtendContext(ctx); !extended {
			return errors.Join(errors.New("the lock is lost"), err)
		}
		if err := step(ctx); err != nil { // takes less than three seconds, it is hoped
			return err
		}
	}
	return nil
}

func charge(ctx context.Context, client *dlock.Client, order string, steps ...func(context.Context) error) error {
	m := client.Mutex("orders/"+order, dlock.TTL(3*time.Second), dlock.Wait(5*time.Second))
	return dlock.Do(ctx, m, func(ctx context.Context) error {
		for _, step := range steps {
			if err := step(ctx); err != nil { // ctx ends if the lock is lost
				return err
			}
		}
		return nil
	})
}

// redsyncBefore is a process of a fleet that locks with redsync: its arguments are the address of
// Redis, the order, and the recorder.
var redsyncBefore = service.NewProgram("redsync, before", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	rdb := goredis9.NewClient(&goredis9.Options{Addr: args[0]})
	defer rdb.Close()
	rs := redsync.New(goredis.NewPool(rdb))
	return takesTurns(in, args[2], func(ctx context.Context, work func(context.Context) error) error {
		return chargeWithRedsync(ctx, rs, args[1], work)
	})
})

// redsyncAfter is such a process that has moved: its first argument is one URL or two.
var redsyncAfter = service.NewProgram("redsync, after", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	client, err := dlock.Open(context.Background(), args[0], dlock.Logger(nil))
	if err != nil {
		return err
	}
	defer client.Close()
	return takesTurns(in, args[2], func(ctx context.Context, work func(context.Context) error) error {
		return charge(ctx, client, args[1], work)
	})
})

// TestFleetFromRedsync: a fleet moves from redsync to redis: on the same server, with the code of
// the page.
func TestFleetFromRedsync(t *testing.T) {
	t.Parallel()
	pageHas(t, "from-redsync.md", "from_redsync_test.go")
	s := service.Start(t, redis.Redis)
	both := s.URL + "?format=setnx&key=lock:{name} " + s.URL
	moveFleet(t, "42", phase{redsyncBefore, []string{s.Addr}}, phase{redsyncAfter, []string{both}}, phase{redsyncAfter, []string{s.URL}})
}
