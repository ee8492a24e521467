// Package conformance holds the laws that every driver of dlock keeps, as tests that run on its
// real service.
//
// A driver, also one outside this repository, needs one test function. This is all of it, for a
// driver foo whose service listens where FOO_URL says:
//
//	package foo_test
//
//	import (
//		"os"
//		"testing"
//
//		"example.com/foo"
//		"github.com/dlock-go/dlock/conformance"
//		"github.com/dlock-go/dlock/driver"
//	)
//
//	func TestConformance(t *testing.T) {
//		url := os.Getenv("FOO_URL")
//		conformance.Run(t, conformance.Harness{
//			Open: func(t conformance.T) driver.Backend {
//				b, err := foo.New(url)
//				if err != nil {
//					t.Fatalf("open: %v", err)
//				}
//				return b
//			},
//			// what laws need and this harness does not give: see Harness
//			Without: []string{"HoldReplies", "DelayReplies", "Restart", "Stored", "StepClock",
//				"OpenPrefixed"},
//		})
//	}
//
// Each law is a subtest, and prints its sentence when it fails. What a backend cannot do is in its
// Capabilities: laws that need it are skipped with the reason, and the law "capabilities" holds the
// backend to its word. What the harness cannot do is in its Without. There is no other way to be
// excused: a run in which a law was not tried for another reason fails.
//
// Laws use the public API of dlock where a user could see the violation, and [driver.Backend] where
// only a driver can. They use fresh random names, so they can run side by side, and again and
// again, on one service that others use too. A few laws count goroutines of the whole process, so
// call Run from a test that is not parallel.
//
// A law that passes proves little about a fault that needs a bad network. Give the [Harness]
// powers: a proxy in front of the service that can cut a client off makes a dozen laws sharper.
// Package netfault, beside this one, has the proxy.
// Where a power is missing, the suite puts a [FaultInjector] in front of the driver, or makes the
// process busy, so that it reads replies late. A few laws need what only the harness can do, such
// as a restart of the service.
//
// A law that does something at random prints its seed; DLOCK_SEED in the environment sets it.
package conformance

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// T is what laws and harnesses need of a test. [testing.T] has it, in a testing/synctest bubble
// too.
type T interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Harness is how the suite reaches a driver and the service behind it. Only Open is required. The
// powers are optional; with each of them laws see more. All functions may be called from several
// goroutines.
//
// Fields may be added: write literals with field names.
type Harness struct {
	// Open opens a new client, independent of those before, of one and the same set of queues. The
	// law closes it.
	Open func(T) driver.Backend

	// TTL is given to locks that have to expire. Shorter is faster; too short, and a machine under
	// load loses what it should hold. 0: 200ms, or the backend's MinTTL if that is more.
	TTL time.Duration

	// Partition cuts the client off from the service until heal: its calls hang, and the service
	// learns nothing, not even that the connection is cut. What the client sent meanwhile may
	// arrive at heal, or never.
	Partition func(T, driver.Backend) (heal func())

	// HoldReplies lets everything that the client sends arrive and be executed, but holds the
	// replies back until heal.
	HoldReplies func(T, driver.Backend) (heal func())

	// DelayReplies makes all that is sent to the client take so much longer from now on; 0 ends
	// that.
	DelayReplies func(T, driver.Backend, time.Duration)

	// Record keeps copies of what the client sends to acquire. Replay delivers them to the service
	// once more, as a network may, and drops the replies.
	Record func(T, driver.Backend) (replay func())

	// Calls returns how many round trips the client has made so far, those that it makes by itself
	// included.
	Calls func(driver.Backend) int64

	// Connections returns how many connections the client has open.
	Connections func(driver.Backend) int

	// Restart stops the service and starts it with the data that it had. Clients stay open.
	Restart func(T)

	// Stored returns how many requests the service keeps for the name, those that have expired
	// included.
	Stored func(t T, b driver.Backend, name string) int

	// StepClock sets the service's wall clock forward by d, or back if d is negative. The suite
	// sets it right again.
	StepClock func(t T, d time.Duration)

	// OpenPrefixed opens a client as Open does, but with this prefix before all its names, as
	// [driver.Config.Prefix] is. The prefix has letters, digits and hyphens. The law closes it.
	OpenPrefixed func(t T, prefix string) driver.Backend

	// Prefix is what the names that laws lock begin with.
	Prefix string

	// Without names the powers, by the fields above, that the harness cannot have: this service
	// cannot be restarted, say. Run fails if a law was not tried for want of another one.
	Without []string

	// Only says which laws Run runs; nil: all.
	Only func(Law) bool

	// Done is called with the verdict when a law, and all that it opened, has ended.
	Done func(T, Verdict)
}

// Verdict is the outcome of a law.
type Verdict struct {
	Law     Law
	Began   time.Time
	Failed  bool
	Skipped string // the reason; empty: it was not skipped
	Power   string // the power (a field of Harness) for want of which it was skipped; empty: none
}

// Run checks every law as a subtest of t, which is a [*testing.T]: its type is a parameter so that
// programs can run laws ([Law.Try]) without package testing. Laws that need the service or the
// process for themselves run first; the others, which mostly wait, side by side. At the end Run
// says which laws were not tried, and fails if that was for want of a power that is not in Without.
func Run[Test interface {
	T
	Run(name string, law func(Test)) bool
}](t Test, h Harness) {
	t.Helper()
	if h.Open == nil {
		t.Fatalf("conformance: the harness has no Open")
	}
	if err := h.checkWithout(); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	var mu sync.Mutex
	var verdicts []Verdict
	done := h.Done
	h.Done = func(t T, v Verdict) {
		t.Helper()
		mu.Lock()
		verdicts = append(verdicts, v)
		mu.Unlock()
		if done != nil {
			done(t, v)
		}
	}
	const abreast = 6 // more than t.Parallel would on a small machine: most of them wait
	var others sync.WaitGroup
	free := make(chan struct{}, abreast)
	for _, l := range inTurn(Laws()) {
		run := func() { t.Run(l.Name, func(t Test) { l.Run(t, h) }) }
		switch {
		case h.Only != nil && !h.Only(l):
		case l.alone:
			run()
		default:
			free <- struct{}{}
			others.Go(func() {
				defer func() { <-free }()
				run()
			})
		}
	}
	others.Wait()
	h.tellUntried(t, verdicts)
}

// inTurn sorts laws by when they begin: those that run alone, then the one that takes longest, then
// the others.
func inTurn(laws []Law) []Law {
	turn := func(l Law) int {
		switch {
		case l.alone:
			return 0
		case l.longest:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(laws, func(a, b Law) int { return turn(a) - turn(b) })
	return laws
}
