package moving

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/containers/service"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/internal/size"
)

// until waits until cond holds.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	await.That(t, what, cond)
}

// recorder records which processes are in. It is outside of all of them and of all locks: each
// process reports through a connection before and after its work, and is out when the connection
// ends, as that of a process that was killed. The server of a lock may see that end first and let
// the next one in. So whether two were in is decided by what the first of them does next: if it
// reports that it is out, it was in; if its connection ends, it had been killed.
type recorder struct {
	l net.Listener

	mu         sync.Mutex
	in         map[net.Conn]string   // with what each reported
	doubts     map[net.Conn][]string // those that entered while it was in
	sections   int
	violations []string
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{l: l, in: map[net.Conn]string{}, doubts: map[net.Conn][]string{}}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()
	return r
}

// serve answers "in WHO" and "out" with "ok".
func (r *recorder) serve(c net.Conn) {
	defer c.Close()
	defer r.leave(c, false)
	for s := bufio.NewScanner(c); s.Scan(); {
		if by, enters := strings.CutPrefix(s.Text(), "in "); enters {
			r.enter(c, by)
		} else {
			r.leave(c, true)
		}
		if _, err := io.WriteString(c, "ok\n"); err != nil {
			return
		}
	}
}

func (r *recorder) enter(c net.Conn, by string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn, other := range r.in {
		r.doubts[conn] = append(r.doubts[conn], by+" is in together with "+other)
	}
	r.in[c] = by
	r.sections++
}

// leave records that a process is out. lives: it said so itself.
func (r *recorder) leave(c net.Conn, lives bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if lives {
		r.violations = append(r.violations, r.doubts[c]...)
	}
	delete(r.doubts, c)
	delete(r.in, c)
}

// more waits for n more sections.
func (r *recorder) more(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.sections
	}
	from := count()
	until(t, fmt.Sprintf("%d more sections", n), func() bool { return count() >= from+n })
}

// check fails the test if two were in.
func (r *recorder) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.violations {
		t.Error(v)
	}
	t.Logf("%d sections", r.sections)
}

// stay is how long this process is in, and for how long it then keeps the lock.
var stay = time.Millisecond

// inside is what a process does while it has the lock.
func inside(c net.Conn, answers *bufio.Scanner, by string) error {
	for _, line := range []string{"in " + by, "out"} {
		if _, err := io.WriteString(c, line+"\n"); err != nil {
			return err
		}
		if !answers.Scan() {
			return errors.New("the recorder has ended")
		}
		time.Sleep(stay)
	}
	return nil
}

// member is a process of a fleet that locks with dlock.
var member = service.NewProgram("member", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	url, name, recorder := args[0], args[1], args[2]
	c, err := dlock.Open(context.Background(), url, dlock.Logger(nil), dlock.TTL(phaseTTL))
	if err != nil {
		return err
	}
	defer c.Close()
	m := c.Mutex(name)
	return works(in, recorder, func(ctx context.Context) (func() error, error) {
		l, err := m.Lock(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Unlock(context.Background()) }, nil
	})
})

// works locks, reports to the recorder and unlocks until in ends.
func works(in *bufio.Scanner, recorder string, lock func(context.Context) (unlock func() error, err error)) error {
	return takesTurns(in, recorder, func(ctx context.Context, work func(context.Context) error) error {
		unlock, err := lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		return work(ctx)
	})
}

// takesTurns calls turn until in ends. A turn locks, calls work, which reports to the recorder, and
// unlocks.
func takesTurns(in *bufio.Scanner, recorder string, turn func(ctx context.Context, work func(context.Context) error) error) error {
	report, err := net.Dial("tcp", recorder)
	if err != nil {
		return err
	}
	defer report.Close()
	answers := bufio.NewScanner(report)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for in.Scan() {
		}
		stop()
	}()
	for ctx.Err() == nil {
		var cut error
		err := turn(ctx, func(context.Context) error {
			cut = inside(report, answers, fmt.Sprint("process ", report.LocalAddr()))
			return cut
		})
		if cut != nil {
			return cut
		}
		pause := time.Millisecond
		if err != nil {
			pause = 10 * time.Millisecond // what another process left expires
		}
		time.Sleep(pause)
	}
	return nil
}

// phase is what the processes of a phase are.
type phase struct {
	program service.Program
	args    []string
}

// fleetSize is the number of processes of a fleet.
const fleetSize = 8

// moveFleet replaces the processes of a fleet, one by one, by those of the next phase. Every third
// of them is killed.
func moveFleet(t *testing.T, name string, phases ...phase) {
	t.Helper()
	moveDriven(t, nil, name, phases...)
}

// moveDriven is moveFleet for a fleet whose first processes each drive a program of another
// language. Their first argument is its address. It ends with its driver.
func moveDriven(t *testing.T, driven []*service.Server, name string, phases ...phase) {
	t.Helper()
	r := newRecorder(t)
	start := func(p phase, before ...string) *service.Child {
		return p.program.Start(t, slices.Concat(before, p.args, []string{name, r.l.Addr().String()})...)
	}
	var fleet []*service.Child
	for i := range fleetSize {
		if driven == nil {
			fleet = append(fleet, start(phases[0]))
		} else {
			fleet = append(fleet, start(phases[0], driven[i].Addr))
		}
	}
	sections := 5
	if size.Long() {
		sections = 50
	}
	for _, p := range phases[1:] {
		r.more(t, 3*sections)
		for i, c := range fleet {
			killed := i%3 == 0
			if !killed {
				c.Wait()
			}
			if driven != nil {
				driven[i].Kill(t) // before its driver, whose end would let it release what it holds
			}
			if killed {
				c.Kill()
			}
			fleet[i] = start(p)
			r.more(t, sections)
		}
		driven = nil
		<-time.After(phaseTTL + phaseTTL/2) // what processes of the phase before held has expired
	}
	r.more(t, 3*sections)
	for _, c := range fleet {
		c.Wait()
	}
	r.check(t)
}

// moveHere is moveFleet for a fleet of other software that moves within its server.
func moveHere(t *testing.T, name string, phases ...phase) {
	t.Helper()
	moveFleet(t, name, here(phases)...)
}

// here returns the phases of such a fleet. A short run ends with the second one: the step to the
// third is that of TestFleet.
func here(phases []phase) []phase {
	if size.Long() {
		return phases
	}
	return phases[:2]
}

// TestFleet: a fleet of eight processes moves from Redis to etcd under load, with processes that
// are killed, and no two are in at the same time.
func TestFleet(t *testing.T) {
	at := places(t)
	redis, etcd := at["redis"].url, at["etcd"].url
	moveFleet(t, "orders", phase{member, []string{redis}}, phase{member, []string{redis + " " + etcd}}, phase{member, []string{etcd}})
}
