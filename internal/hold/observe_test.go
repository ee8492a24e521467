package hold

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// The observer of one loss does not delay a driver that reports the next one.
func TestReportDoesNotWaitForObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, heal, ends := newSet(t, new(backend), nil), make(chan struct{}), make(chan End, 2)
		holders := []*holder{{}, {}}
		for _, by := range holders {
			h, r := new(Hold), request("a")
			h.Observe(func(_ *Hold, e End) {
				<-heal
				ends <- e
			})
			s.Expect(h, r)
			if err := h.Granted(driver.Grant{SentAt: time.Now()}, by); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			reported := make(chan struct{})
			go func() {
				s.Report(r.ID)
				close(reported)
			}()
			select {
			case <-reported:
			case <-time.After(time.Second):
				t.Error("Report waits for the observer")
			}
			if len(by.notified()) != 1 {
				t.Error("the holder was not notified")
			}
		}
		close(heal)
		want := End{Err: driver.ErrLost, Why: Reported, Held: time.Millisecond}
		for range holders {
			if e := <-ends; e.Err != want.Err || e.Why != want.Why || e.Held != want.Held || e.At.IsZero() {
				t.Errorf("the observer got %+v; want %+v", e, want)
			}
		}
	})
}

// The observer of a request that is never granted is not called.
func TestObserversAreForGrantsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, new(backend), nil)
		never := func(*Hold, End) { t.Error("the observer was called") }
		forgotten, late := new(Hold), new(Hold)
		forgotten.Observe(never)
		s.Expect(forgotten, request("a"))
		forgotten.Forget()
		late.Observe(never)
		r := request("b")
		s.Expect(late, r)
		s.Report(r.ID)
		if err := late.Granted(driver.Grant{SentAt: time.Now()}, new(holder)); err != ErrLate {
			t.Error(err)
		}
		late.Forget()
		s.Close()
		s.ReportClosed()
		s.Release(context.Background(), r)
		synctest.Wait()
	})
}
