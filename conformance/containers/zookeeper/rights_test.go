package zookeeper

import (
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
	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
)

// asUser is the URL with credentials and what follows the hosts.
func asUser(url, user, password, more string) string {
	return strings.Replace(url, "://", "://"+user+":"+password+"@", 1) + more
}

// digest is what ZooKeeper calls a user with a password.
func digest(user, password string) string {
	sum := sha1.Sum([]byte(user + ":" + password))
	return user + ":" + base64.StdEncoding.EncodeToString(sum[:])
}

// TestZooKeeperCredentials: what a client with credentials makes is its own, and nobody else's.
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
		t.Errorf("anybody can read /dlock: %q, %v", all, err)
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
	for user, password := range map[string]string{"": "", "app": "other", "stranger": "secret"} {
		other, err := open(user, password, "")
		if err == nil {
			_, err = other.Mutex("private").TryLock(await.Bounded(t, 30*time.Second))
		}
		if !errors.Is(err, zk.ErrNoAuth) || strings.Contains(err.Error(), "secret") || errors.Is(err, dlock.ErrHeld) {
			t.Errorf("as %q with another password: %v; want that it has no right", user, err)
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

// zkRights is the list of rights that docs/zookeeper.md gives the user on the chroot.
func zkRights(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/zookeeper.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("digest:[^:` ]+:[^:` ]+:([cdrwa]+)").FindSubmatch(page)
	if m == nil {
		t.Fatal("docs/zookeeper.md gives no list of rights as digest:user:hash:rights")
	}
	return string(m[1])
}

// TestZooKeeperLeastRights: on the chroot the user needs the rights that the documentation says,
// all of them, and no more.
func TestZooKeeperLeastRights(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, ZooKeeper)
	z := treeOf(t, s)
	bits := map[rune]int32{'c': zk.PermCreate, 'd': zk.PermDelete, 'r': zk.PermRead, 'w': zk.PermWrite, 'a': zk.PermAdmin}
	rights := []rune(zkRights(t))
	for missing := -1; missing < len(rights); missing++ {
		var perms int32
		name := "all"
		for i, r := range rights {
			if i != missing {
				perms |= bits[r]
			} else {
				name = "without " + string(r)
			}
		}
		t.Run(name, func(t *testing.T) {
			path := fmt.Sprint("/chroot", missing)
			_, err := z.Create(path, nil, 0, []zk.ACL{{Perms: perms, Scheme: "digest", ID: digest("app", "secret")}})
			mustZK(t, "create", err)
			err = steps.Everything(t, "name", func() (driver.Backend, error) { return zkBackend(asUser(s.URL, "app", "secret", path)) })
			switch {
			case missing < 0 && err != nil:
				t.Errorf("with the rights that are documented: %v", err)
			case missing >= 0 && err == nil:
				t.Error("it is not needed")
			case missing >= 0 && !errors.Is(err, zk.ErrNoAuth):
				t.Errorf("what is missing is not named: %v", err)
			}
		})
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
	nobody, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = dlock.Open(await.Bounded(t, 30*time.Second), asUser(fmt.Sprintf("zookeeper://127.0.0.1:%d", nobody[0]), "app", secret, ""), dlock.Logger(nil))
	if err == nil || time.Since(start) > 8*time.Second || !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), fmt.Sprint(nobody[0])) {
		t.Errorf("where nobody listens: %v after %s", err, time.Since(start))
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
