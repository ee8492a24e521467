package moving

import (
	"bufio"
	"context"
	"io"
	"path"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/go-zookeeper/zk"
	goredis9 "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/zookeeper"
)

// redsyncMember is a process of a fleet that locks with redsync: its arguments are the address of
// Redis, the name of the lock, and the recorder.
var redsyncMember = service.NewProgram("redsync", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	rdb := goredis9.NewClient(&goredis9.Options{Addr: args[0]})
	defer rdb.Close()
	rs := redsync.New(goredis.NewPool(rdb))
	return works(in, args[2], func(ctx context.Context) (func() error, error) {
		m := rs.NewMutex("lock:"+args[1], redsync.WithExpiry(phaseTTL), redsync.WithTries(1000), redsync.WithRetryDelay(20*time.Millisecond))
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error {
			_, err := m.UnlockContext(context.Background())
			return err
		}, nil
	})
})

// zkMember is a process of a fleet that locks with zk.Lock of go-zookeeper.
var zkMember = service.NewProgram("zk.Lock", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	conn, _, err := zk.Connect([]string{args[0]}, phaseTTL, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	defer conn.Close()
	return works(in, args[2], func(context.Context) (func() error, error) {
		l := zk.NewLock(conn, path.Join("/locks", args[1]), zk.WorldACL(zk.PermAll))
		if err := l.Lock(); err != nil {
			return nil, err
		}
		return l.Unlock, nil
	})
})

// TestFleetFromRedsync: a fleet moves from redsync to redis: on the same server.
func TestFleetFromRedsync(t *testing.T) {
	s := service.Start(t, redis.Redis)
	both := s.URL + "?format=setnx&key=lock:{name} " + s.URL
	moveFleet(t, "orders", phase{redsyncMember, []string{s.Addr}}, phase{member, []string{both}}, phase{member, []string{s.URL}})
}

// TestFleetFromZKLock: a fleet moves from zk.Lock to zookeeper: on the same ensemble.
func TestFleetFromZKLock(t *testing.T) {
	s := service.Start(t, zookeeper.ZooKeeper)
	both := s.URL + "?format=curator&path=/locks/{name} " + s.URL
	moveFleet(t, "orders", phase{zkMember, []string{s.Addr}}, phase{member, []string{both}}, phase{member, []string{s.URL}})
}

// TestFleetFromGetLock: a fleet moves from GET_LOCK to mysql: on the same server.
func TestFleetFromGetLock(t *testing.T) {
	at := places(t)
	old, new := at["mysql, get_lock"].url, at["mysql"].url
	moveFleet(t, "orders", phase{member, []string{old}}, phase{member, []string{old + " " + new}}, phase{member, []string{new}})
}
