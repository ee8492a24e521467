package kit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// own is a driver's type of a request.
var errFailed = errors.New("failed")

type own struct {
	OwnRequest
	more int
}

func newRequests() Requests[*own] {
	return NewRequests(func(r OwnRequest) *own { return &own{OwnRequest: r, more: 1} })
}

func TestARequestIsRecordedOnce(t *testing.T) {
	rs := newRequests()
	r := request("x").Request
	m := rs.Begin(r)
	if m.ID != r.ID || m.more != 1 || m.Asking != 1 {
		t.Errorf("recorded as %+v", m)
	}
	if again := rs.Begin(r); again != m || m.Asking != 2 || rs.Len() != 1 {
		t.Error("the same request twice is two")
	}
	rs.End(m, errFailed)
	rs.End(m, nil)
	if got, is := rs.Find(r.ID); got != m || !is || m.Asking != 0 {
		t.Errorf("found %+v", got)
	}
	if !rs.Remove(m) || rs.Remove(m) || rs.Len() != 0 {
		t.Error("not removed once")
	}
	if _, is := rs.Find(r.ID); is {
		t.Error("found a removed request")
	}
	next := rs.Begin(r)
	if rs.Has(m) || rs.Remove(m) || !rs.Has(next) {
		t.Error("a removed request is taken for its successor")
	}
}

func TestWhatIsLeftAtClose(t *testing.T) {
	rs := newRequests()
	add := func(fixed bool) *own {
		r := request("x").Request
		r.Fixed = fixed
		return rs.Begin(r)
	}
	plain, kept, asked, refused, released, again := add(false), add(true), add(true), add(true), add(true), add(true)
	rs.End(plain, nil)
	rs.End(kept, nil)
	rs.End(refused, errFailed)
	rs.End(released, nil)
	released.Releasing(false)
	rs.End(again, nil)
	rs.Begin(again.OwnRequest.Request)
	left := map[*own]bool{}
	for _, m := range rs.Left() {
		left[m] = true
		if m.Uncertain != (m.Asking > 0) {
			t.Errorf("with %d calls under way: uncertain %t", m.Asking, m.Uncertain)
		}
	}
	for what, m := range map[string]*own{"plain": plain, "asked for": asked, "refused": refused, "released": released, "asked for again": again} {
		if !left[m] {
			t.Errorf("Close does not release what is %s", what)
		}
	}
	if left[kept] || len(left) != 5 {
		t.Errorf("Close releases %d requests of 5, the fixed hold among them: %t", len(left), left[kept])
	}
	n := 0
	for range rs.All() {
		n++
	}
	if n != 6 {
		t.Errorf("%d of 6 requests", n)
	}
}

func TestAReleaseThatFindsTheRequestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := request("x")
		if r.Granted() {
			t.Error("granted from the beginning")
		}
		r.Holds(time.Now())
		if !r.Granted() || !r.Until.Equal(time.Now().Add(r.TTL)) {
			t.Errorf("a hold until %s", r.Until)
		}
		first := r.Releasing(true)
		if !r.Uncertain || first.RemovedBefore(0) || !first.RemovedBefore(1) {
			t.Error("the first release: only another copy of it can have removed the request")
		}
		second := r.Releasing(false)
		if !r.Uncertain || !second.RemovedBefore(0) {
			t.Error("the second release: the first can have removed the request")
		}
		r.Unsent()
		if r.Releases != 1 {
			t.Errorf("%d releases were sent", r.Releases)
		}
		time.Sleep(r.TTL)
		if second.RemovedBefore(0) {
			t.Error("after its TTL the request may have expired")
		}
	})
	if (&OwnRequest{Releases: 1}).RemovedBefore(1) {
		t.Error("a request that was never granted was removed by a release")
	}
}

func TestAnAcquireThatFailed(t *testing.T) {
	held := fmt.Errorf("here: %w", driver.ErrHeld)
	for _, c := range []struct {
		what              string
		stands, uncertain bool
		err               error
		refused, recorded bool
		nowhere           bool
	}{
		{"refused", false, false, held, true, false, true},
		{"refused while a copy is under way", false, true, held, false, true, false},
		{"refused, and not withdrawn", true, false, held, false, true, false},
		{"failed", false, false, errFailed, false, true, true},
		{"failed with unknown outcome", false, true, errFailed, false, true, false},
		{"its wait ended", true, false, fmt.Errorf("%w: %w", held, context.Canceled), false, true, false},
	} {
		rs := newRequests()
		m := rs.Begin(request("x").Request)
		m.Stands, m.Uncertain = c.stands, c.uncertain
		err := rs.End(m, c.err)
		if driver.Refused(err) != c.refused || !errors.Is(err, c.err) || err.Error() != c.err.Error() {
			t.Errorf("%s: %v, which is a refusal: %t", c.what, err, driver.Refused(err))
		}
		if rs.Has(m) != c.recorded || m.Nowhere() != c.nowhere {
			t.Errorf("%s: recorded %t, nowhere %t", c.what, rs.Has(m), m.Nowhere())
		}
		m.Releasing(true)
		if m.Uncertain != c.uncertain {
			t.Errorf("%s: its release leaves a tombstone: %t", c.what, m.Uncertain)
		}
	}

	rs := newRequests()
	m := rs.Begin(request("x").Request)
	rs.Begin(m.OwnRequest.Request)
	if rs.End(m, held); !rs.Has(m) {
		t.Error("one of two Acquires was refused, and the other one has no record")
	}
	if rs.End(m, held); rs.Has(m) {
		t.Error("both were refused, and the record is there")
	}

	synctest.Test(t, func(t *testing.T) {
		rs := newRequests()
		r := request("x").Request
		m := rs.Begin(r)
		rs.Begin(r)
		rs.End(m, errFailed)
		if m.Nowhere() {
			t.Error("Nowhere although another Acquire of it is under way")
		}
		rs.End(m, errFailed)
		time.Sleep(SurelyExpired(r.TTL))
		if m.Expired() {
			t.Error("expired too soon")
		}
		time.Sleep(time.Nanosecond)
		if !m.Expired() || !m.Nowhere() {
			t.Error("not expired")
		}
		rs.Begin(r)
		if m.Expired() || m.Nowhere() {
			t.Error("expired although another Acquire of it is under way")
		}
	})

	// another Acquire of a hold fails, and the hold is renewed for long
	synctest.Test(t, func(t *testing.T) {
		rs := newRequests()
		r := request("x").Request
		m := rs.Begin(r)
		m.Stands = true
		m.Holds(time.Now())
		rs.End(m, nil)
		rs.Begin(r)
		rs.End(m, errFailed)
		for range 10 {
			time.Sleep(r.TTL / 2)
			m.Holds(time.Now())
		}
		if m.Expired() || m.Nowhere() {
			t.Error("a hold that is renewed has expired, since an Acquire of it failed once")
		}
		time.Sleep(r.TTL + SurelyExpired(r.TTL) + time.Nanosecond)
		if !m.Expired() {
			t.Error("a hold that is no longer renewed never expires")
		}
	})

	// a hold whose release gets no answer
	synctest.Test(t, func(t *testing.T) {
		rs := newRequests()
		r := request("x").Request
		m := rs.Begin(r)
		m.Stands = true
		if m.Expired() {
			t.Error("expired before a release was answered")
		}
		m.Holds(time.Now())
		rs.End(m, nil)
		m.Releasing(true)
		time.Sleep(r.TTL + SurelyExpired(r.TTL))
		if m.Expired() {
			t.Error("a hold expired too soon")
		}
		time.Sleep(time.Nanosecond)
		if !m.Expired() {
			t.Error("a hold that is no longer renewed never expires")
		}
		rs.Begin(r)
		if m.Expired() {
			t.Error("expired although an Acquire of it is under way")
		}
	})
}

func TestWhatTheQueueAnswers(t *testing.T) {
	for _, c := range []struct {
		err          error
		before, want bool
	}{
		{nil, false, true},
		{driver.ErrHeld, true, false},
		{driver.ErrConflict, true, false},
		{driver.ErrLost, false, false}, // it was never in the queue
		{fmt.Errorf("here: %w", driver.ErrLost), true, true},
	} {
		r := OwnRequest{Stands: c.before}
		if r.Answer(c.err); r.Stands != c.want {
			t.Errorf("%v: it stands: %t", c.err, r.Stands)
		}
	}
}
