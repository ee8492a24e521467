package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/memory"
)

// explaining is a backend that loses all at the first renewal, or on request, and says why.
type explaining struct {
	*memory.Backend
	lost func(driver.ID)
	held driver.ID
}

const because = "the directory was moved"

func (e *explaining) Notify(lost func(driver.ID)) { e.lost = lost }
func (e *explaining) Explain(driver.ID) error     { return fmt.Errorf("%w: %s", driver.ErrLost, because) }

func (e *explaining) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	e.held = r.ID
	return e.Backend.Acquire(ctx, r)
}

func (e *explaining) Renew(_ context.Context, rs []driver.Request) []driver.Renewal {
	res := make([]driver.Renewal, len(rs))
	for i := range res {
		res[i].Err = e.Explain(rs[i].ID)
	}
	return res
}

// What the backend says of a loss is what the lease says, and still matches ErrLost.
func TestLossSaysWhy(t *testing.T) {
	for _, how := range []string{"at a renewal", "by Notify", "by Renew"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, err := memory.New(memory.Options{})
				if err != nil {
					t.Fatal(err)
				}
				b := &explaining{Backend: m}
				var log strings.Builder
				c, err := dlock.New(b, dlock.Logger(slog.New(slog.NewTextHandler(&log, nil))))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				l, err := c.Mutex("a").Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				ctx := l.Context(t.Context())
				said := map[string]error{}
				switch how {
				case "by Notify":
					go b.lost(b.held)
				case "by Renew":
					said["Renew"] = l.Renew(t.Context())
				}
				time.Sleep(11 * time.Second) // a third of the TTL
				said["cause"], said["Err"], said["Unlock"] = context.Cause(ctx), l.Err(), l.Unlock(t.Context())
				for what, err := range said {
					if !errors.Is(err, dlock.ErrLost) || !strings.Contains(err.Error(), because) {
						t.Errorf("%s: %v", what, err)
					}
				}
				synctest.Wait()
				if !strings.Contains(log.String(), because) {
					t.Errorf("the log: %s", log.String())
				}
			})
		})
	}
}

// TestLossSaysWhyByItself: where the backend says no more than that the hold is lost, the errors
// have the reason all the same, and the log has it once.
func TestLossSaysWhyByItself(t *testing.T) {
	var log strings.Builder
	ended := make(chan dlock.HoldEnd, 1)
	c, err := dlock.Open(t.Context(), "memory:"+t.Name()+"?ttl=1s", dlock.Logger(slog.New(slog.NewTextHandler(&log, nil))),
		dlock.Observe(dlock.Hooks{Ended: func(_ context.Context, e dlock.HoldEnd) { ended <- e }}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Mutex("a").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx := l.Context(t.Context())
	if err := c.Break(t.Context(), "a", l.Token()); err != nil {
		t.Fatal(err)
	}
	const want = "the backend no longer has it; another client may hold the lock now"
	for what, err := range map[string]error{"Renew": l.Renew(t.Context()), "Err": l.Err(), "cause": context.Cause(ctx), "Unlock": l.Unlock(t.Context())} {
		if !errors.Is(err, dlock.ErrLost) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", what, err, want)
		}
	}
	if e := <-ended; e.Loss != dlock.LossDenied || !errors.Is(e.Err, dlock.ErrLost) || !strings.Contains(e.Err.Error(), want) {
		t.Errorf("Ended: %+v; want %q", e, want)
	}
	if strings.Contains(log.String(), " err=") || strings.Count(log.String(), "no longer has it") != 1 {
		t.Errorf("the log: %s", log.String())
	}
}
