//go:build linux || darwin

package file

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dlock-go/dlock/driver"
	"github.com/dlock-go/dlock/internal/race"
)

// inTime is the time that package dlock allows for Inspect and List.
const inTime = 10 * time.Second

// fillSlots makes the named queues, with that many requests of the client in each, in one update
// for each slot.
func fillSlots(t *testing.T, b *Backend, requests int, names ...string) {
	t.Helper()
	bySlot := map[int][]string{}
	for _, n := range names {
		bySlot[slot(n)] = append(bySlot[slot(n)], n)
	}
	cell, _, err := b.session.takeCell()
	if err != nil {
		t.Fatal(err)
	}
	for slot, names := range bySlot {
		err := b.update(t.Context(), slot, func(s *state, now int64) error {
			for _, n := range names {
				for range requests {
					e := &entry{session: b.session.id, cell: cell, arrived: now, armed: now}
					e.Request = request(n, long)
					e.Wait = false
					s.add(e)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// List reads one slot after the other, so that it never reads more at once than the requests of a
// few names, and it ends in time however many names are in use.
func TestListOfManyNames(t *testing.T) {
	n := 60_000
	if race.Enabled { // the detector makes each of them four times as slow
		n /= 4
	}
	dir := t.TempDir()
	a, b := openTest(t, dir), openTest(t, dir)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("name", i)
	}
	fillSlots(t, a, 1, names...)
	most := int64(0)
	for _, s := range states(t, a) {
		info, err := os.Stat(filepath.Join(a.table.path, "states", s))
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, info.Size())
	}
	start := time.Now()
	got, err := b.List(t.Context())
	took := time.Since(start)
	if err != nil || len(got) != n {
		t.Fatalf("List: %d names, %v", len(got), err)
	}
	if took > inTime {
		t.Errorf("List of %d names took %s", n, took)
	}
	if most > 10_000 {
		t.Errorf("a file has %d bytes", most)
	}
	t.Logf("List of %d names took %s; the largest file has %d bytes", n, took, most)
}

// The size of one name grows with its requests, and with nothing else. Each arrival, grant and
// inspection copies that, in time.
func TestBytesOfALongQueue(t *testing.T) {
	const waiters = 5000
	for what, c := range map[string]struct {
		name string
		each int64 // bytes for each request
	}{
		"a short name":                       {"orders/42", 250},
		"the longest name":                   {strings.Repeat("ä", 127), 250},
		"a name whose every byte is escaped": {strings.Repeat("\"", 255), 250},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			a, b := openTest(t, dir), openTest(t, dir)
			first := request(c.name, long)
			acquire(t, b, first)
			fillSlots(t, a, waiters, c.name)
			files := states(t, a)
			if len(files) != 1 {
				t.Fatalf("states: %v", files)
			}
			info, err := os.Stat(filepath.Join(a.table.path, "states", files[0]))
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > c.each*(waiters+1) {
				t.Errorf("%d waiters take %d bytes", waiters, info.Size())
			}
			start := time.Now()
			q := inspect(t, b, c.name)
			inspected := time.Since(start)
			if len(q.Waiters()) != waiters {
				t.Errorf("%d waiters", len(q.Waiters()))
			}
			start = time.Now()
			last := request(c.name, long)
			last.Wait = false
			if _, err := b.Acquire(t.Context(), last); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("a try: %v", err)
			}
			w := q.Waiters()[rand.IntN(waiters)]
			if err := a.Release(t.Context(), w.Request); err != nil {
				t.Errorf("a wait that ends: %v", err)
			}
			release(t, b, first)
			if h := inspect(t, b, c.name).Holders(); len(h) != 1 {
				t.Errorf("after the release %d hold", len(h))
			}
			t.Logf("%d bytes; Inspect took %s, a try, a release of a waiter and a hand-off %s", info.Size(), inspected, time.Since(start))
			if took := time.Since(start); inspected > inTime || took > inTime {
				t.Errorf("Inspect took %s, and the others %s", inspected, took)
			}
		})
	}
}
