package redlock

import (
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/driver/redis/internal/script"
)

// TestParseHolder: the holder is followed by what joined it, and an incomplete reply is an error.
func TestParseHolder(t *testing.T) {
	id, client, kept := driver.NewID(), driver.NewID(), driver.NewID()
	reply := []any{id.String(), "-", "60000", client.String() + " a b", int64(5000), "7", kept.String(), int64(3000)}
	es, err := parseHolder("n", &script.Call{Reply: reply})
	if err != nil || len(es) != 2 {
		t.Fatalf("%v, %v", es, err)
	}
	want := driver.Entry{}
	want.Name, want.ID, want.Owner, want.Client, want.Label = "n", id, id, client, "a b"
	want.TTL, want.Left, want.Age = time.Minute, 5*time.Second, 7*time.Millisecond
	if *es[0] != want {
		t.Errorf("the holder is %+v; want %+v", *es[0], want)
	}
	want.ID, want.Owner, want.TTL, want.Left = kept, kept, 3*time.Second, 3*time.Second
	if *es[1] != want {
		t.Errorf("what joined it is %+v; want %+v", *es[1], want)
	}
	if es, err := parseHolder("n", &script.Call{Reply: []any{}}); es != nil || err != nil {
		t.Errorf("of nothing: %v, %v", es, err)
	}
	for n := 1; n < len(reply); n++ {
		if n == 6 {
			continue
		}
		if es, err := parseHolder("n", &script.Call{Reply: reply[:n]}); err == nil {
			t.Errorf("%d parts: %v", n, es)
		}
	}
	bad := append(reply[:6:6], "no ID", int64(1))
	if es, err := parseHolder("n", &script.Call{Reply: bad}); err == nil {
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
		es, err := parseHolder("n", &script.Call{Reply: c.reply})
		want := driver.Entry{Foreign: true, Left: c.left}
		want.Name, want.Label = "n", c.label
		if err != nil || len(es) != 1 || *es[0] != want {
			t.Errorf("%q is read as %+v, %v; want %+v", c.reply, es, err, want)
		}
	}
	id := driver.NewID()
	es, err := parseHolder("n", &script.Call{Reply: []any{id.String(), "f", int64(1)}})
	if err != nil || es[0].ID != id || !es[0].Foreign {
		t.Errorf("a value that may be an ID of this client: %+v, %v", es, err)
	}
	for _, bad := range [][]any{{"v", "x", int64(1)}, {int64(1), "f", int64(1)}, {"v", "f", "1"}} {
		if es, err := parseHolder("n", &script.Call{Reply: bad}); err == nil {
			t.Errorf("%v is read as %+v", bad, es)
		}
	}
}
