package kit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dlock-go/dlock/driver"
)

func TestTombstones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts Tombstones
		id := driver.NewID()
		if ts.Has(id, time.Now()) {
			t.Error("one from the beginning")
		}
		ts.Add(id, time.Now().Add(time.Minute))
		ts.Add(id, time.Now().Add(time.Second)) // does not make it shorter
		time.Sleep(time.Minute - 1)
		if !ts.Has(id, time.Now()) {
			t.Error("gone before its time")
		}
		time.Sleep(time.Nanosecond)
		if ts.Has(id, time.Now()) {
			t.Error("there after its time")
		}
		ts.Purge(time.Now())
		ts.Add(id, time.Now().Add(time.Minute))
		ts.Remove(id)
		if ts.Len() != 0 {
			t.Errorf("%d are left", ts.Len())
		}
		for i := range 10_000 {
			ts.Add(driver.NewID(), time.Now().Add(time.Second))
			time.Sleep(10 * time.Millisecond)
			if n := ts.Len(); n > 2*102+64 {
				t.Fatalf("%d tombstones after %d, 100 of them valid", n, i)
			}
		}
	})
}
