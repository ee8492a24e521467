package redis

import (
	"strings"
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestRedisCheck: "dlock check" finds what is wrong with a server, and nothing else; it names each
// right that is missing.
func TestRedisCheck(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	cli := CLIOf(t, s)
	check := steps.NewChecker(t)
	as := func(user string) string { return strings.Replace(s.URL, "://", "://"+user+":canary@", 1) + "/0" }
	all := map[string][2]string{
		"laws": steps.Holds, "rights": {"fine", ""}, "eviction": {"risky", "maxmemory is not set"}, "persistence": {"risky", "a restart loses"},
		"replication": {"fine", "no replicas"}, "version": {"fine", "Redis"},
	}
	cli.Must("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "save", "")
	check.Wants("a plain server", s.URL+"/0", all)
	if n, err := cli.Keys(t.Context(), "dlock:dlock-check*").Result(); err != nil || len(n) > 0 {
		t.Errorf("the check left keys: %q, %v", n, err)
	}
	cli.Must("CONFIG", "SET", "maxmemory", "100mb", "appendonly", "yes", "appendfsync", "everysec")
	check.Wants("one that evicts", s.URL+"/0", map[string][2]string{"eviction": {"wrong", "allkeys-lru"}, "memory": {"fine", ""}, "persistence": {"risky", "everysec"}}, "--no-laws")
	cli.Must("CONFIG", "SET", "maxmemory-policy", "noeviction", "appendfsync", "always")
	check.Wants("a safe one", s.URL+"/0", map[string][2]string{"eviction": {"fine", "noeviction"}, "persistence": {"fine", "always"}}, "--no-laws")

	rights := ACL(t, page)
	cli.Must(words("ACL SETUSER app on >canary", rights)...)
	check.Wants("a user with the least rights", as("app"), map[string][2]string{"laws": steps.Holds, "rights": {"fine", ""}, "configuration": {"unseen", "INFO"}})
	for _, r := range rights {
		if !strings.HasPrefix(r, "+") {
			continue
		}
		cli.Must("ACL", "SETUSER", "app", "-"+r[1:])
		check.Wants("without "+r, as("app"), map[string][2]string{"rights": {"wrong", "missing: " + r}}, "--no-laws")
		cli.Must("ACL", "SETUSER", "app", r)
	}
	cli.Must("ACL", "SETUSER", "app", "-time", "-publish")
	check.Wants("without two", as("app"), map[string][2]string{"rights": {"wrong", "missing: +time, +publish"}}, "--no-laws")
	cli.Must("ACL", "SETUSER", "app", "+time", "+publish", "resetchannels")
	check.Wants("without channels", as("app"), map[string][2]string{"rights": {"wrong", "missing: &dlock::*"}}, "--no-laws")
	cli.Must("ACL", "SETUSER", "app", "resetkeys")
	check.Wants("without keys", as("app"), map[string][2]string{"rights": {"wrong", "~dlock:{*}*"}}, "--no-laws")
	cli.Must("ACL", "SETUSER", "app", "resetpass", ">other")
	check.Wants("with another password", as("app"), map[string][2]string{"reachable": {"wrong", "does not accept the user or the password"}})
}

// words returns the words of a text, followed by more.
func words(text string, more []string) (all []any) {
	for _, w := range append(strings.Fields(text), more...) {
		all = append(all, w)
	}
	return all
}

// TestRedisCheckOfACluster: each master is checked.
func TestRedisCheckOfACluster(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, Redis)
	want := map[string][2]string{"laws": steps.Holds, "rights": {"fine", ""}}
	cli := CLIOf(t, c.Nodes[0])
	cli.Must("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
	want["eviction of "+c.Nodes[0].Addr] = [2]string{"wrong", "allkeys-lru"}
	want["eviction of "+c.Nodes[1].Addr] = [2]string{"fine", ""}
	want["replication of "+c.Nodes[1].Addr] = [2]string{"risky", "replicas"}
	steps.NewChecker(t).Wants("a cluster", "redis+cluster://"+strings.Join(c.Addrs(), ","), want)
}
