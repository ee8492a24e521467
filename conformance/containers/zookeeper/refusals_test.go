package zookeeper

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// withOption is a server with options of the Java machine.
func withOption(options ...string) service.Kind {
	k := ZooKeeper
	k.Command = zookeeperCommand("", 0, options...)
	return k
}

// says fails the test unless the error says that in words: it is not only a number, and it does not
// match ErrHeld.
func says(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "unknown error") {
			t.Errorf("%s: %v; want %q", what, err, w)
		}
	}
	if errors.Is(err, dlock.ErrHeld) {
		t.Errorf("%s is taken for a lock that is held: %v", what, err)
	}
}

// TestZooKeeperQuota: TryLock says that a quota is used up, and which setting that is; Lock is
// granted when there is room, and says the reason if its context ends before.
func TestZooKeeperQuota(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, withOption("-Dzookeeper.enforceQuota=true"))
	z, c := treeOf(t, s), zkOpen(t, s.URL, "", time.Minute)
	l := steps.MustLock(t, c.Mutex("first"))
	const quota = "/zookeeper/quota/dlock/zookeeper_limits"
	z.make(quota, 0)
	z.make("/zookeeper/quota/dlock/zookeeper_stats", 0)
	limit := func(nodes string) {
		_, err := z.Set(quota, []byte("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit="+nodes), -1)
		mustZK(t, "set the quota", err)
		_, err = z.Set("/zookeeper/quota/dlock/zookeeper_stats", []byte("count=6,bytes=100"), -1)
		mustZK(t, "count what the quota has used", err)
	}
	limit("3")
	start := time.Now()
	_, err := c.Mutex("second").TryLock(await.Bounded(t, time.Minute))
	says(t, "TryLock beyond a quota", err, "quota", "QUOTAEXCEEDED (-125)")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("TryLock took %s to say it", took)
	}
	_, err = c.Mutex("second").Lock(await.Bounded(t, 5*time.Second))
	says(t, "Lock beyond a quota", err, "quota")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a Lock whose context ended: %v", err)
	}
	a := steps.Try(t, c.Mutex("second"))
	<-time.After(time.Second)
	if !a.Pending() {
		t.Errorf("a Lock beyond a quota does not wait: %v", a.Err)
	}
	limit("1000")
	mustUnlock(t, a.Got("Lock", time.Now(), 30*time.Second))
	mustUnlock(t, l)
}

// TestZooKeeperEnforcedAuthentication: servers that accept only clients that authenticate refuse
// one without credentials. The error says what to do; then it works.
func TestZooKeeperEnforcedAuthentication(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, withOption("-Dzookeeper.enforce.auth.enabled=true", "-Dzookeeper.enforce.auth.schemes=digest"))
	start := time.Now()
	_, err := dlock.Open(await.Bounded(t, time.Minute), s.URL, dlock.Logger(nil))
	says(t, "Open", err, "SESSIONCLOSEDREQUIRESASLAUTH (-124)", "a user and a password for digest", "does not speak SASL")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("Open took %s to say it", took)
	}
	c, err := dlock.Open(await.Bounded(t, time.Minute), asUser(s.URL, "app", "secret", ""), dlock.Logger(nil))
	if err != nil {
		t.Fatalf("Open with credentials: %v", err)
	}
	defer c.Close()
	mustUnlock(t, steps.MustLock(t, c.Mutex("in")))
}

// TestZooKeeperLocalSessions: sessions that are local to one server own no nodes. A leader says so;
// a follower does not answer.
func TestZooKeeperLocalSessions(t *testing.T) {
	t.Parallel()
	e := startEnsemble(t, "localSessionsEnabled=true\n")
	var wg sync.WaitGroup
	for server, want := range map[*service.Server]string{e.AwaitLeader(t): "EPHEMERALONLOCALSESSION (-120)", e.Follower(t): "its calls were not answered"} {
		wg.Go(func() {
			_, err := dlock.Open(await.Bounded(t, time.Minute), server.URL, dlock.Logger(nil))
			says(t, "Open", err, want, "localSessionsUpgradingEnabled")
		})
	}
	await.All(t, &wg)
}

// TestZooKeeperClosedConnection: a Lock on a connection that was closed before the client does not
// wait forever, and says what was wrong.
func TestZooKeeperClosedConnection(t *testing.T) {
	t.Parallel()
	side := zkOnConn(t, service.Start(t, ZooKeeper), netfault.NewProxy(), 20*time.Second, zookeeper.Options{Prefix: "closed"})
	c := steps.ClientOf(t, side)
	mustUnlock(t, steps.MustLock(t, c.Mutex("open")))
	side.conn.Close()
	ctx := await.Bounded(t, 2*time.Minute)
	_, err := c.Mutex("closed").Lock(ctx)
	says(t, "Lock", err, "closed before its client")
	if ctx.Err() != nil {
		t.Error("it waited until its context ended")
	}
}
