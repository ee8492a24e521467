package watch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
)

func TestALookHasTheQueuesOfThePrefixInOrder(t *testing.T) {
	play(t, func(s scene) {
		a, b, c := s.actor("a"), s.actor("b"), s.actor("c")
		a.lock(a.Mutex("x/2"))
		b.wait(b.Mutex("x/2"))
		c.wait(c.Mutex("x/2"))
		a.lock(a.RWMutex("x/1").Read())
		b.lock(b.RWMutex("x/1").Read())
		a.lock(a.Mutex("y"))
		time.Sleep(time.Second)
		look := s.look(New(s.client(nil), "x/", All))
		if look.InUse != 3 || len(look.Names) != 2 || look.Names[0].Name != "x/1" || look.Unseen != 0 {
			s.Fatalf("%+v", look)
		}
		one, two := look.Names[0], look.Names[1]
		if one.Owners() != 2 || len(one.Waiters) != 0 || one.Holders[0].Mode != "shared" {
			s.Errorf("%+v", one)
		}
		if len(two.Holders) != 1 || two.Holders[0].Label != "a" || len(two.Waiters) != 2 || two.Waiters[0].Label != "b" || two.Waiters[1].Label != "c" || two.Waiters[1].Age != 1 || two.Holders[0].TTL != 30 {
			s.Errorf("%+v", two)
		}
		s.wantEvents(look)
	})
}

func TestHandOffsAreCounted(t *testing.T) {
	play(t, func(s scene) {
		a, b, c, d, e := s.actor("a"), s.actor("b"), s.actor("c"), s.actor("d"), s.actor("e")
		w := s.watcher()
		held := a.lock(a.Mutex("x"))
		backB, backC := b.wait(b.Mutex("x")), c.wait(c.Mutex("x"))
		s.look(w)
		a.unlock(held)
		time.Sleep(100 * time.Millisecond)
		look := s.look(w)
		s.wantEvents(look, "x handed off 1 a-b")
		if got := look.Names[0].PerSecond; got < 0.9 || got > 1.2 {
			s.Errorf("one at the beginning is %.2f per second", got)
		}
		s.wantEvents(s.look(w))
		d.wait(d.Mutex("x"))
		// two waiters, or new requests, have had it between two snapshots
		backB()
		backC()
		s.wantEvents(s.look(w), "x handed off 2 b-d")
		// an abandoned wait has had nothing
		gone := e.wait(e.Mutex("x"))
		s.look(w)
		gone()
		look = s.look(w)
		s.wantEvents(look)
		if look.Total != (Counts{Handoffs: 3}) || look.Names[0].Counts != look.Total {
			s.Errorf("%+v, %+v", look.Total, look.Names)
		}
	})
}

func TestWhoComesInBesideOthersIsNoHandOff(t *testing.T) {
	play(t, func(s scene) {
		a, b := s.actor("a"), s.actor("b")
		w := s.watcher()
		a.lock(a.Semaphore("x", 3))
		s.look(w)
		held := b.lock(b.Semaphore("x", 3))
		s.wantEvents(s.look(w))
		b.unlock(held)
		s.wantEvents(s.look(w))
	})
}

func TestLossesAreNoReleases(t *testing.T) {
	play(t, func(s scene) {
		a, raw, w := s.actor("a"), s.backend(), s.watcher()
		given, fixed := a.lock(a.Mutex("given", dlock.TTL(3*time.Second))), a.Mutex("fixed", dlock.FixedLease(3*time.Second))
		a.lock(fixed)
		short := a.lock(a.Mutex("short", dlock.TTL(time.Second)))
		s.dead(raw, "lost", 3*time.Second)
		late, _ := s.dead(raw, "late", 4*time.Second)
		time.Sleep(2500 * time.Millisecond)
		s.look(w)
		a.unlock(given)
		a.unlock(short)
		if err := raw.Release(s.Context(), late); err != nil {
			s.Error(err)
		}
		time.Sleep(time.Second)
		look := s.look(w)
		s.wantEvents(look, "lost lost 1 dead-")
		if look.Total != (Counts{Losses: 1}) {
			s.Errorf("%+v", look.Total)
		}
	})
}

func TestABreakIsReportedOnce(t *testing.T) {
	play(t, func(s scene) {
		b, w := s.actor("b"), s.watcher()
		_, token := s.dead(s.backend(), "x", 3*time.Second)
		b.wait(b.Mutex("x"))
		s.look(w)
		if err := b.Break(s.Context(), "x", token); err != nil {
			s.Fatal(err)
		}
		s.wantEvents(s.look(w), "x broken 1 dead-")
		time.Sleep(2 * time.Second)
		s.wantEvents(s.look(w))
		time.Sleep(5 * time.Second)
		look := s.look(w)
		s.wantEvents(look, "x handed off 1 dead-b")
		if look.Total != (Counts{Handoffs: 1, Breaks: 1}) {
			s.Errorf("%+v", look.Total)
		}
	})
}

// TestHandOffsPerSecondOfAQuickQueue: ten workers hold for 5 ms each, so the queue is replaced
// twenty times between two snapshots.
func TestHandOffsPerSecondOfAQuickQueue(t *testing.T) {
	for _, hold := range []time.Duration{5 * time.Millisecond, 700 * time.Millisecond} {
		play(t, func(s scene) {
			ctx, stop := context.WithCancel(s.Context())
			for i := range 10 {
				a := s.actor(fmt.Sprint(i))
				go func() {
					for ctx.Err() == nil {
						dlock.Do(ctx, a.Mutex("x"), func(context.Context) error { time.Sleep(hold); return nil })
					}
				}()
			}
			w := s.watcher()
			var look *Look
			for range 30 {
				time.Sleep(time.Second + time.Millisecond/2)
				look = s.look(w)
			}
			want := 1 / hold.Seconds()
			if got := look.Names[0].PerSecond; got < 0.8*want || got > 1.2*want {
				s.Errorf("%.2f per second, want about %.2f", got, want)
			}
			stop()
			time.Sleep(10 * time.Second)
		})
	}
}

func TestAFreeNameStaysIfSomethingWasCounted(t *testing.T) {
	play(t, func(s scene) {
		a, b, w := s.actor("a"), s.actor("b"), s.watcher()
		quiet, busy := a.lock(a.Mutex("quiet")), a.lock(a.Mutex("busy"))
		back := b.wait(b.Mutex("busy"))
		s.look(w)
		a.unlock(busy)
		s.look(w)
		back()
		a.unlock(quiet)
		look := s.look(w)
		if len(look.Names) != 1 || look.Names[0].Name != "busy" || !look.Names[0].free() || look.InUse != 0 {
			s.Errorf("%+v", look)
		}
		time.Sleep(linger - time.Second)
		if look := s.look(w); len(look.Names) != 1 {
			s.Errorf("%+v", look)
		}
		time.Sleep(time.Second)
		if look := s.look(w); len(look.Names) != 0 || look.Total.Handoffs != 1 {
			s.Errorf("%+v", look)
		}
	})
}

func TestTheCostOfALookIsBounded(t *testing.T) {
	play(t, func(s scene) {
		a, b := s.actor("a"), s.actor("b")
		for i := range 40 {
			a.lock(a.Mutex(fmt.Sprintf("n%02d", i)))
		}
		b.wait(b.Mutex("n39"))
		backend := &counted{Backend: s.backend(), takes: time.Millisecond}
		w := New(s.client(backend), "", 10)
		for i := range 5 {
			look := s.look(w)
			if got := backend.inspects.Swap(0); got != 10 || look.Unseen != max(40-10*(i+1), 0) || len(look.Names) != 40-look.Unseen {
				s.Errorf("look %d: %d queues read, %d names, %d unseen", i, got, len(look.Names), look.Unseen)
			}
		}
		if got := backend.most.Load(); got != atOnce {
			s.Errorf("%d at once, want %d", got, atOnce)
		}
		// names with waiters are read each time
		for range 3 {
			look := s.look(w)
			if last := look.Names[39]; len(last.Waiters) != 1 || time.Since(last.Seen) != 0 {
				s.Errorf("%+v, %s ago", last, time.Since(last.Seen))
			}
		}
		// if there are many of them, half of the reads are for the others, and all get their turn
		for i := range 15 {
			b.wait(b.Mutex(fmt.Sprintf("n%02d", i)))
		}
		for range 8 {
			time.Sleep(time.Second)
			s.look(w)
		}
		for _, n := range s.look(w).Names {
			if time.Since(n.Seen) > 6*time.Second {
				s.Errorf("%s was read %s ago", n.Name, time.Since(n.Seen))
			}
		}
	})
}

func TestLookingTakesAFifthOfTheTime(t *testing.T) {
	for takes, want := range map[time.Duration]int64{time.Millisecond: 60, time.Second: 12} {
		play(t, func(s scene) {
			backend := &counted{Backend: s.backend(), takes: takes}
			ctx, stop := context.WithTimeout(s.Context(), time.Minute-time.Second/2)
			defer stop()
			New(s.client(backend), "", All).Run(ctx, time.Second, func(_ *Look, err error) {
				if err != nil {
					s.Error(err)
				}
			})
			if got := backend.lists.Load(); got != want {
				s.Errorf("a look takes %s: %d in a minute, want %d", takes, got, want)
			}
		})
	}
}

func TestAfterAnErrorTheLastLookCounts(t *testing.T) {
	play(t, func(s scene) {
		a, b := s.actor("a"), s.actor("b")
		held := a.lock(a.Mutex("x"))
		b.wait(b.Mutex("x"))
		backend := &counted{Backend: s.backend()}
		w := New(s.client(backend), "", All)
		s.look(w)
		backend.err = errors.New("out of order")
		a.unlock(held)
		if _, err := w.Look(s.Context()); !errors.Is(err, backend.err) {
			s.Error(err)
		}
		backend.err = nil
		s.wantEvents(s.look(w), "x handed off 1 a-b")
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	play(t, func(s scene) {
		ctx, stop := context.WithCancel(s.Context())
		done, looks := make(chan bool), 0
		go func() {
			New(s.client(nil), "", All).Run(ctx, time.Hour, func(*Look, error) { looks++ })
			close(done)
		}()
		synctest.Wait()
		stop()
		synctest.Wait()
		select {
		case <-done:
		default:
			s.Error("it goes on")
		}
		if looks != 1 {
			s.Error(looks)
		}
	})
}
