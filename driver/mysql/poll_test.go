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
			{"next in a fast queue", 0, 12 * ms, 0, false, 2 * ms},
			{"next in a slow queue", 0, time.Second, 0, false, maxNextPoll},
			{"eight ahead", 0, 4 * ms, 8, false, 16 * ms},
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
		// with those who look for what has expired, each second
		if polls := s.came.Load() - before; polls < 100 || polls > 120 {
			t.Errorf("beside noise it polled %d times in 10 s; want 110", polls)
		}
	})
}

// TestWhatAPollFinds: a grant that a poll found is proved from before the poll was sent, by what
// was gone of its TTL. One for a window, and one of a fixed lease, is only a reason to ask.
func TestWhatAPollFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s refuses
		db := sql.OpenDB(&s)
		defer db.Close()
		b, err := New(db, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		const ttl = time.Minute
		for what, tt := range map[string]struct {
			left  string // µs
			fixed bool
			gone  time.Duration // of its TTL; below 0: it is no proof
		}{
			"its whole TTL":     {"60000000", false, 0},
			"most of its TTL":   {"45000001", false, ttl/4 - time.Microsecond},
			"too little":        {"45000000", false, -1},
			"a window":          {"1000000", false, -1},
			"nothing":           {"0", false, -1},
			"less than nothing": {"-1", false, -1},
			"more than its TTL": {"60000001", false, -1},
			"a fixed lease":     {"60000000", true, -1},
		} {
			r := driver.Request{Name: what, ID: driver.NewID(), TTL: ttl, Wait: true, Fixed: tt.fixed}
			b.mu.Lock()
			m := b.requests.Begin(r)
			b.mu.Unlock()
			sent := time.Now()
			time.Sleep(50 * time.Millisecond) // the answer takes its time
			b.mu.Lock()
			b.find([]string{r.ID.String(), "7", tt.left}, sent)
			proved := sent.Add(-tt.gone)
			switch g := m.grant; {
			case tt.gone < 0 && (g != nil || m.Granted()):
				t.Errorf("%s: granted %+v", what, g)
			case tt.gone >= 0 && (g == nil || g.TTL != ttl || !g.SentAt.Equal(proved) || g.Token != 7):
				t.Errorf("%s: granted %+v; want it proved at %s", what, g, proved)
			case tt.gone >= 0 && !m.Until.Equal(proved.Add(ttl)):
				t.Errorf("%s: it cannot have expired before %s", what, m.Until.Sub(sent))
			}
			if !m.Notified {
				t.Errorf("%s: its caller does not hear of it", what)
			}
			b.remove(m) // or Close would release it
			b.mu.Unlock()
		}
	})
}
