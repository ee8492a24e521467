// Package conformance tests a driver of dlock on its real service. Each test is a law: one promise
// that every driver has to keep.
//
// A driver, also one outside this repository, needs one test function. This is a complete one, for
// a driver foo whose service is at FOO_URL:
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
//			// powers that this harness does not have: see Harness
//			Without: []string{"HoldReplies", "DelayReplies", "Restart", "Stored", "StepClock",
//				"OpenPrefixed"},
//		})
//	}
//
// Each law is a subtest, and prints its sentence when it fails. What a backend cannot do is stated
// in its Capabilities: laws that need it are skipped with the reason, and the law "capabilities"
// checks that the Capabilities are true. What the harness cannot do is stated in its Without. There
// is no other excuse: a run in which a law was skipped for another reason fails.
//
// Laws use the public API of dlock where a user could see the violation, and [driver.Backend] where
// only a driver can. They use fresh random names, so they can run concurrently and repeatedly on a
// service that is also used otherwise. A few laws count goroutines of the whole process, so call
// Run from a test that is not parallel.
//
// A law that passes on a good network proves little about a bad one. Give the [Harness] powers:
// with a proxy in front of the service that can cut a client off, a dozen laws become stricter.
// Package netfault, in a subdirectory of this one, has the proxy. Where a power is missing, the
// suite puts a [FaultInjector] in front of the driver, or keeps the process busy so that it reads
// replies late. A few laws need what only the harness can do, such as a restart of the service.
//
// A law that uses random numbers prints its seed; DLOCK_SEED in the environment sets it.
package conformance

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// T has the methods of a test that laws and harnesses use. [testing.T] implements it, also in a
// testing/synctest bubble.
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

// Harness connects the suite to a driver and the service behind it. Only Open is required. The
// functions from Partition to OpenPrefixed are powers: they are optional, and each of them lets
// laws detect more. All functions must be safe for concurrent use.
//
// Fields may be added: write literals with field names.
type Harness struct {
	// Open opens a new client, independent of the earlier ones. All clients use the same locks. The
	// law closes the client.
	Open func(T) driver.Backend

	// TTL is that of locks which have to expire. A shorter TTL makes a run faster; with one that is
	// too short, a machine under load loses leases that it should keep. 0: 200ms, or the backend's
	// MinTTL if that is more.
	TTL time.Duration

	// Partition cuts the client off from the service until heal: its calls hang, and the service
	// receives nothing, not even the end of the connection. What the client sent meanwhile may
	// arrive at heal or never.
	Partition func(T, driver.Backend) (heal func())

	// HoldReplies lets everything that the client sends arrive and be executed, and holds back the
	// replies until heal.
	HoldReplies func(T, driver.Backend) (heal func())

	// DelayReplies delays all that is sent to the client by that duration from now on; 0 ends it.
	DelayReplies func(T, driver.Backend, time.Duration)

	// Record keeps copies of what the client sends to acquire. replay sends them to the service
	// once more, as a network may, and drops the replies.
	Record func(T, driver.Backend) (replay func())

	// Calls returns how many round trips the client has made so far, including those in the
	// background.
	Calls func(driver.Backend) int64

	// Connections returns how many connections the client has open.
	Connections func(driver.Backend) int

	// Restart stops the service and starts it again with its data. Clients stay open.
	Restart func(T)

	// Stored returns how many requests the service stores for the name, including expired ones.
	Stored func(t T, b driver.Backend, name string) int

	// StepClock sets the service's wall clock forward by d, or back if d is negative. The suite
	// reverts that with another call.
	StepClock func(t T, d time.Duration)

	// OpenPrefixed opens a client as Open does, with a prefix for all its names as in
	// [driver.Config.Prefix]. The prefix has letters, digits and hyphens. The law closes the
	// client.
	OpenPrefixed func(t T, prefix string) driver.Backend

	// Prefix is the beginning of all names that laws lock.
	Prefix string

	// Without has the names of the powers (the fields above) that the harness cannot have, for
	// example because the service cannot be restarted. Run fails if a law was skipped because
	// another power is missing.
	Without []string

	// Only selects the laws that Run runs; nil: all.
	Only func(Law) bool

	// Done is called with the verdict when a law has ended and everything that it opened is closed.
	Done func(T, Verdict)
}

// Verdict is the outcome of a law.
type Verdict struct {
	Law     Law
	Began   time.Time
	Failed  bool
	Skipped string // the reason; empty: it was not skipped
	Power   string // the missing power (a field of Harness) if that was the reason; empty: none
}

// Run checks every law as a subtest of t, which is a [*testing.T]; its type is a parameter so that
// programs can run laws ([Law.Try]) without package testing. Laws that need the service or the
// process for themselves run first. The others, which mostly wait, run concurrently. At the end Run
// reports the laws that were skipped, and fails if a law was skipped because a power is missing
// that is not in Without.
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
	const parallel = 6 // more than t.Parallel allows on a small machine: most laws only wait
	var others sync.WaitGroup
	free := make(chan struct{}, parallel)
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
	h.reportSkipped(t, verdicts)
}

// inTurn sorts laws in the order in which they start: those that run alone, then the longest one,
// then the others.
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
