package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/driver"
)

func init() {
	for _, scheme := range []string{"checked", "unchecked"} {
		driver.Register(scheme, func(context.Context, driver.Config) (driver.Backend, error) { return nil, errRefused })
	}
	// It shows all that it may.
	driver.RegisterChecker("checked", func(_ context.Context, c driver.Config) ([]driver.Finding, error) {
		found := []driver.Finding{{About: "url", Found: c.URL.Redacted()}}
		if c.URL.Path == "/bad" {
			return found, fmt.Errorf("dial %s: %w", c.URL.Redacted(), errRefused)
		}
		return found, c.Params().Err()
	})
}

// TestCheck: a URL is read as Open does, and neither findings nor errors show its password.
func TestCheck(t *testing.T) {
	user := url.UserPassword("u", canary).String()
	found, err := dlock.Check(t.Context(), "checked://"+user+"@h/x?ttl=5s&prefix=p")
	if err != nil || len(found) != 1 || found[0].State != dlock.StateFine || found[0].Found != "checked://u:xxxxx@h/x" {
		t.Errorf("%v, %v", found, err)
	}
	found, err = dlock.Check(t.Context(), "checked://"+user+"@h/bad")
	if len(found) != 1 || err == nil || !strings.Contains(err.Error(), "dlock: check (checked)") || strings.Contains(err.Error()+found[0].Found, canary) || strings.Contains(err.Error()+found[0].Found, "c4n") {
		t.Errorf("%v, %v", found, err)
	}
	for raw, want := range map[string]error{
		"unchecked://h": dlock.ErrUnsupported, "nosuch://h": dlock.ErrInvalid, "checked://h?ttl=x": dlock.ErrInvalid, "checked://h?nosuch=1": dlock.ErrInvalid, "://": dlock.ErrInvalid,
	} {
		if _, err := dlock.Check(t.Context(), raw); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", raw, err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dlock.Check(ended, "checked://h"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestOpenBackend(t *testing.T) {
	b, err := dlock.OpenBackend(t.Context(), "memory:open-backend?ttl=5s")
	if err != nil {
		t.Fatal(err)
	}
	c, err := dlock.New(b)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, err := dlock.Open(t.Context(), "memory:open-backend")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := c.Mutex("x").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Mutex("x").TryLock(t.Context()); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("they are clients of other queues: %v", err)
	}
	if b, err := dlock.OpenBackend(t.Context(), "checked://h"); b != nil || !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "dlock: open (checked)") {
		t.Errorf("%v, %v", b, err)
	}
}
