package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/await"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/mysql"
)

// mysqlCutShort: whatever statement of a procedure a KILL QUERY finds, no two hold, and the names go
// on afterwards. (MariaDB 11 may leave an UPDATE or a DELETE undone then, without an error, and the
// procedure goes on: each thousand kills here find one or two of those.)
func mysqlCutShort(t *service.Trial, s *service.Server) {
	const user, names, enough = "cut", 8, 2000
	userOf(t, s, user)
	root := mysqlOf(t, s).pool(t)
	var inside [names]atomic.Int64
	var last [names]driver.Token // by who is inside
	var kills, turns atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for name := range names { // each of a client of its own, which mostly waits for itself: few calls are killed before they have the row
		b, err := mysql.New(userOf(t, s, user).pool(t), mysql.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					r := steps.Waiting(b, fmt.Sprint("cut/", name), time.Minute)
					g, err := b.Acquire(ctx, r)
					if err != nil {
						continue
					}
					if n := inside[name].Add(1); n != 1 {
						service.Strict(t).Errorf("%d hold %s", n, r.Name)
					} else if g.Token <= last[name] {
						service.Strict(t).Errorf("token %d after %d", g.Token, last[name])
					} else {
						last[name] = g.Token
					}
					b.Renew(ctx, []driver.Request{r})
					inside[name].Add(-1)
					if err := b.Release(context.Background(), r); errors.Is(err, driver.ErrLost) {
						service.Strict(t).Errorf("Release: %v", err)
					}
					turns.Add(1)
				}
			})
		}
	}
	for range 2 {
		wg.Go(func() { // one in two of the calls, wherever it is: they wait for longer with each time
			for kills.Load() < enough && ctx.Err() == nil {
				ids := one[string](t, root, "SELECT COALESCE(GROUP_CONCAT(id), '') FROM information_schema.processlist WHERE user = ? AND command = 'Query' AND RAND() < 0.5", user)
				for id := range strings.SplitSeq(ids, ",") {
					if _, err := root.Exec("KILL QUERY " + id); err == nil {
						kills.Add(1)
					}
				}
				<-time.After(time.Millisecond)
			}
		})
	}
	await.That(t, "queries were killed", func() bool { return kills.Load() >= enough })
	killed := turns.Load()
	await.That(t, "names go on", func() bool { return turns.Load() >= killed+20 })
	cancel()
	wg.Wait()
	t.Logf("%d kills, %d turns", kills.Load(), turns.Load())
	if n := one[int](t, root, `SELECT COUNT(*) FROM dlock_requests r LEFT JOIN dlock_locks l USING (prefix, name)
		WHERE NOT COALESCE(IF(place < 0, place >= -last_side, place <= last_place AND (state = 'waiting') = (place >= head)), FALSE)`); n > 0 {
		service.Strict(t).Errorf("%d requests are where their lock's row does not know of them", n)
	}
}
