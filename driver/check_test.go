package driver_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/dlock-go/dlock/driver"
)

func TestRegisterChecker(t *testing.T) {
	check := func(context.Context, driver.Config) ([]driver.Finding, error) { return nil, nil }
	if !panics(func() { driver.RegisterChecker("test-check", check) }) {
		t.Error("a scheme without an opener gets a checker")
	}
	driver.Register("test-check", opener(nil))
	if driver.LookupChecker("test-check") != nil || !panics(func() { driver.RegisterChecker("test-check", nil) }) {
		t.Error("there is a checker, or none counts as one")
	}
	driver.RegisterChecker("test-check", check)
	if driver.LookupChecker("test-check") == nil || !panics(func() { driver.RegisterChecker("test-check", check) }) {
		t.Error("there is no checker, or there are two")
	}
}

func TestStates(t *testing.T) {
	b, err := json.Marshal([]driver.State{driver.Fine, driver.Unseen, driver.Risky, driver.Wrong, 9})
	if want := `["fine","unseen","risky","wrong","wrong"]`; err != nil || string(b) != want {
		t.Errorf("%s, %v; want %s", b, err, want)
	}
}
