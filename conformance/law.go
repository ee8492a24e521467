package conformance

import (
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// Law is one promise that every driver has to keep.
type Law struct {
	Name     string // a short name, which is that of the subtest
	Sentence string // the promise, in one sentence

	run   func(*env)
	needs []need
	alone bool // it counts or restarts something that all laws share

	longest bool // it waits longer than any other
	// how long the machine or the service may stall before leases that the law keeps may be lost: a
	// law that fails after a longer stall is run again; nil: no stall excuses a failure
	stall stallTolerance
}

// Laws returns all laws, by subject. The caller may change the slice.
func Laws() []Law {
	return slices.Concat(exclusion, order, shared, reentry, identity, waiting, leases, breaking, tokens, lifecycle,
		elections, keeping, costs, capabilities, lists, stress)
}

// Run checks the law in t. The test is skipped, with the reason, if the backend or the harness does
// not have what the law needs. Run works in a testing/synctest bubble if the backend does.
func (l Law) Run(t T, h Harness) {
	t.Helper()
	v := Verdict{Law: l, Began: time.Now()}
	t.Cleanup(func() { // it runs last, after the law and after all that it opened is closed
		if v.Failed = t.Failed(); v.Failed {
			t.Logf("%s: law %q: %s", l.where(), l.Name, l.Sentence)
		}
		if h.Done != nil {
			h.Done(t, v)
		}
	})
	e := newEnv(t, h)
	for _, n := range l.needs {
		if !n.met(e) {
			v.Skipped, v.Power = fmt.Sprintf("needs %s, which %s does not have", n.what, e.caps.Backend), n.power
			t.Skipf("%s", v.Skipped)
		}
	}
	if l.stall != nil {
		e.repeatAfterStalls(l.stall, l.run)
		return
	}
	l.run(e)
}

// where returns the file and line of the law's code.
func (l Law) where() string {
	pc := reflect.ValueOf(l.run).Pointer()
	file, line := runtime.FuncForPC(pc).FileLine(pc)
	return fmt.Sprintf("conformance/%s:%d", filepath.Base(file), line)
}

// need is a requirement of a law: a capability, an optional interface or a power of the harness.
type need struct {
	what  string
	met   func(*env) bool
	power string // the field of Harness; empty: none
}

// capable is the need of a capability.
func capable(name string, of func(driver.Capabilities) bool) need {
	return need{what: "Capabilities." + name, met: func(e *env) bool { return of(e.caps) }}
}

// implemented is the need of an optional interface.
func implemented[I any](name string) need {
	return need{what: "the interface driver." + name, met: func(e *env) bool { _, ok := e.probe.(I); return ok }}
}

// power is the need of a power of the harness.
func power(name string) need {
	return need{what: "the power Harness." + name, met: func(e *env) bool { return e.h.gives(name) }, power: name}
}

// What laws need. If a law needs both, capabilities and interfaces come before powers, so that the
// suite never asks for a power that would be of no use.
var (
	queueing   = capable("Queue", func(c driver.Capabilities) bool { return c.Queue })
	fencing    = capable("Fencing", func(c driver.Capabilities) bool { return c.Fencing })
	raising    = capable("Raises", func(c driver.Capabilities) bool { return c.Raises })
	sharing    = capable("Shared", func(c driver.Capabilities) bool { return c.Shared })
	semaphores = capable("Semaphores", func(c driver.Capabilities) bool { return c.Semaphores })
	joining    = capable("Joins", func(c driver.Capabilities) bool { return c.Joins })
	inspecting = capable("Inspect", func(c driver.Capabilities) bool { return c.Inspect })
	durable    = capable("Durable", func(c driver.Capabilities) bool { return c.Durable })

	breakable = implemented[driver.Breaker]("Breaker")
	listing   = implemented[driver.Lister]("Lister")

	holdingReplies = power("HoldReplies")
	delaying       = power("DelayReplies")
	delayingOrBusy = need{
		what: "the power Harness.DelayReplies, or Capabilities.Inspect and a clock that runs", power: "DelayReplies",
		met: func(e *env) bool { return e.h.DelayReplies != nil || e.caps.Inspect && !timeIsVirtual() },
	}
	restarting = power("Restart")
	storing    = power("Stored")
	stepping   = power("StepClock")
	prefixing  = power("OpenPrefixed")
)
