package etcd

import (
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestEtcdMistakes makes the mistakes of docs/mistakes.md that need an etcd.
func TestEtcdMistakes(t *testing.T) {
	t.Parallel()
	s, root := guardedEtcd(t)
	user(t, root, "app")
	open := func(url string) error {
		c, err := dlock.Open(t.Context(), url)
		if err == nil {
			defer c.Close()
			_, err = c.Mutex("orders/42").TryLock(t.Context())
		}
		return err
	}
	steps.Mistakes(t, map[string]error{
		"no etcd at the address":        open("etcd://127.0.0.1:1"),
		"a wrong password of etcd":      open(urlAs(s, "app", "wrong") + patiently),
		"a user without rights on etcd": open(urlAs(s, "app", etcdPassword) + patiently),
		"no user where etcd wants one":  open(s.URL),
	})
}
