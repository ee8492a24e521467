package fence

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
)

// object is an object of a store with conditional writes, whose ETag is a hash of the body.
type object struct{ body string }

func (o *object) get() (body, etag string) { return o.body, etagOf(o.body) }

// put replaces the body if it has that ETag still; any, if that is empty.
func (o *object) put(body, ifMatch string) bool {
	if ifMatch != "" && ifMatch != etagOf(o.body) {
		return false
	}
	o.body = body
	return true
}

func etagOf(body string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(body))) }

// text is a body: the mark of its last writer, how often it was written, and a counter.
func text(m Mark, writes, n int) string {
	return fmt.Sprintf("%d %s %d %d", m.Token, m.Owner, writes, n)
}

func parse(body string) (m Mark, writes, n int) {
	fmt.Sscan(body, &m.Token, &m.Owner, &writes, &n)
	return m, writes, n
}

// add is the recipe of docs/fencing.md: it adds 1 to the counter. It calls stop in front of each
// step.
func add(o *object, m Mark, conditional bool, stop func()) error {
	when := func(etag string) string {
		if conditional {
			return etag
		}
		return ""
	}
	for {
		stop()
		body, etag := o.get()
		last, writes, n := parse(body)
		if !last.admits(m) {
			return ErrStale
		}
		stop()
		mine := text(m, writes+1, n)
		if !o.put(mine, when(etag)) {
			continue
		}
		stop()
		if o.put(text(m, writes+2, n+1), when(etagOf(mine))) {
			return nil
		}
	}
}

// TestRecipeForObjectStores stops one holder in front of each step, while the other one does all of
// its own, and once more from there: nothing is lost. Without the conditions something is.
func TestRecipeForObjectStores(t *testing.T) {
	older, later := Mark{1, "a"}, Mark{2, "b"}
	lost := func(conditional bool) (lost, stale int) {
		for _, stopped := range []Mark{older, later} {
			other := later
			if stopped == later {
				other = older
			}
			for first := range 3 {
				for again := range 6 {
					o := &object{text(Mark{0, "-"}, 0, 0)}
					step, wrote := 0, 0
					count := func(err error) {
						switch {
						case err == nil:
							wrote++
						case errors.Is(err, ErrStale):
							stale++
						default:
							t.Fatal(err)
						}
					}
					count(add(o, stopped, conditional, func() {
						if step == first || step == first+1+again {
							count(add(o, other, conditional, func() {}))
						}
						step++
					}))
					if _, _, n := parse(o.body); n != wrote {
						lost += wrote - n
					}
				}
			}
		}
		return lost, stale
	}
	if n, stale := lost(true); n != 0 || stale == 0 {
		t.Errorf("%d writes are lost, %d holders refused", n, stale)
	}
	if n, _ := lost(false); n == 0 {
		t.Error("without conditions nothing is lost: the schedules show nothing")
	}
}

// TestLatePutOfOneHold has a holder set a value, set it back, and a copy of the first PUT arrive
// late: the count of the writes refuses it. Without the count it is taken.
func TestLatePutOfOneHold(t *testing.T) {
	m := Mark{1, "a"}
	taken := func(counted bool) bool {
		body := func(writes, n int) string {
			if !counted {
				writes = 0
			}
			return text(m, writes, n)
		}
		o := &object{body(1, 5)}
		set := func(ifMatch string, writes, n int) func() bool {
			return func() bool { return o.put(body(writes, n), ifMatch) }
		}
		first := set(etagOf(o.body), 2, 6)
		if !first() || !set(etagOf(o.body), 3, 5)() {
			t.Fatal("a PUT in turn is refused")
		}
		return first()
	}
	if taken(true) {
		t.Error("a late copy is taken")
	}
	if !taken(false) {
		t.Error("without the count it is refused as well: the schedule shows nothing")
	}
}
