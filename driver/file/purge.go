//go:build linux || darwin

package file

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// purge removes what killed clients left behind, if it finds the home of one: requests in slots
// that are not used any more, and files of states that were not put in place, or not removed after
// they were replaced. Locking does not depend on it: what remains blocks no client. A slot whose
// state cannot be read or written is left as it is, and so are the dead clients, for the next
// client that opens the directory.
func (b *Backend) purge() error {
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
	clean := true
	for slot := range slots {
		clean = b.purgeSlot(slot, bySlot[slot]) == nil && clean
	}
	if !clean { // the dead clients stay, for the next client that opens the directory
		return nil
	}
	for _, id := range dead {
		b.table.pipes.remove(pipeName(id))
		if err := b.table.cells.free(id); err != nil {
			return err
		}
	}
	return nil
}

// purgeSlot drops dead and expired requests from a slot's queues, by a new state, and then removes
// the files of all given words but the slot's own. The writer of such a file read an earlier word
// of the slot. That word is never used again, so the file can never become the slot's state.
func (b *Backend) purgeSlot(slot int, words []uint64) error {
	word, err := load(b.table.word(slot))
	if err != nil {
		return err
	}
	if vacant(word) && len(words) == 0 {
		return nil
	}
	if err := b.update(context.Background(), slot, nil); err != nil || len(words) == 1 && words[0] == word {
		return err
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
			b.table.states.remove(stateName(slot, w))
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
