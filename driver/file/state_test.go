package file

import (
	"bytes"
	"fmt"
	"reflect"
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
		session: id("session"), cell: rapid.IntRange(0, 1<<20).Draw(t, "cell"), arrived: number.Draw(t, "arrived"),
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

func TestStateRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &state{}
		for range rapid.IntRange(0, 8).Draw(t, "n") {
			s.add(anyEntry(t))
		}
		for i, e := range s.entries() {
			s.bury(tombstone{e.Name, e.ID, int64(i) + 1})
		}
		data, err := s.encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, old := range []*state{nil, s} { // read anew, and with what was known
			back, err := decode(data, old)
			if err != nil {
				t.Fatal(err)
			}
			s.dirty = false
			if !reflect.DeepEqual(back, s) && (len(back.queues)+len(s.queues) > 0) {
				t.Fatalf("%+v\nbecame\n%+v", s, back)
			}
		}
		for cut := 1; cut < len(data); cut += 1 + len(data)/7 {
			if data[len(data)-cut-1] == '\n' {
				continue
			}
			if _, err := decode(data[:len(data)-cut], nil); err == nil {
				t.Fatalf("a file without its last %d bytes is accepted", cut)
			}
		}
	})
}

func TestEditLeavesTheOriginalAlone(t *testing.T) {
	s := &state{}
	var es []*entry
	for i := range 5 {
		e := &entry{session: driver.NewID()}
		e.Name, e.ID, e.TTL = "a", driver.NewID(), time.Second
		e.Owner = e.ID
		e.Label = fmt.Sprint(i)
		es = append(es, e)
		s.add(e)
	}
	before, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
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
		if got := c.entries(); len(got) != 5 || got[4] != extra || got[3].ID != es[4].ID {
			t.Errorf("edited to %v", got)
		}
	}
	c := s.edit()
	if err := c.grant(7, token); err != nil {
		t.Fatal(err)
	}
	if c.entries()[0].Token == 0 || s.entries()[0].Token != 0 {
		t.Error("a grant is not in the copy alone")
	}
	c, d := s.edit(), s.edit()
	for _, to := range []*state{c, d} {
		to.add(es[0].change(func(e *entry) { e.ID = driver.NewID(); e.Owner = e.ID }))
	}
	if c.entries()[5] == d.entries()[5] {
		t.Error("one edit overwrites the other")
	}
	for _, e := range s.entries() {
		e.line = nil
	}
	if after, _ := s.encode(); !bytes.Equal(before, after) {
		t.Error("the original changed")
	}
}

// What did not change is not parsed again: hand-offs in a long queue are cheap.
func TestDecodeTakesWhatIsKnown(t *testing.T) {
	s := &state{}
	for i := range 1000 {
		e := &entry{session: driver.NewID(), cell: i}
		e.Name, e.ID, e.TTL = "a", driver.NewID(), time.Second
		e.Owner = e.ID
		s.add(e)
	}
	if _, err := s.encode(); err != nil {
		t.Fatal(err)
	}
	c := s.edit()
	c.remove("a", s.queues[0].strangers[0].ID)
	if err := c.grant(1, func() (uint64, error) { return 1, nil }); err != nil {
		t.Fatal(err)
	}
	data, err := c.encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := decode(data, s)
	if err != nil {
		t.Fatal(err)
	}
	parsed := 0
	for i, e := range back.entries() {
		if e != s.queues[0].strangers[i+1] {
			parsed++
		}
	}
	if parsed != 1 {
		t.Errorf("%d requests were parsed, want 1", parsed)
	}
}
