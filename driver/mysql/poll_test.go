package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/internal/kit"
)

// TestPollsFollowTheQueue: the time to the next poll follows from how long the wait lasts, how fast
// the queue moves, and who is ahead.
func TestPollsFollowTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ms := time.Millisecond
		for _, c := range []struct {
			what  string
			waits time.Duration // since the queue moved
			turn  time.Duration
			ahead int64
			own   bool // the client itself holds the lock
			want  time.Duration
		}{
			{"just begun", 0, 0, 0, false, minPoll},
			{"a while", 200 * ms, 0, 0, false, 10 * ms},
			{"long", time.Hour, 0, 0, false, maxPoll},
			{"the client holds", 0, 0, 0, true, maxPoll},
			{"next in a fast queue", 0, 6 * ms, 0, false, 2 * ms},
			{"next in a slow queue", 0, time.Second, 0, false, maxNextPoll},
			{"eight ahead", 0, 4 * ms, 8, false, 32 * ms},
			{"many ahead", 0, 4 * ms, 1000, false, maxPoll},
		} {
			q := &queue{head: 100, moved: time.Now(), turn: c.turn}
			time.Sleep(c.waits)
			if got := q.due(100+c.ahead, c.own); got != c.want {
				t.Errorf("%s: got %s, want %s", c.what, got, c.want)
			}
		}
	})
}

// refuses is a service that counts those who come, and lets nobody in.
type refuses struct{ came atomic.Int32 }

func (r *refuses) Connect(context.Context) (sqldriver.Conn, error) {
	r.came.Add(1)
	return nil, errors.New("refused")
}

func (*refuses) Driver() sqldriver.Driver { return nil }

// TestNoiseDelaysNoPoll: waits that begin under other names bring the next poll nearer, and never
// put it off.
func TestNoiseDelaysNoPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s refuses
		db := sql.OpenDB(&s)
		defer db.Close()
		b, err := New(db, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		waits := func(name string) *kit.Waiter[*request] {
			r := driver.Request{Name: name, Wait: true}
			return b.attach(&request{Request: kit.Request{Request: r}})
		}
		defer b.detach(waits("waits"))
		time.Sleep(10 * time.Second) // now it polls each 100 ms
		b.mu.Lock()
		b.exclusive["noise"] = 1 // who waits for its own client does not poll often
		b.mu.Unlock()
		before := s.came.Load()
		for range 250 {
			w := waits("noise")
			time.Sleep(40 * time.Millisecond)
			b.detach(w)
		}
		if polls := s.came.Load() - before; polls < 90 || polls > 110 {
			t.Errorf("beside noise it polled %d times in 10 s; want 100", polls)
		}
	})
}
