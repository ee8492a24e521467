package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"sync"
	"time"
)

// scenario is one measurement, of all contenders of a backend.
type scenario struct {
	name    string
	title   string // what is measured, in a sentence
	of      string // what the number of a case counts; empty: there is one case
	cases   []int
	length  time.Duration // of a round
	metrics []metric      // the first one is compared
	lower   bool          // less is better

	remote  bool // needs a server
	waiting bool // for contenders that can wait
	holding bool // for contenders that renew their locks
	counts  bool // it times nothing: one round, all contenders at once, no ratios

	enter func(ctx context.Context, s *stand, c contender, n int) (entrant, error)
}

// admits reports whether a contender can take part.
func (sc scenario) admits(b backend, c contender) bool {
	return !(sc.remote && b.local || sc.waiting && c.alone || sc.counts && c.outside || sc.holding && !c.renews)
}

// metric is a column.
type metric struct{ key, title string }

// entrant is a contender in a case.
type entrant interface {
	round(ctx context.Context, length time.Duration) (Round, error)
	close()
}

// Row is the result of one contender in one case.
type Row struct {
	Backend, Scenario, Contender string
	Case                         int
	Bound                        bool `json:",omitempty"`
	Rounds                       []Round
	Trouble                      string `json:",omitempty"` // why rounds are missing
}

// settings are the options of a run.
type settings struct {
	rounds int
	factor float64 // of the length of rounds
}

// contest measures all contenders in one case.
func contest(ctx context.Context, o settings, sc scenario, s *stand, n int) []Row {
	f := &field{scenario: sc, stand: s}
	defer f.close()
	for _, c := range s.contenders {
		if sc.admits(s.backend, c) {
			f.enter(ctx, c, n)
		}
	}
	if sc.counts {
		f.together(ctx)
	} else {
		f.inTurns(ctx, o)
	}
	return f.rows
}

// field is the contenders of a case.
type field struct {
	scenario
	*stand
	rows     []Row
	entrants []entrant // by row; nil: it cannot take part
}

func (f *field) enter(ctx context.Context, c contender, n int) {
	row := Row{Backend: f.stand.name, Scenario: f.scenario.name, Case: n, Contender: c.name, Bound: c.bound}
	defer impatient(row)()
	e, err := f.scenario.enter(ctx, f.stand, c, n)
	if err != nil {
		row.Trouble, e = err.Error(), nil
	}
	f.rows, f.entrants = append(f.rows, row), append(f.entrants, e)
}

func (f *field) close() {
	for _, e := range f.entrants {
		if e != nil {
			e.close()
		}
	}
}

// impatient ends the program if a contender takes longer than any call should: not all contenders
// can be cancelled, and the log then names the one that hangs.
func impatient(r Row) (done func()) {
	t := time.AfterFunc(5*time.Minute, func() {
		log.Fatalf("%s %s, case %d: %s has not returned after 5 minutes", r.Backend, r.Scenario, r.Case, r.Contender)
	})
	return func() { t.Stop() }
}

// round runs one round of an entrant.
func (f *field) round(ctx context.Context, i int, length time.Duration) Round {
	defer impatient(f.rows[i])()
	stop := f.watch()
	r, err := f.entrants[i].round(ctx, length)
	if err != nil && f.rows[i].Trouble == "" {
		f.rows[i].Trouble = err.Error()
	}
	r.Others = stop()
	return r
}

// together lets all entrants take one round at the same time.
func (f *field) together(ctx context.Context) {
	var wg sync.WaitGroup
	for i, e := range f.entrants {
		if e != nil {
			wg.Go(func() { f.rows[i].Rounds = []Round{f.round(ctx, i, f.length)} })
		}
	}
	wg.Wait()
}

// inTurns lets the entrants take their rounds in turns, each time in another order. Rounds in which
// the machine was busy are repeated, at most as often as there are rounds.
func (f *field) inTurns(ctx context.Context, o settings) {
	length := time.Duration(float64(f.length) * o.factor)
	turn := func(length time.Duration) (rounds []Round, busy bool) {
		rounds = make([]Round, len(f.entrants))
		for _, i := range rand.Perm(len(f.entrants)) {
			if f.entrants[i] == nil || ctx.Err() != nil {
				continue
			}
			rounds[i] = f.round(ctx, i, length)
			busy = busy || !rounds[i].quiet()
			time.Sleep(20 * time.Millisecond) // for work in the background
		}
		return rounds, busy
	}
	turn(length / 4) // warm
	for done, more := 0, o.rounds; done < o.rounds && ctx.Err() == nil; {
		rounds, busy := turn(length)
		if busy && more > 0 {
			more--
			continue
		}
		done++
		for i, r := range rounds {
			if f.entrants[i] != nil {
				f.rows[i].Rounds = append(f.rows[i].Rounds, r)
			}
		}
	}
}

// clientsOf opens clients, and assigns them to n lockers in turn. All lockers lock the given name;
// if it is empty each has a name of its own.
func clientsOf(ctx context.Context, addr string, c contender, clients, n int, prefix, name string) (lockers []locker, all closers, err error) {
	defer func() {
		if err != nil {
			all.close()
		}
	}()
	var open []client
	for range clients {
		cl, err := c.open(ctx, addr)
		if err != nil {
			return nil, all, err
		}
		open, all = append(open, cl), append(all, cl)
	}
	for i := range n {
		own := name
		if own == "" {
			own = fmt.Sprint(prefix, "-", i)
		}
		l, err := open[i%clients].locker(ctx, own)
		if err != nil {
			return nil, all, err
		}
		lockers, all = append(lockers, l), append(all, l)
	}
	return lockers, all, nil
}

// pause waits for d. If ctx ends first it returns its error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ms is a time in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
