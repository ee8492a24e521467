package mysql

import (
	"database/sql"
	"testing"
	"time"
)

func TestWindowFollowsTheServer(t *testing.T) {
	b, err := New(&sql.DB{}, Options{})
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
	b.pool.looks.took(300 * time.Millisecond)
	wants("after the first answer, a slow one,", 2700*time.Millisecond)
	b.pool.looks.took(100 * time.Millisecond)
	wants("after a quick answer", time.Second)
	b.pool.looks.took(500 * time.Millisecond)
	wants("after one that was slow for once", 1800*time.Millisecond)
	b.pool.looks.took(100 * time.Millisecond)
	wants("after the next", time.Second)
	for range 20 {
		b.pool.looks.took(300 * time.Millisecond)
	}
	if got := b.window(); got < 2600*time.Millisecond || got > 2700*time.Millisecond {
		t.Errorf("where all answers are slow the window is %s, want 2.7s", got)
	}
	for range 20 {
		b.pool.looks.took(3 * time.Second)
	}
	wants("where they are as slow as may be", 5*time.Second)
	b.pool.looks.took(time.Millisecond)
	b.pool.calls.took(400 * time.Millisecond)
	b.pool.looks.took(time.Millisecond)
	wants("where reads are quick and writes slow", 3600*time.Millisecond)
	b.o.GrantWindow = time.Minute
	wants("where the options say more", time.Minute)
}
