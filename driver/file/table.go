//go:build linux || darwin

package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dlock-go/dlock/driver"
)

const (
	// format is the version of everything in the folder of a boot. It changes with the head, the
	// cells, the names of files, and the records of states: clients support only their own format.
	// Common to all formats are the name of the folder and the lock on it, and the words format and
	// clock of the file table. A record has the number of its format too.
	format = 3

	pipesFolder = "pipes" // of the clients' pipes; the name is part of the format

	slots     = 1 << 16
	headWords = 512 // the first page
	tableSize = 8 * (headWords + slots)

	// Words of the head.
	headFormat  = 0
	headClock   = 1 // the last number that was given out: see next
	headClockID = 2 // the clock of the client that made the table: see clockID
	headSession = 3 // the number of the last client: see sessionID
)

// table is the folder of this boot: words in shared memory, and files of states, which the words
// name.
type table struct {
	path  string
	fd    int        // of the file "table"
	files []identity // of the files "table" and "cells", which this client has open
	mem   mapped

	proc   process
	shared bool // made for the group too: see admit

	dir, states, pipes folder
	cells              cells
}

// openTable opens the table of this boot in dir, and makes it if it is missing. It fails while
// clients use the table of another boot ID: see "Boots" in the package comment.
func openTable(dir string, o owned, c config) (*table, error) {
	path := filepath.Join(dir, "dlock-"+c.boot)
	for end := time.Now().Add(openPatience); ; {
		t, err := enterTable(dir, path, o, c)
		if !errors.Is(err, errAgain) || time.Now().After(end) {
			return t, err
		}
		select {
		case <-time.After(rand.N(10 * time.Millisecond)):
		case <-c.left:
			return nil, err
		}
	}
}

// openPatience is for how long a client tries to open while others that open at the same time are
// in the way: with eight of them on a busy machine that took more than a second.
const openPatience = 5 * time.Second

// errAgain marks a failure that may pass in a moment.
var errAgain = errors.New("another client is opening or removing the directory at the moment")

// enterTable makes the table if it is missing, announces this client in it, and then checks whether
// other tables have clients. Of two clients that enter tables of different boots at once, at least
// one sees the other.
func enterTable(dir, path string, o owned, c config) (*table, error) {
	others, err := others(dir, path)
	if err != nil {
		return nil, err
	}
	for _, p := range others {
		if l, err := checkBoot(p); err != nil {
			return nil, foreignFile(p, err, c.proc)
		} else if l.close(); l.lives {
			return nil, foreign(p)
		}
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := makeTable(dir, path, o); err != nil {
			return nil, err
		}
	}
	t := &table{path: path, proc: c.proc, fd: -1, cells: cells{fd: -1}}
	if err := t.attach(); err != nil {
		t.close()
		return nil, fmt.Errorf("%s: %w", path, foreignFile(path, err, c.proc))
	}
	c.at("announced")
	if err := t.takeOver(dir, c.at); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// makeTable makes the folder under another name and renames it into place, so that it is complete
// when others see it. If another client was faster, that client's folder is used.
func makeTable(dir, path string, o owned) error {
	aside, err := os.MkdirTemp(dir, filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	err = fill(aside)
	if err == nil && o.shared() {
		in := func(name string) string { return filepath.Join(aside, name) }
		err = share(o.gid, []string{aside, in("states"), in(pipesFolder)}, in("table"), in("cells"))
	}
	if err == nil {
		err = os.Rename(aside, path)
	}
	switch {
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
		return nil
	case errors.Is(err, os.ErrNotExist):
		return errAgain // a client of another boot took it for a leftover
	}
	return err
}

// fill writes the content of a new folder.
func fill(path string) error {
	// written, since the first access to a hole may find the disk full
	content := make([]byte, tableSize)
	head := func(word int, v uint64) { binary.NativeEndian.PutUint64(content[8*word:], v) }
	head(headFormat, format)
	head(headClockID, clockID())
	err := os.WriteFile(filepath.Join(path, "table"), content, 0o600)
	if err == nil {
		err = os.WriteFile(filepath.Join(path, "cells"), make([]byte, chunkSize), 0o600)
	}
	for _, name := range []string{"states", pipesFolder} {
		if err == nil {
			err = os.Mkdir(filepath.Join(path, name), 0o700)
		}
	}
	return err
}

// attach opens and maps the files of the folder.
func (t *table) attach() error {
	var err error
	if t.dir, err = openFolder(t.path); errors.Is(err, syscall.ENOENT) {
		return errAgain
	} else if err != nil {
		return err
	}
	if err := t.admit(); err != nil {
		return err
	}
	if err := t.announce(); err != nil {
		return err
	}
	if t.fd, err = t.dir.open("table", syscall.O_RDWR); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	if err := checkFormat(t.fd); err != nil {
		return err
	}
	if t.states, err = openFolder(filepath.Join(t.path, "states")); err != nil {
		return fmt.Errorf("states: %w", err)
	}
	if n, err := size(t.fd); err != nil {
		return err
	} else if n != tableSize {
		return fmt.Errorf("the file table has %d bytes, not %d; %s", n, tableSize, repair)
	}
	if t.mem, err = mapFile(t.fd, 0, tableSize, syscall.PROT_READ|syscall.PROT_WRITE); err != nil {
		return fmt.Errorf("table: map: %w", err)
	}
	if id, err := load(t.mem.word(headClockID)); err != nil {
		return err
	} else if id != clockID() {
		return fmt.Errorf("%w: the process that made the directory in this boot is in another time namespace (Linux) than this one, or "+
			"only one of the two is translated by Rosetta (macOS), so their clocks may differ; run both in the same way, or "+
			"give each kind its own directory", driver.ErrUnsupported)
	}
	if t.pipes, err = openFolder(filepath.Join(t.path, pipesFolder)); err != nil {
		return fmt.Errorf("%s: %w", pipesFolder, err)
	}
	if t.cells.fd, err = t.dir.open("cells", syscall.O_RDWR|syscall.O_APPEND); err != nil {
		return fmt.Errorf("cells: %w", err)
	}
	for _, f := range []struct {
		name string
		fd   int
	}{{"table", t.fd}, {"cells", t.cells.fd}} {
		id, err := identifyOpen(filepath.Join(t.path, f.name), f.fd)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		t.files = append(t.files, id)
	}
	return nil
}

const repair = "stop all programs that use the directory, and remove it"

func (t *table) close() {
	t.mem.unmap()
	t.cells.close()
	if t.fd >= 0 {
		syscall.Close(t.fd)
	}
	for _, f := range []folder{t.dir, t.states, t.pipes} {
		f.close()
	}
}

// checkFormat returns an error if the file "table" has a format that this version of dlock does not
// support. It reads only the number of the format.
func checkFormat(fd int) error {
	var word [8]byte
	n, err := again(func() (int, error) { return syscall.Pread(fd, word[:], 8*headFormat) })
	switch v := binary.NativeEndian.Uint64(word[:]); {
	case err != nil:
		return fmt.Errorf("table: %w", err)
	case n < len(word):
		return fmt.Errorf("the file table has %d bytes, not %d; %s", n, tableSize, repair)
	case v != format:
		return fmt.Errorf("%w: the directory was made in this boot by a version of dlock with format %d, and this version has "+
			"format %d; all programs that use the directory need the same format; to change it %s (or reboot)",
			driver.ErrUnsupported, v, format, repair)
	}
	return nil
}

// moved returns an error that matches errMoved if the path no longer leads to the files that this
// client has open: a new client would find other locks there, or none. After any other error that
// is not known.
func (t *table) moved() error {
	for _, f := range t.files {
		named, err := identify(f.path)
		switch {
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
			return fmt.Errorf("%w: %s does not exist any more, so it was removed or moved while this process used it; %s",
				errMoved, f.path, doNotMove)
		case err != nil:
			return fmt.Errorf("find %s: %w", f.path, err)
		case named != f:
			return fmt.Errorf("%w: %s is not the file that this process opened, so the directory was moved, replaced or "+
				"mounted over; %s", errMoved, f.path, doNotMove)
		}
	}
	return nil
}

// identity is the file to which a path leads.
type identity struct {
	path     string
	dev, ino uint64
}

func identify(path string) (identity, error) {
	var st syscall.Stat_t
	_, err := again(func() (struct{}, error) { return struct{}{}, syscall.Stat(path, &st) })
	return identity{path, uint64(st.Dev), st.Ino}, err
}

func identifyOpen(path string, fd int) (identity, error) {
	var st syscall.Stat_t
	err := syscall.Fstat(fd, &st)
	return identity{path, uint64(st.Dev), st.Ino}, err
}

// errMoved means that the directory is no longer at its path.
var errMoved = errors.New("the directory of the locks was moved")

const doNotMove = "stop all programs that use a directory of locks before you move it"

// next returns a number that is greater than all that it returned before, in any process and boot,
// and not below the wall clock in microseconds. Tokens and words of states are made of it.
func (t *table) next() (uint64, error) {
	return t.advance(headClock, uint64(max(0, time.Now().UnixMicro())))
}

// advance returns the next number of a counter in the head, at least the given one.
func (t *table) advance(word int, least uint64) (uint64, error) {
	p := t.mem.word(word)
	for {
		old, err := load(p)
		if err != nil {
			return 0, err
		}
		v := max(old+1, least)
		if done, err := swap(p, old, v); done || err != nil {
			return v, err
		}
	}
}

// slot returns the slot of the name.
func slot(name string) int {
	h := fnv.New64a()
	h.Write([]byte(name))
	v := h.Sum64()
	return int((v ^ v>>32 ^ v>>48) % slots)
}

// word returns the word of the slot.
func (t *table) word(slot int) *uint64 { return t.mem.word(headWords + slot) }

// vacant reports whether a slot with that word is empty. A word names the state of its slot, and no
// word is ever used again. The word of a vacant slot is 0 or odd, and has no file.
func vacant(word uint64) bool { return word == 0 || word&1 == 1 }

// stateName returns the name of the file of a state.
func stateName(slot int, word uint64) string { return fmt.Sprintf("%04x-%016x", slot, word) }

// read returns the current state of the slot. It reuses what it can of old, an earlier state of the
// slot, which may be nil.
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
		case w == missing: // no client removes a state before it has put another in its place
			return nil, fmt.Errorf("%s/%s is missing: it was removed, but not by a client; %s", t.states.path, stateName(slot, w), repair)
		}
		name := stateName(slot, w)
		data, err := t.states.read(name, headSize-checkSize, func(start string, size int64) bool {
			return start == recordSize(name, size-int64(headSize))
		})
		if errors.Is(err, syscall.ENOENT) {
			missing = w
			continue
		} else if err != nil {
			path := filepath.Join(t.states.path, name)
			return nil, fmt.Errorf("read %s: %w", path, foreignFile(path, err, t.proc))
		}
		s, err := decode(data, name, old)
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w; %s", t.states.path, name, err, repair)
		}
		s.word = w
		return s, nil
	}
}

// replace puts s in the place of old. It reports false if old is not the slot's state any more.
// After an error it has done nothing. It calls at for tests: a process can be stopped at each of
// these steps.
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
		// if it remains it is garbage, which purge removes
		t.states.remove(stateName(slot, gone))
	}
	at("unlinked")
	return done, err
}

// write writes the record of the state. After an error there is no record.
func (t *table) write(slot int, s *state) error {
	if vacant(s.word) {
		return nil
	}
	name := stateName(slot, s.word)
	fd, err := t.states.open(name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL)
	if err == nil {
		if t.shared {
			err = syscall.Fchmod(fd, 0o660)
		}
		if err = errors.Join(err, writeAll(fd, s.encode(name)), syscall.Close(fd)); err != nil {
			t.states.remove(name)
		}
	}
	if err != nil {
		return fmt.Errorf("write %s/%s: %w", t.states.path, name, err)
	}
	return nil
}
