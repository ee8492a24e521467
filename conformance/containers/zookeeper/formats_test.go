package zookeeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper"
	"github.com/dlock-go/dlock/internal/size"
)

// TestZooKeeperFormatsConformance: the laws hold in the formats of other software. One of them runs
// all that a format may break; the others differ only in how nodes are named.
func TestZooKeeperFormatsConformance(t *testing.T) {
	s := service.Start(t, ZooKeeper)
	for format, laws := range map[string]func(conformance.Harness) conformance.Harness{
		"curator-rw": service.Beside, "curator": coreOnly, "kazoo-rw": coreOnly,
	} {
		t.Run(format, func(t *testing.T) {
			h := service.Harness("zookeeper, "+format, func(t conformance.T, p *netfault.Proxy) driver.Backend {
				b, err := zkBackend(zkBehind(t, s.URL, p, in(format)))
				if err != nil {
					t.Fatalf("%v", err)
				}
				return zkKnown{b.(*zookeeper.Backend), s.URL + format, p}
			}, s)
			h.TTL = zkTTL
			h.Stored = func(t conformance.T, _ driver.Backend, name string) int {
				return len(treeOf(t, s).children(peerLocks + "/" + name))
			}
			h.Record = nil
			h.Without = append(h.Without, "OpenPrefixed")
			conformance.Run(t, laws(h))
		})
	}
}

// coreOnly returns the harness for the core laws, unless the run is long.
func coreOnly(h conformance.Harness) conformance.Harness {
	if !size.Long() {
		core := map[string]bool{}
		for _, l := range conformance.Core() {
			core[l.Name] = true
		}
		h.Only = func(l conformance.Law) bool { return core[l.Name] }
	}
	return h
}

// TestZooKeeperFormatsApart: where requests of one format stand, those of another are refused, and
// leave nothing behind. Everything else in the directory is ignored.
func TestZooKeeperFormatsApart(t *testing.T) {
	t.Parallel()
	s := service.Start(t, ZooKeeper)
	z := treeOf(t, s)
	const id = "0123456789abcdef0123456789abcdef"
	stems := map[string]string{
		"": "w:" + id + ":0:", "curator": "_c_" + id + "-lock-", "curator-rw": "_c_" + id + "-__READ__", "kazoo": id + "__lock__", "kazoo-rw": id + "__rlock__",
	}
	apart := func(a, b string) bool { return a != b && (a == "" || b == "" || a[:3] != b[:3] || a[:3] == "cur") }
	for format := range stems {
		more := in(format)
		if format == "" {
			more = ""
		}
		c := zkOpen(t, s.URL, more, 10*time.Second)
		for other, stem := range stems {
			name := fmt.Sprintf("apart-%s-%s", format, other)
			dir := peerPath(name)
			if format == "" {
				dir = zkQueue(name)
			}
			z.make(dir+"/x", 0)
			mustUnlock(t, steps.MustLock(t, c.Mutex(name)))
			made := z.make(dir+"/"+stem, zk.FlagEphemeral|zk.FlagSequence)
			ctx := await.Context(t)
			l, err := c.Mutex(name).TryLock(ctx)
			_, inspect := c.Inspect(ctx, name)
			if !apart(format, other) {
				if !errors.Is(err, dlock.ErrHeld) || inspect != nil {
					t.Errorf("in format %q with a holder of %q: %v, %v, %v", format, other, l, err, inspect)
				}
				continue
			}
			for what, err := range map[string]error{"TryLock": err, "Inspect": inspect} {
				if !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), made) && !strings.Contains(err.Error(), path.Base(made)) {
					t.Errorf("in format %q, %s with a node of %q: %v; want ErrUnsupported with the node", format, what, other, err)
				}
			}
			if _, err := c.Mutex(name).Lock(await.Bounded(t, 10*time.Second)); !errors.Is(err, dlock.ErrUnsupported) {
				t.Errorf("in format %q, Lock with a node of %q: %v", format, other, err)
			}
			z.awaitAt(dir, 2)
			_, err = z.Set(made, nil, 0)
			mustZK(t, "set", err) // nothing was written to it
			mustZK(t, "delete", z.Delete(made, -1))
			mustUnlock(t, steps.MustLock(t, c.Mutex(name)))
		}
	}
}

// TestZooKeeperFormatNames: a name that the format cannot carry is refused, and nothing is sent.
// Directories stay or go as those that the peers make.
func TestZooKeeperFormatNames(t *testing.T) {
	t.Parallel()
	s := service.Start(t, ZooKeeper)
	z := treeOf(t, s)
	for _, format := range []string{"kazoo", "curator"} {
		root := "/names-" + format
		c := zkOpen(t, s.URL, root+"?format="+format+"&path=/deep/er/{name}/mutex", 10*time.Second)
		ctx := await.Context(t)
		for _, name := range []string{"a/b", ".x/", "a\nb", "\u0085"} {
			before := c.p.Counts().RoundTrips
			_, err := c.Mutex(name).TryLock(ctx)
			_, inspect := c.Inspect(ctx, name)
			if !errors.Is(err, dlock.ErrInvalid) || !errors.Is(inspect, dlock.ErrInvalid) {
				t.Errorf("the name %q: %v, %v; want ErrInvalid", name, err, inspect)
			}
			if n := c.p.Counts().RoundTrips - before; n > 1 { // a sign of life
				t.Errorf("the name %q: %d calls were sent", name, n)
			}
		}
		for _, name := range []string{"a b", "é", "%2F", "A"} {
			l := steps.MustLock(t, c.Mutex(name))
			z.awaitAt(root+"/deep/er/"+name+"/mutex", 1)
			if names, err := c.List(ctx); err != nil || len(names) != 1 || names[0] != name {
				t.Errorf("List while %q is held: %q, %v", name, names, err)
			}
			mustUnlock(t, l)
		}
	}
	await.That(t, "the servers remove Curator's directories", func() bool { return len(z.children("/names-curator")) == 1 })
	if left := z.children("/names-kazoo/deep/er"); len(left) != 4 {
		t.Errorf("of kazoo's directories %q are left; want all four", left)
	}
}

// TestZooKeeperFormatCommand: the command takes part in the locks of other software, and "dlock
// check" examines them.
func TestZooKeeperFormatCommand(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, usual())
	z := treeOf(t, s)
	url := s.URL + in("curator")
	check := steps.NewChecker(t)
	check.Wants("locks in Curator's format", url, map[string][2]string{
		"laws": {"fine", "10 of 13 core laws hold; not supported by this backend: "}, "rights": {"fine", peerLocks}, "unused names": {"fine", "container nodes"},
	})
	check.Wants("locks in kazoo's format", s.URL+in("kazoo"), map[string][2]string{"rights": {"fine", peerLocks}}, "--no-laws")

	bin := steps.BuildCommand(t)
	run := func(status int, words string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(await.Context(t), bin, args...)
		cmd.Env = append(os.Environ(), "DLOCK_URL="+url)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != status || !strings.Contains(string(out), words) {
			t.Errorf("dlock %q: exit status %d, want %d with %q\n%s", args, got, status, words, out)
		}
	}
	run(0, "no name is held or waited for", "ls")
	run(0, "in\n", "run", "job", "--", "echo", "in")
	const stem = peerLocks + "/job/_c_0123456789abcdef0123456789abcdef-lock-"
	held := z.make(stem, zk.FlagEphemeral|zk.FlagSequence)
	node := path.Base(held)
	run(0, "node "+node[:20], "ls")
	run(0, "foreign", "inspect", "job")
	run(0, node, "inspect", "--json", "job")
	run(0, `"foreign": true`, "inspect", "--json", "job")
	run(124, "held", "run", "--try", "job", "--", "true")
	run(1, "not supported", "break", "--yes", "--force", "job")
	run(2, "name", "run", "a/b", "--", "true")
	go func() {
		await.That(t, "the command waits", func() bool { return len(z.children(peerLocks+"/job")) == 2 })
		z.Delete(held, -1)
	}()
	run(0, "in\n", "run", "--wait", "30s", "job", "--", "echo", "in")
	z.awaitAt(peerLocks+"/job", 0)
}

// TestZooKeeperFormatOwn: no call of a client removes a node that is not its own, whatever ID it
// names; and a hold whose client has another chroot is not broken, since it would not be notified.
func TestZooKeeperFormatOwn(t *testing.T) {
	t.Parallel()
	s := service.Start(t, ZooKeeper)
	z := treeOf(t, s)
	ctx := await.Context(t)

	b, err := zkBackend(s.URL + in("curator"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r := steps.Asked(b, "own", 10*time.Second)
	id := r.ID.String()
	uuid := strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-")
	made := z.make(peerPath("own")+"/_c_"+uuid+"-lock-", zk.FlagEphemeral|zk.FlagSequence)
	for _, uncertain := range []bool{false, true} {
		if r.Uncertain = uncertain; !errors.Is(b.Release(ctx, r), driver.ErrLost) {
			t.Errorf("Release by the ID of another program's node does not return ErrLost")
		}
	}
	if _, stat, err := z.Get(made); err != nil || stat.Version != 0 {
		t.Errorf("the other program's node: %+v, %v", stat, err)
	}

	c := zkOpen(t, s.URL, "/teams?format=curator&path=/x/{name}", 10*time.Second)
	other := zkOpen(t, s.URL, "?format=curator&path=/teams/x/{name}", 10*time.Second)
	l := steps.MustLock(t, c.Mutex("far"))
	if _, err := other.Mutex("far").TryLock(ctx); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock through another chroot: %v", err)
	}
	for _, opts := range [][]dlock.BreakOption{nil, {dlock.Force()}} {
		if err := other.Break(ctx, "far", l.Token(), opts...); !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), "chroot") {
			t.Errorf("Break through another chroot: %v", err)
		}
	}
	if err := l.Renew(ctx); err != nil {
		t.Errorf("Renew: %v", err)
	}
	mustZK(t, "Break", c.Break(ctx, "far", l.Token()))
	lost(t, l)
}

// TestZooKeeperFormatCosts: a lock in another format takes three round trips, a release one, as the
// page says.
func TestZooKeeperFormatCosts(t *testing.T) {
	t.Parallel()
	s := service.Start(t, ZooKeeper)
	c := zkOpen(t, s.URL, in("kazoo"), 30*time.Second)
	mustUnlock(t, steps.MustLock(t, c.Mutex("cost")))
	const pairs, aside = 50, 10 // signs of life and proofs
	before := c.p.Counts().RoundTrips
	for range pairs {
		mustUnlock(t, steps.MustLock(t, c.Mutex("cost")))
	}
	if n := c.p.Counts().RoundTrips - before; n < 4*pairs || n > 4*pairs+aside {
		t.Errorf("%d locks and releases took %d round trips, want %d", pairs, n, 4*pairs)
	}
}
