package containers

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis"
)

// fleet are the masters of Redlock.
type fleet []*Server

func startFleet(t T, k Kind) fleet {
	t.Helper()
	f := make(fleet, 5)
	for i := range f {
		f[i] = StartOwn(t, k.With(RedisDurable...))
	}
	return f
}

func (f fleet) url(params string) string {
	return "redlock://" + strings.Join(addrs(f), ",") + "/0?" + params
}

// side is a client of the fleet.
type side struct {
	*redis.Redlock
	clients []goredis.UniversalClient
	lines   []*Proxy // to each master, if it is lined
}

// Close closes all that the side has.
func (s *side) Close() error {
	err := s.Redlock.Close()
	for _, c := range s.clients {
		c.Close()
	}
	for _, p := range s.lines {
		p.Close()
	}
	return err
}

// side opens a client. Its masters have ten seconds to answer, or a tenth of the TTL, unless the options say otherwise: the machine may
// be busy.
func (f fleet) side(t T, o redis.RedlockOptions) *side {
	t.Helper()
	return f.with(t, o, nil)
}

// lined is side with a proxy before each master.
func (f fleet) lined(t T, o redis.RedlockOptions) *side {
	t.Helper()
	var lines []*Proxy
	for range f {
		lines = append(lines, NewProxy())
	}
	s := f.with(t, o, lines)
	if _, err := s.Inspect(context.Background(), "warm"); err != nil { // a fault meets connections that are open
		t.Fatalf("%v", err)
	}
	return s
}

func (f fleet) with(t T, o redis.RedlockOptions, lines []*Proxy) *side {
	t.Helper()
	if o.NodeTimeout == 0 {
		o.NodeTimeout = 10 * time.Second
	}
	s := &side{lines: lines}
	for i, m := range f {
		set := &goredis.Options{Addr: m.Addr, ContextTimeoutEnabled: true, DialerRetries: 1}
		if lines != nil {
			set.Dialer = lines[i].Dial
			set.PoolSize, set.MinIdleConns, set.PipelinePoolSize = 3, 3, -1 // as many connections at any time
		}
		s.clients = append(s.clients, goredis.NewClient(set))
	}
	b, err := redis.NewRedlock(s.clients, o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	s.Redlock = b
	t.Cleanup(func() { s.Close() })
	return s
}

// open is dlock.New over a side.
func (f fleet) open(t T, opts ...dlock.Option) (*dlock.Client, *side) {
	t.Helper()
	s := f.side(t, redis.RedlockOptions{})
	c, err := dlock.New(s, append([]dlock.Option{dlock.Logger(nil)}, opts...)...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c, s
}

// votes returns on how many masters something stands for the name. Those that do not answer count as -1.
func (f fleet) votes(t T, name string) []int {
	t.Helper()
	n := make([]int, len(f))
	for i, m := range f {
		c := goredis.NewClient(&goredis.Options{Addr: m.Addr, ContextTimeoutEnabled: true, DialerRetries: 1})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		v, err := c.Exists(ctx, "dlock:{"+name+"}:redlock").Result()
		cancel()
		c.Close()
		if n[i] = int(v); err != nil {
			n[i] = -1
		}
	}
	return n
}

// clear waits until nothing stands for the name on any master.
func (f fleet) clear(t T, name string) {
	t.Helper()
	await(t, "nothing stands for "+name, func() bool { return fmt.Sprint(f.votes(t, name)) == fmt.Sprint(make([]int, len(f))) })
}

// tombstones waits until masters know that the request is over, whatever of it comes late.
func (f fleet) tombstones(t *testing.T, r driver.Request, some ...int) {
	t.Helper()
	for _, i := range some {
		await(t, "there is a tombstone", func() bool {
			return f[i].cli(t).Exists(t.Context(), "dlock:{"+r.Name+"}:redlock:"+r.ID.String()).Val() == 1
		})
	}
}

// everywhere waits until all masters have it: grants return when a majority has.
func (f fleet) everywhere(t T, name string) {
	t.Helper()
	await(t, "all masters have "+name, func() bool { return fmt.Sprint(f.votes(t, name)) == "[1 1 1 1 1]" })
}

func request(name string) driver.Request {
	id := driver.NewID()
	return driver.Request{Name: name, ID: id, Owner: id, Client: driver.NewID(), TTL: time.Minute, Label: "a test"}
}

// get acquires what has to be granted.
func (s *side) get(t T, r driver.Request) driver.Grant {
	t.Helper()
	g, err := s.Acquire(context.Background(), r)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

func (s *side) refused(t T, r driver.Request, why error) {
	t.Helper()
	if _, err := s.Acquire(context.Background(), r); !errors.Is(err, why) {
		t.Fatalf("Acquire: %v; want %v", err, why)
	}
}

func (s *side) release(t T, r driver.Request) {
	t.Helper()
	if err := s.Release(context.Background(), r); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// unknown fails the test unless the error leaves the outcome open, and says how many masters answered.
func unknown(t T, err error, answered int) {
	t.Helper()
	for _, certain := range []error{nil, driver.ErrHeld, driver.ErrLost, driver.ErrNotHeld, driver.ErrClosed, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, certain) {
			t.Fatalf("error %v matches %v", err, certain)
		}
	}
	if want := fmt.Sprintf("%d of 5 masters answered", answered); !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v; want one that says %q", err, want)
	}
}

func TestRedlockConformance(t *testing.T) {
	f := startFleet(t, Redis)
	all := func(b driver.Backend, fault func(*Proxy) func()) (heal func()) {
		var heals []func()
		for _, p := range b.(*side).lines {
			heals = append(heals, fault(p))
		}
		return func() {
			for _, h := range heals {
				h()
			}
		}
	}
	// Masters are asked all at once: what counts is the one that was asked most.
	most := func(b driver.Backend, count func(Counts) int64) (n int64) {
		for _, p := range b.(*side).lines {
			n = max(n, count(p.Counts()))
		}
		return n
	}
	conformance.Run(t, Reported("redlock", conformance.Harness{
		Open: func(t conformance.T) driver.Backend {
			return f.lined(t, redis.RedlockOptions{RetryDelay: 10 * time.Millisecond})
		},
		TTL: 2 * time.Second, // of which a master has a tenth
		Cut: func(_ conformance.T, b driver.Backend) func() { return all(b, (*Proxy).Isolate) },
		Deafen: func(_ conformance.T, b driver.Backend) func() {
			return all(b, func(p *Proxy) func() { return p.Hold(ToClient) })
		},
		Record: func(t conformance.T, b driver.Backend) func() {
			return all(b, func(p *Proxy) func() {
				r := p.Record()
				return func() {
					if err := r.Replay(""); err != nil {
						t.Errorf("replay: %v", err)
					}
				}
			})
		},
		Calls:       func(b driver.Backend) int64 { return most(b, func(c Counts) int64 { return c.RoundTrips }) },
		Connections: func(b driver.Backend) int { return int(most(b, func(c Counts) int64 { return int64(c.Open) })) },
	}))
}

// TestRedlock runs what needs masters that fail. All use one fleet, and leave it whole.
func TestRedlock(t *testing.T) {
	f := startFleet(t, Redis)
	f.run(t, []fleetTest{
		{"two of five down", twoDown},
		{"three of five down", threeDown},
		{"two of five hang", twoHang},
		{"three of five hang", threeHang},
		{"slow masters", slowMasters},
		{"late grants", lateGrants},
		{"split votes", splitVotes},
		{"contenders", contenders},
		{"release reaches those that come back", releaseReaches},
		{"lost replies", lostReplies},
		{"release on its way", releaseOnItsWay},
		{"renewal with a minority lost", minorityLost},
		{"restart without data", restartEmpty},
		{"least uptime", leastUptime},
		{"loss in time", lossInTime},
		{"broken by force past a minority", breakMinority},
		{"foreign keys", foreignKeys},
		{"scripts forgotten", scriptsForgotten},
		{"least rights", leastRights},
		{"close past hung masters", closeHung},
		{"nothing piles up", nothingPilesUp},
		{"round trips", roundTrips},
		{"URL", openURL},
	})
}

// TestRedlockOnValkey has what rests on the server: its scripts, its expiry, its rights.
func TestRedlockOnValkey(t *testing.T) {
	f := startFleet(t, Valkey)
	f.run(t, []fleetTest{
		{"two of five down", twoDown},
		{"three of five hang", threeHang},
		{"contenders", contenders},
		{"lost replies", lostReplies},
		{"renewal with a minority lost", minorityLost},
		{"least uptime", leastUptime},
		{"loss in time", lossInTime},
		{"broken by force past a minority", breakMinority},
		{"foreign keys", foreignKeys},
		{"scripts forgotten", scriptsForgotten},
		{"least rights", leastRights},
	})
}

// fleetTest is a test that leaves the fleet as it was.
type fleetTest struct {
	name string
	run  func(*testing.T, fleet)
}

func (f fleet) run(t *testing.T, all []fleetTest) {
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) { c.run(t, f) })
	}
}

// down kills masters until the test ends.
func (f fleet) down(t *testing.T, some ...int) {
	t.Helper()
	for _, i := range some {
		f[i].Kill(t)
		t.Cleanup(func() { f[i].Restart(t) })
	}
}

// hang stops masters until wake, or the test ends.
func (f fleet) hang(t *testing.T, some ...int) (wake func()) {
	t.Helper()
	wake = sync.OnceFunc(func() {
		for _, i := range some {
			f[i].Continue(t)
		}
	})
	t.Cleanup(wake)
	for _, i := range some {
		f[i].Pause(t)
	}
	return wake
}

func twoDown(t *testing.T, f fleet) {
	a, b, r := f.side(t, redis.RedlockOptions{}), f.side(t, redis.RedlockOptions{}), request("two-down")
	a.get(t, request("warm")) // connections that will break
	f.down(t, 1, 3)
	a.get(t, r)
	b.refused(t, request(r.Name), driver.ErrHeld)
	wait := request(r.Name)
	wait.Wait = true
	if _, err := b.Acquire(t.Context(), wait); !errors.As(err, new(*driver.Retry)) {
		t.Fatalf("Acquire of a waiter: %v; want a *driver.Retry", err)
	}
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
		t.Fatalf("Renew: %v", p.Err)
	}
	a.release(t, r)
	next := request(r.Name)
	b.get(t, next)
	b.release(t, next)
}

func threeDown(t *testing.T, f fleet) {
	a, r, held := f.side(t, redis.RedlockOptions{}), request("three-down"), request("held")
	a.get(t, held)
	f.down(t, 0, 2, 4)
	for _, r.Wait = range []bool{false, true} {
		start := time.Now()
		_, err := a.Acquire(t.Context(), r)
		unknown(t, err, 2)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		r = request(r.Name)
	}
	unknown(t, a.Renew(t.Context(), []driver.Request{held})[0].Err, 2)
	unknown(t, a.Release(t.Context(), held), 2)
	_, err := a.Inspect(t.Context(), held.Name)
	unknown(t, err, 2)
	unknown(t, a.Break(t.Context(), held.Name, 0, true), 2)
}

func twoHang(t *testing.T, f fleet) {
	a, b := f.side(t, redis.RedlockOptions{NodeTimeout: 10 * time.Second}), f.side(t, redis.RedlockOptions{NodeTimeout: 10 * time.Second})
	a.get(t, request("warm"))
	b.get(t, request("warm too"))
	f.hang(t, 0, 1)
	var worst [3]time.Duration
	for i := range 20 {
		r := request(fmt.Sprint("two-hang-", i))
		for j, call := range []func(){
			func() { a.get(t, r) },
			func() { b.refused(t, request(r.Name), driver.ErrHeld) },
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
	a, b := f.side(t, redis.RedlockOptions{NodeTimeout: timeout}), f.side(t, redis.RedlockOptions{})
	r := request("three-hang")
	a.get(t, request("warm as well"))
	wake := f.hang(t, 0, 1, 2)
	start := time.Now()
	_, err := a.Acquire(t.Context(), r)
	unknown(t, err, 2)
	took := time.Since(start)
	t.Logf("with 3 of 5 hanging and a node timeout of %s: %s: %v", timeout, took, err)
	if took < timeout || took > 5*timeout {
		t.Errorf("it took %s", took)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	s := f.side(t, redis.RedlockOptions{NodeTimeout: time.Minute})
	if _, err := s.Acquire(ctx, request(r.Name)); err != context.DeadlineExceeded {
		t.Errorf("Acquire under a context that ended: %v", err)
	}
	wake() // now they execute what they were sent
	f.clear(t, r.Name)
	next := request(r.Name)
	b.get(t, next)
	b.release(t, next)
}

func slowMasters(t *testing.T, f fleet) {
	a, r := f.lined(t, redis.RedlockOptions{}), request("slow")
	for _, i := range []int{0, 4} {
		a.lines[i].Delay(ToServer, 500*time.Millisecond)
	}
	a.get(t, r)
	a.release(t, r) // what is on its way to the slow ones has not even arrived
	f.tombstones(t, r, 0, 4)
	f.clear(t, r.Name)
}

func lateGrants(t *testing.T, f fleet) {
	const timeout = 2 * time.Second
	for _, d := range []Direction{ToServer, ToClient} {
		a, b := f.lined(t, redis.RedlockOptions{NodeTimeout: timeout}), f.lined(t, redis.RedlockOptions{})
		r := request("late")
		var heals []func()
		for _, i := range []int{1, 2, 3} {
			heals = append(heals, a.lines[i].Hold(d))
		}
		_, err := a.Acquire(t.Context(), r)
		unknown(t, err, 2)
		for _, h := range heals {
			h()
		}
		f.tombstones(t, r, 1, 2, 3)
		f.clear(t, r.Name)
		next := request(r.Name)
		b.get(t, next)
		b.release(t, next)
		f.clear(t, r.Name)
	}
}

// plant gives votes to somebody else.
func (f fleet) plant(t *testing.T, r driver.Request, some ...int) {
	t.Helper()
	for _, i := range some {
		f[i].cli(t).must("SET", "dlock:{"+r.Name+"}:redlock", fmt.Sprintf("%s - 60000 1 %s x", r.ID, r.Client), "PX", 60000)
	}
}

func splitVotes(t *testing.T, f fleet) {
	a, r := f.side(t, redis.RedlockOptions{}), request("split")
	f.plant(t, request(r.Name), 0, 1)
	f.plant(t, request(r.Name), 2)
	before := fmt.Sprint(f.votes(t, r.Name))
	a.refused(t, r, driver.ErrHeld)
	if after := fmt.Sprint(f.votes(t, r.Name)); after != before { // when it returns
		t.Errorf("after a refusal the votes are %s, before it %s", after, before)
	}
	if q, err := a.Inspect(t.Context(), r.Name); err != nil || q.Len() != 0 {
		t.Errorf("Inspect of a name that nobody holds: %+v, %v", q, err)
	}
	if err := a.Break(t.Context(), r.Name, 0, true); !errors.Is(err, driver.ErrNotHeld) {
		t.Errorf("Break of a name that nobody holds: %v", err)
	}
	f[0].cli(t).must("DEL", "dlock:{"+r.Name+"}:redlock") // a majority is free
	f[1].cli(t).must("DEL", "dlock:{"+r.Name+"}:redlock")
	f[2].cli(t).must("DEL", "dlock:{"+r.Name+"}:redlock")
	r = request(r.Name)
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
	wg.Wait()
	t.Logf("%d hand-offs among %d contenders in %s", count, goroutines, time.Since(start))
	if count != goroutines*rounds {
		t.Errorf("counted to %d", count)
	}
	f.clear(t, "contenders")
}

func releaseReaches(t *testing.T, f fleet) {
	a, b, r := f.side(t, redis.RedlockOptions{}), f.side(t, redis.RedlockOptions{}), request("reaches")
	a.get(t, r)
	f.everywhere(t, r.Name)
	wake := f.hang(t, 2, 3)
	a.release(t, r)
	next := request(r.Name)
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

// lose loses the next reply of some masters. The connection goes with it.
func (s *side) lose(some ...int) (lost []<-chan struct{}) {
	for _, i := range some {
		lost = append(lost, s.lines[i].DropReply("evalsha"))
	}
	return lost
}

func lostReplies(t *testing.T, f fleet) {
	a, b := f.lined(t, redis.RedlockOptions{}), f.lined(t, redis.RedlockOptions{})
	r := request("lost-minority")
	for _, l := range a.lose(0, 1) {
		defer func() { <-l }()
	}
	a.get(t, r)
	f.everywhere(t, r.Name)
	a.release(t, r)
	f.clear(t, r.Name)

	a, r = f.lined(t, redis.RedlockOptions{}), request("lost-majority")
	lost := a.lose(0, 1, 2)
	_, err := a.Acquire(t.Context(), r)
	unknown(t, err, 2)
	for _, l := range lost {
		<-l
	}
	f.clear(t, r.Name)
	a.refused(t, r, driver.ErrLost) // what ended uncertain never comes to life

	a, r = f.lined(t, redis.RedlockOptions{}), request("lost-release")
	a.get(t, r)
	f.everywhere(t, r.Name)
	lost = a.lose(0, 1, 2)
	err = a.Release(t.Context(), r)
	unknown(t, err, 2)
	for _, l := range lost {
		<-l
	}
	next := request(r.Name)
	b.get(t, next)
	a.release(t, r) // an earlier copy did it
	b.refused(t, request(r.Name), driver.ErrHeld)
	if err := a.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release again: %v", err)
	}
	b.release(t, next)

	a, r = f.lined(t, redis.RedlockOptions{}), request("lost-renewal")
	a.get(t, r)
	f.everywhere(t, r.Name)
	lost = a.lose(0, 1, 2)
	unknown(t, a.Renew(t.Context(), []driver.Request{r})[0].Err, 2)
	for _, l := range lost {
		<-l
	}
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
		t.Errorf("Renew: %v", p.Err)
	}
	a.release(t, r)
}

// releaseOnItsWay has a release that must leave a tombstone come while one that need not is under way.
func releaseOnItsWay(t *testing.T, f fleet) {
	a, r := f.lined(t, redis.RedlockOptions{NodeTimeout: 10 * time.Second}), request("on-its-way")
	a.get(t, r)
	f.everywhere(t, r.Name)
	var heals []func()
	for _, p := range a.lines {
		heals = append(heals, p.Hold(ToClient))
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
	a, r, gone := f.side(t, redis.RedlockOptions{}), request("minority"), request("gone")
	a.get(t, r)
	a.get(t, gone)
	for i, m := range f[:3] {
		await(t, "it stands there", func() bool { return f.votes(t, r.Name)[i] == 1 && f.votes(t, gone.Name)[i] == 1 })
		if i < 2 {
			m.cli(t).must("DEL", "dlock:{"+r.Name+"}:redlock")
		}
		m.cli(t).must("DEL", "dlock:{"+gone.Name+"}:redlock")
	}
	before := time.Now()
	p := a.Renew(t.Context(), []driver.Request{r, gone, request("never")})
	if p[0].Err != nil || p[0].Since.Before(before) || p[0].TTL != r.TTL-r.TTL/100-2*time.Millisecond {
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
	// One more does not answer: the three are a majority no more, but nobody can tell.
	wake := f.hang(t, 4)
	s := f.side(t, redis.RedlockOptions{NodeTimeout: 2 * time.Second})
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
	a, b, r := f.side(t, redis.RedlockOptions{}), f.side(t, redis.RedlockOptions{}), request("restart")
	a.get(t, r)
	f.everywhere(t, r.Name)
	for _, i := range []int{0, 1} {
		f[i].RestartEmpty(t)
		b.refused(t, request(r.Name), driver.ErrHeld)
		if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
			t.Errorf("Renew after %d restarts: %v", i+1, p.Err)
		}
	}
	f[2].RestartEmpty(t) // one too many: the loss is found out
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) {
		t.Errorf("Renew after 3 restarts: %v", p.Err)
	}
	next := request(r.Name)
	b.get(t, next)
	if err := a.Release(t.Context(), r); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	b.refused(t, request(r.Name), driver.ErrHeld)
	b.release(t, next)
	f.clear(t, r.Name)
}

// leastUptime has the counterexample of Redlock: a hold on three, of which one forgets, and the two that were down.
func leastUptime(t *testing.T, f fleet) {
	for _, o := range []redis.RedlockOptions{{}, {MinUptime: time.Hour}} {
		a, b, r := f.side(t, redis.RedlockOptions{}), f.side(t, o), request("uptime "+o.MinUptime.String())
		f[3].Kill(t)
		f[4].Kill(t)
		a.get(t, r)
		f[2].RestartEmpty(t)
		f[3].RestartEmpty(t)
		f[4].RestartEmpty(t)
		next := request(r.Name)
		_, err := b.Acquire(t.Context(), next)
		if o.MinUptime == 0 { // which is why there is the option
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
	s := f.side(t, redis.RedlockOptions{MinUptime: time.Second})
	await(t, "they have been up for long enough", func() bool {
		r := request("uptime")
		_, err := s.Acquire(t.Context(), r)
		return err == nil && s.Release(t.Context(), r) == nil
	})
}

func lossInTime(t *testing.T, f fleet) {
	const ttl = 4 * time.Second // a master has a tenth of it to answer
	c, _ := f.open(t, dlock.TTL(ttl))
	other, _ := f.open(t)
	var l *dlock.Lease
	await(t, "the masters grant it", func() (granted bool) {
		var err error
		l, err = c.Mutex("loss").Lock(t.Context())
		return err == nil
	})
	ctx := l.Context(t.Context())
	wake := f.hang(t, 1, 2, 3)
	asleep, last := time.Duration(0), time.Now() // how late this goroutine itself was at most
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
	next, err := other.Mutex("loss").Lock(t.Context())
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
	a, op := f.side(t, redis.RedlockOptions{}), f.side(t, redis.RedlockOptions{NodeTimeout: 2 * time.Second})
	for _, force := range []bool{false, true} {
		r := request(fmt.Sprint("break ", force))
		a.get(t, r)
		f.everywhere(t, r.Name)
		wake := f.hang(t, 0, 4)
		if err := op.Break(t.Context(), r.Name, 7, force); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Break with a token that there is not: %v", err)
		}
		if err := op.Break(t.Context(), r.Name, 0, force); err != nil {
			t.Fatalf("Break: %v", err)
		}
		wake() // those that hung can renew it, and are too few
		if p := a.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) {
			t.Errorf("Renew of a broken hold: %v", p.Err)
		}
		next := request(r.Name)
		if _, err := op.Acquire(t.Context(), next); force != (err == nil) {
			t.Errorf("Acquire after Break with force %v: %v", force, err)
		}
		a.refused(t, r, driver.ErrLost)
		a.Release(t.Context(), r)
		op.Release(t.Context(), next)
		f.clear(t, r.Name)
	}
}

func foreignKeys(t *testing.T, f fleet) {
	a, r := f.side(t, redis.RedlockOptions{}), request("foreign")
	key := "dlock:{" + r.Name + "}:redlock"
	spoil := func(i int, args ...any) {
		t.Helper()
		f[i].cli(t).must(args...)
		t.Cleanup(func() { f[i].cli(t).must("DEL", key) })
	}
	spoil(0, "RPUSH", key, "a list")
	spoil(1, "SET", key, "a text")
	a.get(t, r)
	a.release(t, r)
	spoil(2, "HSET", key, "a", "hash")
	_, err := a.Acquire(t.Context(), request(r.Name))
	unknown(t, err, 2)
	if !strings.Contains(err.Error(), key) || !errors.As(err, new(goredis.Error)) {
		t.Errorf("the error %v does not name the key", err)
	}
	for i, want := range []string{"list", "string", "hash"} {
		if is := f[i].cli(t).Type(t.Context(), key).Val(); is != want {
			t.Errorf("the %s has become a %s", want, is)
		}
	}
}

func scriptsForgotten(t *testing.T, f fleet) {
	a := f.side(t, redis.RedlockOptions{})
	forget := func() {
		for _, m := range f {
			m.cli(t).must("SCRIPT", "FLUSH")
		}
	}
	r := request("scripts")
	forget()
	a.get(t, r)
	forget()
	if p := a.Renew(t.Context(), []driver.Request{r})[0]; p.Err != nil {
		t.Errorf("Renew: %v", p.Err)
	}
	forget()
	a.release(t, r)
}

// leastRights has a user who may do what Redlock needs, and nothing else.
func leastRights(t *testing.T, f fleet) {
	for _, m := range f {
		c := m.cli(t)
		c.must("ACL", "SETUSER", "dlock", "on", ">canary", "~dlock:*", "-@all", "+eval", "+evalsha",
			"+get", "+set", "+exists", "+del", "+pexpire", "+pttl", "+time", "+info")
		t.Cleanup(func() { c.must("ACL", "DELUSER", "dlock") })
	}
	url := strings.Replace(f.url("node_timeout=10s&min_uptime=1ms"), "//", "//dlock:canary@", 1)
	c, err := dlock.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := c.Mutex("rights")
	for _, opts := range [][]dlock.BreakOption{{dlock.Force()}, nil} {
		var l *dlock.Lease
		await(t, "the masters have been up for a second", func() bool {
			l, err = m.TryLock(t.Context())
			return err == nil
		})
		_, inspect := c.Inspect(t.Context(), "rights")
		if err := errors.Join(l.Renew(t.Context()), inspect, c.Break(t.Context(), "rights", 0, opts...)); err != nil {
			t.Error(err)
		}
		l.Unlock(t.Context())
	}
	_, err = dlock.Open(t.Context(), strings.Replace(url, "canary", "canary2", 1))
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("Open with a wrong password: %v", err)
	}

	// A password that changes costs the new connections, and no lease.
	l, err := m.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range f {
		m.cli(t).must("ACL", "SETUSER", "dlock", "resetpass", ">other")
		m.cli(t).must("CLIENT", "KILL", "USER", "dlock")
	}
	if err := l.Renew(t.Context()); err == nil || errors.Is(err, dlock.ErrLost) {
		t.Errorf("Renew of a user who may not come in: %v", err)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
}

func closeHung(t *testing.T, f fleet) {
	a, r := f.side(t, redis.RedlockOptions{NodeTimeout: 3 * time.Second}), request("close")
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

// nothingPilesUp: masters that hang cost what is under way, and not what was.
func nothingPilesUp(t *testing.T, f fleet) {
	const timeout = 2 * time.Second
	a := f.side(t, redis.RedlockOptions{NodeTimeout: timeout})
	held := request("piles")
	a.get(t, held)
	f.hang(t, 3, 4)
	grow := func(n int) int {
		for range n {
			a.refused(t, request(held.Name), driver.ErrHeld)
		}
		r := request("piles too")
		a.get(t, r)
		a.release(t, r)
		low := runtime.NumGoroutine()
		for end := time.Now().Add(2 * timeout); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
			low = min(low, runtime.NumGoroutine())
		}
		return low
	}
	few, many := grow(10), grow(300)
	t.Logf("goroutines after 10 refusals %d, after 310 %d", few, many)
	if many > few+10 {
		t.Errorf("with 300 refusals more the goroutines went from %d to %d", few, many)
	}
}

func roundTrips(t *testing.T, f fleet) {
	const rounds, many = 50, 1000
	a := f.lined(t, redis.RedlockOptions{})
	rs := make([]driver.Request, many)
	for i := range rs {
		rs[i] = request(fmt.Sprint("trips-", i))
	}
	warm := request("warm for trips") // so that the masters have the scripts
	a.get(t, warm)
	f.everywhere(t, warm.Name)
	a.Renew(t.Context(), []driver.Request{warm})
	a.release(t, warm)
	f.clear(t, warm.Name)
	for i := range rs {
		a.get(t, rs[i])
	}
	f.everywhere(t, rs[many-1].Name)
	trips := func(what string, n int, do func(i int)) {
		t.Helper()
		const greeting = 4 // round trips of a new connection, at most
		var before []Counts
		for _, p := range a.lines {
			before = append(before, p.Counts())
		}
		start := time.Now()
		for i := range n {
			do(i)
		}
		took := time.Since(start)
		mark := request("mark") // behind all that is under way
		a.get(t, mark)
		f.everywhere(t, mark.Name)
		for i, p := range a.lines {
			now := p.Counts()
			if got := now.RoundTrips - before[i].RoundTrips - 1; got > int64(n)+greeting*(now.Dialled-before[i].Dialled) {
				t.Errorf("%s %d times made %d round trips to master %d", what, n, got, i)
			}
		}
		a.release(t, mark)
		f.clear(t, mark.Name)
		t.Logf("%s: %s", what, took/time.Duration(n))
	}
	trips("a grant sent again", rounds, func(i int) { a.get(t, rs[i]) })
	trips("a refusal", rounds, func(i int) { a.refused(t, request(rs[i].Name), driver.ErrHeld) })
	trips("Renew of 100", rounds, func(int) {
		for i, p := range a.Renew(t.Context(), rs[:100]) {
			if p.Err != nil {
				t.Fatalf("Renew of %d: %v", i, p.Err)
			}
		}
	})
	trips("Release", rounds, func(i int) { a.release(t, rs[i]) })
	trips("Acquire", rounds, func(i int) { a.get(t, rs[i]) })
	start := time.Now()
	for i, p := range a.Renew(t.Context(), rs) {
		if p.Err != nil {
			t.Fatalf("Renew of %d: %v", i, p.Err)
		}
	}
	t.Logf("Renew of %d: %s", many, time.Since(start))
}

func openURL(t *testing.T, f fleet) {
	c, err := dlock.Open(t.Context(), f.url("ttl=100s&node_timeout=10s&prefix=p/{x}"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a name").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := f[0].cli(t).Exists(t.Context(), "dlock:p/%7Bx%7D{a name}:redlock").Val(); n != 1 && l.Err() == nil {
		await(t, "the last master has it", func() bool {
			return f[0].cli(t).Exists(t.Context(), "dlock:p/%7Bx%7D{a name}:redlock").Val() == 1
		})
	}
	q, err := c.Inspect(t.Context(), "a name")
	if err != nil || q.Len() != 1 || q.Strangers[0].Age < 0 || q.Strangers[0].Left > 100*time.Second || q.Strangers[0].TTL != 100*time.Second {
		t.Errorf("Inspect: %+v, %v", q, err)
	}
	if l.Token() != 0 {
		t.Errorf("token %d", l.Token())
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	start := time.Now()
	wake := f.hang(t, 0, 1)
	again, err := dlock.Open(t.Context(), f.url(""))
	if err != nil {
		t.Errorf("Open with 2 of 5 hanging: %v", err)
	} else {
		again.Close()
	}
	wake()
	f.down(t, 0, 1, 2)
	_, err = dlock.Open(t.Context(), strings.Replace(f.url(""), "//", "//user:canary@", 1))
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "2 of 5 masters answered") && !strings.Contains(err.Error(), "0 of 5 masters answered") {
		t.Errorf("Open with 3 of 5 down: %v", err)
	}
	t.Logf("Open with 2 hanging, then with 3 down: %s: %v", time.Since(start), err)
}
