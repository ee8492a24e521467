package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/dlocktest"
)

// apples restocks apples, with ten crates of ten seconds each, and returns how many came.
func apples(t *testing.T, c *dlocktest.Client) (crates int, err error) {
	err = restock(t.Context(), c.Client, "apples", 10, func(context.Context) error {
		time.Sleep(10 * time.Second)
		crates++
		return nil
	})
	return crates, err
}

func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		release := c.Hold("items/apples")
		if crates, err := apples(t, c); crates != 0 || !errors.Is(err, errBusy) {
			t.Errorf("while it was held %d crates came: %v", crates, err)
		}
		time.AfterFunc(30*time.Second, release) // within the minute
		if crates, err := apples(t, c); crates != 10 || err != nil {
			t.Errorf("after the release %d crates came: %v", crates, err)
		}
	})
}

func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		time.AfterFunc(25*time.Second, func() { c.Lose("items/apples") })
		if crates, err := apples(t, c); crates != 3 || !errors.Is(err, dlock.ErrLost) {
			t.Errorf("%d crates came, want the 3 that had begun: %v", crates, err)
		}
	})
}

func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dlocktest.New(t)
		c.Delay(2 * time.Second) // less than the TTL allows
		if crates, err := apples(t, c); crates != 10 || err != nil {
			t.Errorf("%d crates came: %v", crates, err)
		}
	})
}
