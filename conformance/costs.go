package conformance

import (
	"bytes"
	"math"
	"runtime"
	"time"

	"github.com/dlock-go/dlock"
)

var costs = []Law{
	{Name: "cost-lock", run: costLock,
		Sentence: "an uncontended Lock and Unlock make a few calls, and an idle client makes hardly any"},
	{Name: "cost-wait", run: costWait, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting}, alone: true,
		Sentence: "a client needs no additional calls, goroutines or connections for each of its waiters"},
	{Name: "cost-hold", run: costHold, stall: tenthOfRenewedTTL, alone: true,
		Sentence: "a client needs no additional calls, goroutines or connections for each of its leases: all are renewed together, every TTL/3"},
	{Name: "cost-hand-off", run: costHandOff, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting}, alone: true,
		Sentence: "a hand-off wakes one waiter: its calls do not grow with the number of waiters"},
}

func costLock(e *env) {
	// Acquire and Release of two round trips each, and some calls of the driver's own
	const rounds, each = 50, 6
	p, name := e.peer(), e.name()
	e.pass(p.Mutex(name))
	before := p.calls()
	for range rounds {
		e.pass(p.Mutex(name))
	}
	if n := p.calls() - before; n > rounds*each {
		e.Errorf("%d times Lock and Unlock made %d round trips; want at most %d", rounds, n, rounds*each)
	}
	const idle = 10
	if s := p.spends(e.shortTTL); float64(s.calls) > idle*max(1, s.took.Seconds()/e.shortTTL.Seconds()) {
		e.Errorf("an idle client made %d round trips in %s; want at most %d in %s", s.calls, s.took, idle, e.shortTTL)
	}
}

// spent is what a client uses in a period of time.
type spent struct {
	calls                   int64
	goroutines, connections int
	took                    time.Duration // the real period: a loaded machine is late
}

// goroutines returns how many the process has. It counts stacks, since runtime.NumGoroutine may be
// off by dozens for a moment.
func goroutines() int {
	for size := 1 << 20; ; size *= 2 {
		stacks := make([]byte, size)
		if n := runtime.Stack(stacks, true); n < size {
			return bytes.Count(stacks[:n], []byte("\n\ngoroutine ")) + 1
		}
	}
}

// spends measures the client over d. Of the goroutines it counts those that stay: calls under way,
// as of a renewal, may have some for a moment.
func (p *peer) spends(d time.Duration) spent {
	const looks = 4
	pause(d / 4) // let recent calls finish
	before, start := p.calls(), time.Now()
	least := math.MaxInt
	for range looks {
		pause(d / looks)
		least = min(least, goroutines())
	}
	return spent{calls: p.calls() - before, took: time.Since(start), goroutines: least, connections: p.connections()}
}

// atMost fails the law if n more waiters or leases cost more. Each of them is allowed own
// goroutines.
func (e *env) atMost(what string, n int, own int, few, many spent) {
	e.Helper()
	// a few connections may be opened, each with goroutines of the client library and the harness
	const slack, each = 10, 8
	foreign := each * max(0, many.connections-few.connections)
	if e.h.Connections == nil {
		foreign = 30
	}
	if many.calls > 2*few.calls+slack {
		e.Errorf("with %d more %s the round trips went from %d to %d", n, what, few.calls, many.calls)
	}
	if many.goroutines > few.goroutines+own*n+foreign+slack {
		e.Errorf("with %d more %s the goroutines went from %d to %d", n, what, few.goroutines, many.goroutines)
	}
	const pool = 3 // a single waiter may need only one, and a pool may open others
	if many.connections > few.connections+pool {
		e.Errorf("with %d more %s the connections went from %d to %d", n, what, few.connections, many.connections)
	}
}

func costWait(e *env) {
	const few, many = 5, 100
	holder, p, name := e.client(), e.peer(dlock.TTL(e.renewedTTL)), e.name()
	e.lock(holder.Mutex(name))
	var line []*attempt
	grow := func(to int) spent {
		for len(line) < to {
			line = append(line, e.begin(p.Mutex(name)))
		}
		e.becomes(name, 1, to)
		return p.spends(e.renewedTTL / 2) // it contains a renewal
	}
	// the goroutine of the law, and that of the fault injector in the driver's Acquire
	const own = 2
	e.atMost("waiters", many-few, own, grow(few), grow(many))
	for _, a := range line {
		a.cancel()
	}
	e.becomes(name, 1, 0)
}

func costHold(e *env) {
	const few, many = 5, 100
	p := e.peer(dlock.TTL(e.renewedTTL))
	var held []*dlock.Lease
	grow := func(to int) spent {
		for len(held) < to {
			held = append(held, e.lock(p.Mutex(e.name())))
		}
		return p.spends(e.renewedTTL / 2) // it contains a renewal
	}
	e.atMost("leases", many-few, 0, grow(few), grow(many))
	for _, l := range held {
		if err := l.Err(); err != nil {
			e.Fatalf("a lease was not renewed: %v", err)
		}
	}
}

// perSecond is how much a count grows by itself.
func perSecond(count func() int64) float64 {
	before, start := count(), time.Now()
	pause(300 * time.Millisecond)
	return float64(count()-before) / time.Since(start).Seconds()
}

func costHandOff(e *env) {
	const few, many, hands = 5, 60, 10
	var clients []*peer
	for range 5 {
		clients = append(clients, e.peer())
	}
	total := func() (n int64) {
		for _, p := range clients {
			n += p.calls()
		}
		return n
	}
	cost := func(waiters int) int64 {
		name, granted := e.name(), make(chan *attempt)
		held := e.lock(clients[0].Mutex(name))
		for i := range waiters + hands {
			a := e.begin(clients[i%len(clients)].Mutex(name))
			go func() {
				<-a.done
				select {
				case granted <- a:
				case <-e.ctx.Done():
				}
			}()
		}
		e.becomes(name, 1, waiters+hands)
		idle := perSecond(total)
		before, start := total(), time.Now()
		for range hands {
			e.unlock(held)
			select {
			case a := <-granted:
				held = a.got(e)
			case <-time.After(e.patience):
				e.Fatalf("after a release no waiter was granted the lock")
			}
		}
		e.becomes(name, 1, waiters)
		// a driver that polls often at first has polled less often since: then too much is
		// subtracted; each release is at least one call
		return max(hands, total()-before-int64(idle*time.Since(start).Seconds()))
	}
	// The cost of waiting during the hand-offs is not theirs and is subtracted. On a machine that
	// stalls at times they may cost more, and never less.
	least := func(waiters int, most int64) int64 {
		n := cost(waiters)
		for range 2 {
			if n > most {
				n = min(n, cost(waiters))
			}
		}
		return n
	}
	const most = 8 * hands
	a := least(few, most)
	b := least(many, 2*a+2*hands)
	if b > 2*a+2*hands {
		e.Errorf("%d hand-offs made %d calls with %d waiters and %d with %d", hands, a, few, b, many)
	}
	if a > most {
		e.Errorf("%d hand-offs made %d calls; want at most %d", hands, a, most)
	}
}
