package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

// TestRedlockKept tests what UnlockAfter and OncePer leave, which stands when the client is gone.
func TestRedlockKept(t *testing.T) {
	f := startFleet(t, servers.Redis)
	t.Run("at once", func(t *testing.T) {
		for _, c := range []fleetTest{
			{"the client ends at every step", keptCrash},
			{"renewals cut nothing short", keptRenewed},
			{"one of two is released", keptTwice},
			{"late copies", keptLate},
			{"a break ends it", keptBroken},
			{"it is kept no longer", keptExactly},
			{"a join comes again behind another one", keptJoinedAgain},
			{"masters disagree on the holder", keptDisagreed},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				service.Watch(t, f...)
				c.run(t, f)
			})
		}
	})
	f.run(t, []fleetTest{{"masters are full", keptFull}, {"masters are down", keptDown}})
}

// keptOf returns a fixed request that joins the hold, as UnlockAfter sends it.
func keptOf(r driver.Request, d time.Duration) driver.Request {
	r.ID, r.TTL, r.Fixed = driver.NewID(), d, true
	return r
}

// isolate cuts a client off, for good.
func (s *fleetClient) isolate() {
	for _, p := range s.proxies {
		p.Isolate()
	}
}

// inAfter locks the name, which must become free at that time, not before and not much later.
func (f fleet) inAfter(t *testing.T, name string, then time.Time) {
	t.Helper()
	c, _ := f.open(t)
	l, err := c.Mutex(name).Lock(await.Bounded(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	late := time.Since(then)
	if late < 0 {
		t.Errorf("the next was in %s before the time was over", -late)
	}
	if late > 10*time.Second {
		t.Errorf("the next was in %s after the time was over", late)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	f.clear(t, name)
}

// keptCrash: from a certain message on, nothing of a client reaches the masters.
func keptCrash(t *testing.T, f fleet) {
	const ttl, d = 5 * time.Second, 10 * time.Second // masters have a tenth of it to answer
	for _, c := range []struct {
		what string
		kept bool // until its time
		run  func(t *testing.T, a *fleetClient, r driver.Request)
	}{
		{"before the join arrives", false, func(t *testing.T, a *fleetClient, r driver.Request) {
			a.isolate()
			go steps.Acquire(context.Background(), a, keptOf(r, d))
		}},
		{"when a minority has it", false, func(t *testing.T, a *fleetClient, r driver.Request) {
			for _, p := range a.proxies[:3] {
				p.Isolate()
			}
			go steps.Acquire(context.Background(), a, keptOf(r, d))
			await.That(t, "the others have it", func() bool { return f.keep(t, r.Name) == 2 })
			a.isolate()
		}},
		{"when it is executed", true, func(t *testing.T, a *fleetClient, r driver.Request) {
			for _, p := range a.proxies {
				p.Hold(netfault.ToClient)
			}
			go steps.Acquire(context.Background(), a, keptOf(r, d))
			await.That(t, "all have it", func() bool { return f.keep(t, r.Name) == 5 })
			a.isolate()
		}},
		{"when it is granted", true, func(t *testing.T, a *fleetClient, r driver.Request) {
			a.get(t, keptOf(r, d))
			a.isolate()
		}},
		{"when the hold is released, without a reply", true, func(t *testing.T, a *fleetClient, r driver.Request) {
			a.get(t, keptOf(r, d))
			for _, p := range a.proxies {
				p.Hold(netfault.ToClient)
			}
			go a.Release(context.Background(), r)
			await.That(t, "no hold has what joined it", func() bool { return f.keep(t, r.Name) == 0 })
			a.isolate()
		}},
		{"when the hold is released", true, func(t *testing.T, a *fleetClient, r driver.Request) {
			a.get(t, keptOf(r, d))
			a.release(t, r)
			a.isolate()
		}},
		{"when it is closed", true, func(t *testing.T, a *fleetClient, r driver.Request) {
			a.get(t, keptOf(r, d))
			a.Backend.Close()
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			a, r := f.proxied(t, redlock.Options{NodeTimeout: time.Second}), steps.Request("kept crash "+driver.NewID().String())
			r.TTL = ttl
			a.get(t, r)
			f.everywhere(t, r.Name)
			asked := time.Now()
			c.run(t, a, r)
			if !c.kept {
				f.inAfter(t, r.Name, time.Now())
				return
			}
			f.inAfter(t, r.Name, asked.Add(d))
		})
	}
}

// keep returns how many masters have a hold of the name that was joined.
func (f fleet) keep(t service.T, name string) (n int) {
	t.Helper()
	for _, m := range f {
		if len(members(t, m, name)) > 1 {
			n++
		}
	}
	return n
}

// members returns the IDs of the members that a master has, the first one first.
func members(t service.T, m *service.Server, name string) (ids []string) {
	t.Helper()
	text, _ := strings.CutPrefix(servers.CLIOf(t, m).Get(context.Background(), "dlock:{"+name+"}:redlock").Val(), "!2 ")
	for line := range strings.Lines(text) {
		id, _, _ := strings.Cut(line, " ")
		ids = append(ids, id)
	}
	return ids
}

// keptRenewed: renewals of the hold, with a shorter time, do not shorten what joined it, and the
// other way round when that has ended.
func keptRenewed(t *testing.T, f fleet) {
	const ttl, d = 5 * time.Second, 12 * time.Second // masters have a tenth of the TTL to answer
	a, r := f.proxied(t, redlock.Options{NodeTimeout: time.Second}), steps.Request("kept renewed")
	r.TTL = ttl
	a.get(t, r)
	f.everywhere(t, r.Name)
	asked := time.Now()
	a.get(t, keptOf(r, d))
	for time.Since(asked) < d/2 {
		if p := a.Renew(t.Context(), []driver.Request{r})[0]; errors.Is(p.Err, driver.ErrLost) {
			t.Fatalf("Renew: %v", p.Err)
		}
		<-time.After(ttl / 4)
	}
	a.isolate()
	f.inAfter(t, r.Name, asked.Add(d))

	b, r := f.proxied(t, redlock.Options{NodeTimeout: time.Second}), steps.Request("kept renewed")
	r.TTL = 8 * time.Second
	b.get(t, r)
	b.get(t, keptOf(r, 3*time.Second))
	b.renewed(t, r, &asked)
	b.isolate()
	f.inAfter(t, r.Name, asked.Add(r.TTL))
}

// renewed renews until a majority has answered in time, and returns when that renewal was sent.
func (s *fleetClient) renewed(t *testing.T, r driver.Request, sent *time.Time) {
	t.Helper()
	await.That(t, "a majority answers in time", func() bool {
		*sent = time.Now()
		err := s.Renew(context.Background(), []driver.Request{r})[0].Err
		if errors.Is(err, driver.ErrLost) {
			t.Fatalf("Renew: %v", err)
		}
		return err == nil
	})
}

// keptTwice: each join of a hold stands until its own time, whatever happens to the others and to
// the hold.
func keptTwice(t *testing.T, f fleet) {
	const short = 5 * time.Second // masters have a tenth of it to answer
	// the longer one ends before the hold does, or after
	for _, first := range []bool{true, false} {
		a, r := f.client(t, redlock.Options{}), steps.Request("kept twice")
		a.get(t, r)
		f.everywhere(t, r.Name)
		asked, one, two := time.Now(), keptOf(r, short), keptOf(r, time.Hour)
		a.get(t, one)
		a.get(t, two)
		if first {
			a.release(t, two)
			a.release(t, r)
		} else {
			a.release(t, r)
			a.release(t, two)
		}
		if err := a.Release(t.Context(), two); !errors.Is(err, driver.ErrLost) {
			t.Errorf("released again: %v", err)
		}
		f.inAfter(t, r.Name, asked.Add(short))
	}
}

// keptLate: a copy that arrives after its hold is gone, or after its call was abandoned, keeps
// nothing.
func keptLate(t *testing.T, f fleet) {
	a, r := f.proxied(t, redlock.Options{NodeTimeout: time.Second}), steps.Request("kept late")
	a.get(t, r)
	f.everywhere(t, r.Name)
	var heals []func()
	for _, p := range a.proxies {
		heals = append(heals, p.Hold(netfault.ToServer))
	}
	k := keptOf(r, time.Hour)
	a.abandon(t, k, 0)
	for _, heal := range heals {
		heal()
	}
	a.release(t, r)
	f.clear(t, r.Name)
	f.tombstones(t, k, 0, 1, 2, 3, 4)
	a.refused(t, k, driver.ErrLost)
	a.refused(t, keptOf(r, time.Hour), driver.ErrLost) // the hold is gone
}

// keptBroken: a break ends what joined the hold, also after the hold's release.
func keptBroken(t *testing.T, f fleet) {
	for _, released := range []bool{false, true} {
		for _, force := range []bool{false, true} {
			a, b, r := f.client(t, redlock.Options{}), f.client(t, redlock.Options{}), steps.Request("kept broken")
			r.TTL = 5 * time.Second // masters have a tenth of it to answer
			a.get(t, r)
			f.everywhere(t, r.Name)
			k := keptOf(r, 8*time.Second)
			a.get(t, k)
			if released {
				a.release(t, r)
			}
			asked := time.Now()
			if err := b.Break(t.Context(), r.Name, 0, force); err != nil {
				t.Fatal(err)
			}
			f.clear(t, r.Name)
			if took := time.Since(asked); force && took > r.TTL {
				t.Errorf("released: %v: broken by force, it stood for %s", released, took)
			}
			for _, q := range []driver.Request{r, k} {
				unsure := false // an earlier copy, without an answer in time, may have removed it
				await.That(t, "a majority answers in time", func() bool {
					err := a.Release(t.Context(), q)
					if err == nil && !unsure {
						t.Errorf("released: %v, force: %v: Release of what was broken is nil", released, force)
					}
					unsure = true
					return err == nil || errors.Is(err, driver.ErrLost)
				})
			}
		}
	}
}

// keptExactly: a day is a day, not a quarter of an hour more, so that a daily job is on time.
func keptExactly(t *testing.T, f fleet) {
	const day = 24 * time.Hour
	c, _ := f.open(t)
	ran, err := dlock.OncePer(t.Context(), c.Mutex("kept exactly"), day, func(context.Context) error { return nil })
	if !ran || err != nil {
		t.Fatalf("ran %v, %v", ran, err)
	}
	const want = day - time.Minute // what OncePer keeps of a day

	kept := 0 // by a majority: one that was slow has the hold for its own TTL, or has nothing
	for _, m := range f {
		left := servers.CLIOf(t, m).PTTL(t.Context(), "dlock:{kept exactly}:redlock").Val()
		switch {
		case left > want+time.Second || left > time.Minute && left < want-time.Minute:
			t.Errorf("%s are left of %s", left, want)
		case left > time.Minute:
			kept++
		}
	}
	if kept < 3 {
		t.Errorf("%d of 5 masters keep it", kept)
	}
	if err := c.Break(t.Context(), "kept exactly", 0, dlock.Force()); err != nil {
		t.Error(err)
	}
}

// keptJoinedAgain: a join that stands beside another one, which has taken the holder's place, is
// sent again. The copy comes from another client, since its own would resume it.
func keptJoinedAgain(t *testing.T, f fleet) {
	a, b, r := f.client(t, redlock.Options{}), f.client(t, redlock.Options{}), steps.Request("kept again")
	a.get(t, r)
	b.get(t, r)
	f.everywhere(t, r.Name)
	one, two := keptOf(r, time.Minute), keptOf(r, time.Hour)
	a.get(t, one)
	a.get(t, two)
	f.everyKept(t, one, two)
	a.release(t, r)
	await.That(t, "the longer one holds everywhere", func() bool { return f.holds(t, two) == 5 })
	b.get(t, one)
	three := keptOf(r, time.Minute) // the hold goes on in its joins
	b.get(t, three)
	b.release(t, three)
	a.get(t, one)
	a.release(t, two)
	await.That(t, "the other one holds everywhere", func() bool { return f.holds(t, one) == 5 })
	a.release(t, one)
	f.clear(t, r.Name)
}

// everyKept waits until all masters have what joined the hold. A call returns when a majority has
// it, and the release of the hold may overtake it to the others.
func (f fleet) everyKept(t *testing.T, joined ...driver.Request) {
	t.Helper()
	for _, m := range f {
		for _, r := range joined {
			await.That(t, "it joined the hold", func() bool { return slices.Contains(members(t, m, r.Name), r.ID.String()) })
		}
	}
}

// holds returns the number of masters on which the request is the first of the members.
func (f fleet) holds(t *testing.T, r driver.Request) (n int) {
	t.Helper()
	for _, m := range f {
		if ids := members(t, m, r.Name); len(ids) > 0 && ids[0] == r.ID.String() {
			n++
		}
	}
	return n
}

// keptDisagreed: two masters have executed the release of a hold, two have not, and one has lost
// it. What joined it holds, and can be broken.
func keptDisagreed(t *testing.T, f fleet) {
	for _, force := range []bool{false, true} {
		a, op, r := f.proxied(t, redlock.Options{}), f.client(t, redlock.Options{}), steps.Request(fmt.Sprint("kept disagreed ", force))
		r.TTL = 10 * time.Second // what was broken stands until then
		a.get(t, r)
		f.everywhere(t, r.Name)
		k := keptOf(r, 30*time.Second)
		a.get(t, k)
		f.everyKept(t, k)
		for _, p := range a.proxies[2:] {
			p.Isolate()
		}
		unknown(t, a.Release(t.Context(), r), 2)
		servers.CLIOf(t, f[4]).Must("DEL", "dlock:{"+r.Name+"}:redlock")
		if n, m := f.holds(t, k), f.holds(t, r); n != 2 || m != 2 {
			t.Fatalf("%d masters have what was kept and %d the hold; want 2 each", n, m)
		}
		q, err := op.Inspect(t.Context(), r.Name)
		if err != nil || q.Len() != 1 || len(q.Joins) != 1 || q.Joins[0].ID != k.ID || q.Joins[0].Owner != r.ID || q.Joins[0].Left > k.TTL+time.Second || q.Joins[0].Left < 0 {
			t.Errorf("Inspect: %+v, %v; want what was kept", q, err)
		}
		op.refused(t, steps.Request(r.Name), driver.ErrHeld)
		if err := op.Break(t.Context(), r.Name, 0, force); err != nil {
			t.Errorf("Break: %v", err)
		}
		f.clear(t, r.Name)
	}
}

// keptFull: masters without memory renew a hold that was joined, and keep what joined it.
func keptFull(t *testing.T, f fleet) {
	a, r := f.client(t, redlock.Options{}), steps.Request("kept full")
	a.get(t, r)
	f.everywhere(t, r.Name)
	k := keptOf(r, time.Hour)
	a.get(t, k)
	f.everyKept(t, k)
	memory := func(limit int) {
		for _, m := range f {
			servers.CLIOf(t, m).Must("CONFIG", "SET", "maxmemory", limit)
		}
	}
	t.Cleanup(func() { memory(0) })
	memory(1)
	_, err := steps.Acquire(t.Context(), a, steps.Request("kept full too"))
	unknown(t, err, 0)
	var sent time.Time
	a.renewed(t, r, &sent)
	a.renewed(t, k, &sent)
	a.release(t, r)
	a.renewed(t, k, &sent)
	a.release(t, k)
	f.clear(t, r.Name)
	memory(0)
}

// keptDown: a majority suffices, and without one the lease is held as before.
func keptDown(t *testing.T, f fleet) {
	const d = 5 * time.Second // masters have a tenth of it to answer
	c, _ := f.open(t)
	l := steps.MustLock(t, c.Mutex("kept down"))
	f.everywhere(t, "kept down")
	f.down(t, 0, 1)
	other := steps.MustLock(t, c.Mutex("kept down too"))
	var asked time.Time
	await.That(t, "a majority answers in time", func() bool { // until then it is held as before
		asked = time.Now()
		err := other.UnlockAfter(t.Context(), d)
		if errors.Is(err, dlock.ErrLost) || errors.Is(err, dlock.ErrUnsupported) {
			t.Fatalf("UnlockAfter: %v", err)
		}
		return err == nil
	})
	next, err := c.Mutex("kept down too").Lock(await.Bounded(t, time.Minute))
	if err != nil || time.Since(asked) < d {
		t.Fatalf("%v, after %s", err, time.Since(asked))
	}
	next.Unlock(t.Context())
	f.down(t, 2)
	if err := l.UnlockAfter(t.Context(), d); err == nil || errors.Is(err, dlock.ErrLost) || errors.Is(err, dlock.ErrUnsupported) || l.Err() != nil {
		t.Errorf("UnlockAfter without a majority: %v; the lease: %v", err, l.Err())
	}
}
