package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/dlock-go/dlock/internal/race"
	"github.com/dlock-go/dlock/internal/size"
)

// fault is what is wrong with a toy. The first three are sound.
type fault string

const (
	none      fault = "nothing"
	powerless fault = "has a harness without powers"
	poor      fault = "locks exclusively and nothing else: no queue, no tokens, no joins, no Inspect, no Capabilities"

	everybodyIn   fault = "grants to everybody"
	tryStays      fault = "leaves a refused TryLock in the queue"
	ownerIsClient fault = "takes requests of one client for one owner (etcd's Session)"
	newestFirst   fault = "grants to the newest waiter first"
	barges        fault = "frees the lock and tells the next to come for it"

	readersAlone  fault = "lets readers in one by one"
	readersPass   fault = "lets readers pass a waiting writer"
	limitOffByOne fault = "admits one owner too many"
	largestLimit  fault = "compares each with its own limit only"
	permitForAll  fault = "admits all waiters when one permit is given back"

	joinQueues   fault = "lets a join wait like a first request"
	joinToken    fault = "gives a join a token of its own"
	freesJoins   fault = "frees an owner when its first request is given back"
	joinRevives  fault = "lets a join begin a hold"
	upgradeWaits fault = "lets exclusive under shared wait"
	noDowngrade  fault = "refuses shared under exclusive"

	twiceIsTwo      fault = "takes a granted request that is sent again for another one"
	twiceWaitsTwice fault = "takes a waiting request that is sent again for another one"
	releasesAnybody fault = "releases whoever holds, without comparing"
	noTombstones    fault = "forgets what was released"
	foldsCase       fault = "takes 'A' for 'a'"
	trimsSpace      fault = "takes 'a ' for 'a'"
	truncates       fault = "cuts long names"
	showsKeys       fault = "shows names as it stores them"
	hidesLabels     fault = "shows no labels"
	ownerIsLabel    fault = "takes requests with one label for one owner"
	kindsMix        fault = "lets locks and semaphores share a name"

	cancelStays         fault = "keeps a waiting request that is released"
	cancelFreesNobody   fault = "does not decide again when a waiter goes"
	swallowsWakeUp      fault = "lets a cancelled waiter keep the grant that raced with it (rueidislock)"
	slowCancel          fault = "checks the context every 300 ms"
	slowOffLine         fault = "waits for the network before the context"
	forgetsFailed       fault = "forgets a request whose Acquire failed, and answers its release without a call"
	unreadAnswer        fault = "takes a call whose answer it did not read for one that was never sent"
	ignoresPreCancelled fault = "does not check the context before the call"
	waitersExpire       fault = "does not keep waiters alive"
	hasty               fault = "passes over who does not take a grant within 250 ms"
	keepsBriefly        fault = "keeps waiters alive for one TTL after they came"
	deadWait            fault = "keeps waiters for ever"
	waitsOnLine         fault = "ends a wait with an error when the connection breaks"

	saysNothing    fault = "does not say that a wait stood in the queue"
	saysHeld       fault = "says that the lock is held when nobody answered"
	ownDeadlines   fault = "ends its calls at a deadline of its own, with the error of a context"
	noiseWakesLate fault = "wakes a waiter 2.5 s late while its client waits for other names too"
	noiseDelays    fault = "keeps its waiters alive only when nobody new has come for a while"
	keepsDead      fault = "removes waiters that died only at the head of the queue"

	renewsNothing  fault = "answers a renewal without renewing"
	renewsTogether fault = "keeps all holds of a client alive with one of them (a lease that they share)"
	unknownIsLost  fault = "takes a renewal without a reply for a loss"
	fixedForever   fault = "keeps fixed leases until they are given back"
	fixedGoes      fault = "gives fixed leases back at Close and claims that they stand"
	fixedStays     fault = "lets fixed leases stand over Close and denies it"
	cutsTTL        fault = "cuts the TTL that it cannot keep"
	extendOrSet    fault = "acquires on renewal if the name is free (redsync's SetNXOnExtend)"
	renewsUnseen   fault = "renews what has expired if nobody has asked for the name since"
	shortTTL       fault = "keeps less than the TTL that it reports"
	sinceReceipt   fault = "counts the TTL from the reply (etcd's Session)"
	remembersLoss  fault = "stops renewing names that it lost once"
	leavesLost     fault = "does not give back what is uncertain"
	futureReceipt  fault = "counts the TTL from a moment that is still to come"
	renewedReceipt fault = "counts the TTL of a renewal from the reply"
	untilOfGrant   fault = "does not remember that a hold was renewed, when a release of it that got no answer is sent again"
	forgetsExpired fault = "takes an expired request that is sent again for a new one"
	releaseHopes   fault = "takes a release without a reply for done"

	breaksAnybody   fault = "breaks without comparing the token"
	brokenRenewable fault = "renews what is broken"
	brokenJoinable  fault = "lets a broken hold be joined"
	brokenReleased  fault = "takes the release of a broken hold for one in good order"
	brokenRefused   fault = "says of a broken hold that is asked for again that nothing of it is left"
	forgetsBroken   fault = "takes the release of a broken hold that is sent again, after one that got no answer, for one in good order"
	breaksNow       fault = "breaks by force always"
	forceWaits      fault = "breaks by force never"
	refusedStays    fault = "keeps what is left of a broken hold until its TTL, once a renewal of it was refused"

	forceSilent      fault = "tells no holder that its hold was broken by force"
	forceSilentFixed fault = "tells the holder of a fixed lease nothing, since that is never renewed"
	forceSilentShare fault = "tells no holder of a shared lock that its hold was broken by force"
	forceSilentJoin  fault = "tells only the client that began a hold that it was broken by force"
	forceLoud        fault = "tells all holders of the name that their holds were broken by force"
	forceSlow        fault = "takes two seconds to tell a holder that its hold was broken by force"

	tokensRestart0   fault = "starts tokens again when nobody is left"
	readersKeepToken fault = "gives readers the last writer's token"
	clockTokens      fault = "takes tokens from the wall clock alone"
	forgetsTokens    fault = "loses tokens in a restart"
	forgetsHolds     fault = "claims to be durable and is not"

	noPrefix  fault = "puts no prefix before names"
	listsAll  fault = "lists the names of all prefixes"
	listsKeys fault = "lists names with their prefix"
	listsFree fault = "lists names that were in use once"
	listsOne  fault = "lists one name of those in use"

	closeLeaves      fault = "leaves what it holds when it is closed"
	closeWakesNobody fault = "lets calls wait on when it is closed"
	closeHangs       fault = "waits for the network when it is closed"
	leaksGoroutine   fault = "leaves a goroutine behind a cancelled wait"

	chatty              fault = "asks twenty times for each lock"
	pollsEach           fault = "polls for each waiter"
	goroutinePerWaiter  fault = "has a goroutine for each waiter"
	connectionPerWaiter fault = "has a connection for each waiter"
	connectionPerDozen  fault = "has a connection for each dozen of leases"
	renewsOneByOne      fault = "renews each lease by itself"
	herd                fault = "wakes everybody at each hand-off"

	claimsQueue      fault = "claims to queue and tells waiters to come again"
	deniesTokens     fault = "denies its tokens"
	deniesShared     fault = "denies read-write locks"
	deniesSemaphores fault = "denies semaphores"
	deniesJoins      fault = "denies joins"
	deniesInspect    fault = "denies Inspect"
)

// everything is declared of drivers that exclude nobody: there is hardly a law that does not
// notice.
const everything = "everything"

// broken are the faults: the laws that are there to find each, and all others that may find it too.
// The law "storm" does everything at random, so any fault may show there.
var broken = []struct {
	fault     fault
	must, may string
}{
	{everybodyIn, "one-holder reenter election storm", everything},
	{tryStays, "try-held", "after-loss break-force break-wrong-token downgrade durable join labels late-grant neither-starves no-overtaking own-name-only owner-not-client readers-together reenter renewed semaphore-limit semaphore-smallest wait-says-why once"},
	{ownerIsClient, "owner-not-client own-name-only", "slow-service arrival-order cancelled-wait capabilities close-frees cost-hand-off downgrade fixed labels late-grant neither-starves one-holder proof-before readers-together same-request-waiting semaphore-limit semaphore-order semaphore-smallest unlock-cut-off unlock-after"},
	{newestFirst, "arrival-order", "slow-service cancelled-wait neither-starves patient-wait same-request-waiting semaphore-order noise"},
	{barges, "no-overtaking", "neither-starves election"},
	{readersAlone, "readers-together", "cancelled-wait downgrade neither-starves tokens-shared upgrade break-force-known"},
	{readersPass, "neither-starves", ""},
	{limitOffByOne, "semaphore-limit", "inspect semaphore-order semaphore-smallest"},
	{largestLimit, "semaphore-smallest", ""},
	{permitForAll, "semaphore-order", "semaphore-limit"},
	{joinQueues, "join", "break break-wrong-token capabilities downgrade join-over same-request upgrade unlock-after once break-force-known"},
	{joinToken, "join", "downgrade break-force-known"},
	{freesJoins, "join", "downgrade unlock-after once"},
	{joinRevives, "join-over", "break"},
	{upgradeWaits, "upgrade", ""},
	{noDowngrade, "downgrade", ""},
	{twiceIsTwo, "same-request", "break-release-known proof-before trust-within-ttl"},
	{twiceWaitsTwice, "same-request-waiting", ""},
	{releasesAnybody, "same-release expired-powerless", "break-force late-grant unlock-cut-off wait-says-why election break-force-known tokens-grow"},
	{noTombstones, "late-duplicate late-copy", "cancel-cut-off expired-resume wait-says-why"},
	{foldsCase, "names", ""},
	{trimsSpace, "names", ""},
	{truncates, "names", ""},
	{showsKeys, "names", ""},
	{hidesLabels, "inspect", "labels election"},
	{ownerIsLabel, "labels", everything},
	{kindsMix, "conflict", ""},
	{cancelStays, "cancelled-wait unknown-acquire", "cancel-prompt capabilities downgrade swallowed-wake-up wait-says-why"},
	{cancelFreesNobody, "cancelled-wait", ""},
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
	{fixedForever, "fixed", "fixed-close unlock-after once"},
	{fixedGoes, "fixed-close unlock-after once", ""},
	{fixedStays, "fixed-close", ""},
	{cutsTTL, "ttl-bounds", ""},
	{extendOrSet, "renew-never-acquires", "not-renewed election"},
	{renewsUnseen, "renew-never-acquires", ""},
	{shortTTL, "trust-within-ttl loss-first", "fixed late-grant not-renewed outage fixed-close election unlock-after"},
	{sinceReceipt, "late-grant proof-before", ""},
	{futureReceipt, "proof-before trust-within-ttl same-request", everything},
	{renewedReceipt, "proof-before", ""},
	{untilOfGrant, "release-again", ""},
	{forgetsExpired, "expired-resume", ""},
	{remembersLoss, "after-loss", "election"},
	{leavesLost, "late-duplicate release-again", "break-release-known late-copy wait-says-why cancel-cut-off unknown-acquire cancel-answered"},
	{releaseHopes, "unlock-cut-off close-cut-off", "cancel-cut-off bounded-calls release-again break-release-again"},
	{breaksAnybody, "break-wrong-token", "break break-force break-force-known"},
	{brokenRenewable, "break", "break-release-known"},
	{brokenJoinable, "break", ""},
	{brokenReleased, "break-release", "break-release-again break-release-known"},
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
	{tokensRestart0, "tokens-grow", "break-wrong-token tokens-clock tokens-restart tokens-shared election"},
	{readersKeepToken, "tokens-shared", "break-force-known"},
	{clockTokens, "tokens-clock", ""},
	{forgetsTokens, "tokens-restart", ""},
	{forgetsHolds, "durable", ""},
	{noPrefix, "list-prefix", ""},
	{listsAll, "list-prefix", ""},
	{listsKeys, "list-prefix", ""},
	{listsFree, "list", "list-prefix"},
	{listsOne, "list list-prefix names", ""},
	{closeLeaves, "close-frees", "close-wakes"},
	{closeWakesNobody, "close-wakes", "close-frees"},
	{closeHangs, "close-cut-off", ""},
	{leaksGoroutine, "close-leaks-nothing", ""},
	{chatty, "cost-lock", "late-grant"},
	{pollsEach, "cost-wait", "cost-hand-off"},
	{goroutinePerWaiter, "cost-wait", ""},
	{connectionPerWaiter, "cost-wait", ""},
	{connectionPerDozen, "cost-hold", ""},
	{renewsOneByOne, "cost-hold", ""},
	{herd, "cost-hand-off", ""},
	{claimsQueue, "capabilities", "slow-service wait-outage arrival-order break-force cancelled-wait close-cut-off close-frees close-wakes cost-hand-off cost-wait dead-waiter downgrade expired-powerless expired-resume inspect join join-over labels neither-starves no-overtaking own-name-only owner-not-client patient-wait proof-before reenter renew-never-acquires same-request-waiting semaphore-order swallowed-wake-up tokens-grow trust-within-ttl noise dead-waiters election break-release-known list"},
	{deniesTokens, "capabilities", "election"},
	{deniesShared, "capabilities", ""},
	{deniesSemaphores, "capabilities", ""},
	{deniesJoins, "capabilities", ""},
	{deniesInspect, "capabilities", ""},
}

// A law that finds fault with a sound driver is worth nothing.
func TestSoundDriversPass(t *testing.T) {
	for _, f := range []fault{none, powerless, poor} {
		for _, l := range Laws() {
			t.Run(string(f)+"/"+l.Name, func(t *testing.T) {
				r := try(t, l, f)
				if r.failed {
					t.Errorf("law %q finds fault with a sound driver, that %s:\n%s", l.Name, f, r)
				}
				if f == none && r.skipped {
					t.Errorf("skipped on a toy that can do all: %s", r)
				}
			})
		}
	}
}

// Each broken driver goes through all laws. With the race detector, which makes that six times as
// long, it goes through those that are there to find its fault: every law is among them, and all
// laws run on the sound drivers too. What is left has no code that did not run there.
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
					t.Errorf("law %q passes a driver that %s", l.Name, b.fault)
				case r.failed && !must && !may:
					t.Errorf("law %q fails a driver that %s, which is not declared:\n%s", l.Name, b.fault, r)
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
			t.Errorf("no broken driver is there for law %q", l.Name)
		}
	}
}
