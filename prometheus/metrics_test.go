package dlockprometheus

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// slow is a backend whose renewals take a second, and fail with an error from the channel.
type slow struct {
	*memory.Backend
	fail chan error
}

func (b slow) Renew(ctx context.Context, rs []driver.Request) []driver.Renewal {
	time.Sleep(time.Second)
	res := b.Backend.Renew(ctx, rs)
	select {
	case err := <-b.fail:
		for i := range res {
			res[i].Err = err
		}
	default:
	}
	return res
}

// A run with known waits and holds has exactly these metrics.
func TestMetricsOfAKnownRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{
			Class:   func(name string) string { class, _, _ := strings.Cut(name, "/"); return class },
			Buckets: []float64{1, 10},
		})
		inner, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b := slow{inner, make(chan error, 1)}
		c, err := dlock.New(b, dlock.TTL(30*time.Second), dlock.Logger(nil), dlock.Observe(m.Hooks()))
		if err != nil {
			t.Fatal(err)
		}
		lock := func(name string, opts ...dlock.LockOption) *dlock.Lease {
			t.Helper()
			l, err := c.Mutex(name, opts...).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		unlock := func(l *dlock.Lease) {
			t.Helper()
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		first := lock("orders/1") // at once; held for 5 s
		if _, err := c.Mutex("orders/1").Lock(first.Context(t.Context())); err != nil {
			t.Fatal(err) // re-enters: no wait, and no hold of its own
		}
		time.AfterFunc(5*time.Second, func() { unlock(first) })
		if _, err := c.Mutex("orders/1").TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if _, err := c.Mutex("orders/1").Lock(short); !errors.Is(err, dlock.ErrHeld) {
			t.Fatal(err)
		}
		cancel()
		if _, err := c.Mutex("orders/1").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err := c.Semaphore("orders/1", 2).Lock(t.Context()); !errors.Is(err, dlock.ErrConflict) {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second) // the first lease's re-entry still holds
		synctest.Wait()
		c.Break(t.Context(), "orders/1", first.Token(), dlock.Force())
		synctest.Wait()

		fixed := lock("mail/daily", dlock.FixedLease(20*time.Second))
		<-fixed.Lost() // after 19 s; there is nothing to renew
		kept := lock("mail/weekly")
		time.Sleep(12 * time.Second) // renewed once
		b.fail <- errors.New("no answer")
		if err := kept.Renew(t.Context()); err == nil {
			t.Fatal("a renewal that was to fail did not")
		}
		c.Close()

		want := `
# HELP dlock_hold_seconds How long holds lasted.
# TYPE dlock_hold_seconds histogram
dlock_hold_seconds_bucket{backend="memory",class="mail",end="closed",le="1"} 0
dlock_hold_seconds_bucket{backend="memory",class="mail",end="closed",le="10"} 0
dlock_hold_seconds_bucket{backend="memory",class="mail",end="closed",le="+Inf"} 1
dlock_hold_seconds_sum{backend="memory",class="mail",end="closed"} 13
dlock_hold_seconds_count{backend="memory",class="mail",end="closed"} 1
dlock_hold_seconds_bucket{backend="memory",class="mail",end="lost",le="1"} 0
dlock_hold_seconds_bucket{backend="memory",class="mail",end="lost",le="10"} 0
dlock_hold_seconds_bucket{backend="memory",class="mail",end="lost",le="+Inf"} 1
dlock_hold_seconds_sum{backend="memory",class="mail",end="lost"} 19
dlock_hold_seconds_count{backend="memory",class="mail",end="lost"} 1
dlock_hold_seconds_bucket{backend="memory",class="orders",end="lost",le="1"} 0
dlock_hold_seconds_bucket{backend="memory",class="orders",end="lost",le="10"} 1
dlock_hold_seconds_bucket{backend="memory",class="orders",end="lost",le="+Inf"} 1
dlock_hold_seconds_sum{backend="memory",class="orders",end="lost"} 6
dlock_hold_seconds_count{backend="memory",class="orders",end="lost"} 1
# HELP dlock_holds Current holds.
# TYPE dlock_holds gauge
dlock_holds{backend="memory",class="mail"} 0
dlock_holds{backend="memory",class="orders"} 0
# HELP dlock_losses_total Holds that were lost.
# TYPE dlock_losses_total counter
dlock_losses_total{backend="memory",class="mail",reason="time_up"} 1
dlock_losses_total{backend="memory",class="orders",reason="reported"} 1
# HELP dlock_renewed_holds_total Holds that renewal calls were to renew.
# TYPE dlock_renewed_holds_total counter
dlock_renewed_holds_total{backend="memory",outcome="renewed"} 1
dlock_renewed_holds_total{backend="memory",outcome="unknown"} 1
# HELP dlock_wait_seconds How long Lock and TryLock took.
# TYPE dlock_wait_seconds histogram
dlock_wait_seconds_bucket{backend="memory",class="mail",outcome="granted",le="1"} 2
dlock_wait_seconds_bucket{backend="memory",class="mail",outcome="granted",le="10"} 2
dlock_wait_seconds_bucket{backend="memory",class="mail",outcome="granted",le="+Inf"} 2
dlock_wait_seconds_sum{backend="memory",class="mail",outcome="granted"} 0
dlock_wait_seconds_count{backend="memory",class="mail",outcome="granted"} 2
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="canceled",le="1"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="canceled",le="10"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="canceled",le="+Inf"} 1
dlock_wait_seconds_sum{backend="memory",class="orders",outcome="canceled"} 0
dlock_wait_seconds_count{backend="memory",class="orders",outcome="canceled"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="error",le="1"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="error",le="10"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="error",le="+Inf"} 1
dlock_wait_seconds_sum{backend="memory",class="orders",outcome="error"} 0
dlock_wait_seconds_count{backend="memory",class="orders",outcome="error"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="granted",le="1"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="granted",le="10"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="granted",le="+Inf"} 1
dlock_wait_seconds_sum{backend="memory",class="orders",outcome="granted"} 0
dlock_wait_seconds_count{backend="memory",class="orders",outcome="granted"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="held",le="1"} 1
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="held",le="10"} 2
dlock_wait_seconds_bucket{backend="memory",class="orders",outcome="held",le="+Inf"} 2
dlock_wait_seconds_sum{backend="memory",class="orders",outcome="held"} 2
dlock_wait_seconds_count{backend="memory",class="orders",outcome="held"} 2
`
		names := []string{"dlock_hold_seconds", "dlock_holds", "dlock_losses_total", "dlock_renewed_holds_total", "dlock_wait_seconds"}
		if err := testutil.CollectAndCompare(m, strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
	})
}

// A Lock of a name that is not UTF-8 fails and is counted like others, and no hook panics.
func TestANameThatIsNoText(t *testing.T) {
	m := New(Options{Class: func(name string) string { return name }, Buckets: []float64{}})
	var log bytes.Buffer
	c, err := dlock.Open(t.Context(), "memory:", dlock.Logger(slog.New(slog.NewTextHandler(&log, nil))), dlock.Observe(m.Hooks()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mutex("a\xff").Lock(t.Context()); !errors.Is(err, dlock.ErrInvalidName) {
		t.Fatal(err)
	}
	c.Close()
	if n := testutil.CollectAndCount(m, "dlock_wait_seconds"); n != 1 || log.Len() > 0 {
		t.Errorf("%d series; the log: %s", n, log.String())
	}
}

// Buckets that are not in increasing order make New panic, and not the hook of each Lock.
func TestBucketsThatDoNotIncrease(t *testing.T) {
	for _, b := range [][]float64{{10, 1}, {1, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New took the buckets %v", b)
				}
			}()
			New(Options{Buckets: b})
		}()
	}
}

// The rules are valid, each alert fires in its case, and none fires when all is well.
func TestAlertRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skipf("promtool, which is in Debian's package prometheus, cannot be started: %v", err)
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "testdata/alerts_test.yml"}} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
