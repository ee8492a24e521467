//go:build linux || darwin

package file

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
)

// The clock is one for all processes, in nanoseconds.
func TestAllProcessesShareTheClock(t *testing.T) {
	c := start(t, t.TempDir())
	read := func() int64 {
		t.Helper()
		now, err := monotonic()
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	ask := func() int64 {
		t.Helper()
		now, err := strconv.ParseInt(c.do("clock"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	begun, first := time.Now(), read()
	last := first
	for i := range 100 {
		now := ask()
		if i%2 == 0 {
			now = read()
		}
		if now < last {
			t.Fatalf("reading %d says %d after %d", i, now, last)
		}
		last = now
		time.Sleep(time.Millisecond)
	}
	// between those of package time, one before the first reading and one after the last
	if ran, most := time.Duration(last-first), time.Since(begun); ran > most || ran < 99*time.Millisecond {
		t.Errorf("the clock ran for %v in %v", ran, most)
	}
}

func TestBootIDs(t *testing.T) {
	const id = "11d19c1b-b5e5-4df0-9e91-52c5b06b5cbd"
	for raw, want := range map[string]string{
		id + "\n":           id, // the form of Linux
		strings.ToUpper(id): id, // the form of macOS
		"":                  "",
		"unknown":           "",
		"../other":          "",
		id + ".new-1":       "",
	} {
		got, err := cleanBootID(raw)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", raw, got, err)
		}
	}
	first, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	this, err := cleanBootID(first)
	if err != nil || !ours.MatchString("dlock-"+this) {
		t.Errorf("this boot is %q, %v", this, err)
	}
	if second, err := bootID(); err != nil || second != first {
		t.Errorf("%q and then %q, %v", first, second, err)
	}
}

// A system where one of the locks has no effect is refused when the directory is opened.
func TestLocksWithoutEffectAreRefused(t *testing.T) {
	for what, drop := range map[string]func(b *Backend) (bool, error){
		"flock": func(b *Backend) (bool, error) { return flock(b.table.dir.fd, syscall.LOCK_UN) },
		"fcntl": func(b *Backend) (bool, error) {
			return lockByte(b.table.cells.fd, b.session.id.home(), syscall.F_UNLCK)
		},
	} {
		b := openTest(t, t.TempDir())
		if err := b.session.selfTest(); err != nil {
			t.Fatal(err)
		}
		if _, err := drop(b); err != nil {
			t.Fatal(err)
		}
		if err := b.session.selfTest(); !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), what) {
			t.Errorf("without %s: %v", what, err)
		}
	}
}
