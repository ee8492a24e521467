package redlock

import (
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
