package driver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dlock-go/dlock/driver"
)

func TestIDText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var id, back driver.ID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), len(id), len(id)).Draw(t, "id"))
		text, err := id.MarshalText()
		if err != nil || string(text) != id.String() || len(text) != 32 {
			t.Fatalf("MarshalText: %q, %v; String: %q", text, err, id)
		}
		if err := back.UnmarshalText(text); err != nil || back != id {
			t.Fatalf("%s came back as %s: %v", id, back, err)
		}
	})
}

func TestIDJSON(t *testing.T) {
	id := driver.NewID()
	text, err := json.Marshal(map[driver.ID]driver.ID{id: id})
	if want := fmt.Sprintf(`{"%s":"%s"}`, id, id); err != nil || string(text) != want {
		t.Fatalf("%s, %v; want %s", text, err, want)
	}
	var back map[driver.ID]driver.ID
	if err := json.Unmarshal(text, &back); err != nil || back[id] != id {
		t.Fatalf("%s came back as %v: %v", text, back, err)
	}
}

// TestIDRefused: a text that is not an ID is refused, and the variable does not change.
func TestIDRefused(t *testing.T) {
	good := driver.NewID().String()
	for name, text := range map[string]string{
		"empty":        "",
		"short":        good[:31],
		"half":         good[:16],
		"long":         good + "0",
		"twice":        good + good,
		"not a digit":  "g" + good[1:],
		"at the end":   good[:31] + "g",
		"space before": " " + good[1:],
		"prefix":       "0x" + good[2:],
		"dashes":       "01234567-89ab-cdef-0123-456789abcdef",
		"not ASCII":    strings.Repeat("é", 16),
		"NUL":          good[:31] + "\x00",
	} {
		was := driver.NewID()
		id := was
		if err := id.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%s: %q is taken for an ID", name, text)
		} else if id != was {
			t.Errorf("%s: the variable was changed", name)
		} else if text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error shows the text, which may have any source: %v", name, err)
		}
	}
}

func TestNewID(t *testing.T) {
	const n = 10_000
	seen := map[driver.ID]bool{}
	var ones [128]int
	for range n {
		id := driver.NewID()
		if id.IsZero() || seen[id] {
			t.Fatalf("%s is zero or came twice", id)
		}
		seen[id] = true
		for bit := range ones {
			ones[bit] += int(id[bit/8]>>(bit%8)) & 1
		}
	}
	for bit, c := range ones {
		if c < n/2-500 || c > n/2+500 { // ten standard deviations
			t.Errorf("bit %d is set in %d of %d IDs: not random", bit, c, n)
		}
	}
	if !(driver.ID{}).IsZero() || (driver.ID{15: 1}).IsZero() {
		t.Error("IsZero is wrong")
	}
}

func TestRetryIsHeld(t *testing.T) {
	err := fmt.Errorf("asked: %w", &driver.RetryError{After: time.Second})
	var retry *driver.RetryError
	if !errors.Is(err, driver.ErrHeld) || !errors.As(err, &retry) || retry.After != time.Second {
		t.Errorf("%v does not match", err)
	}
	for _, other := range []error{driver.ErrLost, driver.ErrNotHeld, driver.ErrConflict, driver.ErrClosed} {
		if errors.Is(err, other) {
			t.Errorf("%v matches %v", err, other)
		}
	}
	if retry.Error() != driver.ErrHeld.Error() {
		t.Errorf("%q", retry)
	}
}

// TestSentinels: each has exactly one meaning, so none matches another.
func TestSentinels(t *testing.T) {
	all := []error{
		driver.ErrHeld, driver.ErrLost, driver.ErrNotHeld, driver.ErrUpgrade, driver.ErrConflict, driver.ErrUnsupported,
		driver.ErrClosed, driver.ErrInvalid,
	}
	for i, a := range all {
		for j, b := range all {
			if errors.Is(a, b) != (i == j) || (a.Error() == b.Error()) != (i == j) {
				t.Errorf("%v and %v", a, b)
			}
		}
	}
}

func TestMode(t *testing.T) {
	x, s := driver.Exclusive, driver.Shared
	if !x.Covers(x) || !x.Covers(s) || !s.Covers(s) || s.Covers(x) {
		t.Error("Covers is wrong")
	}
	if x.String() != "exclusive" || s.String() != "shared" {
		t.Errorf("%v, %v", x, s)
	}
}

func TestRequestKind(t *testing.T) {
	id := driver.NewID()
	for _, c := range []struct {
		r               driver.Request
		join, semaphore bool
	}{
		{driver.Request{ID: id, Owner: id}, false, false},
		{driver.Request{ID: id, Owner: driver.NewID()}, true, false},
		{driver.Request{ID: id, Owner: id, Mode: driver.Shared}, false, false},
		{driver.Request{ID: id, Owner: id, Mode: driver.Shared, Limit: 1}, false, true},
		{driver.Request{ID: id, Owner: id, Limit: 1}, false, false},
	} {
		if c.r.Join() != c.join || c.r.Semaphore() != c.semaphore {
			t.Errorf("%+v: join %v, semaphore %v", c.r, c.r.Join(), c.r.Semaphore())
		}
	}
}

func TestRefused(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{
		driver.ErrHeld, driver.ErrLost, driver.ErrUpgrade, driver.ErrConflict, driver.ErrInvalid, driver.ErrUnsupported, driver.ErrClosed,
		fmt.Errorf("TTL: %w", driver.ErrInvalid), &driver.HeldError{}, &driver.RetryError{},
	} {
		if !driver.Refused(err) {
			t.Errorf("%v is no refusal", err)
		}
		u := driver.Unsettled(err)
		if driver.Refused(u) || driver.Refused(fmt.Errorf("here: %w", u)) || !errors.Is(u, err) || u.Error() != err.Error() {
			t.Errorf("%v, unsettled, is %v, which is a refusal: %t", err, u, driver.Refused(u))
		}
	}
	for _, err := range []error{
		nil, errors.New("connection reset"), context.Canceled, context.DeadlineExceeded, driver.ErrNotHeld,
		driver.Waited(over), driver.WaitedFor(over, &driver.HeldError{}),
	} {
		if driver.Refused(err) {
			t.Errorf("%v is a refusal", err)
		}
	}
	if !driver.HasWaited(fmt.Errorf("here: %w", driver.Waited(over))) || driver.HasWaited(driver.ErrHeld) || driver.HasWaited(context.Canceled) {
		t.Error("HasWaited")
	}
}
