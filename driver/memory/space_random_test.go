package memory

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

var seed = flag.Uint64("seed", 0, "replays a random test; 0: a new one")

func random(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("replay with -seed %d", s)
	return rand.New(rand.NewPCG(s, s))
}

// TestRandomHistories lets three clients do everything to two names, and checks the space after
// each step.
func TestRandomHistories(t *testing.T) {
	rnd := random(t)
	for range 100 {
		history(t, rnd)
	}
}

// pending is a request that was sent, and its result.
type pending struct {
	driver.Request
	client int
	cancel context.CancelFunc
	answer <-chan answer
	got    *answer
}

func history(t *testing.T, rnd *rand.Rand) {
	synctest.Test(t, func(t *testing.T) {
		s := new(Space)
		clients := []*Backend{open(t, s), open(t, s), open(t, s)}
		var all []*pending
		send := func(client int, r driver.Request) {
			ctx, cancel := context.WithCancel(t.Context())
			all = append(all, &pending{Request: r, client: client, cancel: cancel, answer: start(ctx, clients[client], r)})
		}
		for range 200 {
			client := rnd.IntN(len(clients))
			name := []string{"one", "two"}[rnd.IntN(2)]
			var p *pending
			if len(all) > 0 {
				p = all[len(all)-1-rnd.IntN(min(len(all), 12))]
			}
			switch op := rnd.IntN(20); {
			case op < 6 || p == nil:
				r := []driver.Request{ask(name), permit(name, 0), permit(name, 1), permit(name, 2), permit(name, 3)}[rnd.IntN(5)]
				r.Wait = rnd.IntN(4) > 0
				r.TTL = time.Duration(1+rnd.IntN(20)) * time.Second
				send(client, r)
			case op < 8:
				r := join(p.Request)
				r.Mode = driver.Mode(rnd.IntN(2))
				send(client, r)
			case op < 9:
				r := p.Request // again
				r.TTL = time.Duration(1+rnd.IntN(20)) * time.Second
				send(p.client, r)
			case op < 14:
				r := p.Request
				r.Uncertain = rnd.IntN(3) == 0
				clients[p.client].Release(t.Context(), r)
			case op < 15:
				p.cancel()
				synctest.Wait()
				clients[p.client].Release(t.Context(), p.Request)
			case op < 17:
				r := p.Request
				r.TTL = time.Duration(1+rnd.IntN(20)) * time.Second
				clients[p.client].Renew(t.Context(), []driver.Request{r})
			case op < 18:
				if q, _ := clients[client].Inspect(t.Context(), name); q.Len() > 0 {
					clients[client].Break(t.Context(), name, q.Holders()[0].Token, rnd.IntN(2) == 0)
				}
			case op == 18 && rnd.IntN(10) == 0:
				clients[client].Close()
				clients[client] = open(t, s)
			default:
				time.Sleep(time.Duration(rnd.IntN(8)) * time.Second)
			}
			synctest.Wait()
			atRest(t, s)
			answers(t, s, all)
		}
		for _, b := range clients {
			b.Close()
		}
		synctest.Wait()
		empty(t, s)
		for _, p := range all {
			p.cancel()
			if p.got == nil && len(p.answer) == 0 {
				t.Fatal("Acquire did not return after Close")
			}
		}
	})
}

// answers fails the test unless an Acquire waits if and only if its request does.
func answers(t *testing.T, s *Space, all []*pending) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := map[driver.ID]bool{}
	for id, r := range s.requests {
		if !r.granted() {
			waiting[id] = false // no Acquire seen yet that waits for it
		}
	}
	for _, p := range all {
		if p.got == nil && len(p.answer) > 0 {
			a := <-p.answer
			p.got = &a
		}
		if p.got == nil {
			if _, ok := waiting[p.ID]; !ok {
				t.Fatal("an Acquire waits, but its request does not")
			}
			waiting[p.ID] = true
		} else if p.got.err == nil && (p.got.Token == 0 || p.got.TTL <= 0 || p.got.SentAt.IsZero()) {
			t.Fatalf("grant %+v", p.got)
		}
	}
	for id, seen := range waiting {
		if !seen {
			t.Fatalf("request %v waits, but no Acquire does", id)
		}
	}
}

// TestRace lets goroutines lock, abandon waits and try under the real clock; the counter has no
// other protection.
func TestRace(t *testing.T) {
	rnd := random(t)
	s := new(Space)
	var wg sync.WaitGroup
	counter, held := 0, make([]int, 8)
	for i := range held {
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))
		wg.Go(func() {
			b := open(t, s)
			defer b.Close()
			for range 500 {
				r := ask("lock")
				r.TTL, r.Wait = time.Hour, rnd.IntN(4) > 0
				ctx, cancel := context.WithCancel(t.Context())
				if rnd.IntN(3) == 0 {
					go cancel()
				}
				_, err := b.Acquire(ctx, r)
				cancel()
				switch {
				case err == nil:
					counter++
					held[i]++
					if err := b.Release(t.Context(), r); err != nil {
						t.Errorf("Release: %v", err)
					}
				case errors.Is(err, context.Canceled):
					if err := b.Release(t.Context(), r); err != nil && !errors.Is(err, driver.ErrLost) {
						t.Errorf("Release: %v", err)
					}
				case !errors.Is(err, driver.ErrHeld):
					t.Errorf("Acquire: %v", err)
				}
			}
		})
	}
	wg.Wait()
	empty(t, s)
	for _, n := range held {
		counter -= n
	}
	if counter != 0 {
		t.Errorf("the counter is off by %d", counter)
	}
}
