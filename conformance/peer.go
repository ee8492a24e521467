package conformance

import (
	"sync"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

// peer is a client on a line that the law can cut: with the harness's powers, or with a gate where
// it has none.
type peer struct {
	*dlock.Client
	e    *env
	b    driver.Backend // the driver's
	gate *Gate          // before b; open unless a power is missing
}

func (e *env) peer(opts ...dlock.Option) *peer {
	e.Helper()
	b := e.open()
	g := NewGate(b)
	p := &peer{Client: e.clientOn(g, opts...), e: e, b: b, gate: g}
	// a line has to be up to become bad: no client sends anything before it is
	if e.h.Cut != nil || e.h.Deafen != nil {
		e.visit(p.Mutex(e.name()))
	}
	return p
}

// cut takes the client off the line until heal, or the end of the law.
func (p *peer) cut() (heal func()) {
	p.e.Helper()
	if p.e.h.Cut == nil {
		return p.healed(p.gate.Cut())
	}
	return p.healed(p.e.h.Cut(p.e.T, p.b))
}

// deafen keeps replies from the client until heal, or the end of the law.
func (p *peer) deafen() (heal func()) {
	p.e.Helper()
	if p.e.h.Deafen == nil {
		return p.healed(p.gate.Deafen())
	}
	return p.healed(p.e.h.Deafen(p.e.T, p.b))
}

func (p *peer) healed(heal func()) func() {
	heal = sync.OnceFunc(heal)
	p.e.Cleanup(heal)
	return heal
}

// record returns what delivers copies of the client's acquires once more.
func (p *peer) record() (replay func()) {
	if p.e.h.Record == nil {
		return p.gate.Record()
	}
	return p.e.h.Record(p.e.T, p.b)
}

// calls returns how many round trips the client made.
func (p *peer) calls() int64 {
	if p.e.h.Calls == nil {
		return p.gate.Calls()
	}
	return p.e.h.Calls(p.b)
}

// connections returns how many connections the client has; 0 if the harness cannot tell.
func (p *peer) connections() int {
	if p.e.h.Connections == nil {
		return 0
	}
	return p.e.h.Connections(p.b)
}
