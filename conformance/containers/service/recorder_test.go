package service

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/conformance/internal/await"
)

// lockless is a process that enters sections without a lock: its arguments are its name and the
// recorder.
var lockless = NewProgram("lockless", func(in *bufio.Scanner, _ io.Writer, args []string) error {
	r, err := NewReporter(args[1], args[0])
	if err != nil {
		return err
	}
	go func() {
		for r.Section("k", time.Time{}, time.Millisecond) == nil {
		}
	}()
	for in.Scan() {
	}
	return nil
})

// TestRecorderOfAFleetWithoutALock: the recorder reports processes that do not exclude each other,
// of which some are killed, and not a process that is alone.
func TestRecorderOfAFleetWithoutALock(t *testing.T) {
	t.Parallel()
	r := NewRecorder(t)
	start := func(who string) *Child { return lockless.Start(t, who, r.Addr) }
	one := start("one-1")
	for range 3 {
		r.More(t, "one", 20)
		r.KillInside(t, "one-1", one.Kill)
		one = start("one-1")
	}
	r.More(t, "one", 20)
	if n := r.Verdict(t); n < 80 {
		t.Errorf("%d sections of a process that was alone", n)
	}
	start("two-1")
	r.More(t, "two", 200)
	verdict(t, r, true)
}

// TestRecorder: when two count as in together.
func TestRecorder(t *testing.T) {
	t.Parallel()
	later, earlier := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	for _, tt := range []struct {
		what         string
		key          string // of the second
		until, other time.Time
		groups       [2]string
		out          bool // what the first does then; else its connection ends
		wrong        bool
	}{
		{"the first is out later", "k", time.Time{}, time.Time{}, [2]string{}, true, true},
		{"the connection of the first ends", "k", time.Time{}, time.Time{}, [2]string{}, false, false},
		{"another key", "l", time.Time{}, time.Time{}, [2]string{}, true, false},
		{"both trust their locks", "k", later, later, [2]string{}, true, true},
		{"the first no longer trusts its lock", "k", earlier, later, [2]string{}, true, false},
		{"the second does not", "k", later, earlier, [2]string{}, true, false},
		{"two of a group", "k", later, later, [2]string{"readers", "readers"}, true, false},
		{"one of a group, one of none", "k", later, later, [2]string{"readers"}, true, true},
		{"two groups", "k", time.Time{}, later, [2]string{"readers", "hold"}, true, true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			r := NewRecorder(t)
			first, second := reporter(t, r, "first"), reporter(t, r, "second")
			err := errors.Join(first.enter("k", tt.until, tt.groups[0]), second.enter(tt.key, tt.other, tt.groups[1]))
			if tt.out {
				err = errors.Join(err, first.leave("k"))
			} else {
				first.Close()
				await.That(t, "the end of the first is seen", func() bool { return r.dead("first") })
			}
			if err = errors.Join(err, second.leave(tt.key)); err != nil {
				t.Fatal(err)
			}
			verdict(t, r, tt.wrong)
		})
	}
	for what, killed := range map[string]bool{"to be killed": false, "being killed": true} {
		t.Run(what, func(t *testing.T) {
			r := NewRecorder(t)
			first, second := reporter(t, r, "first"), reporter(t, r, "second")
			hangs := make(chan *visit, 1)
			r.hang, r.hangs = "first", hangs
			go first.enter("k", time.Time{}, "")
			v := await.From(t, hangs)
			r.mu.Lock()
			v.stuck = !killed
			r.mu.Unlock()
			if err := second.Section("k", time.Time{}, 0); err != nil {
				t.Fatal(err)
			}
			first.Close()
			verdict(t, r, !killed)
		})
	}
}

// dead reports whether the process has ended in a section.
func (r *Recorder) dead(who string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.died[who] > 0
}

func reporter(t *testing.T, r *Recorder, who string) *Reporter {
	t.Helper()
	c, err := NewReporter(r.Addr, who)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// verdict fails the test unless the recorder's verdict is as expected.
func verdict(t *testing.T, r *Recorder, wrong bool) {
	t.Helper()
	if !wrong {
		r.Verdict(t)
	} else if got := fatal(t, func(t T) { r.Verdict(t) }); !strings.Contains(got, "two were in") {
		t.Errorf("the verdict about two that were in: %q", got)
	}
}
