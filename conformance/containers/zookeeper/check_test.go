package zookeeper

import (
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// usual is a server with the default times.
func usual() service.Kind {
	k := ZooKeeper
	k.Command = zookeeperCommand("tickTime=2000\nminSessionTimeout=4000\nmaxSessionTimeout=40000\n", 0)
	return k
}

// TestZooKeeperCheck: "dlock check" finds what is wrong with a server.
func TestZooKeeperCheck(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, usual())
	check := steps.NewChecker(t)
	server := "server " + s.Addr
	check.Wants("a plain server", s.URL, map[string][2]string{
		"laws": steps.Holds, "rights": {"fine", ""}, "sessions": {"fine", "4s to 40s"}, server: {"fine", "standalone"}, "unused names": {"fine", "container nodes"},
	})
	z := treeOf(t, s)
	mustZK(t, "authenticate", z.AddAuth("digest", []byte("admin:secret")))
	admin := zk.DigestACL(zk.PermAll, "admin", "secret")
	for _, c := range []struct {
		chroot string
		perms  int32
		want   map[string][2]string
	}{
		{"/whole", zk.PermCreate, map[string][2]string{"rights": {"fine", ""}}},
		{"/none", zk.PermRead, map[string][2]string{"rights": {"wrong", "missing: create on /none"}}},
	} {
		acl := append(zk.DigestACL(c.perms, "app", "canary"), admin...)
		_, err := z.Create(c.chroot, nil, 0, acl)
		mustZK(t, "create", err)
		check.Wants("under "+c.chroot, asUser(s.URL, "app", "canary", c.chroot), c.want, "--no-laws")
	}
	// the directory of all names belongs to another user
	const some = zk.PermCreate | zk.PermRead
	for chroot, c := range map[string]struct {
		perms int32
		want  [2]string
	}{
		"/enough": {some, [2]string{"fine", "may create"}},
		"/read":   {zk.PermRead, [2]string{"wrong", "missing: create on /read/dlock/locks"}},
	} {
		for _, node := range []string{chroot, chroot + "/dlock", chroot + "/dlock/locks"} {
			perms := int32(some)
			if strings.HasSuffix(node, "/locks") {
				perms = c.perms
			}
			_, err := z.Create(node, nil, 0, append(zk.DigestACL(perms, "app", "canary"), admin...))
			mustZK(t, "create", err)
		}
		check.Wants("where some nodes stand, under "+chroot, asUser(s.URL, "app", "canary", chroot), map[string][2]string{"rights": c.want}, "--no-laws")
	}
}

// TestZooKeeperDemo: the demo takes a TTL that a server with the default times allows.
func TestZooKeeperDemo(t *testing.T) {
	t.Parallel()
	steps.FlashSale(t, service.StartOwn(t, usual()).URL, func() {})
}
