package redlock

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// TestParseMembers: the members of a lock are read as they are. An incomplete reply is an error.
func TestParseMembers(t *testing.T) {
	id, join, client := driver.NewID(), driver.NewID(), driver.NewID()
	one := []any{id.String(), id.String(), "x", "-", int64(60000), client.String(), " a b\n", int64(5000), int64(7)}
	two := []any{join.String(), id.String(), "s", "bf", int64(1000), client.String(), "", int64(3000), int64(0)}
	es, err := parseMembers("n", &script.Call{Reply: []any{one, two}})
	if err != nil || len(es) != 2 {
		t.Fatalf("%v, %v", es, err)
	}
	want := driver.Entry{Left: 5 * time.Second, Age: 7 * time.Millisecond}
	want.Request = driver.Request{Name: "n", ID: id, Owner: id, Client: client, Label: " a b\n", TTL: time.Minute}
	if *es[0] != want {
		t.Errorf("the holder is %+v; want %+v", *es[0], want)
	}
	want = driver.Entry{Left: 3 * time.Second, Broken: true}
	want.Request = driver.Request{Name: "n", ID: join, Owner: id, Client: client, Mode: driver.Shared, TTL: time.Second, Fixed: true}
	if *es[1] != want {
		t.Errorf("the join is %+v; want %+v", *es[1], want)
	}
	if es, err := parseMembers("n", &script.Call{Reply: []any{}}); es != nil || err != nil {
		t.Errorf("of nothing: %v, %v", es, err)
	}
	for n := range one {
		for _, bad := range [][]any{one[:n], append(append(slices.Clone(one[:n]), nil), one[n+1:]...)} {
			if es, err := parseMembers("n", &script.Call{Reply: []any{two, bad}}); err == nil {
				t.Errorf("%v is read as %v", bad, es)
			}
		}
	}
	if es, err := parseMembers("n", &script.Call{Reply: []any{append([]any{"no ID"}, one[1:]...)}}); err == nil {
		t.Errorf("no ID: %v", es)
	}
}

// TestParsePeer: what a peer wrote is its label, and its value need be no ID.
func TestParsePeer(t *testing.T) {
	long := strings.Repeat("v", 101)
	for _, c := range []struct {
		reply []any
		label string
		left  time.Duration
	}{
		{[]any{"a b\n", "f", int64(1500)}, `other software: "a b\n"`, 1500 * time.Millisecond},
		{[]any{"", "f", int64(-1)}, `other software: "", without an expiry`, 0},
		{[]any{long, "f", int64(0)}, `other software: "` + long[:100] + `"… (101 bytes)`, 0},
	} {
		es, err := parseMembers("n", &script.Call{Reply: c.reply})
		want := driver.Entry{Foreign: true, Left: c.left}
		want.Name, want.Label = "n", c.label
		if err != nil || len(es) != 1 || *es[0] != want {
			t.Errorf("%q is read as %+v, %v; want %+v", c.reply, es, err, want)
		}
	}
	id := driver.NewID()
	es, err := parseMembers("n", &script.Call{Reply: []any{id.String(), "f", int64(1)}})
	if err != nil || es[0].ID != id || !es[0].Foreign {
		t.Errorf("a value that may be an ID of this client: %+v, %v", es, err)
	}
	for _, bad := range [][]any{{"v", "x", int64(1)}, {int64(1), "f", int64(1)}, {"v", "f", "1"}} {
		if es, err := parseMembers("n", &script.Call{Reply: bad}); err == nil {
			t.Errorf("%v is read as %+v", bad, es)
		}
	}
}

// TestHeld: each request is counted by itself. Only those on a majority hold, and for as long as
// that majority lasts.
func TestHeld(t *testing.T) {
	b, _ := five(t)
	seen := map[string][]*driver.Entry{}
	lay := func(age time.Duration, broken int, lefts ...time.Duration) driver.ID {
		id := driver.NewID()
		for i, left := range lefts {
			e := &driver.Entry{Left: left, Age: age, Broken: i < broken}
			e.ID, e.Owner, e.Mode = id, id, driver.Shared
			seen[id.String()] = append(seen[id.String()], e)
		}
		return id
	}
	young := lay(time.Second, 2, 3, 9, 5, 1, 7)
	lay(time.Hour, 0, 9, 9)
	old := lay(time.Minute, 3, 4, 2, 3)
	es, most := b.held(seen)
	if most != 5 || len(es) != 2 || es[0].ID != old || es[1].ID != young {
		t.Fatalf("%v hold, and %d masters have one; want the old and the young one, and 5", es, most)
	}
	if es[0].Left != 2 || es[1].Left != 5 {
		t.Errorf("%d and %d are left; want those of the third longest, 2 and 5", es[0].Left, es[1].Left)
	}
	if !es[0].Broken || es[1].Broken {
		t.Errorf("broken: %t and %t; want only the one that is broken on a majority", es[0].Broken, es[1].Broken)
	}
}
