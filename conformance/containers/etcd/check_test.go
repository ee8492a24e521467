package etcd

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestEtcdCheck: "dlock check" finds what is wrong with a cluster, and names each right that is
// missing.
func TestEtcdCheck(t *testing.T) {
	s, root := guardedEtcd(t)
	check := steps.NewChecker(t)
	right := func(kind clientv3.PermissionType) etcdRight {
		r := documentedRole(t)
		r.kind = kind
		return r
	}
	server := "server " + s.Addr
	user(t, root, "both", right(etcdBoth))
	check.Wants("a member alone", urlAs(s, "both", etcdPassword), map[string][2]string{
		"laws": steps.Holds, "members": {"risky", "1 voting"}, "rights": {"fine", ""}, "least TTL": {"fine", "2s"}, server: {"fine", "leader"},
	})
	// a law for which there is no time is not a failure: every law of etcd takes at least a TTL
	for _, within := range []string{"1ms", "300ms", "3s"} {
		check.Wants("a member alone, in "+within, urlAs(s, "both", etcdPassword), map[string][2]string{"laws": {"untried", "the time of --for ("}, "rights": {"fine", ""}}, "--for", within)
	}
	user(t, root, "reads", right(etcdRead))
	check.Wants("a user with read only", urlAs(s, "reads", etcdPassword), map[string][2]string{"rights": {"wrong", "missing: write on all keys with the prefix dlock/"}}, "--no-laws")
	user(t, root, "writes", right(etcdWrite))
	check.Wants("a user with write only", urlAs(s, "writes", etcdPassword), map[string][2]string{"rights": {"wrong", "missing: read on"}}, "--no-laws")
	part := right(etcdBoth)
	part.to = part.from + "m"
	user(t, root, "part", part)
	check.Wants("a user with a part of the keys", urlAs(s, "part", etcdPassword), map[string][2]string{"rights": {"wrong", "missing: read and write on all"}}, "--no-laws")
	user(t, root, "half", right(etcdRead), part)
	check.Wants("a user that may write to a part", urlAs(s, "half", etcdPassword), map[string][2]string{"rights": {"wrong", "missing: write on all"}}, "--no-laws")
	user(t, root, "nothing")
	check.Wants("a user without rights", urlAs(s, "nothing", etcdPassword), map[string][2]string{"rights": {"wrong", "missing: read and write"}}, "--no-laws")
}

// TestEtcdCheckTimes: a cluster that raises the TTLs of leases is reported.
func TestEtcdCheckTimes(t *testing.T) {
	s := service.StartOwn(t, Etcd.With("--heartbeat-interval=500", "--election-timeout=4000"))
	steps.NewChecker(t).Wants("a slow cluster", s.URL, map[string][2]string{"least TTL": {"risky", "6 s"}}, "--no-laws")
}
