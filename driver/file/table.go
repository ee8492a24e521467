//go:build linux

package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	format    = 1 // of the directory's content
	slots     = 1 << 16
	headWords = 512 // the first page
	tableSize = 8 * (headWords + slots)

	// Words of the head.
	headFormat = 0
	headClock  = 1 // the greatest number that was given out: see next
	headTime   = 2 // the time namespace of whoever made it
)

// table is the directory of this boot: the words in shared memory, and the states that they name.
type table struct {
	path string
	fd   int // of the file "table"
	mem  mapped

	dir, states, clients int // descriptors of the directories
}

// openTable returns the table of this boot in dir, and makes it if it is not there.
func openTable(dir, boot string) (*table, error) {
	path := filepath.Join(dir, "dlock-"+boot)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := makeTable(dir, path); err != nil {
			return nil, err
		}
	}
	t := &table{path: path, fd: -1, dir: -1, states: -1, clients: -1}
	if err := t.attach(); err != nil {
		t.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// ours matches the names of what makeTable leaves, and nothing that somebody else might keep in the directory.
var ours = regexp.MustCompile(`^dlock-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.new-[0-9]+)?$`)

// makeTable builds the directory aside and renames it into place, so that it is complete when it is seen. Whoever is
// first wins, the others use theirs. Then what earlier boots left goes: nobody lives there.
func makeTable(dir, path string) error {
	old, err := earlier(dir, path)
	if err != nil {
		return err
	}
	aside, err := os.MkdirTemp(dir, filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	content := make([]byte, tableSize) // really written: a hole might find the disk full when it is first touched
	head := func(word int, v uint64) { binary.NativeEndian.PutUint64(content[8*word:], v) }
	head(headFormat, format)
	head(headClock, greatest(old))
	head(headTime, timeNamespace())
	if err := os.WriteFile(filepath.Join(aside, "table"), content, 0o600); err != nil {
		return err
	}
	for _, name := range []string{"states", "clients"} {
		if err := os.Mkdir(filepath.Join(aside, name), 0o700); err != nil {
			return err
		}
	}
	err = os.Rename(aside, path)
	if err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
		return err
	}
	for _, p := range old {
		os.RemoveAll(p) // what cannot be removed is in nobody's way
	}
	return nil
}

// earlier returns what other boots left in dir.
func earlier(dir, path string) ([]string, error) {
	all, err := os.ReadDir(dir)
	var old []string
	for _, d := range all {
		p := filepath.Join(dir, d.Name())
		if d.IsDir() && ours.MatchString(d.Name()) && !strings.HasPrefix(p, path) {
			old = append(old, p)
		}
	}
	return old, err
}

// greatest returns the greatest number that earlier boots gave out, as far as they can still be read. After a power
// loss it may be too small; the wall clock, which next never falls behind, makes up for that.
func greatest(old []string) uint64 {
	var v uint64
	for _, p := range old {
		if f, err := os.Open(filepath.Join(p, "table")); err == nil {
			var word [8]byte
			if n, _ := f.ReadAt(word[:], 8*headClock); n == len(word) {
				v = max(v, binary.NativeEndian.Uint64(word[:]))
			}
			f.Close()
		}
	}
	return v
}

// attach opens and maps what is there.
func (t *table) attach() error {
	var err error
	if t.dir, err = openAt(atFDCWD, t.path, syscall.O_RDONLY|syscall.O_DIRECTORY); err != nil {
		return err
	}
	flock(t.dir, syscall.LOCK_SH) // asks systemd-tmpfiles to leave the directory alone
	if t.states, err = openAt(t.dir, "states", syscall.O_RDONLY|syscall.O_DIRECTORY); err != nil {
		return fmt.Errorf("states: %w", err)
	}
	if t.clients, err = openAt(t.dir, "clients", syscall.O_RDONLY|syscall.O_DIRECTORY); err != nil {
		return fmt.Errorf("clients: %w", err)
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
		err2 = fmt.Errorf("%w: this process is in another time namespace than those which use the directory, and so has another clock",
			driver.ErrUnsupported)
	}
	return errors.Join(err, err2)
}

const repair = "stop all programs that use the directory, and remove it"

func (t *table) close() {
	t.mem.unmap()
	for _, fd := range []int{t.fd, t.dir, t.states, t.clients} {
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

// next returns a number greater than all that it returned before, in any process and boot, and not behind the wall
// clock in microseconds. Tokens and the names of states are such numbers.
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

// slot returns where the name stands.
func slot(name string) int {
	h := fnv.New64a()
	h.Write([]byte(name))
	v := h.Sum64()
	return int((v ^ v>>32 ^ v>>48) % slots)
}

func (t *table) word(slot int) *uint64 { return t.mem.word(headWords + slot) }

// A word names the state of its slot. No word is ever used again. It is odd, and at first 0, if nothing stands there,
// and no file does.
func vacant(word uint64) bool { return word == 0 || word&1 == 1 }

// stateName is where the state of a word stands.
func stateName(slot int, word uint64) string { return fmt.Sprintf("%04x-%016x", slot, word) }

// read returns the state of the slot as of now, taking what it can from old, an earlier one, which may be nil.
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

// replace puts s in the place of old, and reports whether it did: not if old is not the slot's state any more. After an
// error it did not. At calls are for tests: a process can be stopped at any of them.
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
		syscall.Unlinkat(t.states, stateName(slot, gone)) // what stays is garbage, which sweep finds
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
