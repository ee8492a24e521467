//go:build unix

package conformance

import (
	"context"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// stopped is memory on a machine that stops the process for a while, at the ends of waits.
type stopped struct {
	*memory.Backend
	t     *testing.T
	stops *atomic.Int64 // how often it will
}

func (s stopped) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.Backend.Acquire(ctx, r)
	if r.Wait && ctx.Err() != nil && s.stops.Add(-1) >= 0 {
		if out, err := exec.Command("sh", "-c", "kill -STOP $PPID; sleep 0.3; kill -CONT $PPID").CombinedOutput(); err != nil {
			s.t.Errorf("%v: %s", err, out)
		}
	}
	return g, err
}

// TestAStoppedMachineIsExcused: a sound driver passes although every call of the first run was late
// because the process was stopped, and the log says why the law ran again.
func TestAStoppedMachineIsExcused(t *testing.T) {
	space, stops := new(memory.Space), new(atomic.Int64)
	stops.Store(5) // all rounds of a call
	h := Harness{Open: func(T) driver.Backend { return stopped{newMemory(space), t, stops} }}
	r := &recorder{name: "cancel-prompt"}
	r.ctx, r.cancel = context.WithCancel(t.Context())
	r.record(lawOf(t, r.name), h)
	if r.failed || !strings.Contains(r.String(), "proves nothing; once more: Lock returned more than") {
		t.Errorf("failed %t:\n%s", r.failed, r)
	}
}
