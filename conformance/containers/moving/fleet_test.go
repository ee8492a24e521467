package moving

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
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

// stay is how long this process is in, and for how long it then keeps the lock.
var stay = time.Millisecond

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
	report, err := service.NewReporter(recorder, fmt.Sprint("process-", os.Getpid()))
	if err != nil {
		return err
	}
	defer report.Close()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for in.Scan() {
		}
		stop()
	}()
	for ctx.Err() == nil {
		var cut error
		err := turn(ctx, func(context.Context) error {
			cut = report.Section("fleet", time.Time{}, stay)
			time.Sleep(stay)
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

// fleetSize returns the number of processes of a fleet.
func fleetSize() int {
	if size.Long() {
		return 8
	}
	return 4
}

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
	r := service.NewRecorder(t)
	start := func(p phase, before ...string) *service.Child {
		return p.program.Start(t, slices.Concat(before, p.args, []string{name, r.Addr})...)
	}
	var fleet []*service.Child
	for i := range fleetSize() {
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
		r.More(t, "", 3*sections)
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
			r.More(t, "", sections)
		}
		driven = nil
		<-time.After(phaseTTL + phaseTTL/2) // what processes of the phase before held has expired
	}
	r.More(t, "", 3*sections)
	for _, c := range fleet {
		c.Wait()
	}
	r.Verdict(t)
}

// TestFleet: a fleet moves from Redis to etcd under load, with processes that are killed, and no
// two are in at the same time.
func TestFleet(t *testing.T) {
	t.Parallel()
	at := places(t)
	redis, etcd := at["redis"].url, at["etcd"].url
	moveFleet(t, "orders", phase{member, []string{redis}}, phase{member, []string{redis + " " + etcd}}, phase{member, []string{etcd}})
}
