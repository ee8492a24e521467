package etcd

import (
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

// TestPlainCommand: a shell script takes part in the peers' locks by the command "dlock", beside
// scripts with etcdctl.
func TestPlainCommand(t *testing.T) {
	s := service.StartOwn(t, Etcd)
	c := etcdOf(t, s)
	bin, etcdctl := steps.BuildCommand(t), service.Tool(t, Etcd, "etcdctl")
	env := append(os.Environ(), "DLOCK_URL="+plainURL(s), "DLOCK="+bin, "ETCDCTL="+etcdctl, "ETCDCTL_ENDPOINTS="+s.Addr)
	run := func(script string, want ...string) {
		t.Helper()
		cmd := exec.CommandContext(await.Context(t), "sh", "-c", script)
		cmd.Env = env
		out, _ := cmd.CombinedOutput()
		for _, text := range want {
			if !strings.Contains(string(out), text) {
				t.Errorf("%s\nwant %q; it printed:\n%s", script, text, out)
			}
		}
	}
	run(`"$DLOCK" ls`, "no name is held or waited for")
	run(`"$DLOCK" run job -- "$ETCDCTL" get --prefix /locks/job/ --keys-only`, "/locks/job/")
	run(`"$DLOCK" run job -- "$DLOCK" inspect job`, "holder")
	run(`DLOCK_URL="${DLOCK_URL%&*}" "$DLOCK" ls`, "has nothing before {name}", "key such as /locks/{name}")
	// a hold of etcdctl
	run(`"$ETCDCTL" lock /locks/job -- "$DLOCK" run --try job -- echo in; echo "status $?"`, "held", "status 124")
	run(`"$ETCDCTL" lock /locks/job -- "$DLOCK" ls`, "job", "/locks/job/")
	run(`"$ETCDCTL" lock /locks/job -- "$DLOCK" inspect --json job`, `"label": "/locks/job/`, `"waiters": []`)
	run(`"$ETCDCTL" lock /locks/job -- "$DLOCK" break --yes --force job`, "not supported", "etcdctl lease revoke")
	// a hold of dlock
	run(`"$DLOCK" run job -- sh -c '"$ETCDCTL" lock /locks/job -- echo second & sleep 0.5; echo first'; wait`, "first\n")
	run(`"$ETCDCTL" lock /locks/job -- echo free`, "free")
	run(`"$DLOCK" run a/b -- true; echo "status $?"`, "no '/'", "key=/locks/{name}")
	await.That(t, "no key is left", func() bool { return len(plainKeys(t, c, "job")) == 0 })
}

// TestPlainCheck: "dlock check" tries the laws that the layout has, and names each right that is
// missing, on the peers' keys and on the records.
func TestPlainCheck(t *testing.T) {
	s, root := guardedEtcd(t)
	check := steps.NewChecker(t)
	query := "?keys=plain&key=" + url.QueryEscape(plainKey)
	right := func(prefix string) etcdRight {
		return etcdRight{prefix, clientv3.GetPrefixRangeEnd(prefix), etcdBoth}
	}
	page, err := os.ReadFile("../../../docs/etcd-plain.md")
	if err != nil {
		t.Fatal(err)
	}
	role := regexp.MustCompile(`etcdctl role grant-permission \S+ --prefix=true readwrite (\S+)`).FindAllStringSubmatch(string(page), -1)
	if len(role) != 2 {
		t.Fatalf("docs/etcd-plain.md grants %d rights, want two", len(role))
	}
	queues, records := role[0][1], role[1][1]
	user(t, root, "both", right(records), right(queues))
	check.Wants("the documented role", urlAs(s, "both", etcdPassword)+query, map[string][2]string{
		"laws": {"fine", "not supported by this backend: "}, "rights": {"fine", records}, "least TTL": {"fine", "2s"}, "set-up": {"fine", ""},
	})
	user(t, root, "records", right(records))
	check.Wants("no right on the peers' keys", urlAs(s, "records", etcdPassword)+query, map[string][2]string{
		"rights": {"wrong", "missing: read and write on all keys with the prefix " + queues},
	}, "--no-laws")
	user(t, root, "queues", right(queues))
	check.Wants("no right on the records", urlAs(s, "queues", etcdPassword)+query, map[string][2]string{
		"rights": {"wrong", "missing: read and write on all keys with the prefix " + records},
	}, "--no-laws")
	one := right("dlock-check")
	user(t, root, "unrooted", right(records), one)
	check.Wants("keys without a beginning", urlAs(s, "unrooted", etcdPassword)+"?keys=plain", map[string][2]string{
		"rights": {"fine", "with the prefix dlock%plain/ or dlock-check/"}, "set-up": {"fine", ""},
	}, "--no-laws")
}
