package redis

import (
	"testing"

	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
)

// TestRedisMistakes makes the mistakes of docs/mistakes.md that need a Redis.
func TestRedisMistakes(t *testing.T) {
	t.Parallel()
	s := service.StartOwn(t, Redis)
	k := CLIOf(t, s)
	if err := k.Do(k.Ctx, "ACL", "SETUSER", "app", "on", ">canary", "~*", "&*", "+ping", "+hello").Err(); err != nil {
		t.Fatal(err)
	}
	steps.Mistakes(t, map[string]error{
		"no Redis at the address":        steps.FirstLock(t, "redis://127.0.0.1:1/0"),
		"a wrong password of Redis":      steps.FirstLock(t, "redis://app:wrong@"+s.Addr+"/0"),
		"a user without rights on Redis": steps.FirstLock(t, "redis://app:canary@"+s.Addr+"/0"),
		"TLS where Redis has none":       steps.FirstLock(t, "rediss://"+s.Addr+"/0"),
	})
}
