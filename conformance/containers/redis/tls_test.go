package redis

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// secureRedis is a server that serves TLS beside its plain port, on the second of its ports, and
// wants to see its clients' certificates.
func secureRedis(t *testing.T, k service.Kind, a *service.Authority) (addr string) {
	t.Helper()
	cert, key := a.Issue("127.0.0.1")
	command := k.Command
	k.Ports, k.Files = 2, map[string]string{"cert.pem": cert, "key.pem": key, "ca.pem": a.Pem}
	k.Command = func(dir string, ports []int) []string {
		return append(command(dir, ports), "--tls-port", strconv.Itoa(ports[1]), "--tls-cert-file", dir+"/cert.pem", "--tls-key-file", dir+"/key.pem",
			"--tls-ca-cert-file", dir+"/ca.pem", "--tls-auth-clients", "yes")
	}
	s := service.StartOwn(t, k)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Ports[1]))
}

func TestRedisTLS(t *testing.T) {
	t.Parallel()
	a, stranger := service.NewAuthority(t), service.NewAuthority(t)
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
			{"a certificate of a stranger", ca + pair(stranger), "unknown certificate authority"},
			{"an authority that is not the server's", "tls_ca=" + service.File(t, stranger.Pem) + client, "signed by unknown authority"},
			{"the system's authorities", client[1:], "signed by unknown authority"},
			{"another server's name", ca + client + "&tls_server_name=elsewhere", "match elsewhere"},
		} {
			t.Run(scheme[:6]+", "+c.what, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				const tries = 4
				client, err := dlock.Open(ctx, scheme+c.params, dlock.Logger(nil))
				// a server that stands still shakes no hands, and proves nothing
				for try := 1; try < tries && c.why != "" && err != nil && strings.Contains(err.Error(), "not answered in time"); try++ {
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
