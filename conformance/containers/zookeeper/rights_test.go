package zookeeper

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/zookeeper"
)

// asUser is the URL with credentials, and with more after the hosts.
func asUser(url, user, password, more string) string {
	return strings.Replace(url, "://", "://"+user+":"+password+"@", 1) + more
}

// digest is ZooKeeper's ID of a user with a password.
func digest(user, password string) string {
	sum := sha1.Sum([]byte(user + ":" + password))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

// TestZooKeeperCredentials: the nodes that a client with credentials makes are open to that user
// alone.
func TestZooKeeperCredentials(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, ZooKeeper)
	z := treeOf(t, s)
	open := func(user, password, more string) (*dlock.Client, error) {
		url := s.URL + more
		if user != "" {
			url = asUser(s.URL, user, password, more)
		}
		c, err := dlock.Open(await.Bounded(t, 30*time.Second), url, dlock.TTL(time.Minute), dlock.Logger(nil))
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return c, err
	}
	c, err := open("app", "secret", "")
	if err != nil {
		t.Fatal(err)
	}
	l := steps.MustLock(t, c.Mutex("private"))
	nodes := []string{"/dlock", "/dlock/locks", "/dlock/sessions", zkQueue("private")}
	all, _, err := z.Children("/dlock")
	if err == nil || len(all) > 0 {
		t.Errorf("a client without credentials can read /dlock: %q, %v", all, err)
	}
	mustZK(t, "authenticate", z.AddAuth("digest", []byte("app:secret")))
	for _, parent := range []string{"/dlock/sessions", zkQueue("private")} {
		for _, child := range z.children(parent) {
			nodes = append(nodes, parent+"/"+child)
		}
	}
	if len(nodes) < 6 {
		t.Errorf("there is only %q", nodes)
	}
	for _, node := range nodes {
		acl, _, err := z.GetACL(node)
		if err != nil || len(acl) != 1 || acl[0].Perms != zk.PermAll || acl[0].Scheme != "digest" || acl[0].ID != digest("app", "secret") {
			t.Errorf("the rights of %s are %v, %v; want all, for the client that made it alone", node, acl, err)
		}
	}
	for user, password := range map[string]string{"": "", "app": "other", "another": "secret"} {
		other, err := open(user, password, "")
		if err == nil {
			_, err = other.Mutex("private").TryLock(await.Bounded(t, 30*time.Second))
		}
		if !errors.Is(err, zk.ErrNoAuth) || strings.Contains(err.Error(), "secret") || errors.Is(err, dlock.ErrHeld) {
			t.Errorf("as %q with %q: %v; want that it has no right", user, password, err)
		}
	}
	same, err := open("app", "secret", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := same.Mutex("private").TryLock(await.Bounded(t, 30*time.Second)); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("with the same credentials: %v", err)
	}
	mustUnlock(t, l)
	mustUnlock(t, steps.MustLock(t, same.Mutex("private")))
}

// zkRight is one row of the rights that docs/zookeeper.md lists: those that the user needs on a
// node, by a URL and over the user's own connection.
type zkRight struct{ stands, node, byURL, byConn string }

// on returns the rights for a way to open.
func (r zkRight) on(byURL bool) string {
	if byURL {
		return r.byURL
	}
	return r.byConn
}

// zkRights are the rows, by the nodes that exist already.
func zkRights(t *testing.T) map[string][]zkRight {
	t.Helper()
	page, err := os.ReadFile("../../../docs/zookeeper.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]zkRight{}
	for _, m := range regexp.MustCompile("(?m)^\\| ([^|]+) \\| `/teams(/[^`]*)?` \\| `([cdrwa]+)` \\| `([cdrwa]+)` \\|$").FindAllStringSubmatch(string(page), -1) {
		all[m[1]] = append(all[m[1]], zkRight{m[1], m[2], m[3], m[4]})
	}
	if len(all) < 4 {
		t.Fatalf("docs/zookeeper.md lists the rights of %d cases", len(all))
	}
	return all
}

// permission are the rights of a node, by their letters.
var permission = map[rune]int32{'c': zk.PermCreate, 'd': zk.PermDelete, 'r': zk.PermRead, 'w': zk.PermWrite, 'a': zk.PermAdmin}

var rightNames = map[rune]string{'c': "create", 'd': "delete", 'r': "read"}

// zkCase is a set of nodes with rights on them, and a client that opens there.
type zkCase struct {
	name  string
	top   string // the node that is /teams on the page
	byURL bool
	user  string // whose rights they are; "": those of world:anyone

	missing     rune // the right that is missing; 0: none
	missingNode string
}

// make makes the nodes, with the rights of the page except the one that is missing.
func (c zkCase) make(t *testing.T, z zkTree, rows []zkRight) {
	t.Helper()
	admin := zk.DigestACL(zk.PermAll, "admin", "secret")
	_, err := z.Create(c.top, nil, 0, admin)
	mustZK(t, "create", err)
	for _, r := range rows {
		var perms int32
		for _, letter := range r.on(c.byURL) {
			if letter != c.missing || r.node != c.missingNode {
				perms |= permission[letter]
			}
		}
		acl := admin
		if id := (zk.ACL{Perms: perms, Scheme: "world", ID: "anyone"}); perms != 0 {
			if c.user != "" {
				id.Scheme, id.ID = "digest", digest(c.user, "canary")
			}
			acl = append(acl, id)
		}
		for at := 1; at < len(r.node); at++ { // the nodes above it are the administrator's
			if r.node[at] == '/' {
				if _, err := z.Create(c.top+r.node[:at], nil, 0, admin); err != nil && err != zk.ErrNodeExists {
					t.Fatal(err)
				}
			}
		}
		if _, err := z.Create(c.top+r.node, nil, 0, acl); errors.Is(err, zk.ErrNodeExists) {
			_, err := z.SetACL(c.top+r.node, acl, -1)
			mustZK(t, "set the ACL", err)
		} else {
			mustZK(t, "create", err)
		}
	}
}

// url is the URL that the client opens.
func (c zkCase) url(s *service.Server) string {
	if c.user == "" {
		return s.URL + c.top + "/shop"
	}
	return asUser(s.URL, c.user, "canary", c.top+"/shop")
}

// open opens a backend.
func (c zkCase) open(t *testing.T, s *service.Server) (driver.Backend, error) {
	if c.byURL {
		return zkBackend(c.url(s))
	}
	conn := zkConnect(t, s, 60*time.Second, nil)
	t.Cleanup(conn.Close)
	acl := zk.WorldACL(zk.PermAll)
	if c.user != "" {
		acl = zk.AuthACL(zk.PermAll)
		if err := conn.ZK().AddAuth("digest", []byte(c.user+":canary")); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return zookeeper.New(ctx, conn, zookeeper.Options{Chroot: c.top + "/shop", ACL: acl})
}

// TestZooKeeperLeastRights: the user needs the rights that the documentation lists, all of them,
// and no more: by a URL and over a connection, with credentials and without, whichever nodes exist
// already. The error and "dlock check" name the missing right, and no other.
func TestZooKeeperLeastRights(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, ZooKeeper)
	z := treeOf(t, s)
	mustZK(t, "authenticate", z.AddAuth("digest", []byte("admin:secret")))
	check := steps.NewChecker(t)
	n := 0
	for stands, rows := range zkRights(t) {
		for _, way := range []zkCase{{name: "by URL", byURL: true, user: "app"}, {name: "by URL without credentials", byURL: true}, {name: "over a connection", user: "app"}} {
			c := way
			n++
			c.top = fmt.Sprint("/top", n)
			t.Run(stands+", "+c.name, func(t *testing.T) {
				t.Parallel()
				c.make(t, z, rows)
				if err := steps.Everything(t, "name", func() (driver.Backend, error) { return c.open(t, s) }); err != nil {
					t.Errorf("with the rights that are documented: %v", err)
				}
				if c.byURL {
					check.Wants(c.top, c.url(s), map[string][2]string{"rights": {"fine", ""}}, "--no-laws")
				}
			})
			for _, r := range rows {
				for _, letter := range r.on(c.byURL) {
					c := c
					n++
					c.top, c.missing, c.missingNode = fmt.Sprint("/top", n), letter, r.node
					t.Run(fmt.Sprintf("%s, %s, without %c on %s", stands, c.name, letter, r.node), func(t *testing.T) {
						t.Parallel()
						c.make(t, z, rows)
						c.isNamed(t, s, z, check)
					})
				}
			}
		}
	}
}

// isNamed fails the test unless the right that is missing is named.
func (c zkCase) isNamed(t *testing.T, s *service.Server, z zkTree, check steps.Checker) {
	t.Helper()
	right := rightNames[c.missing] + " on " + c.top + c.missingNode
	if c.missing == 'd' { // Close removes the nodes that it may, and reports no error
		b, err := c.open(t, s)
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		if left := z.children(c.top + c.missingNode); len(left) == 0 {
			t.Errorf("without %s the client leaves nothing", right)
		}
		return
	}
	var err error
	b, openErr := c.open(t, s)
	if openErr != nil {
		err = openErr
	} else {
		defer b.Close()
		r := steps.Asked(b, "name", 30*time.Second)
		if _, err = steps.Acquire(await.Bounded(t, 30*time.Second), b, r); err == nil {
			_, err = b.(driver.Lister).List(await.Bounded(t, 30*time.Second))
		}
	}
	if !errors.Is(err, zk.ErrNoAuth) || !strings.Contains(fmt.Sprint(err), right) {
		t.Errorf("%v; want that it lacks %s", err, right)
	}
	if c.byURL {
		check.Wants(c.top, c.url(s), map[string][2]string{"rights": {"wrong", "missing: " + right}}, "--no-laws")
	}
}

// TestZooKeeperSharedByUsers: two users share locks over connections with an ACL that gives each of
// them what the page says, and no more.
func TestZooKeeperSharedByUsers(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, ZooKeeper)
	const perms = zk.PermCreate | zk.PermRead | zk.PermWrite | zk.PermDelete
	acl := append(zk.DigestACL(perms, "one", "canary"), zk.DigestACL(perms, "two", "canary")...)
	users := []string{"one", "two"}
	n := 0
	err := steps.Everything(t, "name", func() (driver.Backend, error) {
		conn := zkConnect(t, s, 60*time.Second, nil)
		t.Cleanup(conn.Close)
		if err := conn.ZK().AddAuth("digest", []byte(users[n%2]+":canary")); err != nil {
			return nil, err
		}
		n++
		return zookeeper.New(await.Bounded(t, 30*time.Second), conn, zookeeper.Options{ACL: acl})
	})
	if err != nil {
		t.Error(err)
	}
}

// TestZooKeeperSecrets: no error and no text of a client shows its password.
func TestZooKeeperSecrets(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, ZooKeeper)
	const secret = "pa55w0rd"
	var texts []string
	for _, more := range []string{"/no/such/chroot%", "/a//b", "?session_timeout=x", "?nonsense=" + secret, "?sessions=-1", "/chroot/../x", "?session_timeout=1us", "/ends/"} {
		c, err := dlock.Open(await.Bounded(t, 5*time.Second), asUser(s.URL, "app", secret, more), dlock.Logger(nil))
		if err == nil {
			c.Close()
			continue
		}
		texts = append(texts, err.Error(), fmt.Sprintf("%+v %#v", err, err))
	}
	if len(texts) < 8 {
		t.Errorf("only %q were refused", texts)
	}
	unused, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = dlock.Open(await.Bounded(t, 30*time.Second), asUser(fmt.Sprintf("zookeeper://127.0.0.1:%d", unused[0]), "app", secret, ""), dlock.Logger(nil))
	if err == nil || time.Since(start) > 8*time.Second || !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), fmt.Sprint(unused[0])) {
		t.Errorf("where no server listens: %v after %s", err, time.Since(start))
	}
	b, err2 := zkBackend(asUser(s.URL, "app", secret, ""))
	if err2 != nil {
		t.Fatal(err2)
	}
	defer b.Close()
	texts = append(texts, fmt.Sprint(err), fmt.Sprintf("%v %+v %#v %s", b, b, b, b))
	c := steps.ClientOf(t, b)
	texts = append(texts, fmt.Sprintf("%v %+v %#v", c, c, c))
	s.Kill(t)
	_, err = c.Mutex("x").TryLock(await.Bounded(t, time.Second))
	texts = append(texts, fmt.Sprintf("%v %+v", err, err))
	for _, text := range texts {
		if strings.Contains(text, secret) {
			t.Errorf("the password is shown: %s", text)
		}
	}
}
