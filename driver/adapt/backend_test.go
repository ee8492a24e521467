package adapt_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/adapt"
)

func TestOptions(t *testing.T) {
	c := &client{s: newShelf(true)}
	for says, o := range map[string]adapt.Options{
		"Backend and Format must be set": {Backend: "shelf"},
		"the least is 1ms":               {Backend: "shelf", Format: "shelf", RetryDelay: -time.Second},
		"at least MinTTL":                {Backend: "shelf", Format: "shelf", MinTTL: time.Minute, MaxTTL: time.Second},
	} {
		if _, err := adapt.New(c, o); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := adapt.New(nil, adapt.Options{Backend: "shelf", Format: "shelf"}); !errors.Is(err, driver.ErrInvalid) {
		t.Error(err)
	}
}

// choosy is a client of a service that carries only short names.
type choosy struct{ *client }

func (choosy) CheckName(name string) error {
	if len(name) > 3 {
		return fmt.Errorf("%w name: at most 3 bytes are allowed", driver.ErrInvalid)
	}
	return nil
}

func TestNamesThatAreRefused(t *testing.T) {
	c := &client{s: newShelf(true)}
	b, err := adapt.New(choosy{c}, adapt.Options{Backend: "shelf", Format: "shelf"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, acquire := b.Acquire(t.Context(), ask("four", time.Minute))
	_, inspect := b.Inspect(t.Context(), "four")
	if !errors.Is(acquire, driver.ErrInvalid) || !errors.Is(inspect, driver.ErrInvalid) || c.sent() != 0 {
		t.Errorf("%d calls: %v, %v", c.sent(), acquire, inspect)
	}
	get(t, b, ask("abc", time.Minute))
}

// lossy is a client that learns of losses.
type lossy struct {
	*client
	lost func(driver.ID)
}

func (l *lossy) Notify(lost func(driver.ID)) { l.lost = lost }

// TestLosses: a loss that the calls report is final, and reaches the backend's caller if the
// request is one of this client.
func TestLosses(t *testing.T) {
	l := &lossy{client: &client{s: newShelf(true)}}
	b, err := adapt.New(l, adapt.Options{Backend: "shelf", Format: "shelf"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var notified []driver.ID
	b.Notify(func(id driver.ID) { notified = append(notified, id) })
	r := ask("x", time.Minute)
	get(t, b, r)
	l.lost(driver.NewID())
	l.lost(r.ID)
	if len(notified) != 1 || notified[0] != r.ID {
		t.Errorf("notified of %v", notified)
	}
	_, err = b.Acquire(t.Context(), r)
	if p := b.Renew(t.Context(), []driver.Request{r})[0]; !errors.Is(p.Err, driver.ErrLost) || !errors.Is(err, driver.ErrLost) {
		t.Errorf("%v, %v", p.Err, err)
	}
}

// TestRenewIsBounded: at most 16 calls are under way.
func TestRenewIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := start(t, setUp{true, false, false}, newShelf(true))
		var rs []driver.Request
		for i := range 100 {
			rs = append(rs, ask(fmt.Sprint(i), time.Minute))
			get(t, b, rs[i])
		}
		var underWay, most atomic.Int32
		c.setGate(func(_ context.Context, executed bool) error {
			if !executed {
				most.Store(max(most.Load(), underWay.Add(1)))
				time.Sleep(time.Second)
				underWay.Add(-1)
			}
			return nil
		})
		began := time.Now()
		for _, p := range b.Renew(t.Context(), rs) {
			if p.Err != nil || p.TTL != time.Minute || p.SentAt.Before(began) {
				t.Errorf("%+v", p)
			}
		}
		if d := time.Since(began); most.Load() != 16 || d != 7*time.Second {
			t.Errorf("%d calls at a time, for %s", most.Load(), d)
		}
		c.setGate(nil)
	})
}

// TestClose: it waits for calls under way, and releases all but fixed holds.
func TestClose(t *testing.T) {
	for _, u := range setUps {
		synctest.Test(t, func(t *testing.T) {
			s := newShelf(u.outlives)
			b, c := start(t, u, s)
			held, fixed, late := ask("held", time.Hour), ask("fixed", time.Hour), ask("late", time.Hour)
			fixed.Fixed = true
			get(t, b, held)
			get(t, b, fixed)
			c.setGate(func(_ context.Context, executed bool) error {
				if executed {
					time.Sleep(time.Second)
				}
				return nil
			})
			done := begin(t.Context(), b, late)
			synctest.Wait()
			var fixedAtClose driver.ID
			c.atClose = func(underWay int) {
				if fixedAtClose = s.holder("fixed"); underWay > 0 {
					t.Errorf("%d calls are under way when the connection is closed", underWay)
				}
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			if err := <-done; !errors.Is(err, driver.ErrClosed) {
				t.Error(err)
			}
			if s.holder("held") != (driver.ID{}) || s.holder("late") != (driver.ID{}) || (s.holder("fixed") == fixed.ID) != u.outlives || (fixedAtClose == fixed.ID) != u.outlives {
				t.Errorf("%s: left are %v, %v, %v", u, s.holder("held"), s.holder("late"), s.holder("fixed"))
			}
		})
	}
}
