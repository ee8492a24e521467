package redis

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock/driver/redis/internal/fault"
)

// said is an error of a server.
type said string

func (s said) Error() string { return string(s) }
func (said) RedisError()     {}

// TestRedirect: the address of a redirect is read, also from a node that does not know its own
// host.
func TestRedirect(t *testing.T) {
	node := redis.NewClient(&redis.Options{Addr: "node:7000"})
	defer node.Close()
	for _, tt := range []struct {
		err  error
		addr string // empty: it is no redirect
		ask  bool
	}{
		{said("MOVED 3999 other:7001"), "other:7001", false},
		{fmt.Errorf("wrapped: %w", said("ASK 3999 other:7001")), "other:7001", true},
		{said("MOVED 3999 :7001"), "node:7001", false},
		{said("MOVED 3999 ?:7001"), "node:7001", false},
		{said("ASK 3999 ::1:7001"), "[::1]:7001", true},
		{said("MOVED 3999"), "", false},
		{said("TRYAGAIN Multiple keys request during rehashing of slot"), "", false},
		{errors.New("MOVED 3999 other:7001"), "", false}, // of no server
	} {
		addr, ask, is := fault.Redirect(tt.err)
		if is {
			addr = from(node, addr)
		}
		if addr != tt.addr || ask != tt.ask || is != (tt.addr != "") {
			t.Errorf("%v: %q, ask %t, %t; want %q, %t", tt.err, addr, ask, is, tt.addr, tt.ask)
		}
	}
}
