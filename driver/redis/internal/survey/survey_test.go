package survey

import (
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestRightsOfASilentServer: rights that could not be tried are not reported.
func TestRightsOfASilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	rdb := redis.NewClient(&redis.Options{Addr: l.Addr().String(), MaxRetries: -1})
	defer rdb.Close()
	for what, n := range map[string]Needs{
		"a command":      {Commands: [][]any{{"time"}}},
		"a subscription": {Subscribe: "x"},
	} {
		if f, err := Rights(t.Context(), []Doer{rdb}, n); err == nil {
			t.Errorf("%s that no server answered: %+v", what, f)
		}
	}
}
