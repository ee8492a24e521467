package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

// TestRedlock runs the tests that need masters that fail. All use one fleet, and leave it whole.
func TestRedlock(t *testing.T) {
	f := startFleet(t, servers.Redis)
	f.run(t, []fleetTest{
		{"two of five down", twoDown},
		{"three of five down", threeDown},
		{"two of five hang", twoHang},
		{"three of five hang", threeHang},
		{"slow masters", slowMasters},
		{"late grants", lateGrants},
		{"slow replies", slowReplies},
		{"split votes", splitVotes},
		{"contenders", contenders},
		{"release reaches those that come back", releaseReaches},
		{"lost replies", lostReplies},
		{"lost reply to a release after renewals", lostReleaseRenewed},
		{"kept for longer than trusted", keptForLonger},
		{"release on its way", releaseOnItsWay},
		{"renewal with a minority lost", minorityLost},
		{"restart without data", restartEmpty},
		{"least uptime", leastUptime},
		{"loss in time", lossInTime},
		{"broken by force past a minority", breakMinority},
		{"holder named", holderNamed},
		{"foreign keys", foreignKeys},
		{"another format", anotherFormat},
		{"keys get their time back", timeBack},
		{"scripts forgotten", scriptsForgotten},
		{"least rights", leastRights},
		{"close past hung masters", closeHung},
		{"nothing piles up", nothingPilesUp},
		{"round trips", roundTrips},
		{"URL", openURL},
	})
}

// TestRedlockOnValkey runs the tests that depend on the server: its scripts, its expiry, its
// rights.
func TestRedlockOnValkey(t *testing.T) {
	f := startFleet(t, servers.Valkey)
	f.run(t, []fleetTest{
		{"two of five down", twoDown},
		{"three of five hang", threeHang},
		{"contenders", contenders},
		{"lost replies", lostReplies},
		{"renewal with a minority lost", minorityLost},
		{"least uptime", leastUptime},
		{"loss in time", lossInTime},
		{"broken by force past a minority", breakMinority},
		{"holder named", holderNamed},
		{"foreign keys", foreignKeys},
		{"another format", anotherFormat},
		{"keys get their time back", timeBack},
		{"scripts forgotten", scriptsForgotten},
		{"least rights", leastRights},
		{"one of two that are kept is released", keptTwice},
		{"a join outlives its owner", handedOver},
		{"late copies of a member that left", lateMember},
		{"a break ends all readers", breakReaders},
	})
}

// holderNamed: a refusal names the holder that a majority has, and none where the votes are split.
func holderNamed(t *testing.T, f fleet) {
	a, b, r := f.client(t, redlock.Options{}), f.client(t, redlock.Options{}), steps.Request("holder named")
	r.Label = "worker 7"
	a.get(t, r)
	f.everywhere(t, r.Name)
	refusal := func() *driver.HeldError {
		t.Helper()
		_, err := steps.Acquire(context.Background(), b, steps.Request(r.Name))
		by := (*driver.HeldError)(nil)
		if errors.As(err, &by); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("Acquire: %v; want %v", err, driver.ErrHeld)
		}
		return by
	}
	if by := refusal(); by == nil || by.Label != r.Label || by.Age < 0 || by.Age > time.Minute {
		t.Errorf("a refusal names %+v; want %q", by, r.Label)
	}
	key, rival := "dlock:{"+r.Name+"}:redlock", driver.NewID().String()
	for _, i := range []int{2, 3} {
		k := servers.CLIOf(t, f[i])
		k.Must("SET", key, strings.Replace(k.Get(k.Ctx, key).Val(), r.ID.String(), rival, 1), "KEEPTTL")
	}
	servers.CLIOf(t, f[4]).Must("DEL", key)
	if by := refusal(); by != nil {
		t.Errorf("a refusal names %+v, which two of five masters have", by)
	}
	for _, m := range f {
		servers.CLIOf(t, m).Must("DEL", key)
	}
}

func twoDown(t *testing.T, f fleet) {
	a, b, r := f.client(t, redlock.Options{}), f.client(t, redlock.Options{}), steps.Request("two-down")
	a.get(t, steps.Request("warm")) // connections that will break
	f.down(t, 1, 3)
	a.get(t, r)
	b.refused(t, steps.Request(r.Name), driver.ErrHeld)
	wait := steps.Request(r.Name)
	wait.Wait = true
	if _, err := steps.Acquire(t.Context(), b, wait); !errors.As(err, new(*driver.RetryError)) {
		t.Fatalf("Acquire of a waiter: %v; want a *driver.RetryError", err)
	}
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
		t.Fatalf("Renew: %v", p.Err)
	}
	a.release(t, r)
	next := steps.Request(r.Name)
	b.get(t, next)
	b.release(t, next)
}

func threeDown(t *testing.T, f fleet) {
	a, r, held := f.client(t, redlock.Options{}), steps.Request("three-down"), steps.Request("held")
	a.get(t, held)
	f.down(t, 0, 2, 4)
	for _, r.Wait = range []bool{false, true} {
		start := time.Now()
		_, err := steps.Acquire(t.Context(), a, r)
		unknown(t, err, 2)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		r = steps.Request(r.Name)
	}
	unknown(t, a.Renew(t.Context(), []driver.Request{held})[0].Err, 2)
	unknown(t, a.Release(t.Context(), held), 2)
	_, err := a.Inspect(t.Context(), held.Name)
	unknown(t, err, 2)
	unknown(t, a.Break(t.Context(), held.Name, 0, true), 2)
}

func twoHang(t *testing.T, f fleet) {
	a, b := f.client(t, redlock.Options{NodeTimeout: 10 * time.Second}), f.client(t, redlock.Options{NodeTimeout: 10 * time.Second})
	a.get(t, steps.Request("warm"))
	b.get(t, steps.Request("warm too"))
	f.hang(t, 0, 1)
	var worst [3]time.Duration
	for i := range 20 {
		r := steps.Request(fmt.Sprint("two-hang-", i))
		for j, call := range []func(){
			func() { a.get(t, r) },
			func() { b.refused(t, steps.Request(r.Name), driver.ErrHeld) },
			func() { a.release(t, r) },
		} {
			start := time.Now()
			call()
			worst[j] = max(worst[j], time.Since(start))
		}
	}
	t.Logf("with 2 of 5 hanging, at worst of 20: granted %s, refused %s, released %s", worst[0], worst[1], worst[2])
	if m := max(worst[0], worst[1], worst[2]); m > 5*time.Second { // the time of a master
		t.Errorf("masters that hang are waited for: %v", worst)
	}
}

func threeHang(t *testing.T, f fleet) {
	const timeout = 2 * time.Second
	a, b := f.client(t, redlock.Options{NodeTimeout: timeout}), f.client(t, redlock.Options{})
	r := steps.Request("three-hang")
	a.get(t, steps.Request("warm as well"))
	wake := f.hang(t, 0, 1, 2)
	start := time.Now()
	_, err := steps.Acquire(t.Context(), a, r)
	unknown(t, err, 2)
	took := time.Since(start)
	t.Logf("with 3 of 5 hanging and a node timeout of %s: %s: %v", timeout, took, err)
	if took < timeout || took > 5*timeout {
		t.Errorf("it took %s", took)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	s := f.client(t, redlock.Options{NodeTimeout: time.Minute})
	if _, err := steps.Acquire(ctx, s, steps.Request(r.Name)); err != context.DeadlineExceeded {
		t.Errorf("Acquire under a context that ended: %v", err)
	}
	wake() // now they execute what they were sent
	f.clear(t, r.Name)
	next := steps.Request(r.Name)
	b.get(t, next)
	b.release(t, next)
}

func slowMasters(t *testing.T, f fleet) {
	a, r := f.proxied(t, redlock.Options{}), steps.Request("slow")
	var heals []func()
	for _, i := range []int{0, 4} {
		heals = append(heals, a.proxies[i].Hold(netfault.ToServer))
	}
	a.get(t, r)
	a.release(t, r) // what is on its way to the slow ones has not even arrived
	for _, heal := range heals {
		heal()
	}
	f.tombstones(t, r, 0, 4)
	f.clear(t, r.Name)
}

// slowReplies: the time of a hold, and of a renewal, begins before the first master is asked.
func slowReplies(t *testing.T, f fleet) {
	const delay = 300 * time.Millisecond
	a, r := f.proxied(t, redlock.Options{}), steps.Request("slow replies")
	for _, p := range a.proxies {
		p.Delay(netfault.ToClient, delay)
	}
	asked := func(what string, since time.Time) {
		if late := since.Sub(time.Now().Add(-delay)); late > 0 {
			t.Errorf("%s counts from %s after the masters had been asked, at least", what, late)
		}
	}
	asked("a grant", a.get(t, r).SentAt)
	p := a.Renew(t.Context(), []driver.Request{r})[0]
	if p.Err != nil {
		t.Fatal(p.Err)
	}
	asked("a renewal", p.SentAt)
	a.release(t, r)
	f.clear(t, r.Name)
}

func lateGrants(t *testing.T, f fleet) {
	const timeout = 2 * time.Second
	for _, d := range []netfault.Direction{netfault.ToServer, netfault.ToClient} {
		a, b := f.proxied(t, redlock.Options{NodeTimeout: timeout}), f.proxied(t, redlock.Options{})
		r := steps.Request("late")
		var heals []func()
		for _, i := range []int{1, 2, 3} {
			heals = append(heals, a.proxies[i].Hold(d))
		}
		a.abandon(t, r, 2)
		for _, heal := range heals {
			heal()
		}
		f.tombstones(t, r, 1, 2, 3)
		f.clear(t, r.Name)
		next := steps.Request(r.Name)
		b.get(t, next)
		b.release(t, next)
		f.clear(t, r.Name)
	}
}

func splitVotes(t *testing.T, f fleet) {
	a, r := f.proxied(t, redlock.Options{}), steps.Request("split")
	f.plant(t, steps.Request(r.Name), 0, 1)
	f.plant(t, steps.Request(r.Name), 2)
	before := fmt.Sprint(f.votes(t, r.Name))
	for _, p := range a.proxies[:3] { // the grants of the others are in before the refusal
		p.Delay(netfault.ToClient, 200*time.Millisecond)
		defer p.Delay(netfault.ToClient, 0)
	}
	a.refused(t, r, driver.ErrHeld)
	if after := fmt.Sprint(f.votes(t, r.Name)); after != before { // when it returns
		t.Errorf("after a refusal the votes are %s, before it %s", after, before)
	}
	if q, err := a.Inspect(t.Context(), r.Name); err != nil || q.Len() != 0 {
		t.Errorf("Inspect of a name that is not held: %+v, %v", q, err)
	}
	if err := a.Break(t.Context(), r.Name, 0, true); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Break of a name that is not held: %v", err)
	}
	servers.CLIOf(t, f[0]).Must("DEL", "dlock:{"+r.Name+"}:redlock") // a majority is free
	servers.CLIOf(t, f[1]).Must("DEL", "dlock:{"+r.Name+"}:redlock")
	servers.CLIOf(t, f[2]).Must("DEL", "dlock:{"+r.Name+"}:redlock")
	r = steps.Request(r.Name)
	a.get(t, r)
	a.release(t, r)
}

func contenders(t *testing.T, f fleet) {
	const goroutines, rounds = 24, 5
	var clients []*dlock.Client
	for range 6 {
		c, _ := f.open(t)
		clients = append(clients, c)
	}
	var inside atomic.Int64
	count := 0 // nothing but the lock guards it
	var wg sync.WaitGroup
	start := time.Now()
	for i := range goroutines {
		wg.Go(func() {
			for range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				l, err := clients[i%len(clients)].Mutex("contenders").Lock(ctx)
				cancel()
				if err != nil {
					t.Errorf("Lock: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d are in", n)
				}
				count++
				inside.Add(-1)
				if err := l.Unlock(t.Context()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
			}
		})
	}
	await.All(t, &wg)
	t.Logf("%d hand-offs among %d contenders in %s", count, goroutines, time.Since(start))
	if count != goroutines*rounds {
		t.Errorf("counted to %d", count)
	}
	f.clear(t, "contenders")
}

func releaseReaches(t *testing.T, f fleet) {
	a, b, r := f.client(t, redlock.Options{}), f.client(t, redlock.Options{}), steps.Request("reaches")
	a.get(t, r)
	f.everywhere(t, r.Name)
	wake := f.hang(t, 2, 3)
	a.release(t, r)
	next := steps.Request(r.Name)
	b.get(t, next)
	b.release(t, next)
	wake()
	f.clear(t, r.Name)

	// The same with masters that are down, and have their data when they are back.
	a.get(t, r)
	f.everywhere(t, r.Name)
	f[2].Kill(t)
	f[3].Kill(t)
	a.release(t, r)
	f[2].Restart(t)
	f[3].Restart(t)
	f.clear(t, r.Name)
}

func lostReplies(t *testing.T, f fleet) {
	a, b := f.proxied(t, redlock.Options{}), f.proxied(t, redlock.Options{})
	known := steps.Request("lost-nothing")
	b.get(t, known)
	f.everywhere(t, known.Name) // so all have the scripts, and the replies below are to those
	b.release(t, known)
	r := steps.Request("lost-minority")
	for _, l := range a.lose(0, 1) {
		defer func() { await.From(t, l) }()
	}
	a.get(t, r)
	f.everywhere(t, r.Name)
	a.release(t, r)
	f.clear(t, r.Name)

	a, r = f.proxied(t, redlock.Options{}), steps.Request("lost-majority")
	lost := a.lose(0, 1, 2)
	_, err := steps.Acquire(t.Context(), a, r)
	unknown(t, err, 2)
	for _, l := range lost {
		await.From(t, l)
	}
	f.clear(t, r.Name)
	a.refused(t, r, driver.ErrLost) // what ended uncertain never comes to life

	a, r = f.proxied(t, redlock.Options{}), steps.Request("lost-release")
	a.get(t, r)
	f.everywhere(t, r.Name)
	lost = a.lose(0, 1, 2)
	err = a.Release(t.Context(), r)
	unknown(t, err, 2)
	for _, l := range lost {
		await.From(t, l)
	}
	next := steps.Request(r.Name)
	b.get(t, next)
	a.release(t, r) // an earlier copy did it
	b.refused(t, steps.Request(r.Name), driver.ErrHeld)
	if err := a.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release again: %v", err)
	}
	b.release(t, next)

	a, r = f.proxied(t, redlock.Options{}), steps.Request("lost-renewal")
	a.get(t, r)
	f.everywhere(t, r.Name)
	lost = a.lose(0, 1, 2)
	unknown(t, a.Renew(t.Context(), []driver.Request{r})[0].Err, 2)
	for _, l := range lost {
		await.From(t, l)
	}
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
		t.Errorf("Renew: %v", p.Err)
	}
	a.release(t, r)
}

// lostReleaseRenewed: a release that is sent again finds nothing, since an earlier copy was
// executed. The hold was renewed, and cannot have expired, although its first TTL has ended.
func lostReleaseRenewed(t *testing.T, f fleet) {
	const first = 2 * time.Second // of which a master has a tenth to answer
	a := f.proxied(t, redlock.Options{})
	r := steps.Request("release-warm") // so that all have the scripts
	a.get(t, r)
	f.everywhere(t, r.Name)
	a.release(t, r)
	f.clear(t, r.Name)
	tries := 0
	await.That(t, "it is granted and renewed", func() bool {
		tries++
		r = steps.Request(fmt.Sprint("release-renewed-", tries))
		r.TTL = first
		if _, err := steps.Acquire(t.Context(), a, r); err != nil {
			return false
		}
		r.TTL = time.Minute
		return a.Renew(t.Context(), []driver.Request{r})[0].Err == nil
	})
	over := time.Now().Add(first)
	f.everywhere(t, r.Name)
	await.That(t, "its first TTL is over", func() bool { return time.Now().After(over) })
	lost := a.lose(0, 1, 2)
	unknown(t, a.Release(t.Context(), r), 2)
	for _, l := range lost {
		await.From(t, l)
	}
	a.release(t, r)
	f.clear(t, r.Name)
}

// keptForLonger: clocks run at different rates, and keys expire in whole milliseconds. So masters
// keep a hold for a hundredth of its TTL and 2 ms longer than it is trusted.
func keptForLonger(t *testing.T, f fleet) {
	const ttl = 10 * time.Minute
	a, r := f.client(t, redlock.Options{}), steps.Request("kept")
	r.TTL = ttl
	kept := func(what string, sent time.Time) {
		t.Helper()
		for _, m := range f {
			await.That(t, what+" is kept for longer than it is trusted", func() bool {
				left := servers.CLIOf(t, m).PTTL(t.Context(), "dlock:{"+r.Name+"}:redlock").Val()
				return left+time.Since(sent) >= ttl+ttl/100+2*time.Millisecond
			})
		}
	}
	sent := time.Now()
	a.get(t, r)
	f.everywhere(t, r.Name)
	kept("a grant", sent)
	sent = time.Now()
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
		t.Fatal(p.Err)
	}
	kept("a renewal", sent)
	a.release(t, r)
	f.clear(t, r.Name)
}

// releaseOnItsWay makes a release that must leave a tombstone while one that need not is under way.
func releaseOnItsWay(t *testing.T, f fleet) {
	a, r := f.proxied(t, redlock.Options{NodeTimeout: 10 * time.Second}), steps.Request("on-its-way")
	a.get(t, r)
	f.everywhere(t, r.Name)
	var heals []func()
	for _, p := range a.proxies {
		heals = append(heals, p.Hold(netfault.ToClient))
	}
	for _, r.Uncertain = range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := a.Release(ctx, r); err != context.DeadlineExceeded {
			t.Errorf("Release without a reply: %v", err)
		}
		cancel()
		f.clear(t, r.Name) // the first is executed
	}
	for _, heal := range heals {
		heal()
	}
	f.tombstones(t, r, 0, 1, 2, 3, 4)
	a.refused(t, r, driver.ErrLost)
}

func minorityLost(t *testing.T, f fleet) {
	a, r, gone := f.client(t, redlock.Options{}), steps.Request("minority"), steps.Request("gone")
	a.get(t, r)
	a.get(t, gone)
	for i, m := range f[:3] {
		await.That(t, "it stands there", func() bool { return f.votes(t, r.Name)[i] == 1 && f.votes(t, gone.Name)[i] == 1 })
		if i < 2 {
			servers.CLIOf(t, m).Must("DEL", "dlock:{"+r.Name+"}:redlock")
		}
		servers.CLIOf(t, m).Must("DEL", "dlock:{"+gone.Name+"}:redlock")
	}
	before := time.Now()
	p := a.Renew(t.Context(), []driver.Request{r, gone, steps.Request("never")})
	if p[0].Err != nil || p[0].SentAt.Before(before) || p[0].TTL != r.TTL {
		t.Errorf("Renew with three of five: %+v", p[0])
	}
	for _, p := range p[1:] {
		if !errors.Is(p.Err, driver.ErrLost) {
			t.Errorf("Renew without a majority: %v", p.Err)
		}
	}
	if v := fmt.Sprint(f.votes(t, r.Name)); v != "[0 0 1 1 1]" {
		t.Errorf("after a renewal the votes are %s; it must not create any", v)
	}
	// One more does not answer: the three are no longer a known majority, and the outcome is
	// unknown.
	wake := f.hang(t, 4)
	s := f.client(t, redlock.Options{NodeTimeout: 2 * time.Second})
	unknown(t, s.Renew(t.Context(), []driver.Request{r})[0].Err, 4)
	wake()
	a.release(t, r)
	if err := a.Release(t.Context(), gone); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of what a minority has: %v", err)
	}
	f.clear(t, r.Name)
	f.clear(t, gone.Name)
}

func restartEmpty(t *testing.T, f fleet) {
	a, b, r := f.client(t, redlock.Options{}), f.client(t, redlock.Options{}), steps.Request("restart")
	a.get(t, r)
	f.everywhere(t, r.Name)
	for _, i := range []int{0, 1} {
		f[i].RestartEmpty(t)
		b.refused(t, steps.Request(r.Name), driver.ErrHeld)
		if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
			t.Errorf("Renew after %d restarts: %v", i+1, p.Err)
		}
	}
	f[2].RestartEmpty(t) // one too many: the loss is detected
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) {
		t.Errorf("Renew after 3 restarts: %v", p.Err)
	}
	next := steps.Request(r.Name)
	b.get(t, next)
	if err := a.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	b.refused(t, steps.Request(r.Name), driver.ErrHeld)
	b.release(t, next)
	f.clear(t, r.Name)
}

// leastUptime has the counterexample of Redlock: a hold on three masters, of which one loses its
// data, and the two that were down.
func leastUptime(t *testing.T, f fleet) {
	for _, o := range []redlock.Options{{}, {MinUptime: time.Hour}} {
		a, b, r := f.client(t, redlock.Options{}), f.client(t, o), steps.Request("uptime "+o.MinUptime.String())
		f[3].Kill(t)
		f[4].Kill(t)
		a.get(t, r)
		f[2].RestartEmpty(t)
		f[3].RestartEmpty(t)
		f[4].RestartEmpty(t)
		next := steps.Request(r.Name)
		_, err := steps.Acquire(t.Context(), b, next)
		if o.MinUptime == 0 { // the reason for the option
			if err != nil {
				t.Errorf("masters that forgot: %v", err)
			}
		} else {
			unknown(t, err, 2)
			if !strings.Contains(err.Error(), "it has been up for") {
				t.Errorf("the error %v does not say why", err)
			}
		}
		b.Close()
		a.Close()
		f.clear(t, r.Name)
	}
	s := f.client(t, redlock.Options{MinUptime: time.Second})
	await.That(t, "they have been up for long enough", func() bool {
		r := steps.Request("uptime")
		_, err := steps.Acquire(t.Context(), s, r)
		return err == nil && s.Release(t.Context(), r) == nil
	})
}

func lossInTime(t *testing.T, f fleet) {
	const ttl = 4 * time.Second // a master has a tenth of it to answer
	c, _ := f.open(t, dlock.TTL(ttl))
	other, _ := f.open(t)
	var l *dlock.Lease
	await.That(t, "the masters grant it", func() (granted bool) {
		var err error
		l, err = c.Mutex("loss").Lock(await.Context(t))
		return err == nil
	})
	ctx := l.Context(t.Context())
	wake := f.hang(t, 1, 2, 3)
	asleep, last := time.Duration(0), time.Now() // the greatest delay of this goroutine itself
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
		now := time.Now()
		asleep, last = max(asleep, now.Sub(last)), now
	}
	if !errors.Is(context.Cause(ctx), dlock.ErrLost) {
		t.Errorf("its context ended with %v", context.Cause(ctx))
	}
	if late := last.Sub(l.Until()); late < 0 || late > time.Second+2*asleep {
		t.Errorf("the loss was signalled %s after the end of trust; the test itself was late by %s at most", late, asleep)
	}
	if _, err := other.Mutex("loss").TryLock(t.Context()); err == nil || errors.Is(err, dlock.ErrHeld) {
		t.Errorf("TryLock without a majority: %v", err)
	}
	wake()
	next, err := other.Mutex("loss").Lock(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock of the successor: %v", err)
	}
	f.clear(t, "loss")
}

func breakMinority(t *testing.T, f fleet) {
	a, op := f.client(t, redlock.Options{}), f.client(t, redlock.Options{NodeTimeout: 2 * time.Second})
	for _, force := range []bool{false, true} {
		r := steps.Request(fmt.Sprint("break ", force))
		a.get(t, r)
		f.everywhere(t, r.Name)
		wake := f.hang(t, 0, 4)
		if err := op.Break(t.Context(), r.Name, 7, force); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Break with a token that there is not: %v", err)
		}
		if err := op.Break(t.Context(), r.Name, 0, force); err != nil {
			t.Fatalf("Break: %v", err)
		}
		wake() // those that hung can renew it, but are too few
		if p := a.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) {
			t.Errorf("Renew of a broken hold: %v", p.Err)
		}
		next := steps.Request(r.Name)
		if _, err := steps.Acquire(t.Context(), op, next); force != (err == nil) {
			t.Errorf("Acquire after Break with force %v: %v", force, err)
		}
		a.refused(t, r, driver.ErrLost)
		a.Release(t.Context(), r)
		op.Release(t.Context(), next)
		f.clear(t, r.Name)
	}
}

func foreignKeys(t *testing.T, f fleet) {
	a, r := f.client(t, redlock.Options{}), steps.Request("foreign")
	key := "dlock:{" + r.Name + "}:redlock"
	spoil := func(i int, args ...any) {
		t.Helper()
		servers.CLIOf(t, f[i]).Must(args...)
		t.Cleanup(func() { servers.CLIOf(t, f[i]).Must("DEL", key) })
	}
	spoil(0, "RPUSH", key, "a list")
	spoil(1, "SET", key, "a text")
	a.get(t, r)
	a.release(t, r)
	spoil(2, "HSET", key, "a", "hash")
	_, err := steps.Acquire(t.Context(), a, steps.Request(r.Name))
	unknown(t, err, 2)
	if !strings.Contains(err.Error(), key) || !errors.As(err, new(goredis.Error)) {
		t.Errorf("the error %v does not name the key", err)
	}
	for i, want := range []string{"list", "string", "hash"} {
		if is := servers.CLIOf(t, f[i]).Type(t.Context(), key).Val(); is != want {
			t.Errorf("the %s has become a %s", want, is)
		}
	}
}

// timeBack: a holder that has lost its expiry, as by PERSIST, gets one from the next attempt to
// lock.
func timeBack(t *testing.T, f fleet) {
	a, r := f.client(t, redlock.Options{}), steps.Request("time")
	key := "dlock:{" + r.Name + "}:redlock"
	a.get(t, r)
	for _, m := range f {
		servers.CLIOf(t, m).Must("PERSIST", key)
	}
	a.refused(t, steps.Request(r.Name), driver.ErrHeld)
	for i, m := range f {
		k := servers.CLIOf(t, m)
		await.That(t, fmt.Sprintf("master %d ends the holder", i), func() bool {
			d := k.PTTL(k.Ctx, key).Val()
			return d > r.TTL/2 && d < 2*r.TTL
		})
	}
	a.release(t, r)
}

// anotherFormat has data as another version of dlock would write it: on a minority, and on a
// majority.
func anotherFormat(t *testing.T, f fleet) {
	a, r := f.client(t, redlock.Options{}), steps.Request("format")
	key, value := "dlock:{"+r.Name+"}:redlock", "!3 whatever a holder is then"
	for i := range 2 {
		servers.CLIOf(t, f[i]).Must("SET", key, value)
		t.Cleanup(func() { servers.CLIOf(t, f[i]).Must("DEL", key) })
	}
	a.get(t, r)
	a.release(t, r)
	f[2:].clear(t, r.Name)
	servers.CLIOf(t, f[2]).Must("SET", key, value)
	t.Cleanup(func() { servers.CLIOf(t, f[2]).Must("DEL", key) })
	_, acquire := steps.Acquire(t.Context(), a, steps.Request(r.Name))
	_, inspect := a.Inspect(t.Context(), r.Name)
	for what, err := range map[string]error{
		"Acquire": acquire, "Inspect": inspect, "Renew": a.Renew(t.Context(), []driver.Request{r})[0].Err,
		"Break": a.Break(t.Context(), r.Name, 0, true), "Release": a.Release(t.Context(), r),
	} {
		if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "2 of 5 masters answered") || !strings.Contains(err.Error(), "has the format 3 of dlock; this client has 2") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range 3 {
		if is := servers.CLIOf(t, f[i]).Get(t.Context(), key).Val(); is != value {
			t.Errorf("master %d has %q now", i, is)
		}
	}
}

func scriptsForgotten(t *testing.T, f fleet) {
	a := f.client(t, redlock.Options{})
	forget := func() {
		for _, m := range f {
			servers.CLIOf(t, m).Must("SCRIPT", "FLUSH")
		}
	}
	r := steps.Request("scripts")
	forget()
	a.get(t, r)
	forget()
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
		t.Errorf("Renew: %v", p.Err)
	}
	forget()
	a.release(t, r)
}

func closeHung(t *testing.T, f fleet) {
	a, r := f.client(t, redlock.Options{NodeTimeout: 3 * time.Second}), steps.Request("close")
	a.get(t, r)
	f.everywhere(t, r.Name)
	f.hang(t, 0, 1)
	start := time.Now()
	if err := a.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	took := time.Since(start)
	t.Logf("Close with 2 of 5 hanging: %s", took)
	if took > 10*time.Second {
		t.Errorf("Close took %s", took)
	}
	if v := fmt.Sprint(f[2:].votes(t, r.Name)); v != "[0 0 0]" {
		t.Errorf("after Close the votes of those that answer are %s", v)
	}
}
