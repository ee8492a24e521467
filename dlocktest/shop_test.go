package dlocktest_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
)

// Charge is the code under test: it charges an order, which takes a minute.
func Charge(ctx context.Context, client *dlock.Client, order string) error {
	orders := client.Mutex("orders/"+order, dlock.Wait(5*time.Second))
	return dlock.Do(ctx, orders, func(ctx context.Context) error {
		select {
		case <-time.After(time.Minute): // the partner's answer
			return nil
		case <-ctx.Done(): // the lease is lost: stop
			return context.Cause(ctx)
		}
	})
}

func TestAnOrderThatIsHeldIsNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		c.Hold("orders/42")
		if err := Charge(t.Context(), c.Client, "42"); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("Charge returned %v", err)
		}
	})
}

func TestAChargeStopsWhenItsLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		start := time.Now()
		time.AfterFunc(10*time.Second, func() { c.Lose("orders/42") })
		err := Charge(t.Context(), c.Client, "42")
		if !errors.Is(err, dlock.ErrLost) || time.Since(start) != 10*time.Second {
			t.Errorf("after %s Charge returned %v", time.Since(start), err)
		}
	})
}

func TestAChargeSurvivesASlowService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		c.Delay(2 * time.Second)
		if err := Charge(t.Context(), c.Client, "42"); err != nil {
			t.Error(err)
		}
		c.Delay(10 * time.Second) // longer than Charge waits
		if err := Charge(t.Context(), c.Client, "42"); err == nil || errors.Is(err, dlock.ErrHeld) {
			t.Errorf("Charge returned %v", err)
		}
	})
}

func TestAChargeFailsWhileTheServiceIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		down := errors.New("connection refused")
		c.Fail(down)
		if err := Charge(t.Context(), c.Client, "42"); !errors.Is(err, down) || errors.Is(err, dlock.ErrHeld) {
			t.Errorf("Charge returned %v", err)
		}
	})
}

// The page shows exactly these tests, and each has less than 15 lines.
func TestThePageShowsTheseTests(t *testing.T) {
	page, err := os.ReadFile("../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("shop_test.go")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?ms)^func (Charge|TestA\w+)\(.*?^}\n`).FindAllString(string(source), -1)
	if len(shown) != 5 {
		t.Fatalf("%d functions", len(shown))
	}
	for _, f := range shown {
		if name, _, _ := strings.Cut(f, "{"); !strings.Contains(string(page), f) {
			t.Errorf("docs/testing.md does not show %s as it is", name)
		} else if lines := strings.Count(f, "\n"); lines >= 15 {
			t.Errorf("%s has %d lines", name, lines)
		}
	}
}
