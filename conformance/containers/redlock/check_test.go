package redlock

import (
	"strings"
	"testing"

	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestRedlockCheck: "dlock check" checks each master, and names each right that is missing there. A
// master that is down is wrong, and so is no majority.
func TestRedlockCheck(t *testing.T) {
	var f fleet
	for range 3 {
		f = append(f, service.StartOwn(t, servers.Redis))
	}
	check := steps.NewChecker(t)
	const page = "docs/redlock.md"
	rights := servers.ACL(t, page)
	for _, s := range f {
		args := []any{"ACL", "SETUSER", "app", "on", ">canary"}
		for _, r := range rights {
			args = append(args, r)
		}
		servers.CLIOf(t, s).Must(args...)
	}
	url := strings.Replace(f.url(""), "://", "://app:canary@", 1)
	of := func(about string, i int) string { return about + " of " + f[i].Addr }
	check.Wants("three masters", url, map[string][2]string{
		"laws": {"fine", "core laws hold"}, of("rights", 0): {"fine", ""}, of("rights", 1): {"fine", ""}, of("configuration", 2): {"unseen", "INFO"},
	})
	cli := servers.CLIOf(t, f[1])
	for _, r := range rights {
		if strings.HasPrefix(r, "+") {
			cli.Must("ACL", "SETUSER", "app", "-"+r[1:])
			check.Wants("without "+r, url, map[string][2]string{of("rights", 0): {"fine", ""}, of("rights", 1): {"wrong", "missing: " + r}}, "--no-laws")
			cli.Must("ACL", "SETUSER", "app", r)
		}
	}
	f[2].Kill(t)
	check.Wants("with one down", url, map[string][2]string{of("reachable", 2): {"wrong", "refused"}, of("rights", 1): {"fine", ""}}, "--no-laws")
	f[1].Kill(t)
	check.Wants("with two down", url, map[string][2]string{"reachable": {"wrong", "no majority"}, of("reachable", 1): {"wrong", ""}, of("reachable", 2): {"wrong", ""}})
}
