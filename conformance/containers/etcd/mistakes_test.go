package etcd

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestEtcdMistakes makes the mistakes of docs/mistakes.md that need an etcd.
func TestEtcdMistakes(t *testing.T) {
	t.Parallel()
	s, root := guardedEtcd(t)
	user(t, root, "app")
	steps.Mistakes(t, map[string]error{
		"no etcd at the address":        steps.FirstLock(t, "etcd://127.0.0.1:1"),
		"a wrong password of etcd":      steps.FirstLock(t, urlAs(s, "app", "wrong")+patiently),
		"a user without rights on etcd": steps.FirstLock(t, urlAs(s, "app", etcdPassword)+patiently),
		"no user where etcd wants one":  steps.FirstLock(t, s.URL),
	})
}
