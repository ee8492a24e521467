package main

import (
	"context"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// remnants is how many requests of dead clients may be left, as docs/guarantees.md says.
const remnants = 60

// week: standbys that die without a word behind one holder that lives, as many as crash in a week
// if one does each minute. Processes with some waiters each are killed, and others take their
// place.
var week = scenario{
	name:  "week",
	title: "Standbys that crash each minute, for an hour and for a week, behind a holder that lives.",
	of:    "crashes",
	few:   60,
	many:  func(z size) int { return z.crashes },
	apart: true,
	rows: []row{
		{key: "entries", title: "entries that are left at the server", exact: true, bound: bound{most: remnants + 10}},
		{key: "bytes", title: "size of the data that is left, KiB", bound: bound{times: 2, slack: 256}},
		{key: "gone", title: "until the last dead are removed, s", bound: bound{most: 20}},
		{key: "try", title: "TryLock by another client, ms", bound: bound{times: 4, slack: 3}},
		{key: "release", title: "Unlock by the holder, ms", bound: bound{times: 4, slack: 10}},
		{key: "grant", title: "from Unlock to the grant of the next that lives, ms", bound: bound{times: 4, slack: 20}},
	},
	run: func(t service.T, s *site, n int) values {
		const name = "led"
		prefix := "week-" + time.Now().Format("150405.000") // what the few left is not the many's
		holder, standby := s.open(t, nil, prefix, 3*ttl), s.open(t, nil, prefix, ttl)
		t.Cleanup(func() { holder.Close(); standby.Close() })
		held, err := lock(holder.Mutex(name))
		if err != nil {
			t.Fatalf("lock: %v", err)
		}
		before := s.at(t, prefix)
		rounds := min(4, max(1, n/100))
		v := values{}
		for range rounds {
			m := s.recruit(t, 1, prefix, shortTTL)
			all(t, m, func(int) order { return order{Do: "wait", Name: name, N: n / rounds} })
			m[0].Kill()
			start := time.Now()
			// standbys that come and go, as they do in a week
			left := before.entries + min(remnants, n/rounds/2)
			for time.Since(start) < 30*time.Second && s.at(t, prefix).entries > left {
				for range 5 {
					if _, err := standby.Mutex(name, dlock.Wait(50*time.Millisecond)).Lock(context.Background()); err == nil {
						t.Fatalf("a standby was granted a lock that is held")
					}
				}
			}
			v["gone"] = max(v["gone"], time.Since(start).Seconds())
		}
		now := s.at(t, prefix)
		v["entries"] = float64(max(0, now.entries-before.entries))
		v["bytes"] = float64(now.bytes) / 1024
		v["try"] = median(t, "TryLock", refused(standby.Mutex(name), held))
		granted := make(chan error, 1)
		go func() {
			_, err := lock(standby.Mutex(name))
			granted <- err
		}()
		waiting(t, holder, name, 1, held.Err)
		start := time.Now()
		if err := held.Unlock(context.Background()); err != nil {
			t.Fatalf("unlock: %v", err)
		}
		v["release"] = quantile([]time.Duration{time.Since(start)}, 0.5)
		if err := <-granted; err != nil {
			t.Fatalf("the next waiter: %v", err)
		}
		v["grant"] = quantile([]time.Duration{time.Since(start)}, 0.5)
		return v
	},
}
