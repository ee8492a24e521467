package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestProofNeedsOneTerm(t *testing.T) {
	for _, c := range []struct {
		what             string
		read, keep, list uint64
		ttl, left        int64
		want             error
	}{
		{"all in one term", 3, 3, 3, 6, 6, nil},
		{"the lease's last second", 3, 3, 3, 6, 0, nil},
		{"a keep-alive by an old leader", 4, 3, 3, 6, 6, errTerm},
		{"a keep-alive alone by an old leader", 4, 3, 4, 6, 6, errTerm},
		{"an audit by an old leader", 4, 4, 3, 6, 6, errTerm},
		{"an old leader that does not know the lease", 4, 3, 3, 0, 0, errTerm},
		{"the lease is gone", 3, 3, 3, 0, 0, driver.ErrLost},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &fakeCluster{read: c.read, keep: c.keep, list: c.list}
			b, l, rq := holding(s)
			defer b.life.End()
			s.ttl, s.left = c.ttl, c.left
			time.Sleep(2 * time.Second)
			sent := time.Now()
			p := b.Renew(t.Context(), []driver.Request{rq.Request})[0]
			if !errors.Is(p.Err, c.want) || c.want == nil && p.Err != nil {
				t.Errorf("%s: %v; want %v", c.what, p.Err, c.want)
			}
			if c.want == nil && (!p.SentAt.Equal(sent) || !l.since.Equal(sent) || !rq.until.Equal(sent.Add(l.ttl))) {
				t.Errorf("%s: trusted from %s after it was sent", c.what, p.SentAt.Sub(sent))
			}
			if c.want != nil && l.since.Equal(sent) {
				t.Errorf("%s: the lease is trusted", c.what)
			}
		})
	}
}

// TestAudit: a hold whose key is missing is lost; an orphan is removed when it is found for the
// second time.
func TestAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		b, l, rq := holding(s)
		defer b.life.End()
		lost := make(chan driver.ID, 1)
		b.Notify(func(id driver.ID) { lost <- id })
		orphan, other := "dlock/n/s0123456789abcdef-9", "elsewhere"
		s.keys = append(s.keys, orphan, other)
		for i, want := range []bool{false, true} {
			if p := b.leases.prove(t.Context(), []*lease{l})[0]; p.err != nil || b.isOrphan(orphan, l.id) == want {
				t.Errorf("audit %d: %v; the orphan is being removed: %t", i+1, p.err, !b.isOrphan(orphan, l.id))
			}
		}
		s.keys = []string{orphan}
		if p := b.Renew(t.Context(), []driver.Request{rq.Request})[0]; !errors.Is(p.Err, driver.ErrLost) || <-lost != rq.ID {
			t.Errorf("a hold whose key is missing: %v", p.Err)
		}
	})
}

// TestWhatIsMissingIsRecordedFirst: missing keys are recorded before the trust in their lease is
// extended. Otherwise one of their requests could become a hold in between.
func TestWhatIsMissingIsRecordedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, l, _ := holding(oneTerm())
		defer b.life.End()
		before, expect := l.since, b.leases.expect
		b.leases.expect = func(l *lease) func(keys, orphans map[string]bool) map[string]bool {
			found := expect(l)
			return func(keys, orphans map[string]bool) map[string]bool {
				if since, _ := l.trust(); !since.Equal(before) {
					t.Errorf("the lease is trusted for %s longer", since.Sub(before))
				}
				return found(keys, orphans)
			}
		}
		time.Sleep(2 * time.Second)
		if p := b.leases.prove(t.Context(), []*lease{l})[0]; p.err != nil || l.since.Equal(before) {
			t.Errorf("%v; the lease is trusted for %s longer", p.err, l.since.Sub(before))
		}
	})
}

// TestLapsedLeaseIsAskedForFirst: a client that receives no answers must not keep alive a lease
// that it cannot use.
func TestLapsedLeaseIsAskedForFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		s.mute = true
		b, l, _ := holding(s)
		defer b.life.End()
		round := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			return b.leases.prove(ctx, []*lease{l})[0].err
		}
		kept := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.kept
		}
		if err := round(); err == nil || kept() == 0 {
			t.Errorf("a lease that has not expired is kept alive in any case: %d keep-alives, %v", kept(), err)
		}
		time.Sleep(6 * time.Second)
		before := kept()
		if err := round(); err == nil || kept() != before {
			t.Errorf("a lapsed lease was kept alive blindly: %v", err)
		}
		s.mu.Lock()
		s.mute = false
		s.mu.Unlock()
		if err := round(); err != nil || kept() == before {
			t.Errorf("a lapsed lease that still exists: %v", err)
		}
	})
}

// TestSlowAnswersAreWaitedFor: a second attempt does not cancel the first one.
func TestSlowAnswersAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := oneTerm()
		s.slow = 1900 * time.Millisecond
		b, l, _ := holding(s)
		defer b.life.End()
		ctx, cancel := context.WithTimeout(t.Context(), l.ttl/3)
		defer cancel()
		if p := b.leases.prove(ctx, []*lease{l})[0]; p.err != nil {
			t.Errorf("answers that come after 1.9 s of a TTL of 6 s: %v", p.err)
		}
	})
}

// TestDeadMemberIsPassedOver: the second attempt, which reaches another member, is in time for the
// renewal.
func TestDeadMemberIsPassedOver(t *testing.T) {
	for _, part := range []string{"read", "list", "stream"} {
		synctest.Test(t, func(t *testing.T) {
			s := oneTerm()
			s.dead = map[string]bool{part: true}
			b, l, _ := holding(s)
			defer b.life.End()
			ctx, cancel := context.WithTimeout(t.Context(), l.ttl/3)
			defer cancel()
			if p := b.leases.prove(ctx, []*lease{l})[0]; p.err != nil {
				t.Errorf("the first %s reaches a dead member: %v", part, p.err)
			}
		})
	}
}

// TestStreamThatIsReplacedAfterItsAnswer: a call that tries again just when its answer arrived
// opens another stream, and the first one, for which no caller waits any more, ends.
func TestStreamThatIsReplacedAfterItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, l, _ := holding(oneTerm())
		defer b.life.End()
		k, tried := &b.leases.keepAlives, map[*keepStream]bool{}
		for range 3 {
			if _, err := k.send(t.Context(), l.id, tried); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(tried) != 3 {
			t.Fatalf("three attempts used %d streams", len(tried))
		}
		for s := range tried {
			select {
			case <-s.broken:
				if s == k.s {
					t.Error("the stream in use has ended")
				}
			default:
				if s != k.s {
					t.Error("a stream that is not used again is left open")
				}
			}
		}
	})
}
