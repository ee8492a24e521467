//go:build linux

package file

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sweep removes what clients that were killed left behind, if it finds the home of one: requests in
// slots that nobody uses any more, and states that were written but not put in place, or replaced
// but not removed. It is housekeeping: what is left blocks nobody.
func (b *Backend) sweep() error {
	now, err := b.clock()
	if err != nil {
		return err
	}
	dead, err := b.table.cells.dead(b.session.id, now)
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
	for slot := range slots {
		if err := b.sweepSlot(slot, bySlot[slot]); err != nil {
			return err
		}
	}
	for _, id := range dead {
		syscall.Unlinkat(b.table.bells, bellName(id))
		if err := b.table.cells.free(id); err != nil {
			return err
		}
	}
	return nil
}

// sweepSlot removes the states among words that are not the slot's, after it has put a new one in
// place: who wrote one of them saw an earlier word, which never comes back, so that it can never be
// the slot's.
func (b *Backend) sweepSlot(slot int, words []uint64) error {
	word, err := load(b.table.word(slot))
	if err != nil {
		return err
	}
	if vacant(word) && len(words) == 0 {
		return nil
	}
	if len(words) == 1 && words[0] == word {
		return b.updateSome(context.Background(), slot, math.MaxInt, nil)
	}
	err = b.updateSome(context.Background(), slot, math.MaxInt, func(s *state, _ int64) error {
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

// parseState is the inverse of stateName.
func parseState(name string) (slot int, word uint64, ok bool) {
	a, c, _ := strings.Cut(name, "-")
	s, err1 := strconv.ParseUint(a, 16, 16)
	w, err2 := strconv.ParseUint(c, 16, 64)
	return int(s), w, err1 == nil && err2 == nil && stateName(int(s), w) == name
}
