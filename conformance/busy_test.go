package conformance_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// lateClock is memory behind a network. It reads the clock after the replies to these calls.
type lateClock struct {
	*memory.Backend
	network                        time.Duration
	grants, again, waits, renewals bool

	granted *sync.Map // the granted requests
}

func (l lateClock) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := l.Backend.Acquire(ctx, r)
	time.Sleep(l.network)
	_, again := l.granted.LoadOrStore(r.ID, true)
	if again && l.again || !again && (l.grants && !r.Wait || l.waits && r.Wait) {
		g.SentAt = time.Now()
	}
	return g, err
}

func (l lateClock) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	res := l.Backend.Renew(ctx, rs)
	time.Sleep(l.network)
	for i := range res {
		if l.renewals {
			res[i].SentAt = time.Now()
		}
	}
	return res
}

// Even if the harness has no powers, a driver that counts from its replies fails, whether its
// service is behind a network or in the process.
func TestProofBeforeNeedsNoPower(t *testing.T) {
	for _, network := range []time.Duration{0, 100 * time.Microsecond} {
		for _, c := range []struct {
			counts lateClock
			want   string
		}{
			{lateClock{}, ""},
			{lateClock{grants: true}, "the promise of a grant,"},
			{lateClock{again: true}, "the promise of a grant sent again"},
			{lateClock{renewals: true}, "the promise of a renewal"},
			{lateClock{waits: true}, "the promise of a grant after a wait"},
		} {
			space := new(memory.Space)
			h := conformance.Harness{Open: func(t conformance.T) driver.Backend {
				b := c.counts
				b.Backend, b.network, b.granted = inMemory(t, space), network, new(sync.Map)
				return b
			}}
			skipped, err := law(t, "proof-before").Try(t.Context(), h)
			if skipped != "" || c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%+v behind a network of %s: skipped %q, %v; want %q", c.counts, network, skipped, err, c.want)
			}
		}
	}
}
