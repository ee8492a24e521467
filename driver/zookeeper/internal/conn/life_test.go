package conn

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
)

// TestStalled: a server has stalled when it answers nothing, not when it has much to answer.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = 10 * time.Second
		c := newConn(Config{})
		c.greet(40*time.Second, 1, time.Now())
		stalled := func() bool { return c.stalled(time.Now().Add(-patience)) }
		time.Sleep(time.Minute)
		if stalled() {
			t.Error("a server without calls has stalled")
		}
		for range 100 {
			c.sent()
		}
		for range 50 { // one call takes a second, the last waits for almost a minute
			time.Sleep(time.Second)
			c.received(replied(1, 0))
			c.received(happened(zk.EventNodeDeleted, "/x"))
			if stalled() {
				t.Fatal("a server that answers has stalled")
			}
		}
		for range 11 {
			time.Sleep(time.Second)
			c.received(happened(zk.EventNodeDeleted, "/x"))
		}
		if !stalled() {
			t.Error("a server that stopped answering has not stalled")
		}
	})
}

// TestSignsOfLife: the leader knows of the signs of life that were answered a lag ago.
func TestSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lag = time.Second
		c := newConn(Config{})
		c.owned, c.lag = true, lag
		known := func(want time.Time) {
			t.Helper()
			if got := c.KnownAlive(time.Now().Add(-lag)); !got.Equal(want) {
				t.Errorf("known is %s ago, want %s", time.Since(got), time.Since(want))
			}
		}
		greeted := time.Now()
		time.Sleep(time.Millisecond)
		c.greet(40*time.Second, 1, greeted)
		known(greeted) // the leader took part in that
		time.Sleep(10 * time.Second)
		ping := time.Now()
		c.sent()
		time.Sleep(2 * lag)
		known(greeted) // whether it arrived is not known
		c.received(happened(zk.EventNodeDeleted, "/x"))
		known(greeted)
		c.received(replied(1, 0))
		known(greeted) // the answer came just now: the follower may have had to wait for the packet
		time.Sleep(lag)
		known(ping) // and not the time of the answer
		time.Sleep(10 * time.Second)
		next := time.Now()
		c.sent()
		c.received(replied(1, 0))
		time.Sleep(lag - time.Millisecond)
		known(ping) // the follower may not have passed it on
		time.Sleep(time.Millisecond)
		known(next)
		for range 10_000 {
			c.sent()
			time.Sleep(time.Millisecond)
			c.received(replied(1, 0))
			if old := time.Since(c.KnownAlive(time.Now().Add(-lag))); old < lag || old > lag+lag/signsPerLag+2*time.Millisecond && time.Since(next) > 3*lag {
				t.Fatalf("busy, known is %s ago", old)
			}
		}
		if len(c.signs) > signsKept || len(c.unanswered) > 0 {
			t.Errorf("%d signs and %d packets are remembered", len(c.signs), len(c.unanswered))
		}
		back := time.Now()
		c.sent()
		c.greet(40*time.Second, 1, back) // a new connection
		known(back)
	})
}
