//go:build linux || darwin

package dlockhttp

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	_ "github.com/dlock-go/dlock/driver/file"
)

// TestHandlersOfTwoServers sends a hundred requests for one key at once to two servers that share
// only a directory of locks.
func TestHandlersOfTwoServers(t *testing.T) {
	dir := t.TempDir()
	var in, most, ran atomic.Int64
	var servers []http.Handler
	for range 2 {
		c, err := dlock.Open(t.Context(), "file://"+dir+"?ttl=1m")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		servers = append(servers, Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := in.Add(1)
			for {
				m := most.Load()
				if n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			ran.Add(1)
			time.Sleep(time.Millisecond) // the work
			in.Add(-1)
		}), byID(c), Options{}))
	}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() { expect(t, "in turn", get(t.Context(), servers[i%2], "/?id=a"), 200) })
	}
	all.Wait()
	if ran.Load() != 100 || most.Load() != 1 {
		t.Errorf("%d ran, %d at once", ran.Load(), most.Load())
	}
}
