package kit

import (
	"testing"
	"testing/synctest"
	"time"
)

// own is a request as a driver has it.
type own struct {
	Request
	more int
}

func newRequests() Requests[*own] {
	return NewRequests(func(r Request) *own { return &own{Request: r, more: 1} })
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
	rs.End(m, false)
	rs.End(m, true)
	if got, is := rs.Find(r.ID); got != m || !is || m.Asking != 0 {
		t.Errorf("found %+v", got)
	}
	if !rs.Remove(m) || rs.Remove(m) || rs.Len() != 0 {
		t.Error("not removed once")
	}
	if _, is := rs.Find(r.ID); is {
		t.Error("found what was removed")
	}
	next := rs.Begin(r)
	if rs.Has(m) || rs.Remove(m) || !rs.Has(next) {
		t.Error("what was removed is taken for what came after it")
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
	rs.End(plain, true)
	rs.End(kept, true)
	rs.End(refused, false)
	rs.End(released, true)
	released.Releasing(false)
	rs.End(again, true)
	rs.Begin(again.Request.Request)
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
	if (&Request{Releases: 1}).RemovedBefore(1) {
		t.Error("what was never granted was removed by a release")
	}
}
