package conformance

import (
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

var order = []Law{
	{Name: "arrival-order", run: arrivalOrder, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "waiters are granted one by one in the order in which their requests reached the service, whatever their clients"},
	{Name: "no-overtaking", run: noOvertaking, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "a request that arrives at the moment of a release does not overtake the waiters"},
	{Name: "slow-service", run: slowService, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting, delaying},
		Sentence: "if each reply takes 400 ms, no waiter loses its place"},
}

func arrivalOrder(e *env) {
	const waiters = 9
	name := e.name()
	clients := []*dlock.Client{e.client(), e.client(), e.client()}
	held := e.lock(clients[0].Mutex(name))
	var line []*attempt
	for i := range waiters {
		line = append(line, e.begin(clients[i%len(clients)].Mutex(name)))
		e.becomes(name, 1, i+1)
	}
	e.passOn(held, line)
	e.becomes(name, 0, 0)
}

// passOn hands the lock over to each of the waiters, which must be granted in that order.
func (e *env) passOn(held *dlock.Lease, line []*attempt) {
	e.Helper()
	for i, a := range line {
		e.unlock(held)
		held = a.gotBefore(e, line[i+1:])
		for _, later := range line[i+1:] {
			later.mustWait(e.strict(), "earlier requests wait or hold")
		}
	}
	e.unlock(held)
}

// slowService has waiters that wait longer than their TTL, and whose confirmations are slow: a
// service must not take such a waiter for dead when its turn comes.
func slowService(e *env) {
	const waiters, late = 7, 400 * time.Millisecond
	name := e.name()
	backends := []driver.Backend{e.open(), e.open(), e.open()}
	var clients []*dlock.Client
	for _, b := range backends {
		clients = append(clients, e.clientOn(b))
	}
	held := e.lock(clients[0].Mutex(name))
	for _, b := range backends {
		e.h.DelayReplies(e.T, b, late)
		defer e.h.DelayReplies(e.T, b, 0)
	}
	var line []*attempt
	for i := range waiters {
		line = append(line, e.begin(clients[i%len(clients)].Mutex(name)))
		e.becomes(name, 1, i+1)
	}
	e.passOn(held, line)
	e.becomes(name, 0, 0)
}

func noOvertaking(e *env) {
	a, b, c, name := e.client(), e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	for range 5 {
		next := e.begin(b.Mutex(name))
		e.becomes(name, 1, 1)
		e.unlock(held)
		e.mustBeHeld(a.Mutex(name), "another request waited when it was released")
		e.mustBeHeld(c.Mutex(name), "another request waited when it was released")
		late := e.begin(c.Mutex(name))
		held = next.got(e)
		e.becomes(name, 1, 1)
		late.mustWait(e.strict(), "it arrived after the request that holds")
		e.unlock(held)
		held = late.got(e)
	}
	e.unlock(held)
}
