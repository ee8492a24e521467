package conformance

import (
	"sync"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// peer is a client whose connection the law can break, with the powers of the harness or, if it
// does not have them, with a fault injector.
type peer struct {
	*dlock.Client
	e        *env
	b        driver.Backend // the driver's
	injector *FaultInjector // in front of b; without faults unless a power is missing
}

func (e *env) peer(opts ...dlock.Option) *peer {
	e.Helper()
	b := e.open()
	f := NewFaultInjector(b)
	p := &peer{Client: e.clientOn(f, opts...), e: e, b: b, injector: f}
	// the connection has to be open before a fault begins
	if e.h.Partition != nil || e.h.HoldReplies != nil {
		e.visit(p.Mutex(e.name()))
	}
	return p
}

// partition cuts the client off until heal, or the end of the law.
func (p *peer) partition() (heal func()) {
	p.e.Helper()
	if p.e.h.Partition == nil {
		return p.healed(p.injector.Partition())
	}
	return p.healed(p.e.h.Partition(p.e.T, p.b))
}

// holdReplies holds back replies to the client until heal, or the end of the law.
func (p *peer) holdReplies() (heal func()) {
	p.e.Helper()
	if p.e.h.HoldReplies == nil {
		return p.healed(p.injector.HoldReplies())
	}
	return p.healed(p.e.h.HoldReplies(p.e.T, p.b))
}

func (p *peer) healed(heal func()) func() {
	heal = sync.OnceFunc(heal)
	p.e.Cleanup(heal)
	return heal
}

// record keeps copies of the client's acquires; replay sends them once more.
func (p *peer) record() (replay func()) {
	if p.e.h.Record == nil {
		return p.injector.Record()
	}
	return p.e.h.Record(p.e.T, p.b)
}

// calls returns how many round trips the client made.
func (p *peer) calls() int64 {
	if p.e.h.Calls == nil {
		return p.injector.Calls()
	}
	return p.e.h.Calls(p.b)
}

// connections returns how many connections the client has; 0 if the harness does not have that
// power.
func (p *peer) connections() int {
	if p.e.h.Connections == nil {
		return 0
	}
	return p.e.h.Connections(p.b)
}
