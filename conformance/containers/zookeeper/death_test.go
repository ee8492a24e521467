package zookeeper

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/containers/steps"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/conformance/netfault"
	"github.com/dlock-go/dlock/driver"
)

// ticking is a server with that tick and the bounds of sessions that follow from it.
func ticking(tick time.Duration) service.Kind {
	k := ZooKeeper
	k.Command = zookeeperCommand(tickLines(tick), 0)
	return k
}

func tickLines(tick time.Duration) string {
	ms := tick.Milliseconds()
	return fmt.Sprintf("tickTime=%d\nminSessionTimeout=%d\nmaxSessionTimeout=%d\n", ms, 2*ms, 200*ms)
}

// deathBounds are what docs/zookeeper.md promises for the death of a holder: within what time its
// lock becomes free, at a standalone server and in an ensemble.
type deathBounds struct{ alone, ensemble time.Duration }

// sessionFor returns the timeout of a session for a TTL, by the formula of the page.
func sessionFor(ttl, tick time.Duration) time.Duration {
	return max(ttl*4/3, (ttl+tick/2)*5/4)
}

func bounds(ttl, tick time.Duration) deathBounds {
	s := sessionFor(ttl, tick)
	return deathBounds{s + tick, s + tick*3/2}
}

// TestZooKeeperDeathBoundsOnThePage: the table of the page is the formula that the other tests
// measure, for the usual tick.
func TestZooKeeperDeathBoundsOnThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/zookeeper.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| ([\d.]+) s \| ([\d.]+) s \| ([\d.]+) s \| ([\d.]+) s \|$`).FindAllStringSubmatch(string(page), -1)
	if len(rows) < 4 {
		t.Fatalf("the page has %d rows of bounds", len(rows))
	}
	seconds := func(s string) time.Duration {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(f * float64(time.Second))
	}
	for _, row := range rows {
		ttl := seconds(row[1])
		b := bounds(ttl, 2*time.Second)
		if s := sessionFor(ttl, 2*time.Second); seconds(row[2]) != s || seconds(row[3]) != b.alone || seconds(row[4]) != b.ensemble {
			t.Errorf("a TTL of %s: the page says %v; want %s, %s, %s", ttl, row[2:], s, b.alone, b.ensemble)
		}
	}
}

// TestZooKeeperDeath: the lock of a dead holder becomes free within its session's timeout and a
// tick, whatever the tick is and at whichever moment of a tick it dies; and not much earlier in the
// worst case.
func TestZooKeeperDeath(t *testing.T) {
	for _, tick := range []time.Duration{500 * time.Millisecond, 2 * time.Second} {
		t.Run(tick.String(), func(t *testing.T) {
			t.Parallel()
			s := service.StartOwn(t, ticking(tick))
			d := newDeaths(t, s.URL, s.URL, tick)
			longest, stalled := d.die()
			d.within(longest, bounds(d.ttl, tick).alone, stalled)
			if least := sessionFor(d.ttl, tick) + tick/2; longest < least {
				t.Errorf("of %d deaths at all moments of a tick the latest freed its lock after %s; the bound of %s is too high", len(d.holders), longest, bounds(d.ttl, tick).alone)
			}
		})
	}
}

// TestZooKeeperEnsembleDeath: at a follower it is half a tick more, since a sign of life may reach
// the leader that late; and an election restarts the timeout of every session.
func TestZooKeeperEnsembleDeath(t *testing.T) {
	t.Parallel()
	const tick = 500 * time.Millisecond
	e := startEnsemble(t, tickLines(tick))
	leader := e.AwaitLeader(t)
	var followers []string
	for _, n := range e.Nodes {
		if n != leader {
			followers = append(followers, n.Addr)
		}
	}
	waiters := "zookeeper://" + strings.Join(followers, ",")
	d := newDeaths(t, "zookeeper://"+followers[0], waiters, tick)
	longest, stalled := d.die()
	d.within(longest, bounds(d.ttl, tick).ensemble, stalled)

	d = newDeaths(t, "zookeeper://"+followers[0], waiters, tick)
	stop := steps.MeasureStalls()
	for _, h := range d.holders {
		h.kill()
	}
	leader.Kill(t)
	killed := time.Now()
	e.AwaitLeader(t, leader)
	elected := time.Now()
	longest = 0
	for _, h := range d.holders {
		h.successor.Got("Lock", time.Now(), time.Minute)
		longest = max(longest, time.Since(elected))
	}
	t.Logf("the last hold was free %s after the election, which took %s", longest, elected.Sub(killed))
	d.within(longest, bounds(d.ttl, tick).ensemble, stop())
}

// deaths are holders that will die, each with a client of its own, and their waiters.
type deaths struct {
	t       *testing.T
	ttl     time.Duration
	tick    time.Duration
	holders []*dying
}

type dying struct {
	*zkClient
	t         *testing.T
	lease     *dlock.Lease
	successor *steps.Attempt
}

// leastTTL is one that a busy machine keeps: one was seen to stand still for two seconds.
const leastTTL = 4 * time.Second

// waiterTTL outlasts every election: a waiter whose session is lost waits behind what that left.
const waiterTTL = time.Minute

// newDeaths has eight holders at the one URL, with a TTL as short as may be, and a waiter for each
// at the other.
func newDeaths(t *testing.T, holders, waiters string, tick time.Duration) *deaths {
	t.Helper()
	const n = 8
	w := zkOpen(t, waiters, "", waiterTTL)
	d := &deaths{t: t, ttl: max(w.Capabilities().MinTTL, leastTTL), tick: tick}
	for i := range n {
		c := zkOpen(t, holders, "", d.ttl)
		l := steps.MustLock(t, c.Mutex(fmt.Sprint("death-", i, "-", driver.NewID())))
		h := &dying{c, t, l, steps.Try(t, w.Mutex(l.Name()))}
		d.holders = append(d.holders, h)
	}
	await.That(t, "all wait", func() bool {
		for _, h := range d.holders {
			if err := h.lease.Err(); err != nil {
				t.Fatalf("a hold was lost before its holder died: %v", err)
			}
			q, err := w.Inspect(t.Context(), h.lease.Name())
			if err != nil || q.Len() != 2 {
				return false
			}
		}
		return true
	})
	return d
}

// kill sends a last sign of life, and ends the holder without another.
func (h *dying) kill() {
	_ = h.lease.Renew(h.t.Context())
	h.p.Vanish(netfault.ToServer)
	h.p.Vanish(netfault.ToClient)
}

// die kills the holders one after the other, spread over a tick, and returns how long the last lock
// took to become free, and for how long the machine stood still meanwhile.
func (d *deaths) die() (longest, stalled time.Duration) {
	stop := steps.MeasureStalls()
	took := make([]time.Duration, len(d.holders))
	var wg sync.WaitGroup
	for i, h := range d.holders {
		wg.Go(func() {
			<-time.After(d.tick * time.Duration(i) / time.Duration(len(d.holders)))
			h.kill()
			died := time.Now()
			<-h.successor.Done
			took[i] = time.Since(died)
		})
	}
	await.All(d.t, &wg)
	for _, h := range d.holders {
		h.successor.Got("Lock", time.Now(), time.Minute)
	}
	d.t.Logf("a TTL of %s, a tick of %s: free after %s", d.ttl, d.tick, took)
	for _, t := range took {
		longest = max(longest, t)
	}
	return longest, stop()
}

// busy is what a busy machine may need for everything that follows an expiry. It is less than the
// default tick, so a bound that leaves out a tick is found.
const busy = time.Second

// within fails the test if that took longer than the bound, the time for which the machine stood
// still, and busy together.
func (d *deaths) within(took, bound, stalled time.Duration) {
	d.t.Helper()
	if took > bound+stalled+busy {
		d.t.Errorf("with a TTL of %s and a tick of %s the last hold was free after %s; want %s at most (the machine stood still for %s)", d.ttl, d.tick, took, bound, stalled)
	}
}
