package mysql

import (
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// TestIdentityIsWhatTheUserSays: nothing is guessed from a pool or an address. One server may have
// several addresses, and two servers the same.
func TestIdentityIsWhatTheUserSays(t *testing.T) {
	identity := func(o Options) string {
		b, err := New(&sql.DB{}, o)
		if err != nil {
			t.Fatal(err)
		}
		return b.Capabilities().Identity
	}
	if got := identity(Options{Prefix: "p"}); got != "" {
		t.Errorf("without an identity it is %q", got)
	}
	a := identity(Options{Identity: "a"})
	if again := identity(Options{Identity: "a"}); a != again || identity(Options{Identity: "a"}) == identity(Options{Identity: "b"}) ||
		identity(Options{Identity: "a", Prefix: "p"}) == identity(Options{Identity: "a"}) {
		t.Error("it does not distinguish different identities")
	}
	s, err := parse(driver.Config{URL: &url.URL{Scheme: "mysql", Host: "h", Path: "/d"}, Hosts: []string{"h"}})
	if err != nil || s.o.Identity != "" {
		t.Errorf("for a URL without one it is %q, %v", s.o.Identity, err)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(&sql.DB{}, Options{Prefix: strings.Repeat("p", 256)}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a long prefix: %v", err)
	}
}

// TestNoPool: a nil pool is an error at once, and not a panic in another goroutine.
func TestNoPool(t *testing.T) {
	_, open := New(nil, Options{})
	_, cleanup := Cleanup(t.Context(), nil, time.Hour)
	for what, err := range map[string]error{
		"New": open, "Migrate": Migrate(t.Context(), nil), "Revert": Revert(t.Context(), nil, true), "Cleanup": cleanup,
	} {
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%s without a pool: %v", what, err)
		}
	}
}
