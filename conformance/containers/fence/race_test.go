package fence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/await"
	_ "github.com/dlock-go/dlock/driver/memory"
	"github.com/dlock-go/dlock/fence"
	"github.com/dlock-go/dlock/internal/size"
)

// place is a point at which a holder is stopped.
type place int

const (
	locked    place = iota // it holds the lock, and has done nothing yet
	hasRead                // it has read, in a step of its own
	checked                // it has checked its lease for the last time
	begun                  // its transaction has begun
	admitted               // it was admitted in the transaction
	read                   // it has read in the transaction
	written                // it has written in the transaction
	allPlaces = int(written) + 1
)

// plan is a schedule: where the first holder is stopped, until the second one has written, or waits
// for it; and whether each of them reads in a step of its own.
type plan struct {
	at    place
	apart [2]bool
}

// outcome counts the outcomes of schedules.
type outcome struct{ commits, stale, failed, lost, waited atomic.Int64 }

// TestRace stops a holder between the last check of its lease and its write, for longer than its
// TTL, and lets it go on when its successor has committed. With the fence no write is lost in any
// schedule. Without it some are.
func TestRace(t *testing.T) {
	t.Parallel()
	sites := map[string]func(t *testing.T) []site{
		"redis": func(t *testing.T) []site { return []site{newRedis(t)} },
	}
	for name, open := range databases {
		sites[name] = func(t *testing.T) []site { return []site{open(t)} }
	}
	// Only one transaction at a time writes to a file, so a holder that is stopped in its
	// transaction would stop all others.
	sites["sqlite"] = func(t *testing.T) (files []site) {
		for range workers {
			files = append(files, onSQLite(t))
		}
		return files
	}
	for name, open := range sites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := open(t)
			seed := rand.Uint64()
			if text := os.Getenv("DLOCK_SEED"); text != "" {
				var err error
				if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
					t.Fatalf("DLOCK_SEED: %v", err)
				}
			}
			t.Logf("DLOCK_SEED=%d", seed)
			var with, without outcome
			// On a busy machine leases may expire before anything begins: then the TTL is raised.
			for ttl := 30 * time.Millisecond; with.stale.Load() == 0 && ttl < 5*time.Second; ttl *= 4 {
				race(t, at, seed, ttl, size.Longer(200), true, &with)
			}
			for ttl := 30 * time.Millisecond; without.lost.Load() == 0 && ttl < 5*time.Second; ttl *= 4 {
				race(t, at, seed, ttl, 50, false, &without)
			}
			t.Logf("fenced: %d writes, %d refused, %d failed, %d waited for a holder that was stopped in its transaction; %d lost",
				with.commits.Load(), with.stale.Load(), with.failed.Load(), with.waited.Load(), with.lost.Load())
			t.Logf("not fenced: %d writes; %d lost", without.commits.Load(), without.lost.Load())
			if n := with.lost.Load(); n > 0 {
				t.Errorf("%d writes were lost behind the fence", n)
			}
			if with.stale.Load() == 0 || with.commits.Load() == 0 {
				t.Errorf("%d holders were refused and %d wrote: the schedules show nothing", with.stale.Load(), with.commits.Load())
			}
			if without.lost.Load() == 0 {
				t.Error("no write was lost without the fence: the schedules show nothing")
			}
		})
	}
}

const workers = 16

// race runs schedules, some at a time.
func race(t *testing.T, sites []site, seed uint64, ttl time.Duration, schedules int, fenced bool, o *outcome) {
	client, err := dlock.Open(t.Context(), "memory:?ttl=1s", dlock.Logger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var all sync.WaitGroup
	var next atomic.Int64
	for w := range workers {
		all.Go(func() {
			s := sites[w%len(sites)]
			for {
				i := next.Add(1) - 1
				if i >= int64(schedules) || t.Failed() {
					return
				}
				rnd := rand.New(rand.NewPCG(seed, uint64(i)))
				p := plan{place(rnd.IntN(allPlaces)), [2]bool{rnd.IntN(2) == 0, rnd.IntN(2) == 0}}
				run := &schedule{t: t, site: s, client: client, ttl: ttl, plan: p, fenced: fenced, outcome: o, name: fmt.Sprintf("%s-%v-%x-%s-%d", t.Name(), fenced, seed, ttl, i)}
				run.run(t.Context())
			}
		})
	}
	await.All(t, &all)
}

// schedule is one schedule of two holders.
type schedule struct {
	t      *testing.T
	site   site
	client *dlock.Client
	ttl    time.Duration
	plan   plan
	fenced bool
	name   string
	*outcome

	writes, done chan struct{} // closed when the second holder begins to write, and when it ends
}

func (s *schedule) run(ctx context.Context) {
	if err := s.site.create(ctx, s.name); err != nil {
		s.t.Errorf("%s: %v", s.name, err)
		return
	}
	s.writes, s.done = make(chan struct{}), make(chan struct{})
	has := make(chan struct{})
	var committed atomic.Int64
	var both sync.WaitGroup
	both.Go(func() {
		once := sync.OnceFunc(func() { close(has) })
		defer once()
		if s.hold(ctx, 0, once, s.stop) {
			committed.Add(1)
		}
	})
	both.Go(func() {
		defer close(s.done)
		<-has
		begins := sync.OnceFunc(func() { close(s.writes) })
		if s.hold(ctx, 1, func() {}, func(p place) {
			if p == checked {
				begins()
			}
		}) {
			committed.Add(1)
		}
	})
	await.All(s.t, &both)
	n, err := s.site.value(ctx, s.name)
	if err != nil {
		s.t.Errorf("%s: %v", s.name, err)
	}
	s.commits.Add(committed.Load())
	if lost := committed.Load() - int64(n); lost != 0 {
		s.lost.Add(lost)
		if s.fenced {
			s.t.Errorf("%s, stopped at %d, apart %v: %d holders wrote, and the counter is %d", s.name, s.plan.at, s.plan.apart, committed.Load(), n)
		}
	}
}

// stop stops the first holder, if that is the place, for longer than its TTL: until the second one
// has ended. In a transaction that was admitted it is stopped until the second one waits for the
// row that the first one has locked.
func (s *schedule) stop(p place) {
	if p != s.plan.at {
		return
	}
	holdsRow := s.fenced && p >= admitted || p == written
	if !holdsRow {
		await.From(s.t, s.done)
		return
	}
	select {
	case <-s.done:
	case <-s.writes:
		select {
		case <-s.done:
		case <-time.After(5 * time.Millisecond):
			s.waited.Add(1)
		}
	case <-time.After(2 * s.ttl): // it waits for the row in its read
		s.waited.Add(1)
	}
}

// hold runs a holder, which adds 1 to the counter. It reports whether the holder did.
func (s *schedule) hold(ctx context.Context, holder int, has func(), stop func(place)) (wrote bool) {
	// It is not renewed, as if its whole process was stopped.
	lease, err := s.client.Mutex(s.name, dlock.FixedLease(s.ttl)).Lock(ctx)
	has()
	if err != nil {
		return false
	}
	defer lease.Unlock(ctx)
	mark, err := fence.Of(lease)
	if err != nil {
		return false
	}
	if !s.fenced {
		mark = fence.Mark{}
	}
	stop(locked)
	from := -1
	if s.plan.apart[holder] {
		if from, err = s.site.read(ctx, s.name, mark); err != nil {
			s.count(err)
			return false
		}
		stop(hasRead)
	}
	if lease.Err() != nil {
		return false
	}
	stop(checked)
	if err := s.site.write(ctx, s.name, mark, from, stop); err != nil {
		s.count(err)
		return false
	}
	return true
}

func (s *schedule) count(err error) {
	if refused(err) {
		s.stale.Add(1)
	} else {
		s.failed.Add(1)
	}
}
