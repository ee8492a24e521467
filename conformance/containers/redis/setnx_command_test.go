package redis

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestRedisSetNXCommand: a shell script takes part in locks of other software.
func TestRedisSetNXCommand(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	k, bin := CLIOf(t, s), steps.BuildCommand(t)
	want := func(status int, words []string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = append(os.Environ(), "DLOCK_URL="+setNXURL(s, "lock:{name}"))
		cmd.WaitDelay = 10 * time.Second
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != status {
			t.Errorf("dlock %q: exit status %d, want %d\n%s", args, got, status, out)
		}
		for _, w := range words {
			if !bytes.Contains(out, []byte(w)) {
				t.Errorf("dlock %q: no %q in\n%s", args, w, out)
			}
		}
	}
	want(0, []string{"no name is held or waited for"}, "ls")
	k.Must("SET", "lock:peers", "redsync's value", "PX", 60000)
	want(0, []string{"peers", "exclusive", `other software: "redsync's value"`}, "ls")
	want(0, []string{"holders 1, waiters 0", "foreign", `other software: "redsync`}, "inspect", "peers")
	want(0, []string{`"label": "other software: \"redsync's value\""`}, "inspect", "--json", "peers")
	want(124, []string{"held", "other software"}, "run", "--try", "peers", "--", "echo", "ran")
	want(124, []string{"held"}, "run", "--wait", "300ms", "peers", "--", "echo", "ran")
	want(1, []string{"would not be notified"}, "break", "--yes", "--force", "peers")
	if got := k.Get(k.Ctx, "lock:peers").Val(); got != "redsync's value" {
		t.Errorf("the peer's key has %q", got)
	}
	// the script holds a lock, and then it does not
	want(0, []string{"ours", "ran"}, "run", "ours", "--", "sh", "-c", `"`+bin+`" ls && echo ran`)
	want(0, nil, "run", "--once-per", "1h", "ours", "--", "true")
	if left := k.PTTL(k.Ctx, "lock:ours").Val(); left < 58*time.Minute {
		t.Errorf("after a job that runs once an hour its key expires in %s", left)
	}
	want(124, []string{"held"}, "run", "--once-per", "1h", "ours", "--", "true")
	want(0, []string{"ended"}, "break", "--yes", "--force", "ours")
	want(0, []string{"free"}, "inspect", "ours")
	want(2, []string{"{name} is there 0 times"}, "ls", "--url", s.URL+"/0?format=setnx&key=lock")
}

// TestRedisSetNXCheck: "dlock check" finds the rights that are missing, and gives advice that fits
// locks without tokens.
func TestRedisSetNXCheck(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	k, check := CLIOf(t, s), steps.NewChecker(t)
	url := setNXURL(s, "lock:{name}")
	check.Wants("a plain server", url, map[string][2]string{
		"laws": {"fine", "core laws hold"}, "rights": {"fine", ""}, "notification of breaks": {"fine", ""}, "replication": {"fine", "no replicas"},
	})
	if n, err := k.Keys(t.Context(), "lock:*").Result(); err != nil || len(n) > 0 {
		t.Errorf("the check left keys: %q, %v", n, err)
	}
	rights := ACL(t, "docs/setnx.md")
	k.Must(words("ACL SETUSER app on >canary", rights)...)
	app := strings.Replace(url, "://", "://app:canary@", 1)
	check.Wants("a user with the least rights", app, map[string][2]string{"laws": {"fine", "core laws hold"}, "rights": {"fine", ""}, "configuration": {"unseen", "INFO"}})
	for _, r := range rights {
		if !strings.HasPrefix(r, "+") {
			continue
		}
		k.Must("ACL", "SETUSER", "app", "-"+r[1:])
		check.Wants("without "+r, app, map[string][2]string{"rights": {"wrong", "missing: " + r}}, "--no-laws")
		k.Must("ACL", "SETUSER", "app", r)
	}
	for _, keys := range []string{"~lock:*", "~dlock:*"} {
		k.Must("ACL", "SETUSER", "app", "resetkeys", keys)
		check.Wants("with the keys "+keys+" alone", app, map[string][2]string{"rights": {"wrong", "missing: ~lock:* ~dlock:*"}}, "--no-laws")
	}
}
