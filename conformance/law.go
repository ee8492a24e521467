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
		elections, keeping, costs, capabilities, stress)
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
			v.Skipped = fmt.Sprintf("needs %s, which %s has not", n.what, e.caps.Backend)
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
	what string
	met  func(*env) bool
}

var (
	queueing   = need{"Capabilities.Queue", func(e *env) bool { return e.caps.Queue }}
	fencing    = need{"Capabilities.Fencing", func(e *env) bool { return e.caps.Fencing }}
	sharing    = need{"Capabilities.Shared", func(e *env) bool { return e.caps.Shared }}
	semaphores = need{"Capabilities.Semaphores", func(e *env) bool { return e.caps.Semaphores }}
	joining    = need{"Capabilities.Joins", func(e *env) bool { return e.caps.Joins }}
	inspecting = need{"Capabilities.Inspect", func(e *env) bool { return e.caps.Inspect }}
	durable    = need{"Capabilities.Durable", func(e *env) bool { return e.caps.Durable }}

	breakable = need{"the interface driver.Breaker", func(e *env) bool { _, ok := e.probe.(driver.Breaker); return ok }}

	holdingReplies = need{"the power Harness.HoldReplies", func(e *env) bool { return e.h.HoldReplies != nil }}
	delaying       = need{"the power Harness.DelayReplies", func(e *env) bool { return e.h.DelayReplies != nil }}

	restarting = need{"the power Harness.Restart", func(e *env) bool { return e.h.Restart != nil }}
	storing    = need{"the power Harness.Stored", func(e *env) bool { return e.h.Stored != nil }}
	stepping   = need{"the power Harness.StepClock", func(e *env) bool { return e.h.StepClock != nil }}
)
