package zookeeper

import (
	"bufio"
	"context"
	_ "embed"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

var (
	//go:embed peers/Curator.java
	curatorProgram string
	//go:embed peers/kazoo_locks.py
	kazooProgram string
)

// Curator is a program that locks with Apache Curator. It is compiled before its first start.
var Curator = service.Kind{
	Name:    "curator",
	Image:   "dlock-test/curator:5",
	Built:   "dlock-test/curator:5",
	Package: "libcurator-recipes-java zookeeper default-jdk-headless",
	Needs:   "javac",
	Files:   map[string]string{"Curator.java": curatorProgram},
	Prepare: func(dir string) []string {
		return []string{"javac", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-nowarn", "-cp", curatorJars, "-d", dir, dir + "/Curator.java"}
	},
	Command: func(dir string, ports []int) []string {
		return []string{"java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", dir + ":" + curatorJars, "Curator", strconv.Itoa(ports[0])}
	},
	URL: func(addr string) string { return addr },
	Ask: func(ctx context.Context, addr string) (string, error) { return askPeer(ctx, addr) },
}

// curatorJars are the jars of Debian's packages that the program needs.
var curatorJars = zookeeperJars + ":/usr/share/java/curator-client.jar:/usr/share/java/curator-framework.jar:/usr/share/java/curator-recipes.jar" +
	":/usr/share/java/guava.jar:/usr/share/java/slf4j-nop.jar"

// Kazoo is a program that locks with kazoo, a client library for Python.
var Kazoo = service.Kind{
	Name:    "kazoo",
	Image:   "dlock-test/kazoo:2",
	Built:   "dlock-test/kazoo:2",
	Package: "python3-kazoo",
	Needs:   "python3",
	Files:   map[string]string{"kazoo_locks.py": kazooProgram},
	Command: func(dir string, ports []int) []string {
		return []string{"python3", dir + "/kazoo_locks.py", strconv.Itoa(ports[0])}
	},
	URL: func(addr string) string { return addr },
	Ask: func(ctx context.Context, addr string) (string, error) { return askPeer(ctx, addr) },
}

// StartPrograms starts programs of another language, side by side.
func StartPrograms(t service.T, k service.Kind, n int) []*service.Server {
	t.Helper()
	programs := make([]*service.Server, n)
	var wg sync.WaitGroup
	for i := range programs {
		wg.Go(func() { programs[i] = service.StartOwn(t, k) })
	}
	wg.Wait()
	if t.Failed() {
		t.Fatalf("not all %d programs %s have started", n, k.Name)
	}
	return programs
}

// askPeer returns the version that a program says.
func askPeer(ctx context.Context, addr string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		c.SetDeadline(end)
	}
	if _, err := c.Write([]byte("version\n")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}
