package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

//go:embed curator/Curator.java
var curatorProgram string

// ofCurator is Curator's InterProcessMutex. A Java program locks and unlocks on request: each call
// crosses the loopback once more than with the other contenders, which takes some 0.1 ms.
var ofCurator = contender{name: "Curator", renews: true, outside: true, beside: startCurator}

// curatorKind is that program, which Java compiles when it starts.
var curatorKind = service.Kind{
	Name:    "curator",
	Image:   "dlock-test/curator:5",
	Built:   "dlock-test/curator:5",
	Package: "libcurator-recipes-java zookeeper default-jdk-headless",
	Needs:   "javac",
	Files:   map[string]string{"Curator.java": curatorProgram},
	Command: func(_ string, ports []int) []string {
		return []string{"java", "-Xmx512m", "-cp", curatorJars, "Curator.java", strconv.Itoa(ports[0])}
	},
	URL: func(addr string) string { return addr },
	Ask: func(ctx context.Context, addr string) (string, error) { return ask(ctx, addr, "version") },
}

// curatorJars are the jars of Debian's packages that the program needs. Not all jars can be used:
// some logging backends exclude each other.
var curatorJars = func() string {
	var jars []string
	for _, j := range []string{"curator-client", "curator-framework", "curator-recipes", "guava", "slf4j-api", "slf4j-nop", "zookeeper", "zookeeper-jute",
		"metrics-core", "snappy-java", "netty-all", "netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport",
		"netty-transport-native-epoll"} {
		jars = append(jars, "/usr/share/java/"+j+".jar")
	}
	return strings.Join(jars, ":")
}()

// ask opens a connection, sends one line, and returns the answer.
func ask(ctx context.Context, addr, line string) (string, error) {
	l, err := talk(ctx, addr)
	if err != nil {
		return "", err
	}
	defer l.close()
	return l.say(line)
}

func startCurator(t service.T) (*service.Server, opener) {
	s := service.StartOwn(t, curatorKind)
	var clients atomic.Int64
	return s, func(_ context.Context, addr string) (client, error) {
		return curatorClient{s.Addr, addr, fmt.Sprint("client-", clients.Add(1))}, nil
	}
}

type curatorClient struct{ program, addr, id string }

func (c curatorClient) locker(ctx context.Context, name string) (locker, error) {
	l, err := talk(ctx, c.program)
	if err != nil {
		return nil, err
	}
	if err := l.tell(fmt.Sprintf("%s %s %s %d", c.id, c.addr, name, zkTimeout.Milliseconds())); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (c curatorClient) close() { ask(context.Background(), c.program, "close "+c.id) }

// curatorLocker is a connection to the program.
type curatorLocker struct {
	conn net.Conn
	in   *bufio.Reader
}

func talk(ctx context.Context, addr string) (curatorLocker, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return curatorLocker{}, err
	}
	return curatorLocker{conn, bufio.NewReader(conn)}, nil
}

// say sends a line and returns the answer.
func (l curatorLocker) say(line string) (string, error) {
	if _, err := l.conn.Write([]byte(line + "\n")); err != nil {
		return "", err
	}
	answer, err := l.in.ReadString('\n')
	return strings.TrimSpace(answer), err
}

func (l curatorLocker) tell(line string) error {
	answer, err := l.say(line)
	if err == nil && answer != "ok" {
		return errors.New(answer)
	}
	return err
}

// lock does not end with ctx: the program's protocol has no cancellation.
func (l curatorLocker) lock(context.Context) error { return l.tell("lock") }

func (l curatorLocker) unlock() error { return l.tell("unlock") }

func (l curatorLocker) close() { l.conn.Close() }
