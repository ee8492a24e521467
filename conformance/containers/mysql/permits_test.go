package mysql

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// TestMySQLPermitsBusy: ten workers of three clients, three permits, 3 ms of work.
func TestMySQLPermitsBusy(t *testing.T) {
	for _, k := range mysqlKinds {
		t.Run(k.Name, func(t *testing.T) {
			s := migrated(t, service.Start(t, k))
			var clients []*dlock.Client
			for range 3 {
				c, err := dlock.New(byURL(t, s.URL))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				clients = append(clients, c)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
			defer cancel()
			var at atomic.Int64
			var n atomic.Int64
			var wg sync.WaitGroup
			for i := range 10 {
				m := clients[i%3].Semaphore("permits", 3)
				wg.Go(func() {
					for ctx.Err() == nil {
						l, err := m.Lock(ctx)
						if err != nil {
							return
						}
						at.Add(1)
						time.Sleep(3 * time.Millisecond)
						at.Add(-1)
						n.Add(1)
						l.Unlock(context.Background())
					}
				})
			}
			var seen [4]int
			for ctx.Err() == nil {
				time.Sleep(200 * time.Microsecond)
				seen[at.Load()]++
			}
			wg.Wait()
			sum := seen[0] + seen[1] + seen[2] + seen[3]
			t.Logf("turns %d, at work: none %d%%, one %d%%, two %d%%, all %d%%", n.Load(), 100*seen[0]/sum, 100*seen[1]/sum, 100*seen[2]/sum, 100*seen[3]/sum)
		})
	}
}
