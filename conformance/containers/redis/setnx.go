package redis

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
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
	"github.com/dlock-go/dlock/conformance/internal/await"
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

// Recorder records critical sections outside of all locks. Each process reports over connections of
// its own when it is in and when it is out; a connection that ends is out.
type Recorder struct {
	Addr string

	mu     sync.Mutex
	inside map[string][]string // processes, by key
	turns  map[string]int      // by process
	died   map[string]int      // processes that ended inside, how often
	twice  []string            // what was wrong
	hang   string              // the process whose next section does not end
	hangs  chan struct{}       // closed when it is inside
}

// NewRecorder starts a recorder, until the test ends.
func NewRecorder(t service.T) *Recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("%v", err)
	}
	r := &Recorder{Addr: l.Addr().String(), inside: map[string][]string{}, turns: map[string]int{}, died: map[string]int{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.serve(conn) })
			t.Cleanup(func() { conn.Close() })
		}
	})
	t.Cleanup(func() { l.Close() })
	return r
}

func (r *Recorder) serve(conn net.Conn) {
	defer conn.Close()
	var in []string // the process and the key, while it is inside
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		f := strings.Fields(lines.Text()) // in PROCESS KEY, out PROCESS KEY
		if len(f) != 3 {
			break
		}
		if f[0] == "in" {
			if in = f[1:]; r.enter(in[0], in[1]) {
				continue // it gets no answer
			}
		} else {
			r.leave(f[1], f[2], false)
			in = nil
		}
		io.WriteString(conn, "ok\n")
	}
	if in != nil {
		r.leave(in[0], in[1], true)
	}
}

// enter reports whether the section is not to end.
func (r *Recorder) enter(who, key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if there := r.inside[key]; len(there) > 0 {
		r.twice = append(r.twice, fmt.Sprintf("%s came to %s while %v was in", who, key, there))
	}
	r.inside[key] = append(r.inside[key], who)
	r.turns[who]++
	if who != r.hang {
		return false
	}
	r.hang = ""
	close(r.hangs)
	return true
}

func (r *Recorder) leave(who, key string, died bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.inside[key], who); i >= 0 {
		r.inside[key] = slices.Delete(r.inside[key], i, i+1)
	}
	if died {
		r.died[who]++
	}
}

// KillInside kills a process while it is in a critical section.
func (r *Recorder) KillInside(t service.T, who string, kill func()) {
	t.Helper()
	r.mu.Lock()
	before, hangs := r.died[who], make(chan struct{})
	r.hang, r.hangs = who, hangs
	r.mu.Unlock()
	await.Closed(t, who+" has the lock", hangs)
	kill()
	await.That(t, who+" is gone", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.died[who] > before
	})
}

// Turns returns the number of sections of a process.
func (r *Recorder) Turns(who string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns[who]
}

// Verdict returns what was recorded, and fails the test if two were ever inside.
func (r *Recorder) Verdict(t service.T) (sections int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.turns {
		sections += n
	}
	var lines []string
	for _, who := range slices.Sorted(maps.Keys(r.turns)) {
		lines = append(lines, fmt.Sprintf("%s %d (died in %d)", who, r.turns[who], r.died[who]))
	}
	t.Logf("critical sections: %s", strings.Join(lines, ", "))
	if len(r.twice) > 0 {
		t.Fatalf("%d times two were in: %s", len(r.twice), strings.Join(r.twice[:min(5, len(r.twice))], "; "))
	}
	return sections
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
	name    string      // of the lock in the recorder
	valid   func() bool // whether the holder may still trust in it
	release func()
}

// taker returns the function that takes locks of that kind.
func taker(ctx context.Context, kind, target string) (func(ctx context.Context, key string) (section, error), error) {
	young := func() func() bool {
		asked := time.Now()
		return func() bool { return time.Since(asked) < SetNXTTL/2 }
	}
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
			return section{key, func() bool { return l.Err() == nil }, func() { l.Unlock(context.Background()) }}, nil
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
				valid := young()
				err := m.LockContext(ctx)
				if err == nil {
					return section{key, valid, func() { m.UnlockContext(context.Background()) }}, nil
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
			valid := young()
			l, err := client.Obtain(ctx, key, SetNXTTL, nil)
			if err == nil {
				return section{key, valid, func() { l.Release(context.Background()) }}, nil
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
	conn, err := net.Dial("tcp", recorder)
	if err != nil {
		return err
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	for ctx.Err() == nil {
		s, err := take(ctx, key)
		if err != nil {
			if ctx.Err() == nil {
				time.Sleep(50 * time.Millisecond) // a master may be down
			}
			continue
		}
		if s.valid() {
			for _, what := range []string{"in", "out"} {
				if _, err := fmt.Fprintln(conn, what, who, s.name); err != nil {
					return err
				}
				if _, err := lines.ReadString('\n'); err != nil {
					return err
				}
				time.Sleep(3 * time.Millisecond)
			}
		}
		s.release()
	}
	return nil
}
