package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/internal/race"
	"github.com/dlock-go/dlock/internal/size"
)

// fault is the defect of a toy. The first three are none: such toys are sound.
type fault string

const (
	none      fault = "nothing"
	powerless fault = "has a harness without powers"
	poor      fault = "locks exclusively and nothing else: no queue, no tokens, no joins, no Inspect, no Capabilities"

	grantsAll     fault = "grants the lock to every request"
	tryStays      fault = "leaves a refused TryLock in the queue"
	ownerIsClient fault = "takes all requests of a client for one owner (etcd's Session)"
	newestFirst   fault = "grants to the newest waiter first"
	barges        fault = "frees the lock and wakes the next waiter to compete for it"

	readersAlone  fault = "admits readers one by one"
	readersPass   fault = "lets readers pass a waiting writer"
	limitOffByOne fault = "admits one owner too many"
	largestLimit  fault = "compares each request with its own limit only"
	permitForAll  fault = "admits all waiters when one permit is released"

	joinQueues   fault = "lets a join wait in the queue"
	joinToken    fault = "gives a join a token of its own"
	freesJoins   fault = "frees an owner when its first request is released"
	joinRevives  fault = "lets a join begin a hold"
	upgradeWaits fault = "lets an exclusive request under a shared hold wait"
	noDowngrade  fault = "refuses a shared request under an exclusive hold"

	twiceIsTwo      fault = "takes a granted request that is sent again for another one"
	twiceWaitsTwice fault = "takes a waiting request that is sent again for another one"
	releasesAny     fault = "releases the current holder without comparing"
	noTombstones    fault = "forgets released requests"
	foldsCase       fault = "takes 'A' for 'a'"
	trimsSpace      fault = "takes 'a ' for 'a'"
	truncates       fault = "cuts long names"
	showsKeys       fault = "shows names as it stores them"
	hidesLabels     fault = "shows no labels"
	agesFromGrant   fault = "shows the time since its grant as the age of a request that has waited"
	ownerIsLabel    fault = "takes requests with one label for one owner"
	kindsMix        fault = "lets locks and semaphores share a name"

	cancelStays         fault = "keeps a waiting request that is released"
	cancelFreesNone     fault = "does not grant again when a waiter is removed"
	swallowsWakeUp      fault = "lets a cancelled waiter keep the grant that raced with it (rueidislock)"
	slowCancel          fault = "checks the context every 300 ms"
	slowOffLine         fault = "waits for the network before it checks the context"
	forgetsFailed       fault = "forgets a request whose Acquire failed, and answers its release without a call"
	unreadAnswer        fault = "takes a call whose answer it did not read for one that was never sent"
	ignoresPreCancelled fault = "does not check the context before the call"
	waitersExpire       fault = "does not keep waiters alive"
	hasty               fault = "skips a waiter that does not confirm a grant within 250 ms"
	keepsBriefly        fault = "keeps waiters alive for one TTL after their arrival"
	deadWait            fault = "keeps waiters for ever"
	waitsOnLine         fault = "ends a wait with an error when the connection breaks"

	saysNothing    fault = "does not report that a wait stood in the queue"
	saysHeld       fault = "reports that the lock is held when there was no answer"
	ownDeadlines   fault = "ends its calls at a deadline of its own, with the error of a context"
	noiseWakesLate fault = "wakes a waiter 2.5 s late while its client also waits for other names"
	noiseDelays    fault = "keeps its waiters alive only if there was no new request for a while"
	keepsDead      fault = "removes dead waiters only at the head of the queue"

	renewsNothing  fault = "answers a renewal without renewing"
	renewsTogether fault = "keeps all holds of a client alive with one of them (a lease that they share)"
	unknownIsLost  fault = "takes a renewal without a reply for a loss"
	fixedForever   fault = "keeps fixed leases until they are released"
	fixedGoes      fault = "releases fixed leases at Close and claims that they outlive it"
	fixedStays     fault = "keeps fixed leases after Close and denies it"
	fixedRoom      fault = "keeps a fixed lease that was granted to a waiter for five seconds at least"
	cutsTTL        fault = "shortens a TTL that it cannot keep"
	extendOrSet    fault = "acquires on renewal if the name is free (redsync's SetNXOnExtend)"
	renewsUnseen   fault = "renews an expired request if the name was not used since"
	shortTTL       fault = "keeps less than the TTL that it reports"
	sinceReceipt   fault = "counts the TTL from the reply (etcd's Session)"
	remembersLoss  fault = "no longer renews a name that it lost once"
	leavesLost     fault = "does not release uncertain requests"
	futureReceipt  fault = "counts the TTL from a time in the future"
	renewedReceipt fault = "counts the TTL of a renewal from the reply"
	untilOfGrant   fault = "forgets that a hold was renewed when a release of it that got no reply is sent again"
	forgetsExpired fault = "takes an expired request that is sent again for a new one"
	releaseHopes   fault = "takes a release without a reply for successful"

	breaksAny       fault = "breaks without comparing the token"
	brokenRenewable fault = "renews a broken hold"
	brokenJoinable  fault = "lets a broken hold be joined"
	brokenReleased  fault = "takes the release of a broken hold for an ordinary one"
	brokenRefused   fault = "reports that nothing is left of a broken hold whose request is sent again"
	forgetsBroken   fault = "takes the repeated release of a broken hold, after one that got no reply, for an ordinary one"
	breaksNow       fault = "always breaks by force"
	forceWaits      fault = "never breaks by force"
	refusedStays    fault = "keeps the rest of a broken hold until its TTL once a renewal was refused"

	forceSilent      fault = "notifies no holder of a break by force"
	forceSilentFixed fault = "does not notify the holder of a fixed lease, which is never renewed"
	forceSilentShare fault = "notifies no holder of a shared lock of a break by force"
	forceSilentJoin  fault = "notifies only the client that began a hold of a break by force"
	forceLoud        fault = "notifies all holders of the name of a break by force"
	forceSlow        fault = "takes two seconds to notify a holder of a break by force"

	tokensRestart0   fault = "starts tokens again when the queue is empty"
	readersKeepToken fault = "gives readers the last writer's token"
	clockTokens      fault = "takes tokens from the wall clock alone"
	forgetsTokens    fault = "loses tokens in a restart"
	forgetsHolds     fault = "claims to be durable and is not"

	raisesNone    fault = "answers a raise without raising"
	raisesOne     fault = "raises one token, and grants smaller ones later"
	raisesLower   fault = "makes a token smaller when it is raised to less"
	raisesAny     fault = "raises the holder when a request that does not hold is raised"
	raisesNoJoins fault = "raises the token of a hold and not that of its joins"
	raisesAbove   fault = "raises a token to the greatest number, so that none is greater"

	noPrefix  fault = "does not prefix names"
	listsAll  fault = "lists the names of all prefixes"
	listsKeys fault = "lists names with their prefix"
	listsFree fault = "lists names that were in use once"
	listsOne  fault = "lists one name of those in use"

	closeLeaves    fault = "leaves its holds when it is closed"
	closeWakesNone fault = "does not end waiting calls when it is closed"
	closeHangs     fault = "waits for the network when it is closed"
	leaksGoroutine fault = "leaves a goroutine after a cancelled wait"

	chatty              fault = "makes twenty calls for each lock"
	pollsEach           fault = "polls for each waiter"
	goroutinePerWaiter  fault = "has a goroutine for each waiter"
	connectionPerWaiter fault = "has a connection for each waiter"
	connectionPerDozen  fault = "has a connection for each dozen leases"
	renewsOneByOne      fault = "renews each lease by itself"
	herd                fault = "wakes all waiters at each hand-off"

	claimsQueue      fault = "claims to queue and makes waiters try again"
	deniesTokens     fault = "denies its tokens"
	deniesRaises     fault = "denies that it raises tokens"
	deniesShared     fault = "denies read-write locks"
	deniesSemaphores fault = "denies semaphores"
	deniesJoins      fault = "denies joins"
	deniesInspect    fault = "denies Inspect"
)

// everything is declared for drivers that do not exclude at all: nearly every law detects that.
const everything = "everything"

// broken lists for each fault the laws that have to find it, and the others that may find it too.
// The law "storm" does everything at random, so it may find any fault.
var broken = []struct {
	fault     fault
	must, may string
}{
	{grantsAll, "one-holder reenter election storm", everything},
	{tryStays, "try-held", "after-loss break-force break-wrong-token downgrade durable join labels late-grant neither-starves no-overtaking own-name-only owner-not-client readers-together reenter renewed semaphore-limit semaphore-smallest wait-says-why once raise"},
	{ownerIsClient, "owner-not-client own-name-only", "slow-service arrival-order cancelled-wait capabilities close-frees cost-hand-off downgrade fixed labels late-grant neither-starves one-holder proof-before readers-together same-request-waiting semaphore-limit semaphore-order semaphore-smallest unlock-cut-off unlock-after raise"},
	{newestFirst, "arrival-order", "slow-service cancelled-wait neither-starves patient-wait same-request-waiting semaphore-order noise"},
	{barges, "no-overtaking", "neither-starves election"},
	{readersAlone, "readers-together", "cancelled-wait downgrade neither-starves tokens-shared upgrade break-force-known"},
	{readersPass, "neither-starves", ""},
	{limitOffByOne, "semaphore-limit", "inspect semaphore-order semaphore-smallest"},
	{largestLimit, "semaphore-smallest", ""},
	{permitForAll, "semaphore-order", "semaphore-limit"},
	{joinQueues, "join", "break break-wrong-token capabilities downgrade join-over same-request upgrade unlock-after once break-force-known raise"},
	{joinToken, "join", "downgrade break-force-known raise"},
	{freesJoins, "join", "downgrade unlock-after once raise"},
	{joinRevives, "join-over", "break"},
	{upgradeWaits, "upgrade", ""},
	{noDowngrade, "downgrade", ""},
	{twiceIsTwo, "same-request", "break-release-known proof-before trust-within-ttl raise"},
	{twiceWaitsTwice, "same-request-waiting", ""},
	{releasesAny, "same-release expired-powerless", "break-force late-grant unlock-cut-off wait-says-why election break-force-known tokens-grow unlock-after fixed once"},
	{noTombstones, "late-duplicate late-copy", "cancel-cut-off expired-resume wait-says-why"},
	{foldsCase, "names", ""},
	{trimsSpace, "names", ""},
	{truncates, "names", ""},
	{showsKeys, "names", ""},
	{hidesLabels, "inspect", "labels election"},
	{agesFromGrant, "inspect-age", ""},
	{ownerIsLabel, "labels", everything},
	{kindsMix, "conflict", ""},
	{cancelStays, "cancelled-wait unknown-acquire", "cancel-prompt capabilities downgrade swallowed-wake-up wait-says-why"},
	{cancelFreesNone, "cancelled-wait", ""},
	{swallowsWakeUp, "swallowed-wake-up unknown-acquire", "release-again cancel-answered cancel-cut-off capabilities late-copy"},
	{slowCancel, "cancel-prompt", ""},
	{slowOffLine, "cancel-cut-off bounded-calls", "release-again close-cut-off"},
	{forgetsFailed, "unknown-acquire", "cancel-cut-off cancel-answered release-again late-copy wait-says-why swallowed-wake-up"},
	{unreadAnswer, "cancel-answered", "swallowed-wake-up"},
	{ignoresPreCancelled, "pre-cancelled", ""},
	{waitersExpire, "patient-wait", "noise"},
	{keepsBriefly, "patient-wait", "noise"},
	{hasty, "slow-service", ""},
	{deadWait, "dead-waiter", "inspect dead-waiters"},
	{waitsOnLine, "wait-outage", ""},
	{saysNothing, "wait-says-why", ""},
	{saysHeld, "wait-says-why", "late-copy cancel-cut-off"},
	{ownDeadlines, "bounded-calls", ""},
	{noiseDelays, "noise", ""},
	{noiseWakesLate, "noise", "fixed"},
	{keepsDead, "dead-waiters", ""},
	{renewsNothing, "renewed", "after-loss cost-hold not-renewed outage release-again trust-within-ttl"},
	{renewsTogether, "not-renewed", ""},
	{unknownIsLost, "outage", ""},
	{fixedForever, "fixed", "fixed-close fixed-queued unlock-after once"},
	{fixedGoes, "fixed-close unlock-after once", "fixed-queued"},
	{fixedStays, "fixed-close", ""},
	{fixedRoom, "fixed-queued", ""},
	{cutsTTL, "ttl-bounds", ""},
	{extendOrSet, "renew-never-acquires", "not-renewed election"},
	{renewsUnseen, "renew-never-acquires", ""},
	{shortTTL, "trust-within-ttl loss-first", "fixed late-grant not-renewed outage fixed-close fixed-queued election unlock-after"},
	{sinceReceipt, "late-grant proof-before", ""},
	{futureReceipt, "proof-before trust-within-ttl same-request", everything},
	{renewedReceipt, "proof-before", ""},
	{untilOfGrant, "release-again", ""},
	{forgetsExpired, "expired-resume", ""},
	{remembersLoss, "after-loss", "election"},
	{leavesLost, "late-duplicate release-again", "break-release-known late-copy wait-says-why cancel-cut-off unknown-acquire cancel-answered"},
	{releaseHopes, "unlock-cut-off close-cut-off", "cancel-cut-off bounded-calls release-again break-release-again"},
	{breaksAny, "break-wrong-token", "break break-force break-force-known raise"},
	{brokenRenewable, "break", "break-release-known"},
	{brokenJoinable, "break", ""},
	{brokenReleased, "break-release", "break-release-again break-release-known raise"},
	{brokenRefused, "break-release-known", ""},
	{forgetsBroken, "break-release-again", ""},
	{breaksNow, "break", "break-release-again break-release-known"},
	{forceWaits, "break-force break-force-known", "tokens-grow"},
	{refusedStays, "break-release-known", ""},
	{forceSilent, "break-force-known", ""},
	{forceSilentFixed, "break-force-known", ""},
	{forceSilentShare, "break-force-known", ""},
	{forceSilentJoin, "break-force-known", ""},
	{forceLoud, "break-force-known", ""},
	{forceSlow, "break-force-known", ""},
	{tokensRestart0, "tokens-grow", "break-wrong-token tokens-clock tokens-restart tokens-shared election raise"},
	{readersKeepToken, "tokens-shared", "break-force-known raise"},
	{clockTokens, "tokens-clock", "raise"},
	{forgetsTokens, "tokens-restart", ""},
	{forgetsHolds, "durable", ""},
	{raisesNone, "raise", ""},
	{raisesOne, "raise", ""},
	{raisesLower, "raise", ""},
	{raisesAny, "raise", ""},
	{raisesNoJoins, "raise", ""},
	{raisesAbove, "raise", ""},
	{noPrefix, "list-prefix", ""},
	{listsAll, "list-prefix", ""},
	{listsKeys, "list-prefix", ""},
	{listsFree, "list", "list-prefix"},
	{listsOne, "list list-prefix names", ""},
	{closeLeaves, "close-frees", "close-wakes"},
	{closeWakesNone, "close-wakes", "close-frees"},
	{closeHangs, "close-cut-off", ""},
	{leaksGoroutine, "close-leaks-nothing", ""},
	{chatty, "cost-lock", "late-grant"},
	{pollsEach, "cost-wait", "cost-hand-off"},
	{goroutinePerWaiter, "cost-wait", ""},
	{connectionPerWaiter, "cost-wait", ""},
	{connectionPerDozen, "cost-hold", ""},
	{renewsOneByOne, "cost-hold", ""},
	{herd, "cost-hand-off", ""},
	{claimsQueue, "capabilities", "slow-service wait-outage arrival-order break-force cancelled-wait close-cut-off close-frees close-wakes cost-hand-off cost-wait dead-waiter downgrade expired-powerless expired-resume inspect join join-over labels neither-starves no-overtaking own-name-only owner-not-client patient-wait proof-before reenter renew-never-acquires same-request-waiting semaphore-order swallowed-wake-up tokens-grow trust-within-ttl noise dead-waiters election break-release-known list raise fixed-queued inspect-age"},
	{deniesTokens, "capabilities", "election"},
	{deniesRaises, "capabilities", ""},
	{deniesShared, "capabilities", ""},
	{deniesSemaphores, "capabilities", ""},
	{deniesJoins, "capabilities", ""},
	{deniesInspect, "capabilities", ""},
}

// No law fails on a sound driver.
func TestSoundDriversPass(t *testing.T) {
	for _, f := range []fault{none, powerless, poor} {
		for _, l := range Laws() {
			t.Run(string(f)+"/"+l.Name, func(t *testing.T) {
				r := try(t, l, f)
				if r.failed {
					t.Errorf("law %q fails on a sound driver that %s:\n%s", l.Name, f, r)
				}
				if f == none && r.skipped {
					t.Errorf("skipped on a toy that can do everything: %s", r)
				}
			})
		}
	}
}

// Each broken driver goes through all laws. With the race detector, which takes six times as long,
// it goes only through those that have to find its fault: every law is one of these for some fault,
// and all laws run on the sound drivers too, so all code runs under the race detector.
func TestBrokenDriversFail(t *testing.T) {
	few := race.Enabled && !size.Long()
	for _, b := range broken {
		check := func(t *testing.T, alone bool) {
			for _, l := range Laws() {
				must := slices.Contains(strings.Fields(b.must), l.Name)
				if l.alone != alone || few && !must {
					continue
				}
				r := try(t, l, b.fault)
				may := b.may == everything || l.Name == "storm" || slices.Contains(strings.Fields(b.may), l.Name)
				switch {
				case must && !r.failed:
					t.Errorf("law %q passes on a driver that %s", l.Name, b.fault)
				case r.failed && !must && !may:
					t.Errorf("law %q fails on a driver that %s, which is not declared:\n%s", l.Name, b.fault, r)
				}
			}
		}
		t.Run("alone/"+string(b.fault), func(t *testing.T) { check(t, true) })
		t.Run(string(b.fault), func(t *testing.T) {
			t.Parallel()
			check(t, false)
		})
	}
}

func TestEveryLawFindsAFault(t *testing.T) {
	var found []string
	for _, b := range broken {
		found = append(found, strings.Fields(b.must)...)
	}
	for _, l := range Laws() {
		if !slices.Contains(found, l.Name) {
			t.Errorf("no broken driver is declared for law %q", l.Name)
		}
	}
}
