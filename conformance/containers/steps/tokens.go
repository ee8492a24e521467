package steps

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/conformance/internal/await"
	"github.com/dlock-go/dlock/driver"
)

// TokenBase checks that clients with the parameter token_base add it to every token that goes out,
// and take it from every one that comes in. The service keeps tokens without it, as a client
// without the parameter shows.
func TokenBase(t testing.TB, url string) {
	t.Helper()
	const name, ttl, base = "tokens with a base", 20 * time.Second, driver.Token(4e15)
	open := func(url string) driver.Backend {
		b, err := dlock.OpenBackend(await.Bounded(t, time.Minute), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	based := fmt.Sprintf("%s?token_base=%d", url, base)
	plain, a, b := open(url), open(based), open(based)
	r := Asked(plain, name, ttl)
	before := Acquired(t, plain, r).Token
	Released(t, plain, r)

	r = Asked(a, name, ttl)
	token := Acquired(t, a, r).Token
	if token <= base+before {
		t.Errorf("the token is %d, with the base %d and after %d", token, base, before)
	}
	join := Asked(b, name, ttl)
	join.Owner, join.Token = r.ID, token
	for range 2 { // the second time it is resumed
		if got := Acquired(t, b, join).Token; got != token {
			t.Errorf("a join has the token %d, its hold %d", got, token)
		}
		if got := Acquired(t, a, r).Token; got != token {
			t.Errorf("sent again, a request has the token %d, before %d", got, token)
		}
	}
	next := Waiting(b, name, ttl)
	granted := Acquiring(b, next)
	await.That(t, "one waits", func() bool { return Queue(t, a, name).Len() == 3 })
	for _, see := range []struct {
		by    driver.Backend
		token driver.Token
	}{{a, token}, {b, token}, {plain, token - base}} {
		q := Queue(t, see.by, name)
		for _, e := range q.Holders() {
			if e.Token != see.token {
				t.Errorf("Inspect shows the token %d, want %d", e.Token, see.token)
			}
		}
		for _, e := range q.Waiters() {
			if e.Token != 0 {
				t.Errorf("Inspect shows the token %d of a waiter", e.Token)
			}
		}
	}
	breaks := func(token driver.Token) error {
		return b.(driver.Breaker).Break(await.Bounded(t, time.Minute), name, token, true)
	}
	for _, wrong := range []driver.Token{0, 1, base, token - base, token + 1} {
		if err := breaks(wrong); !errors.Is(err, driver.ErrNotHeld) {
			t.Errorf("Break with the token %d, where %d holds: %v", wrong, token, err)
		}
	}
	if err := breaks(token); err != nil {
		t.Errorf("Break: %v", err)
	}
	if err := await.From(t, granted); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if got := Acquired(t, b, next).Token; got <= token {
		t.Errorf("the next token is %d after %d", got, token)
	}
	Released(t, b, next)
}
