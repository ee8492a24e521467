package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/dlock-go/dlock"
	servers "github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/redlock"
)

// TestRedlockMembers tests what several requests do that hold a lock together.
func TestRedlockMembers(t *testing.T) {
	f := startFleet(t, servers.Redis)
	t.Run("at once", func(t *testing.T) {
		for _, c := range []fleetTest{
			{"a join outlives its owner", handedOver},
			{"late copies of a member that left", lateMember},
			{"a member on a minority", minorityMember},
			{"a hold that is on a part of the masters", partOfTheMasters},
			{"masters disagree on the first one", firstDisagreed},
			{"a break ends all", breakReaders},
			{"masters that are young", youngMasters},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				service.Watch(t, f...)
				c.run(t, f)
			})
		}
	})
	f.run(t, []fleetTest{{"a break past a minority", breakReadersMinority}})
}

// readerOf returns a request for a read lock.
func readerOf(name string) driver.Request {
	r := steps.Request(name)
	r.Mode = driver.Shared
	return r
}

// joinOf returns a join of another client.
func joinOf(r driver.Request, mode driver.Mode) driver.Request {
	j := steps.Request(r.Name)
	j.Owner, j.Mode = r.Owner, mode
	return j
}

// all waits until all masters have exactly these members.
func (f fleet) all(t *testing.T, name string, want ...driver.Request) {
	t.Helper()
	var ids []string
	for _, r := range want {
		ids = append(ids, r.ID.String())
	}
	slices.Sort(ids)
	for _, m := range f {
		await.That(t, fmt.Sprintf("a master has the %d members of %s", len(ids), name), func() bool {
			return slices.Equal(slices.Sorted(slices.Values(members(t, m, name))), ids)
		})
	}
}

// handedOver: the client that began a hold dies, and the hold goes on in the joins of others.
func handedOver(t *testing.T, f fleet) {
	a, b, c, r := f.proxied(t, redlock.Options{NodeTimeout: time.Second}), f.client(t, redlock.Options{}), f.client(t, redlock.Options{}), steps.Request("handed over")
	r.TTL = 5 * time.Second // masters have a tenth of it to answer
	a.get(t, r)
	f.everywhere(t, r.Name)
	j := joinOf(r, driver.Exclusive)
	b.get(t, j)
	f.all(t, r.Name, r, j)
	a.isolate()
	c.refused(t, readerOf(r.Name), driver.ErrHeld)
	await.That(t, "the hold of the client that died has expired", func() bool {
		q, err := c.Inspect(t.Context(), r.Name)
		return err == nil && len(q.Arrivals) == 0 && len(q.Joins) == 1 && q.Joins[0].ID == j.ID && q.Joins[0].Owner == r.ID
	})
	if p := b.Renew(t.Context(), []driver.Request{j})[0]; p.Err != nil {
		t.Errorf("Renew of the join: %v", p.Err)
	}
	c.refused(t, steps.Request(r.Name), driver.ErrHeld)
	k := joinOf(r, driver.Shared)
	c.get(t, k) // a hold can be joined for as long as any of its requests is there
	b.release(t, j)
	c.refused(t, joinOf(r, driver.Exclusive), driver.ErrUpgrade)
	other := readerOf(r.Name)
	b.get(t, other) // it was downgraded
	c.release(t, k)
	c.refused(t, joinOf(r, driver.Shared), driver.ErrLost)
	b.release(t, other)
	f.clear(t, r.Name)
}

// lateMember: everything that a reader ever sent arrives again after it left, while another one
// holds. Nothing of the other one changes.
func lateMember(t *testing.T, f fleet) {
	a, b, x, y := f.proxied(t, redlock.Options{}), f.client(t, redlock.Options{}), readerOf("late member"), readerOf("late member")
	b.get(t, y)
	f.everywhere(t, y.Name)
	type recording interface{ Replay(string) error }
	var recorded []recording
	for _, p := range a.proxies {
		recorded = append(recorded, p.Record())
	}
	a.get(t, x)
	f.all(t, x.Name, x, y)
	if p := a.Renew(t.Context(), []driver.Request{x})[0]; p.Err != nil {
		t.Errorf("Renew: %v", p.Err)
	}
	x.Uncertain = true // so that copies of its acquire create nothing
	a.release(t, x)
	f.all(t, x.Name, y)
	f.tombstones(t, x, 0, 1, 2, 3, 4)
	before := f.texts(t, x.Name)
	for _, r := range recorded {
		if err := r.Replay(""); err != nil {
			t.Fatal(err)
		}
	}
	if after := f.texts(t, x.Name); !slices.Equal(after, before) {
		t.Errorf("the masters have %q; before late copies %q", after, before)
	}
	if err := a.Release(t.Context(), x); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release again: %v", err)
	}
	b.refused(t, steps.Request(x.Name), driver.ErrHeld)
	b.release(t, y)
	f.clear(t, y.Name)
}

// texts returns what the masters have of a name.
func (f fleet) texts(t *testing.T, name string) (texts []string) {
	for _, m := range f {
		texts = append(texts, servers.CLIOf(t, m).Get(t.Context(), "dlock:{"+name+"}:redlock").Val())
	}
	return texts
}

// lay writes members to some masters, as if these had granted them.
func (f fleet) lay(t *testing.T, some []int, rs ...driver.Request) {
	t.Helper()
	for _, i := range some {
		k := servers.CLIOf(t, f[i])
		now := k.Time(k.Ctx).Val().UnixMilli()
		var lines []string
		for _, r := range rs {
			mode := map[driver.Mode]string{driver.Exclusive: "x", driver.Shared: "s"}[r.Mode]
			lines = append(lines, fmt.Sprintf("%s %s %s - 60000 %d %d %s %d %s", r.ID, r.Owner, mode, now+60_000, now, r.Client, len(r.Label), r.Label))
		}
		k.Must("SET", "dlock:{"+rs[0].Name+"}:redlock", "!2 "+strings.Join(lines, "\n"), "PX", 60_000)
	}
}

// minorityMember: a reader that stands on two of five masters does not hold, and does not keep a
// writer out of the other three. Beside that writer it can neither be renewed nor be completed.
func minorityMember(t *testing.T, f fleet) {
	a, y, w := f.client(t, redlock.Options{}), readerOf("minority member"), steps.Request("minority member")
	f.lay(t, []int{0, 1}, y)
	if q, err := a.Inspect(t.Context(), y.Name); err != nil || q.Len() != 0 {
		t.Errorf("Inspect: %+v, %v", q, err)
	}
	a.get(t, w)
	for i, m := range f {
		want := []string{w.ID.String()}
		if i < 2 {
			want[0] = y.ID.String()
		}
		if got := members(t, m, y.Name); !slices.Equal(got, want) {
			t.Errorf("master %d has the members %v; want %v", i, got, want)
		}
	}
	if q, err := a.Inspect(t.Context(), y.Name); err != nil || q.Len() != 1 || q.Arrivals[0].ID != w.ID {
		t.Errorf("Inspect: %+v, %v; want the writer", q, err)
	}
	if p := a.Renew(t.Context(), []driver.Request{y})[0]; !errors.Is(p.Err, driver.ErrLost) {
		t.Errorf("Renew of what a minority has: %v", p.Err)
	}
	a.refused(t, readerOf(y.Name), driver.ErrHeld)
	a.refused(t, joinOf(y, driver.Shared), driver.ErrLost)
	a.release(t, w)
	if err := a.Release(t.Context(), y); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release of what a minority has: %v", err)
	}
	f.clear(t, y.Name)
}

// partOfTheMasters: a join stands only where its hold does, and needs a majority.
func partOfTheMasters(t *testing.T, f fleet) {
	a := f.client(t, redlock.Options{})
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		r := steps.Request("part " + mode.String())
		r.Mode = mode
		f.lay(t, []int{0, 2, 4}, r)
		reads, writes := joinOf(r, driver.Shared), joinOf(r, driver.Exclusive)
		a.get(t, reads)
		if mode == driver.Shared {
			a.refused(t, writes, driver.ErrUpgrade)
		} else {
			a.get(t, writes)
			a.release(t, writes)
		}
		for _, i := range []int{1, 3} {
			if got := members(t, f[i], r.Name); len(got) > 0 {
				t.Errorf("master %d, which does not have the hold, has the members %v", i, got)
			}
		}
		servers.CLIOf(t, f[0]).Must("DEL", "dlock:{"+r.Name+"}:redlock")
		a.refused(t, joinOf(r, driver.Shared), driver.ErrLost)
		for i, m := range f { // and nothing of it is left
			if n := len(members(t, m, r.Name)); n > 2 {
				t.Errorf("master %d has %d members", i, n)
			}
		}
		for _, q := range []driver.Request{r, reads} {
			if err := a.Release(t.Context(), q); !errors.Is(err, driver.ErrLost) {
				t.Errorf("Release of what a minority has: %v", err)
			}
		}
		f.clear(t, r.Name)
	}
}

// firstDisagreed: masters have the same members, in another order. All that counts is which of them
// are there.
func firstDisagreed(t *testing.T, f fleet) {
	a, x, y := f.client(t, redlock.Options{}), readerOf("disagreed"), readerOf("disagreed")
	x.Label, y.Label = "one", "two"
	f.lay(t, []int{0, 1}, x, y)
	f.lay(t, []int{2, 3, 4}, y, x)
	_, err := steps.Acquire(t.Context(), a, steps.Request(x.Name))
	by := (*driver.HeldError)(nil)
	if !errors.As(err, &by) || by.Label != "one" && by.Label != "two" {
		t.Errorf("Acquire: %v; want an error that names one of the readers", err)
	}
	if q, err := a.Inspect(t.Context(), x.Name); err != nil || len(q.Arrivals) != 2 || q.Granted() != 2 {
		t.Errorf("Inspect: %+v, %v; want two readers", q, err)
	}
	a.release(t, x)
	f.all(t, x.Name, y)
	a.release(t, y)
	f.clear(t, x.Name)
}

// notified opens a client that counts its losses.
func (f fleet) notified(t *testing.T) (*fleetClient, *atomic.Int32) {
	s, n := f.client(t, redlock.Options{}), new(atomic.Int32)
	s.Notify(func(driver.ID) { n.Add(1) })
	return s, n
}

// breakReaders: without tokens a break ends all that holds.
func breakReaders(t *testing.T, f fleet) {
	for _, force := range []bool{false, true} {
		name, op := fmt.Sprint("break readers ", force), f.client(t, redlock.Options{})
		a, lostA := f.notified(t)
		b, lostB := f.notified(t)
		c, lostC := f.notified(t)
		x, y := readerOf(name), readerOf(name)
		x.TTL, y.TTL = 5*time.Second, 5*time.Second // what was broken stands until then
		j := joinOf(x, driver.Shared)
		j.TTL = 5 * time.Second
		a.get(t, x)
		b.get(t, y)
		f.all(t, name, x, y)
		c.get(t, j)
		f.all(t, name, x, y, j)
		if err := op.Break(t.Context(), name, 0, force); err != nil {
			t.Fatalf("force %t: Break: %v", force, err)
		}
		for who, n := range map[string]*atomic.Int32{"one reader": lostA, "the other reader": lostB, "the join": lostC} {
			await.That(t, who+" is notified", func() bool { return n.Load() == 1 })
		}
		if force {
			f.clear(t, name)
			if err := op.Break(t.Context(), name, 0, force); !errors.Is(err, driver.ErrNotHeld) {
				t.Errorf("Break again: %v", err)
			}
		} else {
			op.refused(t, steps.Request(name), driver.ErrHeld)
		}
		op.refused(t, joinOf(x, driver.Shared), driver.ErrLost)
		for s, r := range map[*fleetClient]driver.Request{a: x, b: y, c: j} {
			if p := s.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) {
				t.Errorf("force %t: Renew of what was broken: %v", force, p.Err)
			}
			s.refused(t, r, driver.ErrLost)
			if err := s.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
				t.Errorf("force %t: Release of what was broken: %v", force, err)
			}
		}
		f.clear(t, name)
	}
}

// breakReadersMinority: a break that does not reach two of five masters ends every member all the
// same, since what is left is no majority.
func breakReadersMinority(t *testing.T, f fleet) {
	a, op, name := f.client(t, redlock.Options{}), f.client(t, redlock.Options{NodeTimeout: 2 * time.Second}), "break minority"
	x, y := readerOf(name), readerOf(name)
	j := joinOf(x, driver.Shared)
	for _, r := range []driver.Request{x, y, j} {
		a.get(t, r)
	}
	f.all(t, name, x, y, j)
	wake := f.hang(t, 1, 2)
	if err := op.Break(t.Context(), name, 0, true); err != nil {
		t.Fatalf("Break: %v", err)
	}
	w := steps.Request(name)
	op.get(t, w)
	wake()
	for _, r := range []driver.Request{x, y, j} {
		if p := a.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) {
			t.Errorf("Renew of what was broken: %v", p.Err)
		}
	}
	a.refused(t, joinOf(x, driver.Shared), driver.ErrLost) // two masters have the hold
	for _, r := range []driver.Request{x, y, j} {
		if err := a.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Release of what was broken: %v", err)
		}
	}
	op.release(t, w)
	f.clear(t, name)
}

// youngMasters: a master that may have lost votes grants nothing new, not even beside what it has.
func youngMasters(t *testing.T, f fleet) {
	a, young, x := f.client(t, redlock.Options{}), f.client(t, redlock.Options{MinUptime: 24 * time.Hour}), readerOf("young")
	a.get(t, x)
	f.everywhere(t, x.Name)
	for what, r := range map[string]driver.Request{"a reader": readerOf(x.Name), "a join": joinOf(x, driver.Shared)} {
		if _, err := steps.Acquire(t.Context(), young, r); err == nil || driver.Refused(err) || !strings.Contains(err.Error(), "it has been up for") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if p := young.Renew(t.Context(), []driver.Request{x})[0]; p.Err != nil {
		t.Errorf("Renew: %v", p.Err)
	}
	a.release(t, x)
	f.clear(t, x.Name)
}

// TestRedlockSetNXReaders: three clients of dlock read, one writes, and redsync takes the lock too,
// all on three masters. Never is a reader in beside a writer or a peer.
func TestRedlockSetNXReaders(t *testing.T) {
	t.Parallel()
	f := startThree(t)
	rs := f.redsync(t)
	var mu sync.Mutex
	readers, alone, together := 0, 0, 0
	turns := map[string]int{}
	in := func(who string, shared bool) {
		mu.Lock()
		defer mu.Unlock()
		turns[who]++
		if shared {
			readers++
			if readers > 1 {
				together++
			}
		} else {
			alone++
		}
		if alone > 1 || alone > 0 && readers > 0 {
			t.Errorf("%s came in: %d readers and %d that exclude them are in", who, readers, alone)
		}
	}
	out := func(shared bool) {
		mu.Lock()
		defer mu.Unlock()
		if shared {
			readers--
		} else {
			alone--
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	who := []string{"reader 1", "reader 2", "reader 3", "writer", "redsync"}
	for _, who := range who[:4] {
		c, err := dlock.Open(t.Context(), f.setNX("lock:{name}"), dlock.Logger(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		shared, m := who != "writer", c.RWMutex("a")
		lock := m.Write()
		if shared {
			lock = m.Read()
		}
		all.Go(func() {
			for ctx.Err() == nil {
				l, err := lock.Lock(ctx)
				if err != nil {
					continue
				}
				in(who, shared)
				time.Sleep(3 * time.Millisecond)
				out(shared)
				l.Unlock(context.Background())
				time.Sleep(5 * time.Millisecond) // else readers keep the others out
			}
		})
	}
	all.Go(func() {
		m := rs.NewMutex("lock:a", redsync.WithExpiry(time.Minute), redsync.WithTimeoutFactor(0.3), redsync.WithTries(1))
		for ctx.Err() == nil {
			if m.LockContext(ctx) == nil {
				in("redsync", false)
				time.Sleep(3 * time.Millisecond)
				out(false)
				m.UnlockContext(context.Background())
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	for _, who := range who {
		await.That(t, who+" has its turns", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return turns[who] >= 30 && together >= 10
		})
	}
	stop()
	await.All(t, &all)
	t.Logf("turns: %v, readers together %d times", turns, together)
}
