package conformance

import "github.com/dlock-go/dlock"

var order = []Law{
	{Name: "arrival-order", run: arrivalOrder, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "waiters are granted one by one in the order in which the service saw them, whatever their clients"},
	{Name: "no-overtaking", run: noOvertaking, stall: tenthOfRenewedTTL, needs: []need{queueing, inspecting},
		Sentence: "nobody who arrives at the moment of a release overtakes those who wait already"},
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
	for i, a := range line {
		e.unlock(held)
		held = a.got(e)
		for _, later := range line[i+1:] {
			later.mustWait(e.strict(), "those who arrived before it wait or hold")
		}
	}
	e.unlock(held)
	e.becomes(name, 0, 0)
}

func noOvertaking(e *env) {
	a, b, c, name := e.client(), e.client(), e.client(), e.name()
	held := e.lock(a.Mutex(name))
	for range 5 {
		next := e.begin(b.Mutex(name))
		e.becomes(name, 1, 1)
		e.unlock(held)
		e.mustBeHeld(a.Mutex(name), "somebody waited when it was released")
		e.mustBeHeld(c.Mutex(name), "somebody waited when it was released")
		late := e.begin(c.Mutex(name))
		held = next.got(e)
		e.becomes(name, 1, 1)
		late.mustWait(e.strict(), "it came after one who holds")
		e.unlock(held)
		held = late.got(e)
	}
	e.unlock(held)
}
