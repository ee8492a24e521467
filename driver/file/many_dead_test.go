//go:build linux

package file

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// A process that waited many times, and was killed, or stopped for longer than its TTL, is in
// nobody's way: the release of the holder goes to the first behind it who lives, not to each of its
// requests in turn.
func TestReleaseGoesPastManyWhoAreOver(t *testing.T) {
	for _, c := range []struct {
		name   string
		ttl    time.Duration
		ends   func(t *testing.T, away *Backend, now *atomic.Int64)
		frozen bool
	}{
		{"killed", long, func(t *testing.T, away *Backend, _ *atomic.Int64) { die(t, away) }, false},
		{"stopped", second, func(_ *testing.T, _ *Backend, now *atomic.Int64) { now.Add(int64(second)) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			const many = 100
			dir, config := t.TempDir(), testConfig()
			config.tick = time.Hour // nobody but the release finds them
			var now atomic.Int64
			now.Store(1e9)
			config.clock = func() (int64, error) { return now.Load(), nil }
			holder, survivor := openTestConfig(t, dir, config), openTestConfig(t, dir, config)
			if c.frozen {
				config.clock = func() (int64, error) { return 1e9, nil }
			}
			away := openTestConfig(t, dir, config)

			held := request("a", long)
			acquire(t, holder, held)
			var waiting sync.WaitGroup
			for range many {
				waiting.Go(func() { away.Acquire(t.Context(), request("a", c.ttl)) })
			}
			defer waiting.Wait()
			defer away.Close()
			stand := func() int {
				s, err := holder.read(slot("a"))
				if err != nil {
					t.Fatal(err)
				}
				return len(s.ids("a"))
			}
			eventually(t, "all wait", func() bool { return stand() == 1+many })
			last := request("a", long)
			done := background(t, survivor, last)
			c.ends(t, away, &now)

			release(t, holder, held)
			s, err := holder.read(slot("a"))
			if err != nil {
				t.Fatal(err)
			}
			var e *entry
			if e, err = s.find("a", last.ID); err != nil || e == nil || e.Token == driver.Token(0) {
				t.Fatalf("after the release %d requests stand, and the survivor is %+v, %v", stand(), e, err)
			}
			if err := answer(t, done); err != nil {
				t.Fatal(err)
			}
		})
	}
}
