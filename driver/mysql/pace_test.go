package mysql

import (
	"testing"
	"time"
)

func TestWindowFollowsTheServer(t *testing.T) {
	b, err := New(nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	wants := func(when string, want time.Duration) {
		t.Helper()
		if got := b.window(); got != want {
			t.Errorf("%s the window is %s, want %s", when, got, want)
		}
	}
	wants("at first", time.Second)
	b.pool.pace.answered(100 * time.Millisecond)
	wants("after a quick answer", time.Second)
	b.pool.pace.answered(400 * time.Millisecond)
	wants("after a slow answer", 2400*time.Millisecond)
	b.pool.pace.answered(0)
	wants("after a slow and a quick answer", 1800*time.Millisecond)
	b.pool.pace.answered(3 * time.Second)
	wants("after an answer that came just in time", 10*time.Second)
	for range 20 {
		b.pool.pace.answered(time.Millisecond)
	}
	wants("when all is well again", time.Second)
	b.o.GrantWindow = time.Minute
	b.pool.pace.answered(3 * time.Second)
	wants("where the options say more", time.Minute)
}
