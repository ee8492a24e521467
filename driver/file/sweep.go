//go:build linux

package file

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/dlock-go/dlock/driver"
)

// sweep removes what clients that were killed left behind, if it finds the file of one: requests in slots that nobody
// uses any more, and states that were written but not put in place, or replaced but not removed. It is housekeeping:
// what is left blocks nobody.
func (b *backend) sweep() error {
	dead, err := b.dead()
	if err != nil || len(dead) == 0 {
		return err
	}
	files, err := os.ReadDir(filepath.Join(b.table.path, "states"))
	if err != nil {
		return err
	}
	bySlot := map[int][]uint64{}
	for _, f := range files {
		if s, w, ok := parseState(f.Name()); ok {
			bySlot[s] = append(bySlot[s], w)
		}
	}
	for slot, words := range bySlot {
		if err := b.sweepSlot(slot, words); err != nil {
			return err
		}
	}
	for _, name := range dead {
		syscall.Unlinkat(b.table.clients, name+".bell")
		syscall.Unlinkat(b.table.clients, name)
	}
	return nil
}

// sweepSlot removes the states among words that are not the slot's, after it has put a new one in place: who wrote
// one of them saw an earlier word, which never comes back, so that it can never be the slot's.
func (b *backend) sweepSlot(slot int, words []uint64) error {
	word, err := load(b.table.word(slot))
	if err != nil {
		return err
	}
	if len(words) == 1 && words[0] == word {
		return b.update(context.Background(), slot, nil)
	}
	err = b.update(context.Background(), slot, func(s *state, _ int64) error {
		s.dirty = true
		return nil
	})
	if err != nil {
		return err
	}
	if word, err = load(b.table.word(slot)); err != nil {
		return err
	}
	for _, w := range words {
		if w != word {
			syscall.Unlinkat(b.table.states, stateName(slot, w))
		}
	}
	return nil
}

// dead returns the names of the files of dead clients.
func (b *backend) dead() ([]string, error) {
	files, err := os.ReadDir(filepath.Join(b.table.path, "clients"))
	if err != nil {
		return nil, err
	}
	now, err := b.clock()
	if err != nil {
		return nil, err
	}
	var dead []string
	for _, f := range files {
		var id driver.ID
		if id.UnmarshalText([]byte(f.Name())) != nil || id == b.session.id {
			continue
		}
		if _, gone, err := b.peers.cell(id, 0, now); err != nil {
			return nil, err
		} else if gone {
			dead = append(dead, f.Name())
		}
	}
	return dead, nil
}

// parseState is the inverse of stateName.
func parseState(name string) (slot int, word uint64, ok bool) {
	a, c, _ := strings.Cut(name, "-")
	s, err1 := strconv.ParseUint(a, 16, 16)
	w, err2 := strconv.ParseUint(c, 16, 64)
	return int(s), w, err1 == nil && err2 == nil && stateName(int(s), w) == name
}
