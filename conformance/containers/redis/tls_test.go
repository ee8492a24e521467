package redis

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// secureRedis is a server that serves TLS beside its plain port, on the second of its ports, and
// wants to see its clients' certificates.
func secureRedis(t *testing.T, k service.Kind, a *service.Authority) (addr string) {
	t.Helper()
	s := service.StartOwn(t, Secure(k, a))
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Ports[1]))
}

func TestRedisTLS(t *testing.T) {
	t.Parallel()
	a, other := service.NewAuthority(t), service.NewAuthority(t)
	addr := secureRedis(t, Redis, a)
	var fleet []string
	for range 3 {
		fleet = append(fleet, secureRedis(t, Redis, a))
	}
	pair := func(by *service.Authority) string {
		cert, key := by.Issue("client")
		return "&tls_cert=" + service.File(t, cert) + "&tls_key=" + service.File(t, key)
	}
	ca, client := "tls_ca="+service.File(t, a.Pem), pair(a)
	for _, scheme := range []string{"rediss://" + addr + "/0?ttl=2m&", "redlocks://" + strings.Join(fleet, ",") + "/0?ttl=2m&node_timeout=10s&"} {
		for _, c := range []struct{ what, params, why string }{
			{"all is well", ca + client, ""},
			{"the server's name, said", ca + client + "&tls_server_name=127.0.0.1", ""},
			{"no certificate", ca, "certificate required"},
			{"a certificate of another authority", ca + pair(other), "unknown certificate authority"},
			{"an authority that is not the server's", "tls_ca=" + service.File(t, other.Pem) + client, "signed by unknown authority"},
			{"the system's authorities", client[1:], "signed by unknown authority"},
			{"another server's name", ca + client + "&tls_server_name=elsewhere", "match elsewhere"},
		} {
			t.Run(scheme[:6]+", "+c.what, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				const tries = 4
				client, err := dlock.Open(ctx, scheme+c.params, dlock.Logger(nil))
				// A server that stands still completes no handshake, and proves nothing. One that
				// refuses a certificate closes the connection right after its alert: a client that
				// writes then may find it reset, and cannot read the reason.
				unsaid := regexp.MustCompile("not answered in time|reset by peer|broken pipe")
				for try := 1; try < tries && c.why != "" && err != nil && unsaid.MatchString(err.Error()); try++ {
					client, err = dlock.Open(ctx, scheme+c.params, dlock.Logger(nil))
				}
				if c.why != "" {
					if err == nil {
						client.Close()
						t.Fatal("Open succeeded")
					}
					if !strings.Contains(fmt.Sprint(err), c.why) {
						t.Errorf("Open: %v; want an error that says %q", err, c.why)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				l := redisLock(t, client.Mutex("secret"))
				if client.Capabilities().Queue { // the subscription is another connection
					w := steps.Try(t, client.Mutex("secret"))
					redisWaiting(t, client, "secret", 1)
					redisUnlock(t, l)
					l = w.Got("a wait", time.Now(), soon)
				}
				redisUnlock(t, l)
			})
		}
	}
}

// TestRedisCertificatesAreReplaced, whichever way the driver connects.
func TestRedisCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	a := service.NewAuthority(t)
	cluster := Secure(Redis, a)
	command := cluster.Command
	cluster.Command = func(dir string, ports []int) []string {
		return append(command(dir, ports), "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(ports[2]), "--cluster-announce-ip", "127.0.0.1")
	}
	for scheme, kinds := range map[string][]service.Kind{
		"rediss":          {Secure(Redis, a)},
		"redlocks":        {Secure(Redis, a), Secure(Redis, a), Secure(Redis, a)},
		"rediss+cluster":  {cluster},
		"rediss+sentinel": {Secure(Redis, a)},
	} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			var hosts []string
			var servers []*CLI
			start := func(k service.Kind) (port int) {
				s := service.StartOwn(t, k)
				hosts, servers = append(hosts, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Ports[1]))), append(servers, CLIOf(t, s))
				return s.Ports[1]
			}
			port, path := 0, ""
			for _, k := range kinds {
				port = start(k)
			}
			switch scheme {
			case "rediss+cluster":
				servers[0].Must("CLUSTER", "ADDSLOTSRANGE", 0, slots-1)
				await.That(t, "the cluster serves", func() bool {
					info, err := servers[0].ClusterInfo(servers[0].Ctx).Result()
					return err == nil && InfoField(info, "cluster_state") == "ok"
				})
			case "rediss+sentinel":
				k := Redis
				k.Files = map[string]string{"sentinel.conf": fmt.Sprintf("sentinel monitor dlock 127.0.0.1 %d 1\n", port)}
				k.Command = func(dir string, ports []int) []string {
					return []string{"redis-server", dir + "/sentinel.conf", "--sentinel", "--bind", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--dir", dir}
				}
				start(Secure(k, a))
				hosts, path = hosts[1:], "/dlock"
				await.That(t, "the sentinel knows the master", func() bool {
					m, err := servers[1].Do(servers[1].Ctx, "SENTINEL", "MASTER", "dlock").Result()
					v, _ := m.(map[any]any)
					return err == nil && v["flags"] == "master"
				})
			}
			open := func(params url.Values) (*dlock.Client, error) {
				return dlock.Open(t.Context(), scheme+"://"+strings.Join(hosts, ",")+path+"?"+params.Encode(), dlock.Logger(nil))
			}
			steps.CertificatesAreReplaced(t, a, open, func() {
				for _, s := range servers {
					for _, kind := range []string{"normal", "pubsub"} {
						s.Must("CLIENT", "KILL", "TYPE", kind)
					}
				}
			})
		})
	}
}
