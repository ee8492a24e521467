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

// Law is one promise that every driver keeps.
type Law struct {
	Name     string // short; the subtest's name
	Sentence string // what is promised, in one sentence

	run   func(*env)
	needs []need
	alone bool // it counts or restarts what all laws share

	longest bool // it waits for longer than any other
	// for how long the machine or the service may stall before the leases that the law keeps may be
	// lost: a law that fails after that is run again; nil: no stall excuses a failure
	stall stallTolerance
}

// Laws returns all laws, by subject. The slice is the caller's.
func Laws() []Law {
	return slices.Concat(exclusion, order, shared, reentry, identity, waiting, leases, breaking, tokens, lifecycle,
		elections, keeping, costs, capabilities, lists, stress)
}

// Run checks the law in t. It is skipped, with the reason, if the backend's Capabilities deny what
// it needs. It works in a testing/synctest bubble if the backend does.
func (l Law) Run(t T, h Harness) {
	t.Helper()
	v := Verdict{Law: l, Began: time.Now()}
	t.Cleanup(func() { // the first in is the last to run: after the law and all that it opened
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
			v.Skipped, v.Power = fmt.Sprintf("needs %s, which %s has not", n.what, e.caps.Backend), n.power
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

// need is a condition of a law: a capability, an optional interface or a power of the harness.
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

// What laws need. Capabilities and interfaces come before powers where a law needs both: a power
// that would be of no use is not asked for.
var (
	queueing   = capable("Queue", func(c driver.Capabilities) bool { return c.Queue })
	fencing    = capable("Fencing", func(c driver.Capabilities) bool { return c.Fencing })
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
