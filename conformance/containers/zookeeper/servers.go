// Package zookeeper runs the driver on ZooKeeper: on a standalone server, and on an ensemble of
// three.
package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

const (
	zkTick = 200 * time.Millisecond // a server's unit of time; the least session timeout

	// zkSync is how long a member may be cut off from its leader, and a leader from most of its
	// followers, before it detects that. It is longer than a busy machine stands still, which would
	// cause needless elections.
	zkSync = 25 * zkTick
)

// ZooKeeper is one ZooKeeper server of version 3.9. Sessions may last from a tick of 200 ms to ten
// hours; empty container nodes are removed twice a second. A killed server leaves everything that
// it ever acknowledged. (In tests no machine crashes: nothing has to reach the disk.)
var ZooKeeper = service.Kind{
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

// zookeeperJars are the jars of Debian's package; the published image has a folder of them. Missing
// ones are ignored.
var zookeeperJars = func() string {
	var jars []string
	for _, j := range []string{"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java", "netty-all", "netty-buffer", "netty-codec",
		"netty-common", "netty-handler", "netty-resolver", "netty-transport", "netty-transport-native-epoll"} {
		jars = append(jars, "/usr/share/java/"+j+".jar")
	}
	return strings.Join(jars, ":")
}()

// zookeeperScript writes its first argument as the configuration, and becomes the server. The other
// arguments are options of the Java machine.
const zookeeperScript = `set -e
mkdir -p db
printf '%s' "$1" >zoo.cfg
[ "$2" = 0 ] || echo "$2" >db/myid
jars=$3
shift 3
exec java "$@" -cp "$jars:$(echo /apache-zookeeper-*-bin/lib)/*:." org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg`

// zookeeperCommand is for a server whose configuration has more lines than those that all servers
// have: $dir in them means its folder, $port the last of its ports. The options are the Java
// machine's. A member of an ensemble has a number from 1 on, a standalone server 0.
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

// askZooKeeper asks the first server of a URL for its version. If alone is set, a server without a
// leader counts as serving: a member cannot do more by itself.
func askZooKeeper(ctx context.Context, text string, alone bool) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("not a URL") // err would show the URL with its password
	}
	addr, _, _ := strings.Cut(u.Host, ",")
	answer, err := FourLetters(ctx, addr, "srvr")
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

// FourLetters returns the answer of the server at an address to a four-letter command. It waits
// until ctx ends.
func FourLetters(ctx context.Context, addr, command string) (string, error) {
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

// four is FourLetters of a server that has to answer.
func four(t service.T, s *service.Server, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := FourLetters(ctx, s.Addr, command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return answer
}

// leads returns the server's mode: leader, follower or standalone; nothing while it does not serve.
func leads(s *service.Server) string {
	// one that has no leader says so at once
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	answer, _ := FourLetters(ctx, s.Addr, "srvr")
	for line := range strings.Lines(answer) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode)
		}
	}
	return ""
}

// quietly is a logger for the client library that logs nothing.
type quietly struct{}

func (quietly) Printf(string, ...any) {}

// hasty is a connection for the client library that does not wait for the greeting for longer than
// a session lasts, as the library does: a server that is just starting may accept a connection and
// never answer.
type hasty struct {
	net.Conn
	session time.Duration
}

// SetReadDeadline is net.Conn's. The library sets one so late only for the greeting.
func (c hasty) SetReadDeadline(t time.Time) error {
	if time.Until(t) > c.session {
		t = time.Now().Add(5 * time.Second)
	}
	return c.Conn.SetReadDeadline(t)
}

// zkOf returns a connection to the servers with a session of its own, which the test ends.
func zkOf(t service.T, s *service.Server, timeout time.Duration) *zk.Conn {
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

// Hello is how a client begins a connection: with the length and the version of its first packet.
const Hello = "\x00\x00\x00\x2c\x00\x00\x00\x00"

const (
	sessionAt = 4 + 4 + 8 + 4          // where the session's ID is in the first packet
	helloSize = sessionAt + 8 + 4 + 16 // with the password
	grantedAt = 4 + 4 + 4              // where the ID is in the answer; 0: there is no such session
)

// Resumes reports whether a client resumes a session on a connection on which it sent that.
func Resumes(sent []byte) bool {
	return len(sent) >= helloSize && strings.HasPrefix(string(sent), Hello) && binary.BigEndian.Uint64(sent[sessionAt:]) != 0
}

// EndSession ends the session that a client resumed by that on a connection to the server.
func EndSession(addr string, sent []byte) error {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	closes := "\x00\x00\x00\x08" + "\x00\x00\x00\x01" + "\xff\xff\xff\xf5" // length, number, -11
	if _, err := io.WriteString(c, string(sent[:helloSize])+closes); err != nil {
		return err
	}
	answer, err := io.ReadAll(c) // the server closes the connection of a session that ended
	if err == nil && (len(answer) < grantedAt+8 || binary.BigEndian.Uint64(answer[grantedAt:]) == 0) {
		err = errors.New("the session had ended")
	}
	return err
}
