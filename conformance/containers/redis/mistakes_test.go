package redis

import (
	"testing"

	"github.com/dlock-go/dlock"
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
	open := func(url string) error {
		c, err := dlock.Open(t.Context(), url)
		if err == nil {
			defer c.Close()
			_, err = c.Mutex("orders/42").TryLock(t.Context())
		}
		return err
	}
	steps.Mistakes(t, map[string]error{
		"no Redis at the address":        open("redis://127.0.0.1:1/0"),
		"a wrong password of Redis":      open("redis://app:wrong@" + s.Addr + "/0"),
		"a user without rights on Redis": open("redis://app:canary@" + s.Addr + "/0"),
		"TLS where Redis has none":       open("rediss://" + s.Addr + "/0"),
	})
}
