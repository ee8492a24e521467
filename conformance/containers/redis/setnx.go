package redis

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	_ "github.com/dlock-go/dlock/driver/redis" // the children open it
	_ "github.com/dlock-go/dlock/driver/redis/redlock"
)

//go:embed setnx_peer.py
var setNXPeer string

// RedisPy is a program of Python that locks with redis-py.
var RedisPy = service.Kind{
	Name:    "redispy",
	Image:   "dlock-test/redispy:6",
	Built:   "dlock-test/redispy:6",
	Package: "python3-redis",
	Files:   map[string]string{"peer.py": setNXPeer},
	Command: func(dir string, ports []int) []string {
		return []string{"python3", "-u", dir + "/peer.py", strconv.Itoa(ports[0])}
	},
	URL: func(addr string) string { return "tcp://" + addr },
	Ask: func(ctx context.Context, url string) (string, error) {
		c, err := dialPeer(ctx, strings.TrimPrefix(url, "tcp://"))
		if err != nil {
			return "", err
		}
		defer c.conn.Close()
		return c.version, nil
	},
}

// PyPeer is a connection to a server of the kind RedisPy.
type PyPeer struct {
	conn    net.Conn
	lines   *bufio.Reader
	version string
}

func dialPeer(ctx context.Context, addr string) (*PyPeer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &PyPeer{conn: conn, lines: bufio.NewReader(conn)}
	conn.SetDeadline(time.Now().Add(10 * time.Minute))
	if err := p.answer(&p.version); err != nil {
		conn.Close()
		return nil, err
	}
	return p, nil
}

func (p *PyPeer) answer(v any) error {
	line, err := p.lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// DialPy connects to the program, and the program to the Redis server.
func DialPy(t service.T, py, s *service.Server) *PyPeer {
	t.Helper()
	p, err := dialPeer(context.Background(), py.Addr)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(p.Close)
	host, port, _ := net.SplitHostPort(s.Addr)
	n, _ := strconv.Atoi(port)
	if got := p.Do(t, "connect", host, n); got != true {
		t.Fatalf("redis-py answers %v", got)
	}
	return p
}

// Close ends the connection, and with it what was begun on it.
func (p *PyPeer) Close() { p.conn.Close() }

// Do runs a command of the program, and returns its answer.
func (p *PyPeer) Do(t service.T, command string, args ...any) (v any) {
	t.Helper()
	line, err := json.Marshal(append([]any{command}, args...))
	if err == nil {
		_, err = p.conn.Write(append(line, '\n'))
	}
	if err = cmp.Or(err, p.answer(&v)); err != nil {
		t.Fatalf("redis-py %s %v: %v", command, args, err)
	}
	return v
}

// SetNXTTL is for how long the processes of SetNXWorker lock.
const SetNXTTL = 3 * time.Second

// SetNXWorker takes turns on keys, and reports each to a recorder: KIND WHO RECORDER TARGET KEY….
// The kinds are dlock, whose target is the URL and whose keys are names; and redsync and redislock,
// whose target are the addresses of servers.
var SetNXWorker = service.NewProgram("setnx-worker", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	kind, who, recorder, target, keys := args[0], args[1], args[2], args[3], args[4:]
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	take, err := taker(ctx, kind, target)
	if err != nil {
		return err
	}
	failed := make(chan error, len(keys))
	var all sync.WaitGroup
	for _, key := range keys {
		all.Go(func() { failed <- turns(ctx, take, who, recorder, key) })
	}
	for in.Scan() {
	}
	stop()
	all.Wait()
	close(failed)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
})

// section is a lock that is held.
type section struct {
	key     string    // in the recorder
	until   time.Time // the holder trusts in it until then
	release func()
}

// taker returns the function that takes locks of that kind.
func taker(ctx context.Context, kind, target string) (func(ctx context.Context, key string) (section, error), error) {
	switch kind {
	case "dlock":
		c, err := dlock.Open(ctx, target, dlock.TTL(SetNXTTL), dlock.Logger(nil))
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, key string) (section, error) {
			l, err := c.Mutex(strings.TrimPrefix(key, "lock:")).Lock(ctx)
			if err != nil {
				return section{}, err
			}
			return section{key, l.Until(), func() { l.Unlock(context.Background()) }}, nil
		}, nil
	case "redsync":
		var pools []redsyncredis.Pool
		for addr := range strings.SplitSeq(target, ",") {
			pools = append(pools, redsyncpool.NewPool(redis.NewClient(&redis.Options{Addr: addr})))
		}
		rs := redsync.New(pools...)
		return func(ctx context.Context, key string) (section, error) {
			m := rs.NewMutex(key, redsync.WithExpiry(SetNXTTL), redsync.WithTries(1), redsync.WithTimeoutFactor(0.3))
			for {
				until := time.Now().Add(SetNXTTL * 9 / 10)
				err := m.LockContext(ctx)
				if err == nil {
					return section{key, until, func() { m.UnlockContext(context.Background()) }}, nil
				}
				if ctx.Err() != nil {
					return section{}, err
				}
				time.Sleep(20 * time.Millisecond)
			}
		}, nil
	}
	client := redislock.New(redis.NewClient(&redis.Options{Addr: target}))
	return func(ctx context.Context, key string) (section, error) {
		for {
			until := time.Now().Add(SetNXTTL * 9 / 10)
			l, err := client.Obtain(ctx, key, SetNXTTL, nil)
			if err == nil {
				return section{key, until, func() { l.Release(context.Background()) }}, nil
			}
			if ctx.Err() != nil || !errors.Is(err, redislock.ErrNotObtained) {
				return section{}, err
			}
			time.Sleep(20 * time.Millisecond)
		}
	}, nil
}

// turns takes turns on a key until ctx ends.
func turns(ctx context.Context, take func(context.Context, string) (section, error), who, recorder, key string) error {
	report, err := service.NewReporter(recorder, who)
	if err != nil {
		return err
	}
	defer report.Close()
	for ctx.Err() == nil {
		s, err := take(ctx, key)
		if err != nil {
			if ctx.Err() == nil {
				time.Sleep(50 * time.Millisecond) // a master may be down
			}
			continue
		}
		const stay = 3 * time.Millisecond
		if time.Now().Before(s.until) {
			if err := report.Section(s.key, s.until, stay); err != nil {
				return err
			}
			time.Sleep(stay)
		}
		s.release()
	}
	return nil
}
