package etcd

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/internal/size"
)

// plainLock is what the peers lock; dlock has its last part as the name.
const plainLock = "/locks/turns"

// workerTTL is the TTL of all workers' leases.
const workerTTL = 2 * time.Second

// plainWorkers are the Go programs, by the peer whose lock they use. Each gets a way to lock, which
// returns a way to unlock.
var plainWorkers = map[string]service.Program{
	"dlock": plainWorker("dlock", func(c *clientv3.Client) (plainLocker, error) {
		d, err := dlock.Open(context.Background(), "etcd://"+c.Endpoints()[0]+"?keys=plain&key=%2Flocks%2F{name}", dlock.Logger(nil), dlock.TTL(workerTTL))
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) (func() error, error) {
			l, err := d.Mutex(filepath.Base(plainLock)).Lock(ctx)
			if err != nil {
				return nil, err
			}
			return func() error { return l.Unlock(ctx) }, nil
		}, nil
	}),
	"mutex": plainWorker("mutex", func(c *clientv3.Client) (plainLocker, error) {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(workerTTL.Seconds())))
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) (func() error, error) {
			m := concurrency.NewMutex(s, plainLock)
			return func() error { return m.Unlock(ctx) }, m.Lock(ctx)
		}, nil
	}),
	"election": plainWorker("election", func(c *clientv3.Client) (plainLocker, error) {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(workerTTL.Seconds())))
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) (func() error, error) {
			e := concurrency.NewElection(s, plainLock)
			return func() error { return e.Resign(ctx) }, e.Campaign(ctx, "a candidate")
		}, nil
	}),
	"v3lock": plainWorker("v3lock", func(c *clientv3.Client) (plainLocker, error) {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(workerTTL.Seconds())))
		if err != nil {
			return nil, err
		}
		srv := services{c.ActiveConnection()}
		return func(ctx context.Context) (func() error, error) { // the session is for its lease
			key, err := srv.Lock(ctx, plainLock, int64(s.Lease()))
			return func() error { return srv.Unlock(ctx, key) }, err
		}, nil
	}),
}

type plainLocker func(context.Context) (unlock func() error, err error)

// plainWorker names a program that takes turns until its input ends.
func plainWorker(peer string, open func(*clientv3.Client) (plainLocker, error)) service.Program {
	return service.NewProgram("etcd plain "+peer, func(in *bufio.Scanner, _ io.Writer, args []string) error {
		addr, r, who := args[0], turns(args[1]), args[2]
		c, err := dialEtcd([]string{addr})
		if err != nil {
			return err
		}
		lock, err := open(c)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			for in.Scan() {
			}
			cancel()
		}()
		for ctx.Err() == nil {
			unlock, err := lock(ctx)
			if err == nil {
				if err = r.enter(who); err == nil {
					time.Sleep(10 * time.Millisecond)
					err = r.leave()
				}
				if e := unlock(); err == nil {
					err = e
				}
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})
}

// turns is the record of the workers, outside of the locks: a folder. The file "in" names the
// worker that has its turn, "log" has a line for each turn, and "wrong" has one for each worker
// that came in beside another.
type turns string

func (r turns) file(name string) string { return filepath.Join(string(r), name) }

func (r turns) add(name, line string) error {
	f, err := os.OpenFile(r.file(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}

// enter records that a worker comes in. A link is made whole, or not at all.
func (r turns) enter(who string) error {
	if err := os.WriteFile(r.file(who), []byte(who), 0o600); err != nil {
		return err
	}
	if err := os.Link(r.file(who), r.file("in")); err != nil {
		return r.add("wrong", who+": "+err.Error())
	}
	return r.add("log", who)
}

func (r turns) leave() error { return os.Remove(r.file("in")) }

// script is the same for a shell.
func (r turns) script(who string) string {
	return fmt.Sprintf(`cd '%s' && echo -n %[2]s >%[2]s && { ln %[2]s in || echo %[2]s >>wrong; } && echo %[2]s >>log && sleep 0.01 && rm in`, r, who)
}

// in returns the worker that has its turn; "": none.
func (r turns) in() string {
	text, _ := os.ReadFile(r.file("in"))
	return string(text)
}

// log returns the turns so far.
func (r turns) log() []string {
	text, _ := os.ReadFile(r.file("log"))
	return strings.Fields(string(text))
}

// worker is a process that takes turns.
type worker interface {
	Stop()
	Kill()
}

// ctlWorker runs "etcdctl lock" with a command again and again.
type ctlWorker struct {
	t   *testing.T
	run func() *exec.Cmd

	mu    sync.Mutex
	cmd   *exec.Cmd
	over  bool
	ended chan struct{}
}

func startCtl(t *testing.T, run func() *exec.Cmd) *ctlWorker {
	w := &ctlWorker{t: t, run: run, ended: make(chan struct{})}
	go w.work()
	t.Cleanup(w.Kill)
	return w
}

func (w *ctlWorker) work() {
	defer close(w.ended)
	for {
		var out bytes.Buffer
		w.mu.Lock()
		if w.over {
			w.mu.Unlock()
			return
		}
		w.cmd = w.run()
		// its command has to end with it
		w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		w.cmd.Stdout, w.cmd.Stderr = &out, &out
		err := w.cmd.Start()
		w.mu.Unlock()
		if err == nil {
			err = w.cmd.Wait()
		}
		w.mu.Lock()
		over := w.over
		w.mu.Unlock()
		if err != nil && !over {
			w.t.Errorf("etcdctl lock: %v\n%s", err, out.Bytes())
			return
		}
	}
}

func (w *ctlWorker) signal(s syscall.Signal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = w.over || s == syscall.SIGKILL
	if w.cmd != nil && w.cmd.Process != nil {
		syscall.Kill(-w.cmd.Process.Pid, s)
	}
}

// Stop stops the process and its command.
func (w *ctlWorker) Stop() { w.signal(syscall.SIGSTOP) }

// Kill ends both.
func (w *ctlWorker) Kill() {
	w.signal(syscall.SIGKILL)
	<-w.ended
}

// TestPlainTurns: dlock, concurrency.Mutex, concurrency.Election, etcdctl lock and the service
// v3lock take turns in one lock, each in processes of their own, some of which are killed in their
// turn: no two are ever in, and each peer goes on.
func TestPlainTurns(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	etcdctl := service.Tool(t, Etcd, "etcdctl")
	r := turns(t.TempDir())
	workers, started := map[string]worker{}, 0
	start := func(peer string) {
		t.Helper()
		started++
		who := peer + "-" + strconv.Itoa(started)
		if peer == "etcdctl" {
			workers[who] = startCtl(t, func() *exec.Cmd {
				return exec.Command(etcdctl, "--endpoints="+s.Addr, "lock", "--ttl="+strconv.Itoa(int(workerTTL.Seconds())), plainLock, "--", "sh", "-c", r.script(who))
			})
			return
		}
		workers[who] = plainWorkers[peer].Start(t, s.Addr, string(r), who)
	}
	for _, peer := range []string{"dlock", "dlock", "mutex", "election", "etcdctl", "v3lock"} {
		start(peer)
	}
	peerOf := func(who string) string {
		peer, _, _ := strings.Cut(who, "-")
		return peer
	}
	// one of each peer is killed in its turn, and dlock twice
	kill := map[string]int{"dlock": 2, "mutex": 1, "election": 1, "etcdctl": 1, "v3lock": 1}
	for peer := range kill {
		kill[peer] = size.Longer(kill[peer])
	}
	want, left := size.Longer(240), 0
	for _, n := range kill {
		left += n
	}
	all := left
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("in: %q; turns %d, kills left %v; queue %q", r.in(), len(r.log()), kill, plainKeys(t, etcdOf(t, s), "turns"))
		}
	})
	await.Within(t, 3*time.Minute, "all turns", func() bool {
		if bad, err := os.ReadFile(r.file("wrong")); err == nil {
			t.Fatalf("two were in at once:\n%s", bad)
		}
		if t.Failed() {
			t.FailNow()
		}
		who := r.in()
		// kills are spread over the run
		if w := workers[who]; w != nil && kill[peerOf(who)] > 0 && len(r.log()) >= want*(all-left)/all {
			if w.Stop(); r.in() == who {
				w.Kill()
				if err := r.leave(); err != nil {
					t.Fatal(err)
				}
				delete(workers, who)
				kill[peerOf(who)]--
				left--
				start(peerOf(who))
			} else { // its turn had ended
				w.Kill()
				delete(workers, who)
				start(peerOf(who))
			}
		}
		return len(r.log()) >= want && left == 0
	})
	took := map[string]int{}
	for _, who := range r.log() {
		took[peerOf(who)]++
	}
	for peer := range kill {
		if took[peer] < 10 {
			t.Errorf("%s had %d turns", peer, took[peer])
		}
	}
	t.Logf("turns: %v", took)
}
