package zookeeper

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
)

// mustZK fails the test unless err is nil.
func mustZK(t service.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func TestZooKeeperServers(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, ZooKeeper)
	if !strings.HasPrefix(s.Version, "zookeeper 3.") || leads(s) != "standalone" {
		t.Errorf("the server calls itself %q, %q", s.Version, leads(s))
	}
	c := zkOf(t, s, 20*time.Second)
	_, err := c.Create("/kept", []byte("v"), 0, zk.WorldACL(zk.PermAll))
	mustZK(t, "create", err)
	_, err = c.CreateContainer("/box", nil, zk.FlagContainer, zk.WorldACL(zk.PermAll))
	mustZK(t, "create a container", err)
	_, err = c.Create("/box/x", nil, 0, zk.WorldACL(zk.PermAll))
	mustZK(t, "create", err)
	mustZK(t, "delete", c.Delete("/box/x", -1))
	await.That(t, "an empty container is gone", func() bool {
		ok, _, err := c.Exists("/box")
		return err == nil && !ok
	})
	s.Pause(t)
	s.Continue(t)
	s.Restart(t)
	await.That(t, "the connection lives again", func() bool {
		v, _, err := c.Get("/kept")
		return err == nil && string(v) == "v"
	})
	if !strings.Contains(four(t, s, "mntr"), "zk_znode_count") {
		t.Error("mntr counts no nodes")
	}
}

func TestZooKeeperEnsemble(t *testing.T) {
	t.Parallel()
	e := StartEnsemble(t)
	c := zkOf(t, e.Follower(t), 20*time.Second)
	// a connection breaks when its server has lost its leader for a moment
	await.That(t, "the ensemble takes writes", func() bool {
		_, err := c.Create("/x", []byte("1"), 0, zk.WorldACL(zk.PermAll))
		return err == nil || errors.Is(err, zk.ErrNodeExists)
	})

	// The leader is killed: the others continue, and it follows when it is back.
	old := e.AwaitLeader(t)
	old.Kill(t)
	next := e.AwaitLeader(t, old)
	await.That(t, "the remaining two take writes", func() bool {
		_, err := c.Set("/x", []byte("2"), -1)
		return err == nil
	})
	old.Restart(t)
	e.AwaitServing(t)
	if got := e.AwaitLeader(t); got != next {
		t.Errorf("there is another leader after the old one came back")
	}

	// A follower that is cut off answers reads with the past, and detects the cut only later; on a
	// slow machine the read may come too late.
	past := false
	for i := 0; i < 5 && !past; i++ {
		e.AwaitServing(t)
		leader, cut := e.AwaitLeader(t), e.Follower(t)
		stale, fresh := zkOf(t, cut, 20*time.Second), zkOf(t, leader, 20*time.Second)
		before, now := fmt.Sprint("before ", i), fmt.Sprint("now ", i)
		write := func(what string) {
			await.That(t, what, func() bool {
				_, err := fresh.Set("/x", []byte(what), -1)
				return err == nil
			})
		}
		read := func() string {
			v, _, err := stale.Get("/x")
			if err != nil {
				return err.Error()
			}
			return string(v)
		}
		write(before)
		await.That(t, "the follower has that", func() bool { return read() == before })
		heal := e.CutOff(cut)
		write(now)
		past = read() == before
		await.That(t, "the follower stops serving", func() bool { return leads(cut) == "" })
		heal()
		e.AwaitServing(t)
		await.That(t, "it has what was written meanwhile", func() bool { return read() == now })
	}
	if !past {
		t.Error("no follower that was cut off answered with the past")
	}

	// A leader that is cut off resigns, and another one leads.
	last := e.AwaitLeader(t)
	heal := e.CutOff(last)
	defer heal()
	next = e.AwaitLeader(t, last)
	await.That(t, "the old leader stops leading", func() bool { return leads(last) != "leader" })
	await.That(t, "the new leader takes writes", func() bool { return createAt(t, next, "/y") == nil })
	heal()
	e.AwaitServing(t)
}

func createAt(t service.T, s *service.Server, path string) error {
	t.Helper()
	c := zkOf(t, s, 20*time.Second)
	_, err := c.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// TestEndSession: another party ends the session of a client that lives, long before it expires,
// and cannot end it twice.
func TestEndSession(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, ZooKeeper)
	p := netfault.NewProxy()
	t.Cleanup(p.Close)
	addr, err := p.Addr(s.Addr)
	mustZK(t, "proxy", err)
	c, eye := zkOf(t, &service.Server{Addr: addr}, 10*time.Minute), zkOf(t, s, time.Minute)
	const node = "/session-that-is-ended"
	_, err = c.Create(node, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	mustZK(t, "create", err)
	sent := p.Record()
	p.Cut() // the client resumes its session
	await.That(t, "it is resumed", func() bool { return sent.Contains(Hello) })
	ended := false
	for addr, data := range sent.End() {
		if !Resumes(data) {
			continue
		}
		mustZK(t, "end the session", EndSession(addr, data))
		if err := EndSession(addr, data); err == nil {
			t.Error("the session was ended twice")
		}
		ended = true
		break // a client that is not answered soon resumes it on another connection too
	}
	if !ended {
		t.Error("the client did not resume its session")
	}
	await.That(t, "the node of the session is gone", func() bool {
		is, _, err := eye.Exists(node)
		return err == nil && !is
	})
}
