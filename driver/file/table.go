//go:build linux

package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	format    = 2 // of the directory's content
	slots     = 1 << 16
	headWords = 512 // the first page
	tableSize = 8 * (headWords + slots)

	// Words of the head.
	headFormat  = 0
	headClock   = 1 // the greatest number that was given out: see next
	headTime    = 2 // the time namespace of whoever made it
	headSession = 3 // the number of the last client: see sessionID
)

// table is the directory of this boot: the words in shared memory, and the states that they name.
type table struct {
	path string
	fd   int // of the file "table"
	mem  mapped

	dir, states, bells int // descriptors of the directories
	cells              cells
}

// openTable returns the table of this boot in dir, and makes it if it is not there. It is refused
// while somebody lives in the table of another boot ID: see "Boots" in the package comment.
func openTable(dir, boot string, at func(step string)) (*table, error) {
	path := filepath.Join(dir, "dlock-"+boot)
	for end := time.Now().Add(settle); ; time.Sleep(rand.N(settle / 100)) {
		t, err := enterTable(dir, path, at)
		if !errors.Is(err, errAgain) || time.Now().After(end) {
			return t, err
		}
	}
}

// settle is for how long two who are in each other's way when they open try again.
const settle = time.Second

// errAgain marks what may be over in a moment.
var errAgain = errors.New("another client is just opening or removing the directory")

// enterTable makes the table, shows itself in it, and then looks who else is there. Of two that
// enter tables of different boots at once, one at least sees the other.
func enterTable(dir, path string, at func(step string)) (*table, error) {
	others, err := others(dir, path)
	if err != nil {
		return nil, err
	}
	for _, p := range others {
		if l, err := lookAt(p); err != nil {
			return nil, err
		} else if l.close(); l.lives {
			return nil, foreign(p)
		}
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := makeTable(dir, path); err != nil {
			return nil, err
		}
	}
	t := &table{path: path, fd: -1, dir: -1, states: -1, bells: -1, cells: cells{fd: -1}}
	if err := t.attach(); err != nil {
		t.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	at("announced")
	if err := t.succeed(dir, at); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// ours matches the names of what makeTable leaves, and nothing that somebody else might keep in the
// directory.
var ours = regexp.MustCompile(`^dlock-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.(new|old)-[0-9]+)?$`)

// makeTable builds the directory aside and renames it into place, so that it is complete when it is
// seen. Whoever is first wins, the others use theirs.
func makeTable(dir, path string) error {
	aside, err := os.MkdirTemp(dir, filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	err = fill(aside)
	if err == nil {
		err = os.Rename(aside, path)
	}
	switch {
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
		return nil
	case errors.Is(err, os.ErrNotExist):
		return errAgain // another boot took it for a leftover
	}
	return err
}

// fill writes what is in the directory of a boot at first.
func fill(path string) error {
	// really written: a hole might find the disk full when it is first touched
	content := make([]byte, tableSize)
	head := func(word int, v uint64) { binary.NativeEndian.PutUint64(content[8*word:], v) }
	head(headFormat, format)
	head(headTime, timeNamespace())
	err := os.WriteFile(filepath.Join(path, "table"), content, 0o600)
	if err == nil {
		err = os.WriteFile(filepath.Join(path, "cells"), make([]byte, chunkSize), 0o600)
	}
	for _, name := range []string{"states", "bells"} {
		if err == nil {
			err = os.Mkdir(filepath.Join(path, name), 0o700)
		}
	}
	return err
}

// others returns the directories in dir of other boots.
func others(dir, path string) ([]string, error) {
	all, err := os.ReadDir(dir)
	var found []string
	for _, d := range all {
		p := filepath.Join(dir, d.Name())
		if d.IsDir() && ours.MatchString(d.Name()) && !strings.HasPrefix(p, path) {
			found = append(found, p)
		}
	}
	return found, err
}

// foreign refuses to open beside those who live in path.
func foreign(path string) error {
	return fmt.Errorf("%w: processes with another boot ID use %s now, so this process is in a container that has a boot ID "+
		"of its own, or they are; give all of them the same (/proc/sys/kernel/random/boot_id of the host), or a directory "+
		"of their own", driver.ErrUnsupported, path)
}

// looked is the directory of another boot, looked at. Until it is closed nobody can enter it if it
// was left.
type looked struct {
	fd    int
	lives bool // somebody is in it
	mine  bool // nobody is, and nobody else is removing it
}

func (l looked) close() {
	if l.fd >= 0 {
		syscall.Close(l.fd)
	}
}

// lookAt tells by the lock of the directory whether somebody lives in it.
func lookAt(path string) (looked, error) {
	fd, err := openAt(atFDCWD, path, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if errors.Is(err, syscall.ENOENT) {
		return looked{fd: -1}, nil
	} else if err != nil {
		return looked{fd: -1}, fmt.Errorf("cannot tell whether processes with another boot ID use %s: %w", path, err)
	}
	l := looked{fd: fd}
	if l.mine, err = flock(fd, syscall.LOCK_EX); err == nil && !l.mine {
		l.lives, err = flock(fd, syscall.LOCK_SH) // not beside somebody who removes it
	}
	if err != nil {
		l.close()
		return looked{fd: -1}, fmt.Errorf("flock %s: %w", path, err)
	}
	return l, nil
}

// succeed takes over the greatest numbers of earlier boots, and removes what they left. Each client
// does so before it gives out its first number.
func (t *table) succeed(dir string, at func(step string)) error {
	others, err := others(dir, t.path)
	if err != nil {
		return err
	}
	for _, p := range others {
		l, err := lookAt(p)
		if err != nil {
			return err
		}
		if l.lives {
			l.close()
			return fmt.Errorf("%w: %w", errAgain, foreign(p))
		}
		err = raise(t.mem.word(headClock), greatest(p))
		at("clear")
		if l.mine {
			old := fmt.Sprintf("%s.old-%d", t.path, rand.Uint64())
			if os.Rename(p, old) == nil {
				os.RemoveAll(old) // what cannot be removed is in nobody's way
			}
		}
		l.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// greatest returns the greatest number that was given out there, as far as it can still be read.
// After a power loss it may be too small; the wall clock, which next never falls behind, makes up
// for that.
func greatest(path string) uint64 {
	f, err := os.Open(filepath.Join(path, "table"))
	if err != nil {
		return 0
	}
	defer f.Close()
	var word [8]byte
	if n, _ := f.ReadAt(word[:], 8*headClock); n != len(word) {
		return 0
	}
	return binary.NativeEndian.Uint64(word[:])
}

// attach opens and maps what is there.
func (t *table) attach() error {
	var err error
	if t.dir, err = openAt(atFDCWD, t.path, syscall.O_RDONLY|syscall.O_DIRECTORY); errors.Is(err, syscall.ENOENT) {
		return errAgain
	} else if err != nil {
		return err
	}
	if err := t.announce(); err != nil {
		return err
	}
	if t.states, err = openAt(t.dir, "states", syscall.O_RDONLY|syscall.O_DIRECTORY); err != nil {
		return fmt.Errorf("states: %w", err)
	}
	if t.fd, err = openAt(t.dir, "table", syscall.O_RDWR); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	if n, err := size(t.fd); err != nil {
		return err
	} else if n != tableSize {
		return fmt.Errorf("table: it has %d bytes, not %d; %s", n, tableSize, repair)
	}
	if t.mem, err = mapFile(t.fd, 0, tableSize, syscall.PROT_READ|syscall.PROT_WRITE); err != nil {
		return fmt.Errorf("table: map: %w", err)
	}
	v, err := load(t.mem.word(headFormat))
	if err == nil && v != format {
		return fmt.Errorf("%w: its format is %d, and this version of dlock knows %d; use one version at a time",
			driver.ErrUnsupported, v, format)
	}
	ns, err2 := load(t.mem.word(headTime))
	if err2 == nil && ns != timeNamespace() {
		err2 = fmt.Errorf("%w: this process is in another time namespace than whoever made the directory in this boot, and so "+
			"may have another clock; give all of them the same, or a directory of their own", driver.ErrUnsupported)
	}
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if t.bells, err = openAt(t.dir, "bells", syscall.O_RDONLY|syscall.O_DIRECTORY); err != nil {
		return fmt.Errorf("bells: %w", err)
	}
	if t.cells.fd, err = openAt(t.dir, "cells", syscall.O_RDWR|syscall.O_APPEND); err != nil {
		return fmt.Errorf("cells: %w", err)
	}
	return nil
}

// announce takes the lock that says that somebody lives here, shared with all who do. It also asks
// systemd-tmpfiles to leave the directory alone.
func (t *table) announce() error {
	if locked, err := flock(t.dir, syscall.LOCK_SH); err != nil {
		return fmt.Errorf("flock: %w", err)
	} else if !locked {
		return errAgain // a client with another boot ID removes it
	}
	var held, named syscall.Stat_t
	if err := syscall.Fstat(t.dir, &held); err != nil {
		return err
	}
	if err := syscall.Stat(t.path, &named); err != nil || held.Ino != named.Ino || held.Dev != named.Dev {
		return errAgain // it was removed meanwhile
	}
	return nil
}

const repair = "stop all programs that use the directory, and remove it"

func (t *table) close() {
	t.mem.unmap()
	t.cells.close()
	for _, fd := range []int{t.fd, t.dir, t.states, t.bells} {
		if fd >= 0 {
			syscall.Close(fd)
		}
	}
}

// removed reports whether somebody removed the directory under us.
func (t *table) removed() bool {
	var st syscall.Stat_t
	return syscall.Fstat(t.fd, &st) == nil && st.Nlink == 0
}

// next returns a number greater than all that it returned before, in any process and boot, and not
// behind the wall clock in microseconds. Tokens and the names of states are such numbers.
func (t *table) next() (uint64, error) {
	p := t.mem.word(headClock)
	for {
		old, err := load(p)
		if err != nil {
			return 0, err
		}
		v := max(old+1, uint64(max(0, time.Now().UnixMicro())))
		if done, err := swap(p, old, v); done || err != nil {
			return v, err
		}
	}
}

// count returns the next number of a counter in the head.
func (t *table) count(word int) (uint64, error) {
	p := t.mem.word(word)
	for {
		old, err := load(p)
		if err != nil {
			return 0, err
		}
		if done, err := swap(p, old, old+1); done || err != nil {
			return old + 1, err
		}
	}
}

// slot returns where the name stands.
func slot(name string) int {
	h := fnv.New64a()
	h.Write([]byte(name))
	v := h.Sum64()
	return int((v ^ v>>32 ^ v>>48) % slots)
}

func (t *table) word(slot int) *uint64 { return t.mem.word(headWords + slot) }

// A word names the state of its slot. No word is ever used again. It is odd, and at first 0, if
// nothing stands there, and no file does.
func vacant(word uint64) bool { return word == 0 || word&1 == 1 }

// stateName is where the state of a word stands.
func stateName(slot int, word uint64) string { return fmt.Sprintf("%04x-%016x", slot, word) }

// read returns the state of the slot as of now, taking what it can from old, an earlier one, which
// may be nil.
func (t *table) read(slot int, old *state) (*state, error) {
	for missing := uint64(0); ; {
		w, err := load(t.word(slot))
		switch {
		case err != nil:
			return nil, err
		case old != nil && old.word == w:
			return old, nil
		case vacant(w):
			return &state{word: w}, nil
		case w == missing: // whoever removes a state has put another in its place before
			return nil, fmt.Errorf("%s/states/%s is missing: something removed it; %s", t.path, stateName(slot, w), repair)
		}
		data, err := readAt(t.states, stateName(slot, w))
		if errors.Is(err, syscall.ENOENT) {
			missing = w
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read %s/states/%s: %w", t.path, stateName(slot, w), err)
		}
		s, err := decode(data, old)
		if err != nil {
			return nil, fmt.Errorf("%s/states/%s is damaged: %w; %s", t.path, stateName(slot, w), err, repair)
		}
		s.word = w
		return s, nil
	}
}

// replace puts s in the place of old, and reports whether it did: not if old is not the slot's
// state any more. After an error it did not. At calls are for tests: a process can be stopped at
// any of them.
func (t *table) replace(slot int, old, s *state, at func(step string)) (bool, error) {
	n, err := t.next()
	if err != nil {
		return false, err
	}
	s.word = n << 1
	if s.empty() {
		s.word |= 1
	}
	at("new")
	if err := t.write(slot, s); err != nil {
		return false, err
	}
	at("written")
	done, err := swap(t.word(slot), old.word, s.word)
	gone := old.word
	if !done {
		gone = s.word
	}
	at("swapped")
	if !vacant(gone) {
		// what stays is garbage, which sweep finds
		syscall.Unlinkat(t.states, stateName(slot, gone))
	}
	at("unlinked")
	return done, err
}

// write writes the state's file, or nothing of it.
func (t *table) write(slot int, s *state) error {
	if vacant(s.word) {
		return nil
	}
	data, err := s.encode()
	if err != nil {
		return err
	}
	name := stateName(slot, s.word)
	fd, err := openAt(t.states, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL)
	if err == nil {
		err = errors.Join(writeAll(fd, data), syscall.Close(fd))
		if err != nil {
			syscall.Unlinkat(t.states, name)
		}
	}
	if err != nil {
		return fmt.Errorf("write %s/states/%s: %w", t.path, name, err)
	}
	return nil
}
