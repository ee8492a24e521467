package redlock

import (
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/internal/await"
)

func openURL(t *testing.T, f fleet) {
	c, err := dlock.Open(t.Context(), f.url("ttl=100s&node_timeout=10s&prefix=p/{x}"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a name").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if n := servers.CLIOf(t, f[0]).Exists(t.Context(), "dlock:p/%7Bx%7D{a name}:redlock").Val(); n != 1 && l.Err() == nil {
		await.That(t, "the last master has it", func() bool {
			return servers.CLIOf(t, f[0]).Exists(t.Context(), "dlock:p/%7Bx%7D{a name}:redlock").Val() == 1
		})
	}
	q, err := c.Inspect(t.Context(), "a name")
	if err != nil || q.Len() != 1 || q.Holders[0].Age < 0 || q.Holders[0].Left > 100*time.Second || q.Holders[0].TTL != 100*time.Second {
		t.Errorf("Inspect: %+v, %v", q, err)
	}
	if l.Token() != 0 {
		t.Errorf("token %d", l.Token())
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	start := time.Now()
	wake := f.hang(t, 0, 1)
	again, err := dlock.Open(t.Context(), f.url(""))
	if err != nil {
		t.Errorf("Open with 2 of 5 hanging: %v", err)
	} else {
		again.Close()
	}
	wake()
	f.down(t, 0, 1, 2)
	_, err = dlock.Open(t.Context(), strings.Replace(f.url(""), "//", "//user:canary@", 1))
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "2 of 5 masters answered") && !strings.Contains(err.Error(), "0 of 5 masters answered") {
		t.Errorf("Open with 3 of 5 down: %v", err)
	}
	t.Logf("Open with 2 hanging, then with 3 down: %s: %v", time.Since(start), err)
}
