package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	zkTick = 200 * time.Millisecond // a server's unit of time; the least session timeout

	// zkSync is how long a member may be cut off from its leader, and a leader from most of its followers, before it notices. It is longer
	// than a busy machine stands still: there would be elections for nothing.
	zkSync = 25 * zkTick
)

// ZooKeeper is one ZooKeeper server of version 3.9. Sessions may last from a tick of 200 ms to ten hours; container nodes that are empty
// are removed twice a second. A server that is killed leaves all that it ever acknowledged. (In tests no machine crashes: nothing has
// to reach the disk.)
var ZooKeeper = Kind{
	Name:    "zookeeper",
	Image:   "zookeeper:3.9",
	Built:   "dlock-test/zookeeper:3.9",
	Package: "zookeeper default-jre-headless",
	Needs:   "/usr/share/zookeeper/bin/zkServer.sh",
	Files:   map[string]string{"logback.xml": "<configuration/>"},
	Command: zookeeperCommand("", 0),
	URL:     func(addr string) string { return "zookeeper://" + addr },
	Ask:     func(ctx context.Context, url string) (string, error) { return askZooKeeper(ctx, url, false) },
}

// zookeeperJars are what Debian's package consists of; the published image has a folder of them. What is absent is ignored.
var zookeeperJars = func() string {
	var jars []string
	for _, j := range []string{"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java", "netty-all", "netty-buffer", "netty-codec",
		"netty-common", "netty-handler", "netty-resolver", "netty-transport", "netty-transport-native-epoll"} {
		jars = append(jars, "/usr/share/java/"+j+".jar")
	}
	return strings.Join(jars, ":")
}()

// zookeeperScript writes the configuration that its first argument is, and becomes the server. The others are options of the Java machine.
const zookeeperScript = `set -e
mkdir -p db
printf '%s' "$1" >zoo.cfg
[ "$2" = 0 ] || echo "$2" >db/myid
jars=$3
shift 3
exec java "$@" -cp "$jars:$(echo /apache-zookeeper-*-bin/lib)/*:." org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg`

// zookeeperCommand is for a server whose configuration has more lines than those that all have: $dir stands for its folder in them, $port
// for the last of its ports. The options are the Java machine's. A member of an ensemble has a number from 1 on, a server that is alone 0.
func zookeeperCommand(more string, member int, options ...string) func(string, []int) []string {
	return func(dir string, ports []int) []string {
		cfg := fmt.Sprintf(`tickTime=%d
initLimit=20
syncLimit=%d
minSessionTimeout=%d
maxSessionTimeout=36000000
maxClientCnxns=0
dataDir=%s/db
admin.enableServer=false
4lw.commands.whitelist=*
clientPortAddress=127.0.0.1
clientPort=%d
`, zkTick.Milliseconds(), zkSync/zkTick, zkTick.Milliseconds(), dir, ports[0])
		cfg += strings.NewReplacer("$dir", dir, "$port", strconv.Itoa(ports[len(ports)-1])).Replace(more)
		return slices.Concat([]string{"sh", "-c", zookeeperScript, "zookeeper", cfg, strconv.Itoa(member), zookeeperJars,
			"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no", "-Dznode.container.checkIntervalMs=500",
			"-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.server.NIOServerCnxn=error"}, options)
	}
}

// askZooKeeper asks the first server of a URL for its version. One that has no leader counts as serving if alone is set: it does what a
// member can do by itself.
func askZooKeeper(ctx context.Context, text string, alone bool) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("not a URL") // the error would show it, with its password
	}
	addr, _, _ := strings.Cut(u.Host, ",")
	answer, err := fourLetters(ctx, addr, "srvr")
	if err != nil {
		return "", err
	}
	if _, rest, ok := strings.Cut(answer, "ookeeper version: "); ok {
		return "zookeeper " + rest[:strings.IndexAny(rest+"-", "-,")], nil
	}
	if alone && answer != "" {
		return "zookeeper", nil
	}
	return "", fmt.Errorf("srvr is answered with %q", answer)
}

// fourLetters returns a server's answer to one of its commands of four letters.
func fourLetters(ctx context.Context, addr, command string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		c.SetDeadline(end)
	}
	if _, err := io.WriteString(c, command); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// four is fourLetters of a server that has to answer.
func (s *Server) four(t T, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := fourLetters(ctx, s.Addr, command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return answer
}

// leads returns what the server takes itself for: leader, follower or standalone; nothing while it does not serve.
func (s *Server) leads() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // one that has no leader says so at once
	defer cancel()
	answer, _ := fourLetters(ctx, s.Addr, "srvr")
	for line := range strings.Lines(answer) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode)
		}
	}
	return ""
}

// quietly is a logger of the client library's that says nothing.
type quietly struct{}

func (quietly) Printf(string, ...any) {}

// hasty is a connection of the client library's that does not wait for the greeting for longer than a session lasts, as the library does: a
// server that is just starting may take a connection and never answer.
type hasty struct {
	net.Conn
	session time.Duration
}

// SetReadDeadline is net.Conn's. Only for the greeting the library sets one so late.
func (c hasty) SetReadDeadline(t time.Time) error {
	if time.Until(t) > c.session {
		t = time.Now().Add(5 * time.Second)
	}
	return c.Conn.SetReadDeadline(t)
}

// zk returns a connection to the servers with a session of its own, which the test ends.
func (s *Server) zk(t T, timeout time.Duration) *zk.Conn {
	t.Helper()
	dial := func(network, addr string, d time.Duration) (net.Conn, error) {
		c, err := net.DialTimeout(network, addr, d)
		return hasty{c, timeout}, err
	}
	c, events, err := zk.Connect([]string{s.Addr}, timeout, zk.WithLogger(quietly{}), zk.WithDialer(dial))
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(c.Close)
	patience := time.After(time.Minute)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return c
			}
		case <-patience:
			t.Fatalf("no session at %s", s.Addr)
		}
	}
}

// Ensemble is three servers that keep the same data. A write needs two of them.
type Ensemble struct {
	Nodes []*Server  // in no order
	lines [][]*Proxy // by who follows, and who leads
}

// StartEnsemble starts three ZooKeeper servers for one test, and waits until all of them serve.
func StartEnsemble(t T) *Ensemble {
	t.Helper()
	const members = 3
	ports, err := freePorts(2 * members) // for what is replicated, and for elections
	if err != nil {
		t.Fatalf("%v", err)
	}
	e := &Ensemble{Nodes: make([]*Server, members), lines: make([][]*Proxy, members)}
	var wg sync.WaitGroup
	for i := range members {
		more := "quorumListenOnAllIPs=false\n"
		e.lines[i] = make([]*Proxy, members)
		for j := range members {
			quorum := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[2*j]))
			if j != i {
				p := NewProxy()
				t.Cleanup(p.Close)
				e.lines[i][j] = p
				if quorum, err = p.Addr(quorum); err != nil {
					t.Fatalf("%v", err)
				}
			}
			more += fmt.Sprintf("server.%d=%s:%d\n", j+1, quorum, ports[2*j+1])
		}
		k := ZooKeeper
		k.Command = zookeeperCommand(more, i+1)
		k.Ask = func(ctx context.Context, url string) (string, error) { return askZooKeeper(ctx, url, true) }
		wg.Go(func() { e.Nodes[i] = StartOwn(t, k) })
	}
	wg.Wait()
	if slices.Contains(e.Nodes, nil) {
		t.Fatalf("the ensemble did not start")
	}
	e.AwaitServing(t)
	return e
}

// Addrs returns the addresses of the servers.
func (e *Ensemble) Addrs() []string { return addrs(e.Nodes) }

// URL is what clients open.
func (e *Ensemble) URL() string { return "zookeeper://" + strings.Join(e.Addrs(), ",") }

// Leader returns the server that leads and is none of those given; nil if there is none now. One that was cut off goes on leading for five seconds: who
// looks for its successor gives it.
func (e *Ensemble) Leader(not ...*Server) *Server {
	for _, n := range e.Nodes {
		if !slices.Contains(not, n) && n.leads() == "leader" {
			return n
		}
	}
	return nil
}

// AwaitLeader waits until a server leads that is none of those given.
func (e *Ensemble) AwaitLeader(t T, not ...*Server) (leader *Server) {
	t.Helper()
	await(t, "another server leads", func() bool {
		leader = e.Leader(not...)
		return leader != nil
	})
	return leader
}

// Follower returns one of the servers that follow another one.
func (e *Ensemble) Follower(t T) (follower *Server) {
	t.Helper()
	await(t, "a server follows", func() bool {
		for _, n := range e.Nodes {
			if n.leads() == "follower" {
				follower = n
			}
		}
		return follower != nil
	})
	return follower
}

// AwaitServing waits until all servers serve, under one leader: one that was cut off may take itself for that too.
func (e *Ensemble) AwaitServing(t T) {
	t.Helper()
	await(t, "all servers serve", func() bool {
		are := map[string]int{}
		for _, n := range e.Nodes {
			are[n.leads()]++
		}
		return are["leader"] == 1 && are["follower"] == len(e.Nodes)-1
	})
}

// CutOff keeps a server and the other two apart, until heal: nothing is replicated between them. Clients reach it as before, and so do
// the messages of an election, so that it may learn of another leader, whom it cannot follow. It notices by itself, after five seconds; those who
// followed it notice at once, or else they might elect it again.
func (e *Ensemble) CutOff(s *Server) (heal func()) {
	var heals []func()
	cut := slices.Index(e.Nodes, s)
	for i, row := range e.lines {
		for j, p := range row {
			switch {
			case i == cut && j != cut:
				heals = append(heals, p.Isolate())
			case j == cut && i != cut:
				heals = append(heals, p.Isolate(), p.Refuse()) // who follows it again by mistake finds out at once
				p.abandon()
			}
		}
	}
	return func() {
		for _, h := range heals {
			h()
		}
	}
}

// abandon resets what clients have open, and holds back from the servers that they did, if the proxy holds what goes there.
func (p *Proxy) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		abort(l.ends[ToClient])
	}
}
