package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/etcd"
)

const etcdPassword = "canary"

// patiently are URL parameters with so long a timeout that Open succeeds, or fails for another
// reason.
const patiently = "?dial_timeout=30s"

// guardedEtcd is a member that requires a user and a password. root is a client of the user root.
func guardedEtcd(t *testing.T, args ...string) (*service.Server, *clientv3.Client) {
	t.Helper()
	// a low cost of passwords, for a hundred clients
	s := service.StartOwn(t, Etcd.With(append(args, "--bcrypt-cost=4")...))
	guard(t, etcdOf(t, s))
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: "root", Password: etcdPassword, Logger: zap.NewNop(), DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return s, root
}

// guard makes a server require a user, and gives all rights to root.
func guard(t *testing.T, open *clientv3.Client) {
	t.Helper()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err := open.UserAdd(t.Context(), "root", etcdPassword)
	must("add root", err)
	_, err = open.UserGrantRole(t.Context(), "root", "root")
	must("grant root", err)
	_, err = open.AuthEnable(t.Context())
	must("enable", err)
}

// user adds a user, with a role of the same name that has the rights, each a type and a range.
func user(t *testing.T, root *clientv3.Client, name string, rights ...etcdRight) {
	t.Helper()
	_, err := root.RoleAdd(t.Context(), name)
	for _, r := range rights {
		if err == nil {
			_, err = root.RoleGrantPermission(t.Context(), name, r.from, r.to, r.kind)
		}
	}
	if err == nil {
		_, err = root.UserAdd(t.Context(), name, etcdPassword)
	}
	if err == nil {
		_, err = root.UserGrantRole(t.Context(), name, name)
	}
	if err != nil {
		t.Fatal(err)
	}
}

type etcdRight struct {
	from, to string
	kind     clientv3.PermissionType
}

var (
	etcdRead  = clientv3.PermissionType(clientv3.PermRead)
	etcdWrite = clientv3.PermissionType(clientv3.PermWrite)
	etcdBoth  = clientv3.PermissionType(clientv3.PermReadWrite)
)

// documentedRole is the role of docs/etcd.md.
func documentedRole(t *testing.T) etcdRight {
	t.Helper()
	page, err := os.ReadFile("../../../docs/etcd.md")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`etcdctl role grant-permission (\S+) --prefix=true (\S+) (\S+)`).FindAllSubmatch(page, -1)
	if len(all) != 1 {
		t.Fatalf("docs/etcd.md grants %d rights, want one", len(all))
	}
	kind, err := clientv3.StrToPermissionType(string(all[0][2]))
	if err != nil {
		t.Fatal(err)
	}
	prefix := strings.Trim(string(all[0][3]), "'\"")
	return etcdRight{prefix, clientv3.GetPrefixRangeEnd(prefix), kind}
}

// urlAs is the URL of the server for a user.
func urlAs(s *service.Server, name, password string) string {
	return "etcd://" + url.UserPassword(name, password).String() + "@" + s.Addr
}

// TestEtcdRights: the role of the documentation suffices, and no smaller one does; the error says
// what is missing.
func TestEtcdRights(t *testing.T) {
	t.Parallel()
	s, root := guardedEtcd(t)
	role := documentedRole(t)
	roles := map[string][]etcdRight{
		"documented":   {role},
		"none":         nil,
		"read":         {{role.from, role.to, etcdRead}},
		"write":        {{role.from, role.to, etcdWrite}},
		"one-key":      {{role.from, "", etcdBoth}},
		"elsewhere":    {{"elsewhere/", "elsewhere0", etcdBoth}},
		"half":         {{role.from + "m", role.to, etcdBoth}, {role.from, role.from + "m", etcdRead}},
		"half-unread":  {{role.from + "m", role.to, etcdBoth}, {role.from, role.from + "m", etcdWrite}},
		"all-but-some": {{role.from, role.from + "rights/", etcdBoth}},
	}
	var all sync.WaitGroup
	defer await.All(t, &all)
	for name, rights := range roles {
		user(t, root, name, rights...)
		all.Go(func() {
			err := steps.Everything(t, "l/rights "+name, func() (driver.Backend, error) {
				u, err := url.Parse(urlAs(s, name, etcdPassword) + patiently)
				if err != nil {
					return nil, err
				}
				return driver.Lookup("etcd")(t.Context(), driver.Config{URL: u, Hosts: []string{u.Host}, TTL: time.Minute, Client: driver.NewID()})
			})
			switch {
			case name == "documented" && err != nil:
				t.Errorf("with the documented role: %v", err)
			case name == "documented":
			case err == nil:
				t.Errorf("the role %q suffices too", name)
			case !errors.Is(err, rpctypes.ErrPermissionDenied) || !strings.Contains(err.Error(), "docs/etcd.md"):
				t.Errorf("with the role %q the error does not say what to do: %v", name, err)
			}
			if err != nil && strings.Contains(err.Error(), etcdPassword) {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}

// TestEtcdRightsEveryWay: the role of the page is enough, and the user has no other, however the
// client is opened: over a client of the caller's, with a prefix or a root of its own, with a
// certificate in place of a password, on a cluster.
func TestEtcdRightsEveryWay(t *testing.T) {
	t.Parallel()
	s, root := guardedEtcd(t)
	role := documentedRole(t)
	under := func(prefix string) etcdRight { // the role of the page for roots and prefixes
		return etcdRight{prefix, clientv3.GetPrefixRangeEnd(prefix), role.kind}
	}
	user(t, root, "new", role)
	user(t, root, "prefix", under("dlock/mine"))
	user(t, root, "elsewhere", under("team%2Fapp/"))
	cluster, clusterRoot := guardedCluster(t)
	user(t, clusterRoot, "cluster", role)
	a := service.NewAuthority(t)
	cert, key := a.Issue("127.0.0.1")
	secure := secureEtcd(t, a, cert, key, true)
	mine, mineKey := a.Issue("by-certificate")
	ca, clientCert, clientKey := service.File(t, a.Pem), service.File(t, mine), service.File(t, mineKey)
	guardByCertificate(t, a, secure, "by-certificate", role)
	byURL := func(text, prefix string) func() (driver.Backend, error) {
		return func() (driver.Backend, error) {
			u, err := url.Parse(text)
			if err != nil {
				return nil, err
			}
			return driver.Lookup(u.Scheme)(t.Context(), driver.Config{URL: u, Hosts: strings.Split(u.Host, ","), Prefix: prefix, TTL: time.Minute, Client: driver.NewID()})
		}
	}
	clusterURL := url.URL{Scheme: "etcd", User: url.UserPassword("cluster", etcdPassword), Host: strings.Join(cluster.addrs(), ","), RawQuery: patiently[1:]}
	var all sync.WaitGroup
	defer await.All(t, &all)
	for what, open := range map[string]func() (driver.Backend, error){
		"New": func() (driver.Backend, error) {
			return etcdSideOf(t, s, func(c *clientv3.Config) { c.Username, c.Password, c.DialTimeout = "new", etcdPassword, 30*time.Second }), nil
		},
		"a prefix":      byURL(urlAs(s, "prefix", etcdPassword)+patiently, "mine"),
		"a root":        byURL(urlAs(s, "elsewhere", etcdPassword)+"/team/app"+patiently, ""),
		"three members": byURL(clusterURL.String(), ""),
		"a certificate": byURL(secure.URL+"?"+url.Values{"tls_ca": {ca}, "tls_cert": {clientCert}, "tls_key": {clientKey}, "dial_timeout": {"30s"}}.Encode(), ""),
	} {
		all.Go(func() {
			if err := steps.Everything(t, "every way", open); err != nil {
				t.Errorf("%s, with the documented role: %v", what, err)
			}
		})
	}
}

// guardedCluster is [guardedEtcd] of three members.
func guardedCluster(t *testing.T) (*Cluster, *clientv3.Client) {
	t.Helper()
	c := StartCluster(t)
	guard(t, etcdOf(t, c.Members[0]))
	root, err := clientv3.New(clientv3.Config{Endpoints: c.addrs(), Username: "root", Password: etcdPassword, Logger: zap.NewNop(), DialTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return c, root
}

// guardByCertificate makes a member identify its users by the names in their certificates. The user
// of the given name has the role.
func guardByCertificate(t *testing.T, a *service.Authority, s *service.Server, name string, role etcdRight) {
	t.Helper()
	cert, key := a.Issue("root")
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Logger: zap.NewNop(), DialTimeout: 30 * time.Second,
		TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	guard(t, root)
	user(t, root, name, role)
}

// TestEtcdRightsTaken: a wait ends when its client has lost the rights that it needs, which the
// client learns when its streams break.
func TestEtcdRightsTaken(t *testing.T) {
	t.Parallel()
	s, root := guardedEtcd(t)
	role := documentedRole(t)
	user(t, root, "holds", role)
	user(t, root, "waits", role)
	as := func(name string) *etcdSide {
		return etcdSideOf(t, s, func(c *clientv3.Config) { c.Username, c.Password, c.DialTimeout = name, etcdPassword, 30*time.Second })
	}
	holder, waiter := as("holds"), as("waits")
	steps.Acquired(t, holder, steps.Asked(holder, "taken", time.Minute))
	got := steps.Acquiring(waiter, steps.Waiting(waiter, "taken", time.Minute))
	await.That(t, "one waits", func() bool { return steps.Queue(t, holder, "taken").Len() == 2 && waiter.rpcs.watches() > 0 })
	if _, err := root.RoleRevokePermission(t.Context(), "waits", role.from, role.to); err != nil {
		t.Fatal(err)
	}
	waiter.proxy.Cut()
	select {
	case err := <-got:
		if !errors.Is(err, rpctypes.ErrPermissionDenied) || !strings.Contains(err.Error(), "docs/etcd.md") {
			t.Errorf("Acquire of a client without rights: %v", err)
		}
	case <-time.After(30 * time.Second): // its context ends after a minute
		t.Error("a client without rights waits for ever")
	}
}

// TestEtcdSecrets searches for a password in all texts.
func TestEtcdSecrets(t *testing.T) {
	s, root := guardedEtcd(t)
	user(t, root, "app", etcdRight{"dlock/", "dlock0", etcdBoth})
	const secret = "hunter-canary-2"
	if _, err := root.UserChangePassword(t.Context(), "app", secret); err != nil {
		t.Fatal(err)
	}
	hidden := func(what string, values ...any) {
		t.Helper()
		for _, v := range values {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
				if text := fmt.Sprintf(verb, v); strings.Contains(text, secret) || strings.Contains(text, "hunter") {
					t.Errorf("%s: %s shows the password", what, verb)
				}
			}
		}
	}
	c, err := dlock.Open(t.Context(), urlAs(s, "app", secret)+patiently, dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("secret").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	_, held := c.Mutex("secret").TryLock(t.Context())
	hidden("values in use", c, c.Capabilities(), l, held)
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, Username: "app", Password: secret, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	b, err := etcd.New(client, etcd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	hidden("a backend", b, struct{ b *etcd.Backend }{b}, b.Capabilities())
	unused, err := service.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for _, text := range []string{
		urlAs(s, "app", secret+"x"),
		urlAs(s, "other", secret),
		strings.Replace(urlAs(s, "app", secret), s.Addr, fmt.Sprint("127.0.0.1:", unused[0]), 1) + "?dial_timeout=500ms",
		urlAs(s, "app", secret) + "/?" + secret + "=1",
		urlAs(s, "app", secret) + "/?dial_timeout=" + secret,
		"etcds" + strings.TrimPrefix(urlAs(s, "app", secret), "etcd") + "?dial_timeout=500ms",
		urlAs(s, "", secret),
		urlAs(s, "app", secret) + ":x",
	} {
		c, err := dlock.Open(t.Context(), text, dlock.Logger(nil))
		if err == nil {
			c.Close()
			t.Error("a wrong URL was opened")
			continue
		}
		wrong++
		if !strings.Contains(text, "?"+secret) { // the name of a parameter is no secret
			hidden(fmt.Sprint("error ", wrong), err)
		}
		for e := err; e != nil && !strings.Contains(text, "?"+secret); e = errors.Unwrap(e) {
			hidden(fmt.Sprintf("error %d, a %T", wrong, e), e)
		}
	}
	if _, err := dlock.Open(t.Context(), urlAs(s, "app", "wrong")+patiently, dlock.Logger(nil)); err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("a wrong password: %v", err)
	}
	if _, err := dlock.Open(t.Context(), "etcd://"+s.Addr+patiently, dlock.Logger(nil)); err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("no password: %v", err)
	}
}

// TestEtcdTokens: auth tokens expire after a second or two without a call. No call fails, and no
// wait ends.
func TestEtcdTokens(t *testing.T) {
	t.Parallel()
	s, root := guardedEtcd(t, "--auth-token=simple", "--auth-token-ttl=1")
	user(t, root, "app", etcdRight{"dlock/", "dlock0", etcdBoth})
	// renewed each ten seconds, each time with an expired token
	const ttl = 30 * time.Second // longer than a machine that checks passwords may stall
	var clients []*dlock.Client
	for range 3 {
		c, err := dlock.Open(t.Context(), urlAs(s, "app", etcdPassword)+patiently, dlock.Logger(nil), dlock.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	held, err := clients[0].Mutex("tokens").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	wait := func(c *dlock.Client) <-chan error {
		done := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		go func() {
			defer cancel()
			l, err := c.Mutex("tokens").Lock(ctx)
			if err == nil {
				err = l.Unlock(ctx)
			}
			done <- err
		}()
		return done
	}
	first := wait(clients[1])
	for range 2 {
		until := held.Until()
		await.That(t, "the hold is renewed", func() bool { return held.Until().After(until) })
	}
	late := wait(clients[2]) // its first watch is requested with an expired token
	if err := held.Err(); err != nil {
		t.Errorf("the hold: %v", err)
	}
	await.That(t, "two wait", func() bool {
		q, err := clients[0].Inspect(t.Context(), "tokens")
		return err == nil && q.Len() == 3
	})
	if err := held.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	for _, done := range []<-chan error{first, late} {
		if err := await.From(t, done); err != nil {
			t.Errorf("Lock of the waiter: %v", err)
		}
	}
}
