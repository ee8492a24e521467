//go:build linux || darwin

package file

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"pgregory.net/rapid"
)

func anyEntry(t *rapid.T) *entry {
	id := func(label string) (id driver.ID) {
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label))
		id[0] |= 1
		return id
	}
	number := rapid.Int64Range(0, 1<<62)
	e := &entry{
		session: sessionID(rapid.Uint64Min(1).Draw(t, "session")), cell: rapid.IntRange(0, 1<<20).Draw(t, "cell"), arrived: number.Draw(t, "arrived"),
		armed: number.Draw(t, "armed"), suspect: rapid.Bool().Draw(t, "suspect"), until: number.Draw(t, "until"),
	}
	e.Name = rapid.StringN(1, -1, 255).Draw(t, "name")
	e.ID, e.Client = id("id"), id("client")
	e.Owner = e.ID
	if rapid.Bool().Draw(t, "join") {
		e.Owner = id("owner")
	}
	e.Mode = driver.Mode(rapid.IntRange(0, 1).Draw(t, "mode"))
	e.Limit = rapid.IntRange(0, 1<<31-1).Draw(t, "limit")
	e.TTL = time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "ttl"))
	e.Token = driver.Token(rapid.Uint64().Draw(t, "token"))
	e.Label = rapid.String().Draw(t, "label")
	e.Fixed, e.Broken = rapid.Bool().Draw(t, "fixed"), rapid.Bool().Draw(t, "broken")
	return e
}

// entries returns all requests of the state.
func entries(s *state) (all []*entry) {
	for i := range s.queues {
		all = slices.AppendSeq(all, s.queues[i].all())
	}
	return all
}

const name = "0001-0000000000000002" // of a file of a state

// anyState returns a state that may be in a record.
func anyState(t *rapid.T) *state {
	s := &state{}
	for range rapid.IntRange(0, 8).Draw(t, "n") {
		s.add(anyEntry(t))
	}
	for i, e := range entries(s) {
		s.addTombstone(tombstone{e.Name, e.ID, int64(i) + 1})
	}
	s.dirty = false
	return s
}

func TestStateRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anyState(t)
		data := s.encode(name)
		for _, old := range []*state{nil, s} { // read without an earlier state, and with one
			back, err := decode(data, name, old)
			if err != nil {
				t.Fatal(err)
			}
			for i := range back.queues {
				if q := &back.queues[i]; len(q.arrivals) == 0 {
					q.arrivals = nil
				}
			}
			if !reflect.DeepEqual(back, s) && (len(back.queues)+len(s.queues) > 0) {
				t.Fatalf("%+v\nbecame\n%+v", s, back)
			}
			if again := back.encode(name); !bytes.Equal(again, data) {
				t.Fatalf("%s\nbecame\n%s", data, again)
			}
		}
	})
}

func TestEditLeavesTheOriginalAlone(t *testing.T) {
	s := &state{}
	var es []*entry
	for i := range 5 {
		e := &entry{session: sessionID(1 + i)}
		e.Name, e.ID, e.TTL = "a", driver.NewID(), time.Second
		e.Owner = e.ID
		e.Label = fmt.Sprint(i)
		es = append(es, e)
		s.add(e)
	}
	before := s.encode(name)
	tokens := uint64(0)
	token := func() (uint64, error) { tokens++; return tokens, nil }
	for range 2 { // two edits of one state do not see each other either
		c := s.edit()
		c.remove("a", es[0].ID)
		if err := c.grant(7, token); err != nil {
			t.Fatal(err)
		}
		extra := es[0].change(func(e *entry) { e.ID = driver.NewID(); e.Owner = e.ID })
		c.add(extra)
		if len(c.granted) != 1 || c.granted[0].ID != es[1].ID || c.granted[0].armed != 7 {
			t.Errorf("granted %v", c.granted)
		}
		if got := entries(c); len(got) != 5 || got[4].ID != extra.ID || got[3].ID != es[4].ID {
			t.Errorf("edited to %v", got)
		}
	}
	c := s.edit()
	if err := c.grant(7, token); err != nil {
		t.Fatal(err)
	}
	if entries(c)[0].Token == 0 || entries(s)[0].Token != 0 {
		t.Error("a grant is not in the copy alone")
	}
	c, d := s.edit(), s.edit()
	for _, to := range []*state{c, d} {
		to.add(es[0].change(func(e *entry) { e.ID = driver.NewID(); e.Owner = e.ID }))
	}
	if entries(c)[5].ID == entries(d)[5].ID {
		t.Error("one edit overwrites the other")
	}
	for _, e := range s.queues[0].arrivals {
		e.line = ""
	}
	if after := s.encode(name); !bytes.Equal(before, after) {
		t.Error("the original changed")
	}
}

// Reading a long queue and writing the next one takes no more allocations than for a short one:
// apart from copying, the work of an arrival and of a hand-off is the same.
func TestLongQueueIsNotRead(t *testing.T) {
	allocations := func(n int) float64 {
		s := &state{}
		for i := range n {
			e := &entry{session: sessionID(1 + i), cell: i}
			e.Name, e.ID, e.TTL = "a", driver.NewID(), time.Second
			e.Owner = e.ID
			s.add(e)
		}
		data := s.encode(name)
		return testing.AllocsPerRun(20, func() {
			back, err := decode(data, name, s)
			if err != nil {
				t.Fatal(err)
			}
			c := back.edit()
			c.remove("a", c.queues[0].arrivals[0].ID)
			if err := c.grant(1, func() (uint64, error) { return 1, nil }); err != nil {
				t.Fatal(err)
			}
			c.add(back.queues[0].arrivals[0].change(func(e *entry) { e.ID = driver.NewID() }))
			c.encode(name)
		})
	}
	if short, longer := allocations(20), allocations(1000); longer > short+10 {
		t.Errorf("%v allocations with 20 requests, %v with 1,000", short, longer)
	}
}

// A request is found, changed and removed at any place in the queue, and no other is changed.
func TestStateChangesOneRequestAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &state{}
		var want []driver.ID
		for range rapid.IntRange(1, 8).Draw(t, "n") {
			e := anyEntry(t)
			e.Name, e.Owner, e.Token = "a", e.ID, 0
			if s.find("a", e.ID) == nil {
				want = append(want, e.ID)
				s.add(e)
			}
		}
		i := rapid.IntRange(0, len(want)-1).Draw(t, "which")
		c := s.edit()
		c.alter("a", want[i], func(e *entry) *entry { return e.change(func(e *entry) { e.armed = 42 }) })
		for j, id := range want {
			before, after := s.find("a", id), c.find("a", id)
			if before == nil || after == nil {
				t.Fatalf("request %d is not found", j)
			}
			if changed := after.armed == 42 && before.armed != 42; changed != (j == i && before.armed != 42) {
				t.Fatalf("request %d, after request %d was changed", j, i)
			}
		}
		c.remove("a", want[i])
		var got []driver.ID
		for _, e := range entries(c) {
			got = append(got, e.ID)
		}
		if rest := slices.Delete(slices.Clone(want), i, i+1); !slices.Equal(got, rest) {
			t.Fatalf("%v without %d became %v", want, i, got)
		}
	})
}
