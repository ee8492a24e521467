//go:build linux || darwin

package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/dlock-go/dlock/driver"
)

// ours matches the names of the folders that makeTable makes, and no other names in the directory.
var ours = regexp.MustCompile(`^dlock-` + uuid + `(\.(new|old)-[0-9]+)?$`)

// unfinished reports whether a path that matches ours is not the folder of a boot, but one that is
// being made or removed, or was when its client died. It has no clients.
func unfinished(path string) bool { return filepath.Ext(path) != "" }

const uuid = `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`

var isBootID = regexp.MustCompile(`^` + uuid + `$`)

// cleanBootID returns the boot ID in the form that it has in names. The kernel's text may end in a
// line feed (Linux), or have capital letters (macOS).
func cleanBootID(raw string) (string, error) {
	id := strings.ToLower(strings.TrimSpace(raw))
	if !isBootID.MatchString(id) {
		return "", fmt.Errorf("the system returned %q, which is not a UUID", raw)
	}
	return id, nil
}

// others returns the folders of other boots in dir.
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

// foreign is the error of a client that opens while clients with another boot ID use path.
func foreign(path string) error {
	return fmt.Errorf("%w: processes with another boot ID use %s now, so they or this process run in a container with a boot "+
		"ID of its own; give all of them the same boot ID (/proc/sys/kernel/random/boot_id of the host), or separate "+
		"directories", driver.ErrUnsupported, path)
}

// bootCheck is the result of checkBoot for the folder of another boot. If the folder has no
// clients, none can enter it until the check is closed.
type bootCheck struct {
	folder
	lives bool // it has clients
	left  bool // it has no clients, and no other client removes it now
}

// checkBoot tests by the lock of the folder whether it has clients.
func checkBoot(path string) (bootCheck, error) {
	f, err := openFolder(path)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EACCES) && unfinished(path) {
		return bootCheck{}, nil
	} else if err != nil {
		return bootCheck{}, fmt.Errorf("cannot find out whether processes with another boot ID use %s: %w", path, err)
	}
	l := bootCheck{folder: f}
	if l.left, err = flock(f.fd, syscall.LOCK_EX); err == nil && !l.left {
		l.lives, err = flock(f.fd, syscall.LOCK_SH) // fails beside a client that removes it
	}
	if err != nil {
		l.close()
		return bootCheck{}, fmt.Errorf("flock %s: %w", path, err)
	}
	return l, nil
}

// takeOver takes over the greatest number of earlier boots, and removes their folders. Each client
// does so before it gives out its first number.
func (t *table) takeOver(dir string, at func(step string)) error {
	others, err := others(dir, t.path)
	if err != nil {
		return err
	}
	for _, p := range others {
		l, err := checkBoot(p)
		if err != nil {
			return err
		}
		if l.lives {
			l.close()
			return fmt.Errorf("%w: %w", errAgain, foreign(p))
		}
		err = raise(t.mem.word(headClock), greatest(p))
		at("clear")
		if l.left {
			old := fmt.Sprintf("%s.old-%d", t.path, rand.Uint64())
			if os.Rename(p, old) == nil {
				os.RemoveAll(old) // what cannot be removed does no harm
			}
		}
		l.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// greatest returns the greatest number that was given out in the folder of a boot, as far as it can
// still be read. Every format of the directory has it in the same place. After a power loss it may
// be too small; then the wall clock is a lower bound for every number: see next.
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

// announce takes the shared lock on the folder, which shows that it has clients. The lock also
// makes systemd-tmpfiles leave the folder alone.
func (t *table) announce() error {
	if locked, err := flock(t.dir.fd, syscall.LOCK_SH); err != nil {
		return fmt.Errorf("flock: %w", err)
	} else if !locked {
		return errAgain // a client with another boot ID removes it
	}
	var held, named syscall.Stat_t
	if err := syscall.Fstat(t.dir.fd, &held); err != nil {
		return err
	}
	if err := syscall.Stat(t.path, &named); err != nil || held.Ino != named.Ino || held.Dev != named.Dev {
		return errAgain // it was removed meanwhile
	}
	return nil
}
