package containers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/redis/go-redis/v9"
)

// through returns a client of the server that goes through a proxy.
func through(t *testing.T, s *Server) (*redis.Client, *Proxy) {
	t.Helper()
	p := NewProxy()
	o, err := redis.ParseURL(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	o.Dialer = p.Dial
	o.MaxRetries, o.DisableIdentity = -1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = patience, patience, patience, true
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close(); p.Close() })
	return c, p
}

// within5s is for calls that have to fail, and for those that are tried again.
func within5s(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestServers(t *testing.T) {
	for _, k := range []Kind{Redis, Valkey} {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			s := StartOwn(t, k.With(RedisDurable...))
			if !strings.HasPrefix(s.Version, k.Name+" ") {
				t.Errorf("%s calls itself %q", k.Name, s.Version)
			}
			c, p := through(t, s)
			if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			before := p.Counts().RoundTrips
			for range 10 {
				if err := c.Ping(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if n := p.Counts().RoundTrips - before; n != 10 {
				t.Errorf("10 PINGs are %d round trips", n)
			}

			s.Pause(t)
			ctx, cancel := context.WithTimeout(t.Context(), 10*quiet)
			defer cancel()
			if err := c.Ping(ctx).Err(); !isTimeout(err) {
				t.Errorf("PING of a paused server: %v", err)
			}
			s.Continue(t)
			if err := c.Ping(t.Context()).Err(); err != nil {
				t.Errorf("PING of a server that goes on: %v", err)
			}

			s.Pause(t)
			s.Kill(t)
			if err := c.Ping(t.Context()).Err(); err == nil || isTimeout(err) {
				t.Errorf("PING of a dead server: %v", err)
			}
			s.Restart(t)
			if v, err := c.Get(t.Context(), "k").Result(); v != "v" || err != nil {
				t.Errorf("after a restart on its data, %q, %v", v, err)
			}
			s.Restart(t)
			s.RestartEmpty(t)
			if v, err := c.Get(t.Context(), "k").Result(); err != redis.Nil {
				t.Errorf("after a restart without data, %q, %v", v, err)
			}
		})
	}
}

func TestRedisReplay(t *testing.T) {
	t.Parallel()
	c, p := through(t, StartOwn(t, Redis))
	c.Ping(t.Context())
	r := p.Record()
	for range 3 {
		if err := c.Incr(t.Context(), "n").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Replay(""); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Get(t.Context(), "n").Int(); n != 6 || err != nil {
		t.Fatalf("after 3 INCRs and their copies n is %d, %v", n, err)
	}
	dropped := p.DropReply("incr")
	if err := c.Incr(t.Context(), "n").Err(); err == nil {
		t.Fatal("a dropped reply arrived")
	}
	closed(t, "the drop", dropped)
	if n, err := c.Get(t.Context(), "n").Int(); n != 7 || err != nil {
		t.Fatalf("after an INCR without a reply n is %d, %v", n, err)
	}
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	s := StartSentinel(t, Redis)
	for range 3 { // a machine that stands still may look like a dead master
		if s.Master(t) == s.Nodes[0] {
			break
		}
		s = StartSentinel(t, Redis)
	}
	p := NewProxy()
	defer p.Close()
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Name, SentinelAddrs: s.Addrs(), Dialer: p.Dial})
	defer c.Close()
	if err := c.Set(t.Context(), "k", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := s.Master(t)
	if old != s.Nodes[0] {
		t.Fatalf("the master is %v", old)
	}
	old.Kill(t)
	if m := s.AwaitMaster(t, old); m == old {
		t.Fatal("there was no failover")
	}
	await(t, "the client found the new master", func() bool {
		return c.Set(within5s(t), "k", "2", 0).Err() == nil
	})
	old.Restart(t)
	await(t, "the old master follows the new one", func() bool { return old.role() == "slave" })
	if p.Counts().RoundTrips == 0 {
		t.Fatal("the client did not go through the proxy")
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, Valkey)
	const key = "{lock}:1"
	owner := c.Master(t, key)
	other := c.Nodes[0]
	if owner == other {
		other = c.Nodes[1]
	}

	p := NewProxy()
	defer p.Close()
	plain := redis.NewClient(&redis.Options{Addr: other.Addr, Dialer: p.Dial})
	defer plain.Close()
	if err := plain.Set(t.Context(), key, "1", 0).Err(); err == nil || err.Error() != fmt.Sprintf("MOVED %d %s", slotOf(t, plain, key), owner.Addr) {
		t.Fatalf("another node answered %v, want MOVED to %s", err, owner.Addr)
	}
	// The client knows one node; the proxy carries it to the one that it is sent to.
	r := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{other.Addr}, Dialer: p.Dial, ClusterStateReloadInterval: time.Second, // a minute otherwise
	})
	defer r.Close()
	if err := r.Set(t.Context(), key, "2", 0).Err(); err != nil {
		t.Fatal(err)
	}
	c.Move(t, key, other)
	if v, err := r.Get(t.Context(), key).Result(); v != "2" || err != nil {
		t.Fatalf("after the move, %q, %v", v, err)
	}
	heal := p.Isolate()
	if err := r.Get(within5s(t), key).Err(); err == nil {
		t.Fatal("the client is off the line, and reads")
	}
	heal()
	other.Kill(t)
	c.AwaitMaster(t, key, other)
	await(t, "the client found the new master", func() bool { return r.Set(within5s(t), key, "3", 0).Err() == nil })
}

func slotOf(t *testing.T, c *redis.Client, key string) int64 {
	t.Helper()
	slot, err := c.ClusterKeySlot(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// diary is a server that any machine has: this binary. It answers each line with the lines that it was ever told, which it keeps
// in a file.
var diary = NewProgram("diary", func(_ *bufio.Scanner, _ io.Writer, args []string) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			for s := bufio.NewScanner(c); s.Scan(); {
				f, err := os.OpenFile(args[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
				if err != nil {
					return
				}
				fmt.Fprint(f, s.Text()+" ")
				f.Close()
				text, _ := os.ReadFile(args[1])
				fmt.Fprintln(c, string(text))
			}
		}()
	}
})

// diaries is the kind, given how a process comes to be one.
func diaries(t *testing.T) Kind {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Kind{
		Name: "diary",
		Command: func(dir string, ports []int) []string {
			return []string{"/usr/bin/env", childEnv + "=" + diary.name, self, fmt.Sprint(ports[0]), filepath.Join(dir, "text")}
		},
		URL: func(addr string) string { return addr },
		Ask: func(ctx context.Context, addr string) (string, error) {
			_, err := tell(ctx, addr, "?")
			return "diary 1", err
		},
	}
}

func tell(ctx context.Context, addr, what string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	c.SetDeadline(end)
	fmt.Fprintln(c, what)
	return bufio.NewReader(c).ReadString('\n')
}

func TestProcess(t *testing.T) {
	t.Parallel()
	s, err := start(diaries(t), asProcess)
	if err != nil {
		t.Fatal(err)
	}
	defer s.place.remove()
	hear := func(what, want string) {
		t.Helper()
		if got, err := tell(bounded(t, patience), s.Addr, what); err != nil || !strings.Contains(got, want+" ") { // what was said to it while it was paused may come after
			t.Fatalf("told %q it answers %q, %v", what, got, err)
		}
	}
	hear("one", "? one")
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), quiet)
	defer cancel()
	if got, err := tell(ctx, s.Addr, "two"); !isTimeout(err) {
		t.Fatalf("paused it answers %q, %v", got, err)
	}
	s.Continue(t)
	hear("three", "three")
	s.Pause(t)
	s.Kill(t)
	if got, err := tell(bounded(t, patience), s.Addr, "four"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("dead it answers %q, %v", got, err)
	}
	s.Restart(t)
	hear("five", "five")
	if got, err := tell(bounded(t, patience), s.Addr, ""); !strings.HasPrefix(got, "? one ") || !strings.Contains(got, " three ") {
		t.Fatalf("started again it answers %q, %v", got, err)
	}
	s.RestartEmpty(t)
	if got, err := tell(bounded(t, patience), s.Addr, "six"); got != "? six \n" {
		t.Fatalf("emptied it answers %q, %v", got, err)
	}
	if !strings.Contains(s.place.log(), "listening\n") {
		t.Fatalf("its log is %q", s.place.log())
	}
}

// loud is a T that notes how the test would have failed.
type loud struct {
	*testing.T
	fatal string
}

func (l *loud) Fatalf(format string, args ...any) {
	l.fatal = fmt.Sprintf(format, args...)
	panic(l)
}

// fatal returns what f fails its test with.
func fatal(t *testing.T, f func(T)) (text string) {
	t.Helper()
	l := &loud{T: t}
	defer func() {
		if r := recover(); r != nil && r != any(l) {
			panic(r)
		}
		text = l.fatal
	}()
	f(l)
	return ""
}

func TestNoWayToStart(t *testing.T) {
	k := diaries(t)
	k.Name, k.Image, k.Built = "nothing", "dlock-test/nothing:0", "dlock-test/nothing:1"
	k.Command = func(string, []int) []string { return []string{"dlock-test-no-such-program"} }
	got := fatal(t, func(t T) { StartOwn(t, k) })
	for _, want := range []string{"no way to start nothing", "\n- container: ", "\n- process: there is no program dlock-test-no-such-program"} {
		if !strings.Contains(got, want) {
			t.Errorf("failed with %q, without %q", got, want)
		}
	}
}

func TestServerThatEndsIsNoServer(t *testing.T) {
	k := diaries(t)
	k.Command = func(string, []int) []string { return []string{"sh", "-c", "echo wrong option; exit 1"} }
	if _, err := start(k, asProcess); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "wrong option") {
		t.Fatalf("got %v", err)
	}
}

func TestImageThatTheUserNames(t *testing.T) {
	e, err := engine()
	if err != nil {
		t.Skipf("needs a container engine: %v", err)
	}
	t.Setenv("DLOCK_TEST_IMAGE_NAMED", "dlock-test/no-such-image:1")
	if image, _, err := lookForImage(e, Kind{Name: "named", Image: Redis.Image, Built: Redis.Built}); err == nil || !strings.Contains(err.Error(), "DLOCK_TEST_IMAGE_NAMED") {
		t.Fatalf("took %q, %v for an image that the user named and nobody has", image, err)
	}
}

func TestServerOfTheUser(t *testing.T) {
	own := StartOwn(t, Redis)
	t.Setenv("DLOCK_TEST_REDIS_URL", own.URL)
	s := Start(t, Redis)
	if s.Own() || !own.Own() || s.Addr != own.Addr || s.Version != own.Version || s.Origin != "DLOCK_TEST_REDIS_URL" {
		t.Fatalf("got %+v", s)
	}
	for name, f := range map[string]func(T){"Pause": s.Pause, "Continue": s.Continue, "Kill": s.Kill, "Restart": s.Restart, "RestartEmpty": s.RestartEmpty} {
		if got := fatal(t, f); !strings.Contains(got, "it is the user's") {
			t.Errorf("%s of the user's server failed with %q", name, got)
		}
	}
	unreport(s.Version + ": " + s.Origin)
	if another := StartOwn(t, Redis); another.Addr == s.Addr {
		t.Fatal("StartOwn returned the user's server")
	}
	t.Setenv("DLOCK_TEST_REDIS_URL", "redis://u:secret@%zz")
	if got := fatal(t, func(t T) { Start(t, Redis) }); got == "" || strings.Contains(got, "secret") {
		t.Errorf("a URL that is none failed with %q", got)
	}
}

// heir starts servers, tells what they are, and never removes them.
var heir = NewProgram("heir", func(in *bufio.Scanner, out io.Writer, _ []string) error {
	in.Scan()
	run, err := begin()
	if err != nil {
		return err
	}
	t := &testing.T{}
	for way, k := range map[string]Kind{"process": diaries(t), "container": Redis} {
		f := asProcess
		if way == "container" {
			if _, err := engine(); err != nil {
				continue
			}
			f = inContainer
		}
		s, err := start(k, f)
		if err != nil {
			return err
		}
		if way == "container" { // the system itself ends a process that stands when its parent dies
			s.place.pause()
		}
		fmt.Fprintln(out, s.Addr)
	}
	fmt.Fprintln(out, run.folder)
	in.Scan()
	return nil
})

// TestNothingIsLeft kills a run in the middle.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := heir.Start(t)
			c.Say("go")
			var addrs []string
			line := c.Hear()
			for ; !strings.HasPrefix(line, "/"); line = c.Hear() {
				addrs = append(addrs, line)
			}
			if _, err := os.Stat(line); err != nil || len(addrs) == 0 {
				t.Fatalf("nothing was started: %v, %v", addrs, err)
			}
			if err := c.cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			<-c.done
			await(t, "the folder is gone", func() bool { _, err := os.Stat(line); return errors.Is(err, os.ErrNotExist) })
			for _, a := range addrs {
				await(t, "nobody listens at "+a, func() bool { // a process that was killed may take its time
					conn, err := net.Dial("tcp", a)
					if err == nil {
						conn.Close()
					}
					return err != nil
				})
			}
			e, err := engine()
			if err != nil {
				return
			}
			list, err := e.ContainerList(t.Context(), client.ContainerListOptions{
				All: true, Filters: make(client.Filters).Add("label", runLabel+"="+filepath.Base(line)),
			})
			if err != nil || len(list.Items) > 0 {
				t.Errorf("containers that are left: %v, %v", list.Items, err)
			}
		})
	}
}
